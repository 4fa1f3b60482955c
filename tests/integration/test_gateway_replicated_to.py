"""Messages that say to which clusters they are to be copied: taken where links do just that, and else refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from asynchronous import asynchronous
from engine_support import opened
from gateway_support import BareClient, ServedEngine, served_engine

from replicator.engine.errors import EngineError, NotAllowedError
from replicator.engine.log.entry import encode_entry
from replicator.engine.topics.namespace_policies import NamespacePolicies
from replicator.gateway import producing
from replicator.metadata.metadata_pb2 import MessageMetadata
from replicator.protocol.commands_pb2 import BaseCommand, CommandProducer, CommandSend, ServerError
from replicator.protocol.frames import encode_head
from replicator.topology import EMBEDDED, Cluster, Link, PipelineSettings, Topology
from replicator.worker.running_links import RunningLinks

pulsar = pytest.importorskip("pulsar")

WAIT_MS = 10_000
LINKED, FREE = "persistent://public/default/linked", "persistent://public/default/free"
NOWHERE = "127.0.0.1:1"


@pytest.fixture(scope="module")
def linked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedEngine]:
    """A cluster of which one topic goes to two others."""
    with served_engine(tmp_path_factory.mktemp("linked")) as served:
        served.engine.admission.copied_to = lambda topic: {"eu", "ap"} if topic == LINKED else ()
        yield served


@pytest.fixture(scope="module")
def client(linked: ServedEngine) -> Iterator[Any]:
    made = pulsar.Client(linked.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield made
    made.close()


@pytest.mark.parametrize(
    ("topic", "options"),
    [
        (FREE, {"disable_replication": True}),
        (FREE, {"replication_clusters": ["eu"]}),
        (LINKED, {"replication_clusters": ["eu", "ap"]}),
        (LINKED, {"replication_clusters": ["eu", "ap", "elsewhere"]}),
    ],
)
@pytest.mark.parametrize("batched", [False, True])
def test_what_links_do_anyway_is_taken(client: Any, topic: str, options: dict[str, Any], batched: bool) -> None:
    producer = client.create_producer(topic, batching_enabled=batched)
    sent = producer.send(b"m", **options)
    reader = client.create_reader(topic, sent, start_message_id_inclusive=True)
    assert reader.read_next(WAIT_MS).data() == b"m"


@pytest.mark.parametrize("clusters", [["__local__"], ["eu"], ["eu", "elsewhere"]])
def test_what_links_would_not_heed_is_refused_by_the_official_error(linked: ServedEngine, clusters: list[str]) -> None:
    """With the clusters that would get it all the same; what is sent beside it is stored."""
    with BareClient(linked.port) as bare:
        bare.request(
            lambda number: BaseCommand(
                type=BaseCommand.PRODUCER, producer=CommandProducer(topic=LINKED, producer_id=1, request_id=number)
            )
        )
        frames = []
        for number, named in enumerate(([], clusters, [])):
            metadata = MessageMetadata(producer_name="p", sequence_id=number, publish_time=1, replicate_to=named)
            entry = encode_entry(metadata, b"m")
            command = BaseCommand(type=BaseCommand.SEND, send=CommandSend(producer_id=1, sequence_id=number))
            frames.append(encode_head(command, len(entry)) + entry)
        bare.socket.sendall(b"".join(frames))
        refusal = bare.next(BaseCommand.SEND_ERROR).command.send_error
        assert (refusal.sequence_id, refusal.error) == (1, ServerError.NotAllowedError)
        assert ("to ap too" if "eu" in clusters else "to ap, eu too") in refusal.message
        receipts = [bare.next(BaseCommand.SEND_RECEIPT).command.send_receipt.sequence_id for _ in range(2)]
        assert receipts == [0, 2]


def test_the_official_client_is_told_again_and_again_and_never_that_it_is_stored(
    client: Any, linked: ServedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The C++ client sends what is refused again over another connection, with other brokers too, and its send timeout
    does not end that: a blocking ``send`` waits until the producer is closed."""
    refused, told = [], []
    refusal = producing.ProducerSession._refusal

    def counted(session: producing.ProducerSession, sequence_id: int, error: EngineError) -> bytes:
        refused.append(sequence_id)
        return refusal(session, sequence_id, error)

    monkeypatch.setattr(producing.ProducerSession, "_refusal", counted)
    producer = client.create_producer(LINKED, send_timeout_millis=1_000)
    producer.send_async(b"m", lambda result, _: told.append(result), disable_replication=True)
    linked.until(lambda: len(refused) > 2, "it is sent again")
    producer.close()
    assert told != [pulsar.Result.Ok]


@asynchronous
async def test_where_messages_go_follows_the_links_and_the_clusters_of_the_namespace(tmp_path: Path) -> None:
    names = ("us", "eu", "ap", "sa")
    clusters = tuple(Cluster(name=name, address=NOWHERE, data=tmp_path / name) for name in names)
    links = (Link("us", "eu"), Link("eu", "ap", forward=True), Link("us", "sa", topics=("public/default/both",)))
    topology = Topology(clusters, links, PipelineSettings(engine=EMBEDDED))
    async with opened(tmp_path / "us", "us") as engine:
        running = RunningLinks(engine)
        await running.change(topology)
        try:
            admission = engine.admission
            assert admission.copied_to("persistent://public/default/t") == {"eu", "ap"}
            assert admission.copied_to("persistent://public/default/both") == {"eu", "ap", "sa"}
            both = await engine.topic("persistent://public/default/both")
            metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, replicate_to=["eu", "ap"])
            with pytest.raises(NotAllowedError, match="to sa too"):
                await both.publish([encode_entry(metadata, b"m")])
            await engine.catalog.set_namespace("public/default", NamespacePolicies(replication_clusters=("eu",)))
            assert admission.copied_to("persistent://public/default/both") == {"eu", "ap"}
            await both.publish([encode_entry(metadata, b"m")])
            await running.change(Topology(clusters, (), PipelineSettings(engine=EMBEDDED)))
            assert admission.copied_to("persistent://public/default/both") == frozenset()
        finally:
            await running.stop()
