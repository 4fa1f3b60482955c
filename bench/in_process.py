"""Group ``engine``: the engine in this process, without a network: what the wire and the client cost is the difference.

* ``publish``: entries made beforehand, :data:`PUBLISHES_IN_FLIGHT` calls at a time; confirmed, so synced.
* ``dispatch``: from the log to a consumer's callback, with permits for everything; nothing is acknowledged.
* ``commits``: one small entry published, and the next when it is confirmed: the synced commits of this disk.
* ``8MiB/copy``: blocks of 1 MiB as links bring them, eight in a call, two calls on their way, beside what the disk
  takes past the page cache. In the first run segments are made, in the others they are used again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from bench.cases import RUNS, Case
from bench.disk import DiskLimits
from bench.measurement import Measurement
from replicator.engine.engine import Engine, EngineSettings
from replicator.engine.log.block import BlockKind, build_block
from replicator.engine.log.entry import append_to_batch, encode_entry
from replicator.engine.log.requests import CopiedBlock
from replicator.engine.policies import TopicPolicies
from replicator.engine.subscriptions.consumer import PERMITS_MAX
from replicator.engine.topic import Topic
from replicator.engine.types import Delivery, InitialPosition, SubscribeOptions, SubscriptionType
from replicator.metadata.metadata_pb2 import MessageMetadata, SingleMessageMetadata
from snapshots.position import BEFORE_ALL, Position

BATCH_BYTES_MAX: Final = 128 * 1024
BATCH_MESSAGES_MAX: Final = 1_000
PUBLISH_BYTES: Final = 256 * 1024
"""Bytes of entries in one call: as many as the client puts into a frame."""
PUBLISHES_IN_FLIGHT: Final = 64
SHARED_CONSUMERS: Final = 10
SINGLE_SHARE: Final = 4
"""Divisor of a backlog of single messages: each costs Python work here, and fewer show the same rate."""
COMMITS: Final = 500
LARGE_BLOCKS: Final = 512
LARGE_BLOCK_ENTRIES: Final = 10
"""Entries of a large block, 100 kB each."""
LARGE_BLOCKS_A_CALL: Final = 8


async def measure_engine(case: Case, directory: Path) -> list[Measurement]:
    """Return the rates at which an engine in ``directory`` publishes the case's backlog, and then dispatches it.

    It dispatches to one Exclusive and to ten Shared consumers. The backlog of a case without batches is divided by
    :data:`SINGLE_SHARE`.
    """
    if not case.batched:
        case = replace(case, messages=case.messages // SINGLE_SHARE)
    unlimited = TopicPolicies(max_unacked_messages_per_consumer=None, max_unacked_messages_per_subscription=None)
    engine = await Engine.open(directory / "engine", cluster="bench", settings=EngineSettings(policies=unlimited))
    try:
        topic = await engine.topic(case.topic)
        published = await _publish_rates(topic, case)
        return [
            Measurement(f"engine/{case.name}/publish", case.unit, published),
            *[
                Measurement(f"engine/{case.name}/dispatch-{kind.value.lower()}", case.unit, rates)
                for kind, rates in (
                    (SubscriptionType.EXCLUSIVE, await _dispatch_rates(topic, case, SubscriptionType.EXCLUSIVE, 1)),
                    (
                        SubscriptionType.SHARED,
                        await _dispatch_rates(topic, case, SubscriptionType.SHARED, SHARED_CONSUMERS),
                    ),
                )
            ],
        ]
    finally:
        await engine.close()


async def measure_commits(directory: Path) -> Measurement:
    """Measure how many publishes of one 100 B entry the engine commits and syncs in a second, each after the other."""
    engine = await Engine.open(directory / "commits", cluster="bench")
    try:
        topic = await engine.topic("persistent://bench/default/commits")
        entry, _ = make_entry(100, messages=1, batched=False)
        rates = []
        for _ in range(RUNS):
            began = time.monotonic()
            for _ in range(COMMITS):
                await topic.publish([entry])
            rates.append(COMMITS / (time.monotonic() - began))
        return Measurement("engine/100B/commits", "commits/s", tuple(rates))
    finally:
        await engine.close()


async def measure_large_commits(directory: Path, disk: DiskLimits) -> list[Measurement]:
    """Return the rate, in MB/s, at which an engine makes copied blocks durable, beside the rate of ``disk``."""
    calls = _large_calls()
    size_mb = sum(len(each.block) for call in calls for each in call) / 1e6
    engine = await Engine.open(directory / "large", cluster="bench")
    try:
        rates = []
        for run in range(RUNS):
            topic = await engine.topic(f"persistent://bench/default/large-{run}")
            left = iter(calls)
            began = time.monotonic()
            await asyncio.gather(*(_copy(topic, left) for _ in range(2)))
            rates.append(size_mb / (time.monotonic() - began))
            await engine.deleting.delete(topic.name, force=True)
            while engine.store.deleted_topics():  # noqa: ASYNC110 - nobody is told that the sweep is over
                await asyncio.sleep(0.01)
        name = "engine/8MiB/copy"
        return disk.beside(name, tuple(rates)) or [Measurement(name, "MB/s", tuple(rates))]
    finally:
        await engine.close()


def _large_calls() -> list[list[CopiedBlock]]:
    """Return another cluster's log as its link sends it: for each call the list of its blocks."""
    entry, _ = make_entry(100_000, messages=1, batched=False)
    blocks: list[CopiedBlock] = []
    previous = BEFORE_ALL
    for number in range(LARGE_BLOCKS):
        first = Position(1, number * LARGE_BLOCK_ENTRIES)
        block = build_block(
            kind=BlockKind.MESSAGES,
            origin="elsewhere",
            incarnation=1,
            origin_first=first,
            publish_time_ms=1,
            entries=[entry] * LARGE_BLOCK_ENTRIES,
            batch_sizes=[1] * LARGE_BLOCK_ENTRIES,
        )
        blocks.append(CopiedBlock(previous, block))
        previous = Position(1, first.entry + LARGE_BLOCK_ENTRIES - 1)
    return [blocks[at : at + LARGE_BLOCKS_A_CALL] for at in range(0, len(blocks), LARGE_BLOCKS_A_CALL)]


