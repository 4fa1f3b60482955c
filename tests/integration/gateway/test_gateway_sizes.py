"""The largest message is a setting: clients are told, it is kept to, and other clusters take what one took."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from gateway_support import BareClient, ServedEngine, linked_engines

from replicator.client import Client, CompressionType, InitialPosition, MessageId, MessageTooBig
from replicator.engine.engine import EngineSettings
from replicator.engine.log.entry import ENTRY_BYTES_MAX, MESSAGE_BYTES_LIMIT, METADATA_ROOM_BYTES, encode_entry
from replicator.metadata.metadata_pb2 import MessageMetadata
from replicator.protocol.commands_pb2 import BaseCommand, CommandProducer, CommandSend
from replicator.protocol.frames import encode_head, frame_bytes_max

pulsar = pytest.importorskip("pulsar")

WAIT_MS = 20_000
SMALL, LARGE = 256 * 1024, 9 * 1024 * 1024
ROOM = 2_000
"""Room for what official clients count besides the content."""
SIZES = {"large": LARGE, "usual": None, "small": SMALL, "most": MESSAGE_BYTES_LIMIT}


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, ServedEngine]]:
    settings = {name: EngineSettings(message_bytes_max=size) for name, size in SIZES.items() if size is not None}
    with linked_engines(tmp_path_factory.mktemp("clusters"), *SIZES, settings=settings) as served:
        yield served


class Official:
    """Official clients, a new one each time: in a process all of them go by the size that they heard last."""

    def __init__(self, clusters: Mapping[str, ServedEngine]) -> None:
        self._clusters = clusters
        self._made: list[Any] = []

    def __getitem__(self, name: str) -> Any:
        logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        self._made.append(pulsar.Client(self._clusters[name].url, operation_timeout_seconds=20, logger=logger))
        return self._made[-1]

    def close(self) -> None:
        for client in self._made:
            client.close()


@pytest.fixture
def clients(clusters: Mapping[str, ServedEngine]) -> Iterator[Official]:
    made = Official(clusters)
    yield made
    made.close()


@pytest.mark.parametrize(("name", "size"), [("small", SMALL), ("usual", 5 * 2**20), ("large", LARGE)])
def test_official_clients_are_told_the_size_and_keep_to_it(clients: Official, name: str, size: int) -> None:
    topic = f"persistent://public/default/told-{name}"
    producer = clients[name].create_producer(topic)
    with pytest.raises(pulsar.MessageTooBig):
        producer.send(bytes(size + 1))
    producer.send(bytes(size - ROOM))
    reader = clients[name].create_reader(topic, pulsar.MessageId.earliest)
    assert len(reader.read_next(WAIT_MS).data()) == size - ROOM
    assert not reader.has_message_available()


@pytest.mark.parametrize("name", ["small", "large"])
def test_chunks_are_as_large_as_the_cluster_takes(
    clusters: Mapping[str, ServedEngine], clients: Official, name: str
) -> None:
    topic = f"persistent://public/default/chunks-{name}"
    size = (SIZES[name] or 0) * 2
    producer = clients[name].create_producer(topic, chunking_enabled=True)
    producer.send(bytes(size))
    entries = clusters[name].ask(lambda: clusters[name].engine.find(topic).log.last.entry + 1)  # type: ignore[union-attr]
    assert entries == 3
    reader = clients[name].create_reader(topic, pulsar.MessageId.earliest)
    assert len(reader.read_next(WAIT_MS).data()) == size


def test_a_message_that_one_cluster_took_goes_to_all_others(
    clusters: Mapping[str, ServedEngine], clients: Official
) -> None:
    """Also where their own setting is smaller: a link never stands still for it, and what came is consumed there."""
    topic = "persistent://public/default/travels"
    producer = clients["large"].create_producer(topic)
    producer.send(bytes(LARGE - ROOM))
    producer.send(b"after it")
    for name, served in clusters.items():
        served.until(lambda here=served: (t := here.engine.find(topic)) is not None and t.log.messages == 2, name)
        consumer = clients[name].subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
        assert [len(consumer.receive(WAIT_MS).data()) for _ in range(2)] == [LARGE - ROOM, 8]
        consumer.close()


def test_the_largest_message_that_can_be_set_is_published_and_copied(
    clusters: Mapping[str, ServedEngine], clients: Official
) -> None:
    topic = "persistent://public/default/most"
    clients["most"].create_producer(topic, send_timeout_millis=60_000).send(bytes(MESSAGE_BYTES_LIMIT - ROOM))
    usual = clusters["usual"]
    usual.until(lambda: (t := usual.engine.find(topic)) is not None and t.log.messages == 1, "copied")
    reader = clients["usual"].create_reader(topic, pulsar.MessageId.earliest)
    assert len(reader.read_next(WAIT_MS).data()) == MESSAGE_BYTES_LIMIT - ROOM


@pytest.mark.parametrize("batched", [False, True])
def test_metadata_may_fill_an_entry_and_is_copied_whatever_other_clusters_take(
    clusters: Mapping[str, ServedEngine], clients: Official, batched: bool
) -> None:
    """A broker of Apache Pulsar 4.0.0 took properties of 5,242,820 bytes under its limit of 5 MiB."""
    topic = f"persistent://public/default/metadata-{batched}"
    sizes = [100_000, 1_800_000, 5 * 2**20 - ROOM, 20 * 2**20]
    for name, size in zip(("usual", "usual", "usual", "most"), sizes, strict=True):
        producer = clients[name].create_producer(topic, batching_enabled=batched, send_timeout_millis=60_000)
        producer.send(b"x", {"large": "v" * size})
        producer.close()
    with pytest.raises(pulsar.MessageTooBig):
        clients["usual"].create_producer(topic).send(b"x", {"large": "v" * (5 * 2**20)})
    for name, served in clusters.items():
        served.until(lambda here=served: (t := here.engine.find(topic)) is not None and t.log.messages == 4, name)
        consumer = clients[name].subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
        assert sorted(len(consumer.receive(WAIT_MS).properties()["large"]) for _ in sizes) == sizes
        consumer.close()


def test_our_own_client_sends_and_reads_metadata_that_fills_an_entry(clusters: Mapping[str, ServedEngine]) -> None:
    size = 5 * 2**20 - ROOM

    async def main() -> None:
        async with Client(clusters["usual"].url) as client:
            for batched in (False, True):
                producer = await client.create_producer("filled", batching_enabled=batched)
                await producer.send(b"x", {"large": "v" * size})
                with pytest.raises(MessageTooBig):
                    await producer.send(b"x", {"large": "v" * (5 * 2**20 + 1)})
            consumer = await client.subscribe("filled", "s", initial_position=InitialPosition.Earliest)
            assert [len((await consumer.receive()).properties()["large"]) for _ in range(2)] == [size, size]

    asyncio.run(main())


def test_who_does_not_keep_to_the_size_is_answered_and_beyond_a_frame_cut_off(
    clusters: Mapping[str, ServedEngine],
) -> None:
    """A clients' own check is not relied on: an entry too large is refused, and the next one is taken."""
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    served = clusters["small"]
    with BareClient(served.port) as client:
        assert client.state.message_bytes_max == SMALL
        client.request(
            lambda number: BaseCommand(
                type=BaseCommand.PRODUCER, producer=CommandProducer(topic="rude", producer_id=1, request_id=number)
            )
        )

        def send(number: int, payload_bytes: int) -> None:
            entry = encode_entry(metadata, bytes(payload_bytes))
            command = BaseCommand(type=BaseCommand.SEND, send=CommandSend(producer_id=1, sequence_id=number))
            client.socket.sendall(encode_head(command, len(entry)) + entry)

        send(0, SMALL + METADATA_ROOM_BYTES)
        refusal = client.next(BaseCommand.SEND_ERROR).command.send_error
        assert (refusal.sequence_id, refusal.engine_error) == (0, "MessageTooLarge")
        assert "message_size_max" in refusal.message
        send(1, SMALL)
        assert client.next(BaseCommand.SEND_RECEIPT).command.send_receipt.sequence_id == 1
        command = BaseCommand(type=BaseCommand.SEND, send=CommandSend(producer_id=1, sequence_id=2))
        client.socket.sendall(encode_head(command, frame_bytes_max(SMALL)))  # nothing of it is waited for
        assert client.closed_by_server()


