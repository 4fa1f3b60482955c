"""Message ids of another cluster, as official clients bring them along over a failover: invariant 5.

What was received at A is acknowledged, sought and read from at B. No subscription is synced here, so what is consumed
at B is what the ids of A said.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from gateway_support import BareClient, ServedEngine, linked_engines

from replicator.engine.subscriptions.subscription import Subscription
from replicator.engine.topic import Topic
from replicator.protocol.commands_pb2 import BaseCommand, CommandAck, CommandSubscribe, MessageIdData, ServerError
from replicator.protocol.errors import Refused
from replicator.protocol.values import NONE_U64
from snapshots.position import BEFORE_ALL, Position

pulsar = pytest.importorskip("pulsar")

WAIT_MS = 10_000
NOTHING_MS = 200
EARLIEST = pulsar.InitialPosition.Earliest
UNKNOWN_LEDGER = 7


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, ServedEngine]]:
    with linked_engines(tmp_path_factory.mktemp("clusters"), "A", "B") as served:
        yield served


@pytest.fixture(scope="module")
def clients(clusters: Mapping[str, ServedEngine]) -> Iterator[dict[str, Any]]:
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    made = {
        name: pulsar.Client(each.url, operation_timeout_seconds=10, logger=logger) for name, each in clusters.items()
    }
    yield made
    for client in made.values():
        client.close()


class Stage:
    """One topic in both clusters."""

    def __init__(self, clusters: Mapping[str, ServedEngine], clients: Mapping[str, Any], topic: str) -> None:
        self.clusters = clusters
        self.clients = clients
        self.topic = topic
        self.expected = 0

    def publish(self, cluster: str, *contents: bytes, batched: bool = False) -> None:
        """Publish messages; return when both clusters have them."""
        producer = self.clients[cluster].create_producer(
            self.topic, batching_enabled=batched, batching_max_publish_delay_ms=5_000
        )
        for content in contents:
            producer.send_async(content, lambda *_: None)
        producer.flush()
        producer.close()
        self.expected += len(contents)
        for name, served in self.clusters.items():
            served.until(lambda here=served: self._messages(here) == self.expected, f"all messages in {name}")

    def _messages(self, served: ServedEngine) -> int:
        found = served.engine.find(self.topic)
        return 0 if found is None else found.log.messages

    def consumer(self, cluster: str, kind: str = "Shared", **options: Any) -> Any:
        return self.clients[cluster].subscribe(
            self.topic,
            "sub",
            consumer_type=getattr(pulsar.ConsumerType, kind),
            initial_position=EARLIEST,
            negative_ack_redelivery_delay_ms=50,
            **options,
        )

    def received(self, cluster: str, count: int, kind: str = "Shared", **options: Any) -> dict[bytes, Any]:
        """Return the ids of the first messages in a cluster, by content; close the consumer."""
        consumer = self.consumer(cluster, kind, **options)
        messages = [consumer.receive(WAIT_MS) for _ in range(count)]
        consumer.close()
        return {message.data(): message.message_id() for message in messages}

    def here(self, cluster: str) -> Topic:
        found = self.clusters[cluster].engine.find(self.topic)
        assert found is not None
        return found

    def subscription(self, cluster: str) -> Subscription:
        return self.here(cluster).subscriptions["sub"]

    def left(self, cluster: str) -> list[bytes]:
        """Return the messages that a new consumer of the subscription gets in a cluster."""
        consumer = self.consumer(cluster, "Exclusive", batch_index_ack_enabled=True)
        try:
            return list(contents_of(consumer.receive))
        finally:
            consumer.close()


def contents_of(receive: Callable[[int], Any]) -> Iterator[bytes]:
    """Yield the contents of messages until none comes for a while."""
    while True:
        try:
            yield receive(NOTHING_MS).data()
        except pulsar.Timeout:
            return


@pytest.fixture
def stage(clusters: Mapping[str, ServedEngine], clients: Mapping[str, Any], request: pytest.FixtureRequest) -> Stage:
    name = "".join(character if character.isalnum() else "-" for character in request.node.name)
    return Stage(clusters, clients, f"persistent://public/default/{name}")


def test_what_was_received_at_one_cluster_is_acknowledged_at_the_other(stage: Stage) -> None:
    stage.publish("A", *(b"m%d" % number for number in range(6)))
    ids = stage.received("A", 6)
    consumer = stage.consumer("B", batch_index_ack_enabled=True)
    for content in (b"m0", b"m2", b"m5"):
        consumer.acknowledge(ids[content])
    consumer.close()
    assert stage.left("B") == [b"m1", b"m3", b"m4"]


def test_messages_of_a_batch_keep_their_indexes(stage: Stage) -> None:
    stage.publish("A", *(b"m%d" % number for number in range(5)), batched=True)
    ids = stage.received("A", 5, batch_index_ack_enabled=True)
    consumer = stage.consumer("B", batch_index_ack_enabled=True)
    consumer.acknowledge(ids[b"m1"])
    consumer.acknowledge(ids[b"m4"])
    consumer.close()
    assert stage.left("B") == [b"m0", b"m2", b"m3"]


def test_one_that_goes_for_all_before_it_covers_what_that_cluster_published_and_nothing_of_others(
    stage: Stage,
) -> None:
    """At B, the messages of B lie before those of A, and at A behind them: by place, all of them would be covered."""
    stage.publish("B", b"b0", b"b1")
    stage.publish("A", b"a0", b"a1", b"a2")
    ids = stage.received("A", 5, "Exclusive")
    consumer = stage.consumer("B", "Exclusive")
    consumer.acknowledge_cumulative(ids[b"a1"])
    consumer.close()
    assert stage.left("B") == [b"b0", b"b1", b"a2"]


def test_one_that_goes_for_all_before_it_in_a_batch_leaves_the_rest_of_it(stage: Stage) -> None:
    stage.publish("A", b"a0")
    stage.publish("A", *(b"m%d" % number for number in range(4)), batched=True)
    ids = stage.received("A", 5, "Exclusive", batch_index_ack_enabled=True)
    consumer = stage.consumer("B", "Exclusive", batch_index_ack_enabled=True)
    consumer.acknowledge_cumulative(ids[b"m1"])
    consumer.close()
    assert stage.left("B") == [b"m2", b"m3"]


def test_an_id_that_says_nothing_here_consumes_nothing_and_is_refused(stage: Stage) -> None:
    """Messages of B have at A positions of A, which B cannot know; those of nobody are below and above all others."""
    stage.publish("A", b"a0", b"a1")
    stage.publish("B", b"b0", b"b1")
    at_a = stage.here("A").log.last
    stage.publish("A", b"a2")
    with BareClient(stage.clusters["B"].port) as bare:
        subscribed(bare, stage.topic)
        for position in (at_a, Position(UNKNOWN_LEDGER, 0), Position(2**62, 0), BEFORE_ALL):
            for kind in (CommandAck.AckType.Individual, CommandAck.AckType.Cumulative):
                assert acknowledge(bare, kind, position) == expected_answer(position, kind, at_a)
    assert stage.left("B") == [b"b0", b"b1", b"a2"]


def test_an_id_of_a_message_that_has_not_come_yet_is_refused_for_now(stage: Stage) -> None:
    stage.publish("A", b"a0")
    first = stage.here("A").log.last
    with BareClient(stage.clusters["B"].port) as bare:
        subscribed(bare, stage.topic)
        later = Position(first.ledger, first.entry + 1)
        assert acknowledge(bare, CommandAck.AckType.Individual, later) == ServerError.ServiceNotReady
        assert stage.subscription("B").backlog_messages() == 1
        assert acknowledge(bare, CommandAck.AckType.Cumulative, later) == ServerError.ServiceNotReady
        assert stage.subscription("B").backlog_messages() == 0, "what it covers of that is here counts"


def expected_answer(position: Position, kind: CommandAck.AckType, at_a: Position) -> ServerError | None:
    """A cumulative one of a ledger that is known covers what is known to lie before it: no more, and no error."""
    if position == at_a and kind == CommandAck.AckType.Cumulative:
        return None
    return ServerError.MetadataError


def test_in_a_list_of_ids_those_that_say_nothing_do_not_hold_up_the_others(stage: Stage) -> None:
    stage.publish("A", b"a0", b"a1")
    known = stage.received("A", 2)[b"a0"]
    with BareClient(stage.clusters["B"].port) as bare:
        subscribed(bare, stage.topic)
        positions = Position(UNKNOWN_LEDGER, 3), Position(known.ledger_id(), known.entry_id())
        assert acknowledge(bare, CommandAck.AckType.Individual, *positions) == ServerError.MetadataError
    assert stage.left("B") == [b"a1"]


def test_a_late_id_of_the_other_cluster_counts_though_the_log_is_trimmed_above_its_number(stage: Stage) -> None:
    stage.publish("A", b"a0")
    stage.publish("A", b"a1", b"a2")
    ids = stage.received("A", 3)
    served = stage.clusters["B"]
    stage.consumer("B").close()
    topic = stage.here("B")
    first = topic.log.first
    assert first is not None
    served.run(stage.subscription("B").moves.consume_through(first))
    deadline = time.monotonic() + WAIT_MS / 1000
    while topic.log.trimmed < first:  # links hold it until they have heard how far the other cluster is
        assert time.monotonic() < deadline
        served.run(topic.trimming.trim(first))
    assert Position(ids[b"a2"].ledger_id(), ids[b"a2"].entry_id()) <= topic.log.trimmed, "else this shows nothing"
    consumer = stage.consumer("B")
    consumer.acknowledge(ids[b"a2"])
    consumer.close()
    assert stage.left("B") == [b"a1"]


@pytest.mark.parametrize("inclusive", [True, False])
def test_a_seek_to_an_id_of_the_other_cluster_goes_to_that_message(stage: Stage, inclusive: bool) -> None:
    stage.publish("B", b"b0")
    stage.publish("A", *(b"m%d" % number for number in range(5)))
    ids = stage.received("A", 6)
    consumer = stage.consumer("B", "Exclusive", start_message_id_inclusive=inclusive)
    assert consumer.receive(WAIT_MS).data() == b"b0"
    consumer.seek(ids[b"m2"])
    assert list(contents_of(consumer.receive)) == ([b"m2", b"m3", b"m4"] if inclusive else [b"m3", b"m4"])
    consumer.close()


def test_a_seek_to_an_id_that_says_nothing_is_refused_and_moves_nothing(stage: Stage) -> None:
    stage.publish("B", b"b0", b"b1")
    stage.publish("A", b"a0")
    ids = stage.received("A", 3)
    consumer = stage.consumer("B", "Exclusive")
    consumer.acknowledge(consumer.receive(WAIT_MS))
    for target in (ids[b"b0"], pulsar.MessageId(-1, UNKNOWN_LEDGER, 0, -1)):
        with pytest.raises(pulsar.PulsarException, match="MetadataError"):
            consumer.seek(target)
    consumer.close()
    assert stage.left("B") == [b"b1", b"a0"]


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("inclusive", [True, False])
def test_a_reader_begins_at_an_id_of_the_other_cluster(stage: Stage, inclusive: bool, batched: bool) -> None:
    stage.publish("A", *(b"m%d" % number for number in range(5)), batched=batched)
    ids = stage.received("A", 5)
    reader = stage.clients["B"].create_reader(stage.topic, ids[b"m2"], start_message_id_inclusive=inclusive)
    expected = [b"m2", b"m3", b"m4"] if inclusive else [b"m3", b"m4"]
    assert [reader.read_next(WAIT_MS).data() for _ in expected] == expected
    assert not reader.has_message_available()
    reader.close()


def test_a_reader_that_is_at_the_end_in_one_cluster_is_so_in_the_other(stage: Stage) -> None:
    stage.publish("A", b"m0", b"m1")
    ids = stage.received("A", 2)
    reader = stage.clients["B"].create_reader(stage.topic, ids[b"m1"])
    assert not reader.has_message_available()
    stage.publish("B", b"m2")
    assert reader.has_message_available()
    assert reader.read_next(WAIT_MS).data() == b"m2"
    reader.close()


def test_a_reader_from_an_id_that_says_nothing_is_refused(stage: Stage) -> None:
    stage.publish("A", b"m0")
    with pytest.raises(pulsar.PulsarException, match="NotAllowedError"):
        stage.clients["B"].create_reader(stage.topic, pulsar.MessageId(-1, UNKNOWN_LEDGER, 0, -1))


def test_a_rejection_of_an_id_of_the_other_cluster_does_not_bring_everything_again(stage: Stage) -> None:
    stage.publish("B", b"b0", b"b1")
    stage.publish("A", b"a0")
    ids = stage.received("A", 3)
    consumer = stage.consumer("B")
    assert len([consumer.receive(WAIT_MS) for _ in range(3)]) == 3
    consumer.negative_acknowledge(ids[b"b0"])  # as A's id it says nothing here
    assert list(contents_of(consumer.receive)) == []
    consumer.negative_acknowledge(ids[b"a0"])
    assert consumer.receive(WAIT_MS).data() == b"a0"
    consumer.close()


def test_a_ledger_id_that_both_clusters_have_names_nothing_where_both_have_the_entry(stage: Stage) -> None:
    """Ids come from clocks: it is rare, and must not consume what was not meant."""
    stage.publish("A", b"a0")
    stage.publish("B", b"b0")
    served, here = stage.clusters["B"], stage.here("B")
    local = here.log.last
    extents = served.ask(lambda: _extent_rows(served, here))
    assert extents, "else this shows nothing"
    served.run(_pretend_that_both_have(served, here, local))
    with BareClient(served.port) as bare:
        subscribed(bare, stage.topic)
        assert acknowledge(bare, CommandAck.AckType.Individual, local) == ServerError.MetadataError
        assert acknowledge(bare, CommandAck.AckType.Cumulative, local) == ServerError.MetadataError
    assert stage.left("B") == [b"a0", b"b0"]


def _extent_rows(served: ServedEngine, topic: Topic) -> list[Any]:
    return list(served.engine.store.extents(topic.topic_id))


async def _pretend_that_both_have(served: ServedEngine, topic: Topic, local: Position) -> None:
    """Write an extent that says that A has a ledger of the id of B's."""
    from replicator.engine.log.extent_rows import extent_row
    from snapshots.extents import Extent

    high_water = topic.origins.high_water("A")
    assert high_water is not None
    first = topic.log.first
    assert first is not None
    key, value = extent_row(topic.topic_id, "A", high_water.incarnation, Extent(local, first, 1))
    await served.engine.writer.put("extents", key, value)
    topic.origins.ledgers_begun += 1


def subscribed(bare: BareClient, topic: str) -> None:
    def command(request_id: int) -> BaseCommand:
        wanted = CommandSubscribe(
            topic=topic,
            subscription="sub",
            subType=CommandSubscribe.SubType.Exclusive,
            consumer_id=1,
            request_id=request_id,
            initialPosition=CommandSubscribe.InitialPosition.Earliest,
        )
        return BaseCommand(type=BaseCommand.SUBSCRIBE, subscribe=wanted)

    bare.request(command)


def acknowledge(bare: BareClient, kind: CommandAck.AckType, *positions: Position) -> ServerError | None:
    """Acknowledge; return the error of the receipt."""

    def command(request_id: int) -> BaseCommand:
        ack = CommandAck(consumer_id=1, ack_type=kind, request_id=request_id)
        for ledger, entry in positions:
            ack.message_id.append(MessageIdData(ledgerId=ledger % (NONE_U64 + 1), entryId=entry % (NONE_U64 + 1)))
        return BaseCommand(type=BaseCommand.ACK, ack=ack)

    try:
        answer = bare.request(command)
    except Refused as refused:
        return refused.code
    return answer.error if answer.HasField("error") else None
