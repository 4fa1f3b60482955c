"""Group ``subscriptions``: the subscription engine in this process, at the sizes that operators ask about.

* ``key-shared``, ``shared``: from the log to the callbacks of a hundred consumers; each acknowledges what it got and
  grants as many permits again, as a client does, so the work of the cursor and of its saving is in the figure.
* ``holes``: a million acknowledged entries, each with one before it that is not: memory, and time to open the engine.
* ``join``: the 1,000th consumer of a Key_Shared subscription, for each way to assign keys.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import psutil

from bench.cases import RUNS
from bench.measurement import Measurement
from replicator.engine.engine import Engine, EngineSettings
from replicator.engine.log.entry import append_to_batch, encode_entry
from replicator.engine.policies import KeyAssignment, TopicPolicies
from replicator.engine.subscriptions.consumer import EngineConsumer
from replicator.engine.topic import Topic
from replicator.engine.types import Ack, Delivery, InitialPosition, SubscribeOptions, SubscriptionType
from replicator.metadata.metadata_pb2 import MessageMetadata, SingleMessageMetadata

CONSUMERS: Final = 100
KEYS: Final = 10_000
MESSAGE_BYTES: Final = 100
BATCH_MESSAGES: Final = 100
BATCHED_ENTRIES: Final = 20_000
SINGLE_ENTRIES: Final = 200_000
PERMITS: Final = 1_000
"""Permits that a consumer grants at first, as many as a client's receiver queue."""
PUBLISH_ENTRIES: Final = 1_000
HOLES: Final = 1_000_000
JOINS: Final = 1_000
KINDS: Final = (SubscriptionType.KEY_SHARED, SubscriptionType.SHARED)


async def measure_subscriptions(directory: Path) -> list[Measurement]:
    """Return all figures of group ``subscriptions``, with the engines' stores in ``directory``."""
    return [
        *await _measure_dispatch(directory, "100x100B", BATCHED_ENTRIES, BATCH_MESSAGES),
        *await _measure_dispatch(directory, "100B/single", SINGLE_ENTRIES, 1),
        *await _measure_holes(directory),
        *[await _measure_join(directory, assignment) for assignment in KeyAssignment],
    ]


async def _measure_dispatch(directory: Path, name: str, entries: int, messages_each: int) -> list[Measurement]:
    engine = await Engine.open(directory / f"dispatch-{messages_each}", cluster="bench")
    try:
        topic = await engine.topic("persistent://bench/default/dispatch")
        for first in range(0, entries, PUBLISH_ENTRIES):
            await topic.publish([_entry(first + at, messages_each) for at in range(PUBLISH_ENTRIES)])
        return [
            Measurement(f"subscriptions/{name}/{kind.value.lower().replace('_', '-')}-{CONSUMERS}", "msg/s", rates)
            for kind in KINDS
            for rates in [tuple([await _dispatch_rate(topic, kind, run) for run in range(RUNS)])]
        ]
    finally:
        await engine.close()


async def _dispatch_rate(topic: Topic, kind: SubscriptionType, run: int) -> float:
    """Dispatch a topic to :data:`CONSUMERS` consumers of a new subscription; return messages a second.

    The time runs from the consumers' first permits until the last message is acknowledged.
    """
    takers = [_Taker() for _ in range(CONSUMERS)]
    for index, taker in enumerate(takers):
        options = SubscribeOptions(kind, f"consumer-{index}", initial=InitialPosition.EARLIEST)
        taker.consumer = await topic.subscribe(f"{kind.value}-{run}", options, taker.deliver)
    began = time.monotonic()
    for taker in takers:
        taker.flow(PERMITS)
    subscription = topic.subscriptions[f"{kind.value}-{run}"]
    while subscription.cursor.mark_delete < topic.log.last:
        await asyncio.gather(*(taker.acknowledge() for taker in takers if taker.got))
        await asyncio.sleep(0)
    rate = topic.log.messages / (time.monotonic() - began)
    assert sum(taker.messages for taker in takers) == topic.log.messages, "a message was lost, or came twice"
    for taker in takers:
        taker.close()
    return rate


