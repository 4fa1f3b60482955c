"""Clients of a compacted topic over the network: readers and consumers of the compacted view."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from client_support import running_worker
from compaction_support import keyed, keyed_batch

from replicator.client import Client, InitialPosition, MessageId
from replicator.engine.topic import Topic

DEADLINE_SECONDS = 30
TOPIC = "persistent://public/default/prices"
KEYS = 60


async def compacted(topic: Topic) -> list[str]:
    """Make batches of four messages with two left each, a trimmed log, and an end that is compacted away. Return the
    remaining keys, in order."""
    for number in range(KEYS):
        await topic.publish([keyed_batch([("x", b"old"), (f"{number}", b"1"), ("y", b"old"), (f"{number}+", b"1")])])
    await topic.publish([keyed("x", b""), keyed("y", b"")])
    await topic.compaction.run()
    await topic.publish([keyed("last", b"1")])
    await topic.trimming.trim(topic.log.last)
    await topic.publish([keyed(None, b"compacted away"), keyed("z", b"")])
    await topic.compaction.run()
    return [key for number in range(KEYS) for key in (f"{number}", f"{number}+")] + ["last"]


def run(path: Path, scenario: Callable[[Client, Topic], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(DEADLINE_SECONDS), running_worker(path) as worker, Client(worker.url) as client:
            await scenario(client, await worker.engine.topic(TOPIC))

    asyncio.run(main())


@pytest.mark.parametrize("queue", [1, 1000])
def test_a_reader_from_the_earliest_reads_all_that_is_left_and_knows_when_it_has(tmp_path: Path, queue: int) -> None:
    async def scenario(client: Client, topic: Topic) -> None:
        expected = await compacted(topic)
        reader = await client.create_reader(
            TOPIC, MessageId.earliest, is_read_compacted=True, receiver_queue_size=queue
        )
        found = []
        while await reader.has_message_available():
            found.append((await reader.read_next()).partition_key())
        assert found == expected

    run(tmp_path, scenario)


def test_a_reader_knows_that_nothing_is_left_of_the_last_batch(tmp_path: Path) -> None:
    async def scenario(client: Client, topic: Topic) -> None:
        await topic.publish([keyed_batch([("first", b"1"), ("gone", b"")])])
        await topic.publish([keyed_batch([("left", b"1"), ("left too", b"1"), ("gone", b"")])])
        await topic.compaction.run()
        reader = await client.create_reader(TOPIC, MessageId.earliest, is_read_compacted=True)
        found = []
        while await reader.has_message_available():
            found.append((await reader.read_next(timeout_millis=5_000)).partition_key())
        assert found == ["first", "left", "left too"]

    run(tmp_path, scenario)


@pytest.mark.parametrize("cumulative", [False, True])
def test_a_consumer_that_acknowledges_all_that_it_is_shown_has_consumed_the_topic(
    tmp_path: Path, cumulative: bool
) -> None:
    async def scenario(client: Client, topic: Topic) -> None:
        expected = await compacted(topic)
        consumer = await client.subscribe(
            TOPIC, "sub", initial_position=InitialPosition.Earliest, is_read_compacted=True, receiver_queue_size=2
        )
        found = []
        for _ in expected:
            message = await consumer.receive()
            found.append(message.partition_key())
            await (consumer.acknowledge_cumulative(message) if cumulative else consumer.acknowledge(message))
        assert found == expected
        await consumer.close()
        assert topic.subscriptions["sub"].cursor.mark_delete == topic.log.last
        assert topic.subscriptions["sub"].backlog_messages() == 0

    run(tmp_path, scenario)