async def _copy(topic: Topic, left: Iterator[Sequence[CopiedBlock]]) -> None:
    for blocks in left:
        await topic.writing.copy(blocks)


def make_entry(size_bytes: int, *, messages: int, batched: bool) -> tuple[bytes, int]:
    """Return an encoded entry and its number of messages: up to ``messages``, within the client's default limits.

    A message has ``size_bytes`` of payload. Without ``batched`` the entry has one message.
    """
    metadata = MessageMetadata(producer_name="bench", sequence_id=0, publish_time=1)
    payload = bytes(size_bytes)
    if not batched:
        return encode_entry(metadata, payload), 1
    count = max(1, min(messages, BATCH_MESSAGES_MAX, BATCH_BYTES_MAX // (size_bytes + 16)))
    batch = bytearray()
    for index in range(count):
        append_to_batch(batch, SingleMessageMetadata(sequence_id=index), payload)
    metadata.num_messages_in_batch = count
    return encode_entry(metadata, batch), count


async def _publish_rates(topic: Topic, case: Case) -> tuple[float, ...]:
    entry, messages_each = make_entry(case.size_bytes, messages=BATCH_MESSAGES_MAX, batched=case.batched)
    entries_each = max(1, PUBLISH_BYTES // len(entry))
    calls = max(1, case.messages // RUNS // (entries_each * messages_each))
    rates = []
    for _ in range(RUNS):
        left = iter(range(calls))
        began = time.monotonic()
        await asyncio.gather(*(_publish(topic, [entry] * entries_each, left) for _ in range(PUBLISHES_IN_FLIGHT)))
        rates.append(case.rate(calls * entries_each * messages_each, time.monotonic() - began))
    return tuple(rates)


async def _publish(topic: Topic, entries: Sequence[bytes], left: Iterator[int]) -> None:
    for _ in left:
        await topic.publish(entries)


async def _dispatch_rates(topic: Topic, case: Case, kind: SubscriptionType, consumers: int) -> tuple[float, ...]:
    """Return the rate of dispatch from a topic's first message to its last, for each run, in the case's unit.

    Each run has a new subscription of type ``kind`` with ``consumers`` consumers.
    """
    rates = []
    for run in range(RUNS):
        sink = _Sink(topic.log.messages)
        connected = [
            await topic.subscribe(
                f"{kind.value}-{run}",
                SubscribeOptions(type=kind, consumer_name=f"consumer-{index}", initial=InitialPosition.EARLIEST),
                sink.deliver,
            )
            for index in range(consumers)
        ]
        began = time.monotonic()
        for consumer in connected:
            for given in range(0, topic.log.messages, PERMITS_MAX):
                consumer.flow(min(topic.log.messages - given, PERMITS_MAX))
        await sink.full.wait()
        rates.append(case.rate(sink.messages, time.monotonic() - began))
        for consumer in connected:
            consumer.close()
    return tuple(rates)


class _Sink:
    """Counter of the messages delivered to consumers; ``full`` is set when there are ``wanted`` of them."""

    def __init__(self, wanted: int) -> None:
        self.messages = 0
        self.full = asyncio.Event()
        self._wanted = wanted

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        self.messages += sum(delivery.batch_size for delivery in deliveries)
        if self.messages >= self._wanted:
            self.full.set()