class _Taker:
    """Consumer whose ``acknowledge`` acknowledges all messages it has got, and grants as many permits again."""

    def __init__(self) -> None:
        self.consumer: EngineConsumer | None = None
        self.got: list[Ack] = []
        self.owed = 0
        self.messages = 0

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        self.got.extend(Ack(delivery.position) for delivery in deliveries)
        self.owed += sum(delivery.batch_size for delivery in deliveries)

    def flow(self, permits: int) -> None:
        assert self.consumer is not None
        self.consumer.flow(permits)

    async def acknowledge(self) -> None:
        assert self.consumer is not None
        got, self.got = self.got, []
        owed, self.owed = self.owed, 0
        self.messages += owed
        self.flow(owed)
        await self.consumer.acknowledge(got)

    def close(self) -> None:
        assert self.consumer is not None
        self.consumer.close()


async def _measure_holes(directory: Path) -> list[Measurement]:
    path = directory / "holes"
    engine = await Engine.open(path, cluster="bench")
    topic = await engine.topic("persistent://bench/default/holes")
    entry = _entry(0, 1)
    consumer = await topic.subscribe(
        "holes", SubscribeOptions(SubscriptionType.SHARED, initial=InitialPosition.EARLIEST), lambda _: None
    )
    for _ in range(2 * HOLES // 10_000):
        positions = await topic.publish([entry] * 10_000)
        await consumer.acknowledge([Ack(position) for position in positions[1::2]])
    assert len(topic.subscriptions["holes"].cursor.state.individually_deleted) == HOLES
    await engine.close()
    del engine, topic, consumer
    seconds: list[float] = []
    megabytes: list[float] = []
    for _ in range(RUNS):
        gc.collect()
        before = psutil.Process().memory_info().rss
        began = time.monotonic()
        again = await Engine.open(path, cluster="bench")
        seconds.append(time.monotonic() - began)
        megabytes.append((psutil.Process().memory_info().rss - before) / 1e6)
        await again.close()
        del again
    return [
        Measurement("subscriptions/holes-1M/restart", "s", tuple(seconds)),
        Measurement("subscriptions/holes-1M/memory", "MB", tuple(megabytes)),
    ]


async def _measure_join(directory: Path, assignment: KeyAssignment) -> Measurement:
    settings = EngineSettings(policies=replace(TopicPolicies(), key_assignment=assignment))
    engine = await Engine.open(directory / f"join-{assignment.value}", cluster="bench", settings=settings)
    try:
        topic = await engine.topic("persistent://bench/default/join")
        milliseconds: list[float] = []
        for run in range(RUNS):
            for index in range(JOINS):
                options = SubscribeOptions(SubscriptionType.KEY_SHARED, f"consumer-{index}")
                began = time.monotonic()
                await topic.subscribe(f"join-{run}", options, lambda _: None)
            milliseconds.append((time.monotonic() - began) * 1000)
        return Measurement(f"subscriptions/join-{JOINS}th/{assignment.value}", "ms", tuple(milliseconds))
    finally:
        await engine.close()


def _entry(number: int, messages: int) -> bytes:
    """Return an encoded entry with the key of ``number``, with ``messages`` in a batch; without a batch if one."""
    metadata = MessageMetadata(
        producer_name="bench", sequence_id=number, publish_time=1, partition_key=f"key-{number % KEYS}"
    )
    payload = bytes(MESSAGE_BYTES)
    if messages == 1:
        return encode_entry(metadata, payload)
    batch = bytearray()
    for index in range(messages):
        append_to_batch(batch, SingleMessageMetadata(sequence_id=index), payload)
    metadata.num_messages_in_batch = messages
    return encode_entry(metadata, batch)
