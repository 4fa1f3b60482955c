"""The protocol itself, as no official client would use it, and what the official Python client cannot ask for."""

from __future__ import annotations

import asyncio
import struct
import threading
import time
from datetime import datetime
from typing import Any

import pytest
from gateway_support import BareClient, ServedEngine
from raw_command_support import flow, produce, publish, subscribe
from verify_support import change_block, flipped

from replicator.engine.errors import ClusterFenced, SubscriptionBusy
from replicator.engine.log.entry import encode_entry
from replicator.engine.log.store_tables import LOCAL_PREFIX
from replicator.metadata.metadata_pb2 import MessageMetadata
from replicator.protocol.commands_pb2 import (
    BaseCommand,
    CommandAck,
    CommandCloseConsumer,
    CommandCloseProducer,
    CommandConsumerStats,
    CommandGetLastMessageId,
    CommandGetTopicsOfNamespace,
    CommandLookupTopic,
    CommandNewTxn,
    CommandPartitionedTopicMetadata,
    CommandPing,
    CommandPong,
    CommandRedeliverUnacknowledgedMessages,
    CommandSeek,
    CommandSend,
    CommandSubscribe,
    CommandTcClientConnectRequest,
    CommandUnsubscribe,
    CommandWatchTopicList,
    CommandWatchTopicListClose,
    MessageIdData,
    ServerError,
)
from replicator.protocol.errors import Refused
from replicator.protocol.frames import encode, encode_head

T = BaseCommand.Type
SubType = CommandSubscribe.SubType


def ack(*ids: MessageIdData, consumer_id: int = 1, **fields: Any) -> BaseCommand:
    command = CommandAck(consumer_id=consumer_id, ack_type=CommandAck.AckType.Individual, **fields)
    command.message_id.extend(ids)
    return BaseCommand(type=T.ACK, ack=command)


def published(client: BareClient, topic: str, count: int) -> list[MessageIdData]:
    produce(client, topic)
    ids = []
    for number in range(count):
        publish(client, sequence_id=number, payload=b"m%d" % number)
        ids.append(client.next(T.SEND_RECEIPT).command.send_receipt.message_id)
    return ids


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack(">I", 2**31 - 1),
        struct.pack(">II", 8, 9) + b"abcd",
        encode(BaseCommand(type=T.PING, ping=CommandPing())),
    ],
)
def test_garbage_closes_that_connection_and_no_other(gateway: ServedEngine, topic: str, sent: bytes) -> None:
    with BareClient(gateway.port) as good, BareClient(gateway.port, connect=False) as bad:
        bad.socket.sendall(sent)
        assert bad.closed_by_server()
        published(good, topic, 1)


def test_what_was_answered_before_a_connection_is_closed_arrives(gateway: ServedEngine) -> None:
    with BareClient(gateway.port) as client:
        client.socket.sendall(encode(BaseCommand(type=T.PING, ping=CommandPing())) + struct.pack(">I", 2**31 - 1))
        came = b""
        while data := client.socket.recv(65536):
            came += data
        assert came == encode(BaseCommand(type=T.PONG, pong=CommandPong()))


def test_a_send_for_a_producer_that_is_not_there_closes_the_connection(gateway: ServedEngine) -> None:
    with BareClient(gateway.port) as client:
        publish(client, producer_id=9)
        assert client.closed_by_server()


def test_what_is_sent_to_a_producer_that_the_server_let_go_of_is_dropped(gateway: ServedEngine, topic: str) -> None:
    with BareClient(gateway.port) as client:
        published(client, topic, 1)
        gateway.run(gateway.engine.deleting.delete(topic, force=True))
        assert client.next(T.CLOSE_PRODUCER).command.close_producer.producer_id == 1
        publish(client, sequence_id=1)
        produce(client, topic)
        publish(client, sequence_id=2)
        assert client.next(T.SEND_RECEIPT).command.send_receipt.sequence_id == 2


def test_an_entry_that_is_damaged_is_refused_and_the_others_are_stored(gateway: ServedEngine, topic: str) -> None:
    with BareClient(gateway.port) as client:
        produce(client, topic)
        metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
        damaged = bytearray(encode_entry(metadata, b"m"))
        damaged[-1] ^= 1
        good = encode_entry(metadata, b"m")
        stream = b""
        for sequence_id, entry in enumerate((good, bytes(damaged), good)):
            command = CommandSend(producer_id=1, sequence_id=sequence_id)
            stream += encode_head(BaseCommand(type=T.SEND, send=command), len(entry)) + entry
        client.socket.sendall(stream)
        assert client.next(T.SEND_ERROR).command.send_error.error == ServerError.ChecksumError
        assert [client.next(T.SEND_RECEIPT).command.send_receipt.sequence_id for _ in range(2)] == [0, 2]


