"""Messages that say to which clusters they are to be copied: they are stored for those alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from asynchronous import asynchronous
from engine_support import opened
from gateway_support import BareClient, ServedEngine, linked_engines, served_engine

from replicator.engine.errors import NotAllowedError
from replicator.engine.log.block import BlockHeader
from replicator.engine.log.entry import encode_entry
from replicator.engine.topics.namespace_policies import NamespacePolicies
from replicator.metadata.metadata_pb2 import MessageMetadata
from replicator.protocol.commands_pb2 import BaseCommand, CommandProducer, CommandSend, ServerError
from replicator.protocol.frames import encode_head
from replicator.topology import EMBEDDED, Cluster, Link, PipelineSettings, Topology
from replicator.worker.running_links import RunningLinks
from snapshots.position import BEFORE_ALL

pulsar = pytest.importorskip("pulsar")

WAIT_MS = 10_000
LINKED, FREE = "persistent://public/default/linked", "persistent://public/default/free"
NOWHERE = "127.0.0.1:1"


@pytest.fixture(scope="module")
def linked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedEngine]:
    with served_engine(tmp_path_factory.mktemp("linked")) as served:
        yield served


@pytest.fixture(scope="module")
def client(linked: ServedEngine) -> Iterator[Any]:
    made = pulsar.Client(linked.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield made
    made.close()


@pytest.mark.parametrize(
    ("options", "only"),
    [
        ({"disable_replication": True}, set()),
        ({"replication_clusters": ["eu"]}, {"eu"}),
        ({"replication_clusters": ["eu", "ap", "elsewhere"]}, {"eu", "ap", "elsewhere"}),
        ({"replication_clusters": ["eu", "no cluster", "", "x" * 65, "é"]}, {"eu"}),
        ({}, None),
    ],
)
@pytest.mark.parametrize("batched", [False, True])
def test_a_message_is_stored_with_the_clusters_that_may_have_it(
    client: Any, linked: ServedEngine, options: dict[str, Any], only: set[str] | None, batched: bool
) -> None:
    producer = client.create_producer(LINKED, batching_enabled=batched)
    sent = producer.send(b"m", **options)
    reader = client.create_reader(LINKED, sent, start_message_id_inclusive=True)
    assert reader.read_next(WAIT_MS).data() == b"m", "here everybody gets it"
    assert last_block(linked).only == only


def test_what_is_sent_together_for_different_clusters_is_stored_in_its_order_in_blocks_of_its_own(
    linked: ServedEngine,
) -> None:
    named: list[list[str]] = [[], [], ["eu"], [], ["__local__"], ["__local__"], ["eu", "ap"], [], ["ap", "eu"]]
    with BareClient(linked.port) as bare:
        bare.request(
            lambda number: BaseCommand(
                type=BaseCommand.PRODUCER, producer=CommandProducer(topic=LINKED, producer_id=1, request_id=number)
            )
        )
        frames = []
        for number, clusters in enumerate(named):
            entry = for_clusters(number, clusters)
            command = BaseCommand(type=BaseCommand.SEND, send=CommandSend(producer_id=1, sequence_id=number))
            frames.append(encode_head(command, len(entry)) + entry)
        bare.socket.sendall(b"".join(frames))
        receipts = [bare.next(BaseCommand.SEND_RECEIPT).command.send_receipt for _ in named]
    assert [each.sequence_id for each in receipts] == list(range(len(named)))
    entries = [each.message_id.entryId for each in receipts]
    assert entries == list(range(entries[0], entries[0] + len(named)))
    stored = [header for header in headers(linked) for _ in range(header.entries)][-len(named) :]
    expected = [frozenset(clusters) - {"__local__"} if clusters else None for clusters in named]
    assert [header.only for header in stored] == expected


def test_a_message_for_more_clusters_than_a_block_has_room_for_is_refused_by_the_official_error(
    linked: ServedEngine,
) -> None:
    refused_is_answered(linked, [f"cluster-{number}" for number in range(500)], "the message names 500 clusters")


def test_where_clusters_that_are_not_named_pass_a_topic_on_it_is_refused_by_the_official_error(
    client: Any, linked: ServedEngine
) -> None:
    """A cluster that passes the topic on would pass on that it lacks the message."""
    linked.engine.admission.passed_on_by = lambda topic: {"eu"} if topic == LINKED else ()
    try:
        refused_is_answered(linked, ["ap"], "replication clusters lacks eu, and a cluster that forwards")
        refused_is_answered(linked, ["__local__"], "replication clusters lacks eu, and a cluster that forwards")
        producer = client.create_producer(LINKED)
        options: dict[str, Any]
        for options, only in (
            ({"replication_clusters": ["eu"]}, {"eu"}),
            ({"replication_clusters": ["eu", "ap"]}, {"eu", "ap"}),
            ({"replication_clusters": ["eu", "elsewhere"]}, {"eu", "elsewhere"}),
        ):
            producer.send(b"m", **options)
            assert last_block(linked).only == only
    finally:
        linked.engine.admission.passed_on_by = lambda topic: ()


def refused_is_answered(linked: ServedEngine, clusters: list[str], why: str) -> None:
    """Check that a message for ``clusters`` is refused with an answer, and that messages beside it are stored."""
    with BareClient(linked.port) as bare:
        bare.request(
            lambda number: BaseCommand(
                type=BaseCommand.PRODUCER, producer=CommandProducer(topic=LINKED, producer_id=1, request_id=number)
            )
        )
        frames = []
        for number, named in enumerate(([], clusters, [])):
            entry = for_clusters(number, named)
            command = BaseCommand(type=BaseCommand.SEND, send=CommandSend(producer_id=1, sequence_id=number))
            frames.append(encode_head(command, len(entry)) + entry)
        bare.socket.sendall(b"".join(frames))
        refusal = bare.next(BaseCommand.SEND_ERROR).command.send_error
        assert (refusal.sequence_id, refusal.error) == (1, ServerError.NotAllowedError)
        assert why in refusal.message
        receipts = [bare.next(BaseCommand.SEND_RECEIPT).command.send_receipt.sequence_id for _ in range(2)]
        assert receipts == [0, 2]


def test_official_clients_of_linked_clusters_find_each_message_where_it_may_be(tmp_path: Path) -> None:
    with linked_engines(tmp_path, "us", "eu", "ap") as clusters:
        clients = {
            name: pulsar.Client(each.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
            for name, each in clusters.items()
        }
        producer = clients["us"].create_producer(FREE)
        producer.send(b"all")
        producer.send(b"here", disable_replication=True)
        producer.send(b"eu", replication_clusters=["eu"])
        producer.send(b"both", replication_clusters=["eu", "ap"])
        producer.send(b"ap", replication_clusters=["ap"])
        producer.send(b"end")
        expected = {
            "us": [b"all", b"here", b"eu", b"both", b"ap", b"end"],
            "eu": [b"all", b"eu", b"both", b"end"],
            "ap": [b"all", b"both", b"ap", b"end"],
        }
        for name, messages in expected.items():
            reader = clients[name].create_reader(FREE, pulsar.MessageId.earliest)
            assert [reader.read_next(WAIT_MS).data() for _ in messages] == messages, name
        for each in clients.values():
            each.close()


def for_clusters(number: int, clusters: list[str]) -> bytes:
    metadata = MessageMetadata(producer_name="p", sequence_id=number, publish_time=1, replicate_to=clusters)
    return encode_entry(metadata, b"m")


def headers(served: ServedEngine) -> list[BlockHeader]:
    topic = served.engine.find(LINKED)
    assert topic is not None
    return served.ask(lambda: [each.header for each in topic.reading.blocks(BEFORE_ALL, bytes_max=1 << 30)[0]])


def last_block(served: ServedEngine) -> BlockHeader:
    return headers(served)[-1]


@asynchronous
async def test_where_messages_go_follows_the_links_and_the_clusters_of_the_namespace(tmp_path: Path) -> None:
    names = ("us", "eu", "ap", "sa")
    clusters = tuple(Cluster(name=name, address=NOWHERE, data=tmp_path / name) for name in names)
    own = Link("eu", "ap", name="own", topics=("public/default/own",))
    links = (Link("us", "eu"), own, Link("eu", "ap", forward=True), Link("us", "sa", topics=("public/default/both",)))
    topology = Topology(clusters, links, PipelineSettings(engine=EMBEDDED))
    async with opened(tmp_path / "us", "us") as engine:
        running = RunningLinks(engine)
        await running.change(topology)
        try:
            admission = engine.admission
            assert admission.passed_on_by("persistent://public/default/t") == {"eu"}
            both = await engine.topic("persistent://public/default/both")
            with pytest.raises(NotAllowedError, match="replication clusters lacks eu, and a cluster that forwards"):
                await both.publish([for_clusters(0, ["ap", "sa"])])
            for clusters_named in (["eu", "ap"], ["eu"], ["eu", "sa"]):
                await both.publish([for_clusters(0, clusters_named)])
            own = await engine.topic("persistent://public/default/own")
            assert admission.passed_on_by(own.name) == frozenset(), "the first link of a pair takes it"
            await own.publish([for_clusters(0, ["ap"])])
            assert admission.clusters == set(names)
            await engine.catalog.set_namespace("public/default", NamespacePolicies(replication_clusters=("sa",)))
            assert admission.passed_on_by("persistent://public/default/both") == frozenset()
            await both.publish([for_clusters(0, ["ap", "sa"])])
            await running.change(Topology(clusters, (), PipelineSettings(engine=EMBEDDED)))
            assert admission.passed_on_by("persistent://public/default/both") == frozenset()
        finally:
            await running.stop()