def test_our_own_client_is_told_too(clusters: Mapping[str, ServedEngine]) -> None:
    async def main() -> None:
        topic = "persistent://public/default/own"
        async with Client(clusters["large"].url) as client:
            producer = await client.create_producer(topic)
            await producer.send(bytes(LARGE))
            with pytest.raises(MessageTooBig):
                await producer.send(bytes(LARGE + 1))
        async with Client(clusters["small"].url) as client:
            consumer = await client.subscribe(topic, "s", initial_position=InitialPosition.Earliest)
            assert len((await consumer.receive()).data()) == LARGE
            producer = await client.create_producer(topic)
            with pytest.raises(MessageTooBig):
                await producer.send(bytes(SMALL + 1))
            cut = await client.create_producer(topic, chunking_enabled=True, batching_enabled=False)
            await cut.send(bytes(2 * SMALL))

    asyncio.run(main())


def test_an_embedded_client_keeps_to_the_usual_size(tmp_path: Path) -> None:
    async def main() -> None:
        async with Client(f"embedded:{tmp_path / 'data'}") as client:
            producer = await client.create_producer("t")
            with pytest.raises(MessageTooBig):
                await producer.send(bytes(5 * 2**20 + 1))
            await producer.send(bytes(5 * 2**20))

    asyncio.run(main())


def test_an_entry_that_an_embedded_cluster_refuses_costs_no_other_of_its_time(tmp_path: Path) -> None:
    contents = [b"1", os.urandom(6 * 2**20), b"2", b"3"]

    async def main() -> None:
        async with Client(f"embedded:{tmp_path / 'data'}") as client:
            producer = await client.create_producer("t", batching_enabled=False, compression_type=CompressionType.LZ4)
            sent = await asyncio.gather(*map(producer.send, contents), return_exceptions=True)
            assert [type(each) for each in sent] == [MessageId, MessageTooBig, MessageId, MessageId]
            consumer = await client.subscribe("t", "s", initial_position=InitialPosition.Earliest)
            assert [(await consumer.receive()).data() for _ in range(3)] == [b"1", b"2", b"3"]
            plain = await client.create_producer("t", batching_enabled=False)
            await asyncio.gather(*(plain.send(bytes(5 * 2**20)) for _ in range(8)))  # more than fits in one call

    asyncio.run(main())


def test_no_setting_is_over_what_the_log_holds() -> None:
    assert MESSAGE_BYTES_LIMIT + METADATA_ROOM_BYTES == ENTRY_BYTES_MAX