def test_a_request_that_is_made_twice_is_answered_twice(gateway: ServedEngine, topic: str) -> None:
    with BareClient(gateway.port) as client:
        assert produce(client, topic, producer_name="me").producer_name == "me"
        assert produce(client, topic, producer_name="me").producer_name == "me"
        subscribe(client, topic)
        subscribe(client, topic)


def test_closing_what_is_not_there_succeeds(gateway: ServedEngine) -> None:
    with BareClient(gateway.port) as client:
        client.request(
            lambda number: BaseCommand(
                type=T.CLOSE_PRODUCER, close_producer=CommandCloseProducer(producer_id=5, request_id=number)
            )
        )
        client.request(
            lambda number: BaseCommand(
                type=T.CLOSE_CONSUMER, close_consumer=CommandCloseConsumer(consumer_id=5, request_id=number)
            )
        )


def test_an_acknowledgement_counts_before_the_consumer_is_closed(gateway: ServedEngine, topic: str) -> None:
    with BareClient(gateway.port) as client:
        ids = published(client, topic, 2)
        subscribe(client, topic)
        flow(client, 10)
        assert [client.next(T.MESSAGE).command.message.message_id.entryId for _ in range(2)] == [0, 1]
        closing = CommandCloseConsumer(consumer_id=1, request_id=client.state.request_id())
        both = encode(ack(ids[0])) + encode(BaseCommand(type=T.CLOSE_CONSUMER, close_consumer=closing))
        client.socket.sendall(both)
        subscribe(client, topic, consumer_id=2)
        flow(client, 10, consumer_id=2)
        assert client.next(T.MESSAGE).command.message.message_id.entryId == 1


def test_receipts_of_acknowledgements_say_what_was_wrong(gateway: ServedEngine, topic: str) -> None:
    with BareClient(gateway.port) as client:
        (message,) = published(client, topic, 1)
        subscribe(client, topic)
        right = client.request(lambda number: ack(message, request_id=number))
        assert not right.HasField("error")
        beyond = MessageIdData(ledgerId=message.ledgerId, entryId=77)
        wrong = client.request(lambda number: ack(beyond, request_id=number))
        assert wrong.error == ServerError.MetadataError
        assert "77" in wrong.message


def test_a_cumulative_acknowledgement_of_what_is_not_here_covers_nothing(gateway: ServedEngine, topic: str) -> None:
    """Another cluster's id is such a case, if its ledger's number lies between two of this cluster."""
    with BareClient(gateway.port) as client:
        (message,) = published(client, topic, 1)
        subscribe(client, topic)

        def foreign(number: int, ledger: int) -> BaseCommand:
            wanted = ack(MessageIdData(ledgerId=ledger, entryId=0), request_id=number)
            wanted.ack.ack_type = CommandAck.AckType.Cumulative
            return wanted

        for ledger in (message.ledgerId - 1, message.ledgerId + 1):
            answer = client.request(lambda number, ledger=ledger: foreign(number, ledger))
            assert answer.error == ServerError.MetadataError
        flow(client, 1)
        assert client.next(T.MESSAGE).command.message.message_id == message
        right = client.request(lambda number: foreign(number, message.ledgerId))
        assert not right.HasField("error")


def test_permits_bound_what_is_sent(gateway: ServedEngine, topic: str) -> None:
    with BareClient(gateway.port) as client:
        published(client, topic, 5)
        subscribe(client, topic, subType=SubType.Shared)
        flow(client, 2)
        for _ in range(2):
            client.next(T.MESSAGE)

        def stats(number: int) -> BaseCommand:
            return BaseCommand(
                type=T.CONSUMER_STATS, consumerStats=CommandConsumerStats(request_id=number, consumer_id=1)
            )

        answer = client.request(stats)
        assert (answer.availablePermits, answer.msgBacklog, answer.type) == (0, 5, "Shared")
        assert (answer.unackedMessages, answer.blockedConsumerOnUnackedMsgs, answer.msgRateExpired) == (2, False, 0)
        assert answer.address == f"/127.0.0.1:{client.socket.getsockname()[1]}"
        assert datetime.fromisoformat(answer.connectedSince).tzinfo is not None
        assert 0 < answer.msgRateOut <= 2
        assert (answer.msgRateRedeliver, answer.messageAckRate) == (0, 0)
        assert answer.msgThroughputOut > answer.msgRateOut
        flow(client, 1)
        assert client.next(T.MESSAGE).command.message.message_id.entryId == 2


