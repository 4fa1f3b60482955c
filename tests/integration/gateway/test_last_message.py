"""Whether a message is available, and which is the last one, as both clients are told: they get it if they read on."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest
from admin_support import administered
from asynchronous import asynchronous
from duplicates_support import ON, numbered
from engine_support import batch, make_block, marker, message
from gateway_support import ServedEngine, served_engine
from histories_support import STEPS, History, reading

from replicator.client import MessageId
from replicator.client.message import ChunkMessageId
from replicator.client.sync_client import SyncClient
from replicator.engine.log.writer import CopiedBlock
from replicator.engine.topic import Topic
from replicator.engine.types import InitialPosition, SubscribeOptions
from snapshots.position import BEFORE_ALL, Position

WAIT_MS = 10_000
HISTORIES = 12
STEPS_OF_A_HISTORY = 10


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedEngine]:
    """A cluster that deduplicates, so that it can have duplicates."""
    with served_engine(tmp_path_factory.mktemp("gateway") / "data", ON) as served:
        yield served


@pytest.fixture(scope="module")
def ours(gateway: ServedEngine) -> Iterator[SyncClient]:
    with SyncClient(gateway.url) as client:
        yield client


def on(gateway: ServedEngine, name: str) -> Topic:
    return gateway.run(gateway.engine.topic(name))


def publish_compacted_end(official: Any, gateway: ServedEngine, topic: str) -> None:
    """Publish a batch, let compaction take all but its first message, and write a marker behind it."""
    producer = official.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=5_000)
    for key, content in (("a", b"a"), ("b", b"b"), ("gone", None)):
        producer.send_async(content, lambda *_: None, partition_key=key)
    producer.flush()
    producer.send(None, partition_key="b")
    producer.close()
    there = on(gateway, topic)
    gateway.run(there.compaction.run())
    gateway.run(there.writing.marker(marker()))


def read_all(reader: Any) -> list[bytes]:
    found = []
    while reader.has_message_available():
        assert len(found) < 1_000
        found.append(reader.read_next(WAIT_MS).data())
    return found


def test_a_reader_has_read_a_compacted_topic_whose_last_batch_lost_its_last_message(
    official: Any, ours: SyncClient, gateway: ServedEngine, topic: str
) -> None:
    publish_compacted_end(official, gateway, topic)
    theirs = official.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=True)
    assert read_all(theirs) == [b"a"]
    with ours.create_reader(topic, MessageId.earliest, is_read_compacted=True) as reader:
        assert read_all(reader) == [b"a"]
        last = reader.get_last_message_id()
        assert (last.entry_id(), last.batch_index()) == (0, 0)
    view = official.create_table_view(topic)  # it reads until nothing is available
    assert (len(view), view.get("a")) == (1, b"a")
    view.close()


@pytest.mark.parametrize("compacted", [False, True])
def test_from_latest_inclusive_the_last_message_is_available_though_markers_follow_it(
    official: Any, gateway: ServedEngine, topic: str, compacted: bool
) -> None:
    producer = official.create_producer(topic, batching_enabled=False)
    for content in (b"first", b"last"):
        producer.send(content, partition_key=content.decode())
    there = on(gateway, topic)
    for _ in range(3):
        gateway.run(there.writing.marker(marker()))
    reader = official.create_reader(
        topic, pulsar.MessageId.latest, start_message_id_inclusive=True, is_read_compacted=compacted
    )
    assert read_all(reader) == [b"last"]
    exclusive = official.create_reader(topic, pulsar.MessageId.latest, is_read_compacted=compacted)
    assert not exclusive.has_message_available()
    producer.send(b"new", partition_key="new")
    assert read_all(exclusive) == [b"new"]


def test_a_topic_of_markers_alone_or_of_nothing_has_no_message(
    official: Any, ours: SyncClient, gateway: ServedEngine, topic: str
) -> None:
    there = on(gateway, topic)
    for _ in range(2):
        for inclusive in (False, True):
            for start in (pulsar.MessageId.earliest, pulsar.MessageId.latest):
                reader = official.create_reader(topic, start, start_message_id_inclusive=inclusive)
                assert not reader.has_message_available()
        with ours.create_reader(topic, MessageId.earliest) as own:
            assert not own.has_message_available()
        gateway.run(there.writing.marker(marker()))


def test_partitions_end_each_in_its_own_way(official: Any, gateway: ServedEngine, topic: str) -> None:
    gateway.run(gateway.engine.partitioned.create(topic, 4))
    publish_compacted_end(official, gateway, f"{topic}-partition-0")
    official.create_producer(f"{topic}-partition-1").send(b"whole", partition_key="w")
    gateway.run(on(gateway, f"{topic}-partition-2").writing.marker(marker()))
    for compacted, expected in ((True, [b"a", b"whole"]), (False, [b"", b"", b"a", b"b", b"whole"])):
        reader = official.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=compacted)
        assert sorted(read_all(reader)) == expected


def test_a_reader_knows_the_end_of_a_batch_of_which_a_link_brought_a_part(
    official: Any, ours: SyncClient, gateway: ServedEngine, topic: str
) -> None:
    there = on(gateway, topic)
    entry = batch([b"here", b"here too", b"", b""])
    block = make_block(Position(1, 0), [entry], origin="eu-west", batch_sizes=[4], absent={0: [2, 3]})
    gateway.run(there.writing.copy([CopiedBlock(BEFORE_ALL, block)]))
    assert official.subscribe(topic, "s").get_last_message_id().batch_index() == 1
    with ours.create_reader(topic, MessageId.earliest) as reader:
        assert read_all(reader) == [b"here", b"here too"]


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("seed", range(HISTORIES))
def test_both_clients_read_whatever_a_history_has_left_and_know_when_they_have(
    official: Any, ours: SyncClient, gateway: ServedEngine, topic: str, seed: int, compacted: bool
) -> None:
    drawn = random.Random(seed)
    history = History(on(gateway, topic), drawn)

    async def run() -> int:
        for _ in range(STEPS_OF_A_HISTORY):
            await history.step(drawn.choice(STEPS))
        options = SubscribeOptions(durable=False, initial=InitialPosition.EARLIEST, read_compacted=compacted)
        reader = await reading(history.topic, "expected", options)
        expected = await reader.readable()
        reader.consumer.close()
        return len(expected)

    count = gateway.run(run())
    assert len(read_all(official.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=compacted))) == count
    with ours.create_reader(topic, MessageId.earliest, is_read_compacted=compacted) as reader:
        ids = []
        while reader.has_message_available():
            ids.append(reader.read_next(WAIT_MS).message_id())
        assert len(ids) == count
        assert reader.get_last_message_id() == (ids[-1] if ids else MessageId.earliest)
        reader.seek(0)
        assert reader.has_message_available() is (count > 0)
        reader.seek(2**53)
        assert not reader.has_message_available()
        if ids:
            reader.seek(drawn.choice(ids))
            left = len(read_all(reader))
            assert left < count
    if ids and isinstance(ids[-1], ChunkMessageId):
        return  # the official client seeks to the last chunk alone, and shows nothing, at brokers too
    last = official.create_reader(
        topic, pulsar.MessageId.latest, start_message_id_inclusive=True, is_read_compacted=compacted
    )
    assert len(read_all(last)) == min(count, 1)


def test_our_reader_of_what_comes_knows_of_what_was_published_while_it_connected(
    ours: SyncClient, gateway: ServedEngine, topic: str
) -> None:
    there = on(gateway, topic)
    gateway.run(there.publish([message(sequence_id=1)]))
    gateway.run(there.writing.marker(marker()))
    with ours.create_reader(topic, MessageId.latest) as reader:
        assert not reader.has_message_available()
        gateway.run(there.publish([message(b"new", sequence_id=2)]))
        assert read_all(reader) == [b"new"]


@asynchronous
async def test_admin_paths_name_messages_that_clients_get(tmp_path: Path) -> None:
    name = "persistent://public/default/ends"
    async with administered(tmp_path / "data", settings=ON) as admin:
        topic = await admin.engine.topic(name)
        path = f"{admin.url}/admin/v2/persistent/public/default/ends"

        async def ask(what: str) -> dict[str, int]:
            async with admin.session.get(f"{path}/{what}") as response:
                return dict(await response.json())

        assert (await ask("lastMessageId"))["entryId"] == -1
        await topic.writing.marker(marker())
        (first,) = await topic.publish([numbered(0)])
        duplicate = make_block(Position(1, 0), [numbered(0)], origin="eu-west")
        await topic.writing.copy([CopiedBlock(BEFORE_ALL, duplicate)])
        await topic.writing.marker(marker())
        assert (await ask("lastMessageId"))["entryId"] == first.entry
        assert (await ask("messageid/0"))["entryId"] == first.entry, "not the marker before it"
        later = topic.log.last
        (second,) = await topic.publish([numbered(1)])
        assert later.entry == second.entry - 1
        part = make_block(
            Position(1, 1), [batch([b"x", b"", b""])], origin="eu-west", batch_sizes=[3], absent={0: [1, 2]}
        )
        await topic.writing.copy([CopiedBlock(Position(1, 0), part)])
        last = await ask("lastMessageId")
        assert (last["entryId"], last["batchIndex"]) == (second.entry + 1, 0)
