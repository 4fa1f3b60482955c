"""Position of a consumer: seek, last message id, unsubscribe, readers, and reconnecting after the server let go."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import pytest
from acknowledging_support import SubType, T, answers, connected, received, send
from gateway_support import BareClient, ServedEngine

from replicator.engine.log.gathered_puts import Prefix, Row
from replicator.protocol.commands_pb2 import BaseCommand, CommandFlow, CommandSeek, CommandSubscribe

pulsar = pytest.importorskip("pulsar")

WAIT_MS = 10_000
NOTHING_MS = 200
"""Time that a test waits to see that nothing comes."""
EARLIEST = pulsar.InitialPosition.Earliest


def publish(official: Any, topic: str, count: int, **options: Any) -> list[Any]:
    """Publish ``m0`` and so on, in one batch if batching is on; return the ids."""
    producer = official.create_producer(topic, batching_max_publish_delay_ms=5_000, **options)
    ids: list[Any] = []
    for number in range(count):
        producer.send_async(b"m%d" % number, lambda _result, message_id: ids.append(message_id))
    producer.flush()
    producer.close()
    return ids


def contents(receive: Any, count: int) -> list[bytes]:
    return [receive(WAIT_MS).data() for _ in range(count)]


def named(*numbers: int) -> list[bytes]:
    return [b"m%d" % number for number in numbers]


def nothing_comes(receive: Any) -> None:
    with pytest.raises(pulsar.Timeout):
        receive(NOTHING_MS)


@pytest.mark.parametrize("kind", ["Exclusive", "Shared", "Failover", "KeyShared"])
def test_a_seek_by_id_begins_with_that_message_or_after_it(official: Any, topic: str, kind: str) -> None:
    ids = publish(official, topic, 5)
    for inclusive, expected in ((True, (2, 3, 4)), (False, (3, 4))):
        consumer = official.subscribe(
            topic,
            f"s-{inclusive}",
            consumer_type=getattr(pulsar.ConsumerType, kind),
            initial_position=EARLIEST,
            start_message_id_inclusive=inclusive,
        )
        assert contents(consumer.receive, 5) == named(0, 1, 2, 3, 4)
        consumer.seek(ids[2])
        # Upstream's servers begin with the message itself; those of one type alone are left out by the client.
        got = contents(consumer.receive, len(expected))
        assert got[-2:] == named(3, 4) or got == named(2, 3)
        consumer.close()


def test_a_seek_goes_to_both_ends_and_back(official: Any, topic: str) -> None:
    publish(official, topic, 3)
    consumer = official.subscribe(topic, "s", initial_position=EARLIEST)
    assert contents(consumer.receive, 3) == named(0, 1, 2)
    consumer.seek(pulsar.MessageId.earliest)
    assert contents(consumer.receive, 3) == named(0, 1, 2)
    consumer.seek(pulsar.MessageId.latest)
    nothing_comes(consumer.receive)
    publish(official, topic, 1)
    assert contents(consumer.receive, 1) == named(0)


def test_a_seek_by_time_begins_with_what_was_published_then(official: Any, topic: str) -> None:
    producer = official.create_producer(topic)
    producer.send(b"before")
    after_ms = time.time_ns() // 1_000_000 + 1
    while time.time_ns() // 1_000_000 <= after_ms:
        pass
    producer.send(b"after")
    consumer = official.subscribe(topic, "s", initial_position=EARLIEST)
    assert contents(consumer.receive, 2) == [b"before", b"after"]
    consumer.seek(after_ms)
    assert contents(consumer.receive, 1) == [b"after"]
    nothing_comes(consumer.receive)


def test_what_was_acknowledged_before_a_seek_comes_again_and_is_acknowledged_anew(
    official: Any, gateway: ServedEngine, topic: str
) -> None:
    publish(official, topic, 3)
    consumer = official.subscribe(topic, "s", initial_position=EARLIEST)
    for _ in range(3):
        consumer.acknowledge(consumer.receive(WAIT_MS))
    consumer.seek(pulsar.MessageId.earliest)
    for _ in range(3):
        consumer.acknowledge(consumer.receive(WAIT_MS))
    there = gateway.engine.find(topic)
    assert there is not None
    gateway.until(lambda: there.subscriptions["s"].backlog_messages() == 0, "all is acknowledged")


def test_the_last_message_id_names_the_message_in_its_batch(official: Any, topic: str) -> None:
    consumer = official.subscribe(topic, "s")
    nothing = consumer.get_last_message_id()
    assert (nothing.ledger_id(), nothing.entry_id()) == (-1, -1)
    single = publish(official, topic, 1)[-1]
    assert consumer.get_last_message_id() == single
    batched = publish(official, topic, 4, batching_enabled=True)[-1]
    last = consumer.get_last_message_id()
    assert (last.ledger_id(), last.entry_id(), last.batch_index()) == (batched.ledger_id(), batched.entry_id(), 3)


def test_an_unsubscribed_subscription_is_gone(official: Any, gateway: ServedEngine, topic: str) -> None:
    publish(official, topic, 2)
    consumer = official.subscribe(topic, "s", initial_position=EARLIEST)
    consumer.unsubscribe()
    there = gateway.engine.find(topic)
    assert there is not None
    assert gateway.ask(lambda: list(there.subscriptions)) == []
    again = official.subscribe(topic, "s", initial_position=EARLIEST)
    assert contents(again.receive, 2) == named(0, 1)


def test_one_of_two_shared_consumers_cannot_unsubscribe_and_goes_on(official: Any, topic: str) -> None:
    first, _second = (
        official.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared, receiver_queue_size=1)
        for _ in range(2)
    )
    with pytest.raises(pulsar.PulsarException):
        first.unsubscribe()
    publish(official, topic, 4)
    assert first.receive(WAIT_MS).data() in named(0, 1, 2, 3)


@pytest.mark.parametrize("batched", [False, True])
def test_a_reader_begins_where_it_is_told(official: Any, topic: str, batched: bool) -> None:
    ids = publish(official, topic, 5, batching_enabled=batched)
    whole = official.create_reader(topic, pulsar.MessageId.earliest)
    assert whole.has_message_available()
    assert contents(whole.read_next, 5) == named(0, 1, 2, 3, 4)
    assert not whole.has_message_available()
    assert contents(official.create_reader(topic, ids[2]).read_next, 2) == named(3, 4)
    inclusive = official.create_reader(topic, ids[2], start_message_id_inclusive=True)
    assert contents(inclusive.read_next, 3) == named(2, 3, 4)
    latest = official.create_reader(topic, pulsar.MessageId.latest)
    assert not latest.has_message_available()
    publish(official, topic, 1)
    assert contents(latest.read_next, 1) == named(0)


def test_a_reader_seeks(official: Any, topic: str) -> None:
    ids = publish(official, topic, 5)
    reader = official.create_reader(topic, pulsar.MessageId.latest)
    reader.seek(pulsar.MessageId.earliest)
    assert contents(reader.read_next, 5) == named(0, 1, 2, 3, 4)
    reader.seek(ids[3])
    assert contents(reader.read_next, 1)[0] in named(3, 4)


def test_a_reader_leaves_nothing_behind(official: Any, gateway: ServedEngine, topic: str) -> None:
    publish(official, topic, 1)
    reader = official.create_reader(topic, pulsar.MessageId.earliest)
    reader.read_next(WAIT_MS)
    there = gateway.engine.find(topic)
    assert there is not None
    assert gateway.ask(lambda: [each.durable for each in there.subscriptions.values()]) == [False]
    reader.close()
    gateway.until(lambda: not there.subscriptions, "the reader's subscription is gone")


def test_a_reader_of_the_compacted_topic_gets_the_newest_of_each_key(
    official: Any, gateway: ServedEngine, topic: str
) -> None:
    producer = official.create_producer(topic)
    for number in range(6):
        producer.send(b"%d" % number, partition_key=f"key {number % 2}")

    async def compact() -> None:
        await (await gateway.engine.topic(topic)).compaction.run()

    gateway.run(compact())
    reader = official.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=True)
    assert contents(reader.read_next, 2) == [b"4", b"5"]
    assert not reader.has_message_available()


def test_clients_come_back_when_their_connections_are_cut_and_lose_nothing(
    official: Any, gateway: ServedEngine, topic: str
) -> None:
    producer = official.create_producer(topic)
    consumer = official.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    producer.send(b"before")
    message = consumer.receive(WAIT_MS)
    gateway.ask(lambda: [each.close() for each in list(gateway.gateway._connections)])
    producer.send(b"after")
    consumer.acknowledge(message)
    got = {consumer.receive(WAIT_MS).data()}
    if got == {b"before"}:  # not acknowledged when the connection was cut
        got = {consumer.receive(WAIT_MS).data()}
    assert got == {b"after"}


def test_a_consumer_of_a_topic_that_is_deleted_by_force_comes_back_to_the_new_one(
    official: Any, gateway: ServedEngine, topic: str
) -> None:
    publish(official, topic, 1)
    consumer = official.subscribe(topic, "s", initial_position=EARLIEST)
    assert contents(consumer.receive, 1) == named(0)
    gateway.run(gateway.engine.deleting.delete(topic, force=True))
    gateway.until(
        lambda: (there := gateway.engine.find(topic)) is not None and "s" in there.subscriptions, "it subscribed again"
    )
    publish(official, topic, 1)
    assert contents(consumer.receive, 1) == named(0)


def test_a_reader_that_seeks_by_time_goes_on_from_there(official: Any, topic: str) -> None:
    producer = official.create_producer(topic)
    for number in range(3):
        producer.send(b"%d" % number)
    reader = official.create_reader(topic, pulsar.MessageId.earliest)
    assert [reader.read_next(WAIT_MS).data() for _ in range(3)] == [b"0", b"1", b"2"]
    assert not reader.has_message_available()
    reader.seek(0)
    assert reader.has_message_available()
    assert [reader.read_next(WAIT_MS).data() for _ in range(3)] == [b"0", b"1", b"2"]


def test_a_reader_that_begins_after_the_end_is_refused_at_once(official: Any, topic: str) -> None:
    last = official.create_producer(topic).send(b"m")
    beyond = pulsar.MessageId(-1, last.ledger_id(), last.entry_id() + 10, -1)
    with pytest.raises(pulsar.NotAllowedError):
        official.create_reader(topic, beyond)


def test_a_client_comes_back_only_after_the_answer_to_its_seek(
    gateway: ServedEngine, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the answer, the Java client drops all messages that it holds. If it were connected again before the answer, it
    would drop messages that it got after the seek. It is disconnected once the seek is durable."""
    gathered, may_be_saved = gateway.engine.writer.gathered, asyncio.Event()
    put_many = gathered._put_many

    async def held(rows: Sequence[Row], prefixes: Sequence[Prefix]) -> None:
        await may_be_saved.wait()
        await put_many(rows, prefixes)

    with BareClient(gateway.port) as client:
        connected(client, topic, SubType.Exclusive)
        client.socket.sendall(send(0) + send(1))
        ids = received(client, 2)
        numbers = [client.state.request_id() for _ in range(2)]
        seek = CommandSeek(consumer_id=1, request_id=numbers[0], message_id=ids[1])
        again = CommandSubscribe(
            topic=topic, subscription="s", consumer_id=1, request_id=numbers[1], subType=SubType.Exclusive
        )
        monkeypatch.setattr(gathered, "_put_many", held)
        try:
            client.send(BaseCommand(type=T.SEEK, seek=seek))
            client.ping()
        finally:
            gateway.loop.call_soon_threadsafe(may_be_saved.set)
        client.next(T.CLOSE_CONSUMER)
        client.send(BaseCommand(type=T.SUBSCRIBE, subscribe=again))
        assert list(answers(client, numbers)) == numbers
        client.send(BaseCommand(type=T.FLOW, flow=CommandFlow(consumer_id=1, messagePermits=2)))
        assert received(client, 1) == [ids[1]]