def test_rates_count_what_comes_again_and_what_is_acknowledged(gateway: ServedEngine, topic: str) -> None:
    with BareClient(gateway.port) as client:
        first, *_ = published(client, topic, 3)
        subscribe(client, topic, subType=SubType.Shared)
        flow(client, 6)
        for _ in range(3):
            client.next(T.MESSAGE)
        client.request(lambda number: ack(first, request_id=number))
        again = CommandRedeliverUnacknowledgedMessages(consumer_id=1)
        client.send(BaseCommand(type=T.REDELIVER_UNACKNOWLEDGED_MESSAGES, redeliverUnacknowledgedMessages=again))
        for _ in range(2):
            assert client.next(T.MESSAGE).command.message.redelivery_count == 1
        answer = client.request(
            lambda number: BaseCommand(
                type=T.CONSUMER_STATS, consumerStats=CommandConsumerStats(request_id=number, consumer_id=1)
            )
        )
        counted = (answer.msgRateOut, answer.msgRateRedeliver, answer.messageAckRate)
        assert counted[0] == pytest.approx(5 * counted[2])
        assert counted[1] == pytest.approx(2 * counted[2])
        assert counted[2] > 0


def test_a_reader_goes_back_by_a_time(gateway: ServedEngine, topic: str) -> None:
    with BareClient(gateway.port) as client:
        published(client, topic, 2)
        for sequence_id in (2, 3):
            publish(client, sequence_id=sequence_id, at_ms=time.time_ns() // 1_000_000)
            client.next(T.SEND_RECEIPT)
        latest = MessageIdData(ledgerId=2**63 - 1, entryId=2**63 - 1)
        subscribe(client, topic, durable=False, start_message_id=latest, start_message_rollback_duration_sec=3600)
        flow(client, 3)
        assert [client.next(T.MESSAGE).command.message.message_id.entryId for _ in range(2)] == [2, 3]


def test_a_number_of_permits_that_makes_no_sense_closes_the_connection(gateway: ServedEngine, topic: str) -> None:
    with BareClient(gateway.port) as client:
        subscribe(client, topic)
        flow(client, 2**31)
        assert client.closed_by_server()


def test_priorities_decide_which_shared_consumer_is_served_first(gateway: ServedEngine, topic: str) -> None:
    with BareClient(gateway.port) as client:
        for consumer_id in (0, 1):
            subscribe(client, topic, consumer_id=consumer_id, subType=SubType.Shared, priority_level=consumer_id)
            flow(client, 2, consumer_id=consumer_id)
        published(client, topic, 4)
        got = [client.next(T.MESSAGE).command.message.consumer_id for _ in range(4)]
        assert got == [0, 0, 1, 1]


def test_failover_consumers_are_told_who_is_active(gateway: ServedEngine, topic: str) -> None:
    with BareClient(gateway.port) as client:
        for consumer_id in (1, 2):
            name = "ab"[consumer_id - 1]
            subscribe(client, topic, consumer_id=consumer_id, subType=SubType.Failover, consumer_name=name)
        changes = [client.next(T.ACTIVE_CONSUMER_CHANGE).command.active_consumer_change for _ in range(2)]
        assert {each.consumer_id: each.is_active for each in changes} == {1: True, 2: False}
        client.request(
            lambda number: BaseCommand(
                type=T.CLOSE_CONSUMER, close_consumer=CommandCloseConsumer(consumer_id=1, request_id=number)
            )
        )
        now = client.next(T.ACTIVE_CONSUMER_CHANGE).command.active_consumer_change
        assert (now.consumer_id, now.is_active) == (2, True)


def test_a_failover_consumer_is_not_told_with_the_answer_to_its_subscribe(
    gateway: ServedEngine, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Go client knows the consumer only a moment later, and drops what comes before."""
    monkeypatch.setattr("replicator.gateway.consuming.FIRST_ACTIVE_CHANGE_SECONDS", 3600.0)
    with BareClient(gateway.port) as client:
        subscribe(client, topic, subType=SubType.Failover)
        client.ping()
        assert client._steps == []


def test_properties_of_a_subscription_and_its_start_are_kept(gateway: ServedEngine, topic: str) -> None:
    with BareClient(gateway.port) as client:
        ids = published(client, topic, 3)
        properties = [{"key": "team", "value": "a"}]
        subscribe(client, topic, subscription_properties=properties, start_message_id=ids[2])
        flow(client, 10)
        assert client.next(T.MESSAGE).command.message.message_id.entryId == 2
        there = gateway.engine.find(topic)
        assert there is not None
        assert dict(there.subscriptions["s"].cursor.state.properties) == {"team": "a"}


def test_the_answer_about_the_last_message_has_the_mark_delete_position(gateway: ServedEngine, topic: str) -> None:
    with BareClient(gateway.port) as client:
        ids = published(client, topic, 3)
        subscribe(client, topic)
        client.request(lambda number: ack(ids[0], request_id=number))
        answer = client.request(
            lambda number: BaseCommand(
                type=T.GET_LAST_MESSAGE_ID,
                getLastMessageId=CommandGetLastMessageId(consumer_id=1, request_id=number),
            )
        )
        assert answer.last_message_id.entryId == 2
        assert answer.consumer_mark_delete_position.entryId == 0


def test_damaged_blocks_cost_the_requests_that_need_them_and_not_the_connection(
    gateway: ServedEngine, topic: str
) -> None:
    with BareClient(gateway.port) as client:
        published(client, topic, 2)
        produce(client, f"{topic}-other", producer_id=2)
        subscribe(client, topic)
        there = gateway.engine.find(topic)
        assert there is not None

        def damage() -> None:
            for number in range(2):
                change_block(there, number, flipped(LOCAL_PREFIX.size))
            there.reading.discard_through(there.log.last)

        gateway.ask(damage)
        with pytest.raises(Refused, match="damaged"):
            client.request(
                lambda number: BaseCommand(
                    type=T.GET_LAST_MESSAGE_ID,
                    getLastMessageId=CommandGetLastMessageId(consumer_id=1, request_id=number),
                )
            )
        answer = client.request(
            lambda number: BaseCommand(
                type=T.CONSUMER_STATS, consumerStats=CommandConsumerStats(request_id=number, consumer_id=1)
            )
        )
        assert (answer.HasField("error_code"), answer.msgBacklog) == (False, 2), "entries count where messages cannot"
        publish(client, producer_id=2)
        assert client.next(T.SEND_RECEIPT).command.send_receipt.producer_id == 2


@pytest.mark.parametrize("kind", ["seek", "unsubscribe", "getLastMessageId"])
def test_requests_to_a_consumer_that_is_not_there_are_refused(gateway: ServedEngine, kind: str) -> None:
    made = {
        "seek": lambda number: BaseCommand(type=T.SEEK, seek=CommandSeek(consumer_id=9, request_id=number)),
        "unsubscribe": lambda number: BaseCommand(
            type=T.UNSUBSCRIBE, unsubscribe=CommandUnsubscribe(consumer_id=9, request_id=number)
        ),
        "getLastMessageId": lambda number: BaseCommand(
            type=T.GET_LAST_MESSAGE_ID, getLastMessageId=CommandGetLastMessageId(consumer_id=9, request_id=number)
        ),
    }
    with BareClient(gateway.port) as client:
        with pytest.raises(Refused) as refused:
            client.request(made[kind])
        assert refused.value.code == ServerError.MetadataError


def test_a_forced_unsubscribe_puts_the_others_out(gateway: ServedEngine, topic: str) -> None:
    with BareClient(gateway.port) as client:
        for consumer_id in (1, 2):
            subscribe(client, topic, consumer_id=consumer_id, subType=SubType.Shared)

        def unsubscribe(number: int, *, force: bool) -> BaseCommand:
            wanted = CommandUnsubscribe(consumer_id=1, request_id=number, force=force)
            return BaseCommand(type=T.UNSUBSCRIBE, unsubscribe=wanted)

        with pytest.raises(Refused):
            client.request(lambda number: unsubscribe(number, force=False))
        client.request(lambda number: unsubscribe(number, force=True))
        assert client.next(T.CLOSE_CONSUMER).command.close_consumer.consumer_id == 2


def test_transactions_are_refused_in_their_own_shape(gateway: ServedEngine) -> None:
    with BareClient(gateway.port) as client:
        answers = [
            client.request(
                lambda number: BaseCommand(
                    type=T.TC_CLIENT_CONNECT_REQUEST,
                    tcClientConnectRequest=CommandTcClientConnectRequest(request_id=number, tc_id=0),
                )
            ),
            client.request(lambda number: BaseCommand(type=T.NEW_TXN, newTxn=CommandNewTxn(request_id=number))),
        ]
    assert [each.error for each in answers] == [ServerError.NotAllowedError] * 2


def topics_of(client: BareClient, **fields: Any) -> Any:
    return client.request(
        lambda number: BaseCommand(
            type=T.GET_TOPICS_OF_NAMESPACE,
            getTopicsOfNamespace=CommandGetTopicsOfNamespace(request_id=number, **fields),
        )
    )


def test_topics_of_a_namespace_by_pattern_by_hash_and_by_mode(gateway: ServedEngine) -> None:
    for name in ("list/of/orders-a", "list/of/orders-b", "list/of/other"):
        gateway.run(gateway.engine.topic(f"persistent://{name}"))
    gateway.run(gateway.engine.partitioned.create("persistent://list/of/orders-p", 2))
    with BareClient(gateway.port) as client:
        everything = topics_of(client, namespace="list/of")
        assert len(everything.topics) == 5
        assert not everything.filtered
        orders = topics_of(client, namespace="list/of", topics_pattern="persistent://list/of/orders-.")
        assert [name.rpartition("/")[2] for name in orders.topics] == [
            "orders-a",
            "orders-b",
            "orders-p-partition-0",
            "orders-p-partition-1",
        ]
        assert orders.filtered
        again = topics_of(
            client, namespace="list/of", topics_pattern="list/of/orders-.", topics_hash=orders.topics_hash
        )
        assert not again.changed
        assert not again.topics
        unreadable = topics_of(client, namespace="list/of", topics_pattern="persistent://list/of/(?!x).*")
        assert not unreadable.filtered
        assert len(unreadable.topics) == 5
        other_mode = CommandGetTopicsOfNamespace.Mode.NON_PERSISTENT
        assert not topics_of(client, namespace="list/of", mode=other_mode).topics
        assert not topics_of(client, namespace="no/where").topics


def watch(client: BareClient, pattern: str, *, watcher_id: int = 1) -> Any:
    return client.request(
        lambda number: BaseCommand(
            type=T.WATCH_TOPIC_LIST,
            watchTopicList=CommandWatchTopicList(
                request_id=number, watcher_id=watcher_id, namespace="watched/one", topics_pattern=pattern
            ),
        )
    )


def test_a_watcher_hears_of_topics_that_come_and_go_each_partition_by_itself(gateway: ServedEngine) -> None:
    prefix = "persistent://watched/one/w"
    gateway.run(gateway.engine.topic(f"{prefix}-a"))
    gateway.run(gateway.engine.partitioned.create(f"{prefix}-p", 2))
    with BareClient(gateway.port) as client:
        listed = watch(client, f"{prefix}-.*")
        assert list(listed.topic) == [f"{prefix}-a", f"{prefix}-p-partition-0", f"{prefix}-p-partition-1"]
        gateway.run(gateway.engine.topic(f"{prefix}-b"))
        gateway.run(gateway.engine.topic("persistent://watched/one/unrelated"))
        update = client.next(T.WATCH_TOPIC_UPDATE).command.watchTopicUpdate
        assert (list(update.new_topics), list(update.deleted_topics)) == ([f"{prefix}-b"], [])
        gateway.run(gateway.engine.partitioned.grow(f"{prefix}-p", 3))
        update = client.next(T.WATCH_TOPIC_UPDATE).command.watchTopicUpdate
        assert (list(update.new_topics), list(update.deleted_topics)) == ([f"{prefix}-p-partition-2"], [])
        gateway.run(gateway.engine.deleting.delete(f"{prefix}-a"))
        update = client.next(T.WATCH_TOPIC_UPDATE).command.watchTopicUpdate
        assert (list(update.new_topics), list(update.deleted_topics)) == ([], [f"{prefix}-a"])
        polled = topics_of(client, namespace="watched/one", topics_pattern=f"{prefix}-.*")
        assert polled.topics_hash == update.topics_hash
        client.request(
            lambda number: BaseCommand(
                type=T.WATCH_TOPIC_LIST_CLOSE,
                watchTopicListClose=CommandWatchTopicListClose(request_id=number, watcher_id=1),
            )
        )
        assert watch(client, f"{prefix}-b").topic == [f"{prefix}-b"]


def test_a_pattern_that_cannot_be_read_is_refused_to_a_watcher(gateway: ServedEngine) -> None:
    with BareClient(gateway.port) as client:
        with pytest.raises(Refused) as refused:
            watch(client, "persistent://watched/one/(?!x)")
        assert refused.value.code == ServerError.NotAllowedError
        assert watch(client, "persistent://watched/one/x").topic == []


def test_watchers_of_a_connection_that_is_gone_are_gone(gateway: ServedEngine) -> None:
    gateway.until(lambda: len(gateway.gateway._watchers) == 0, "the watchers of other tests are gone")
    with BareClient(gateway.port) as client:
        watch(client, "persistent://watched/one/gone-.*")
        assert gateway.ask(lambda: len(gateway.gateway._watchers)) == 1
    gateway.until(lambda: len(gateway.gateway._watchers) == 0, "the watcher is gone")


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("persistent://public/default", ServerError.InvalidTopicName),
        ("non-persistent://public/default/t", ServerError.NotAllowedError),
    ],
)
def test_a_lookup_of_a_name_that_cannot_be_is_refused_by_name(
    gateway: ServedEngine, name: str, code: ServerError
) -> None:
    with BareClient(gateway.port) as client:
        answer = client.request(
            lambda number: BaseCommand(type=T.LOOKUP, lookupTopic=CommandLookupTopic(topic=name, request_id=number))
        )
    assert answer.error == code


def test_who_only_asks_for_partitions_learns_whether_the_topic_is_there(gateway: ServedEngine, topic: str) -> None:
    """Java's client takes the retry and dead letter topics of an old name, the same for all topics, if there."""

    def asked(client: BareClient, name: str, *, create: bool) -> Any:
        return client.request(
            lambda number: BaseCommand(
                type=T.PARTITIONED_METADATA,
                partitionMetadata=CommandPartitionedTopicMetadata(
                    topic=name, request_id=number, metadata_auto_creation_enabled=create
                ),
            )
        )

    with BareClient(gateway.port) as client:
        assert asked(client, topic, create=True).partitions == 0
        assert asked(client, topic, create=False).error == ServerError.TopicNotFound
        gateway.run(gateway.engine.topic(topic))
        here = asked(client, topic, create=False)
        assert not here.HasField("error")
        assert here.partitions == 0
        gateway.run(gateway.engine.partitioned.create(f"{topic}-whole", 3))
        assert asked(client, f"{topic}-whole", create=False).partitions == 3


class UsedElsewhere:
    """Another cluster that is asked whether consumers use a subscription, and answers late that they do."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.answers = asyncio.Event()

    async def check_unused(self, *_: object) -> None:
        self.asked.set()
        await self.answers.wait()
        raise SubscriptionBusy("consumers of eu-west use it")


@pytest.mark.parametrize("deleted", [True, False])
def test_a_consumer_that_is_closed_while_its_unsubscribing_is_refused_hears_of_both(
    gateway: ServedEngine, topic: str, monkeypatch: pytest.MonkeyPatch, deleted: bool
) -> None:
    """Otherwise its client keeps a consumer that never receives anything."""
    elsewhere = gateway.ask(UsedElsewhere)
    monkeypatch.setattr(gateway.engine.admission, "use_elsewhere", elsewhere)
    with BareClient(gateway.port) as client:
        subscribe(client, topic, replicate_subscription_state=True)
        number = client.state.request_id()
        unsubscribe = CommandUnsubscribe(consumer_id=1, request_id=number)
        client.send(BaseCommand(type=T.UNSUBSCRIBE, unsubscribe=unsubscribe))
        assert elsewhere.asked.wait(10)
        found = gateway.engine.find(topic)
        assert found is not None
        subscription = found.subscriptions["s"]
        if deleted:
            gateway.run(subscription.deleting.delete(force=True))
        else:
            (consumer,) = subscription.consumers.values()
            gateway.ask(lambda: consumer.fence(ClusterFenced("another cluster serves")))
        gateway.ask(elsewhere.answers.set)
        assert client.next(T.CLOSE_CONSUMER).command.close_consumer.consumer_id == 1
        subscribe(client, topic, replicate_subscription_state=True)
        assert gateway.ask(lambda: len(found.subscriptions["s"].consumers)) == 1
