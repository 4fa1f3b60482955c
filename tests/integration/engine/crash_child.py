"""The process that the crash test kills: publishes and acknowledges without end, and prints what was confirmed.

Usage: ``python crash_child.py DIRECTORY SEED LAYOUT``. Each line is written in one system call, after the
confirmation: ``P topic position number`` for a publish, ``A subscription position`` for an individual ack, ``B
subscription position index`` for one message of a batch, ``C position`` for a cumulative one. Meanwhile logs are
trimmed, other topics are made and deleted, and segments are compacted, each in several steps.

By ``LAYOUT`` bodies lie in the store's table, or all of them in small segments.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from replicator.engine.engine import Engine, EngineSettings
from replicator.engine.log import writer
from replicator.engine.log.commit import compacting
from replicator.engine.log.entry import append_to_batch, encode_entry
from replicator.engine.log.segments.settings import SegmentSettings
from replicator.engine.policies import Retention, TopicPolicies
from replicator.engine.topic import Topic
from replicator.engine.types import Ack, Delivery, InitialPosition, SubscribeOptions, SubscriptionType
from replicator.metadata.metadata_pb2 import MessageMetadata, SingleMessageMetadata

TOPICS = ("one", "two")
BATCH = 3
STEP_BYTES = 4 * 1024
"""Bytes per step of compaction, so few that the kill also comes between two steps of one segment."""
LAYOUTS: Final = {
    "table": SegmentSettings(),
    "segments": SegmentSettings(
        segment_bytes=64 * 1024, body_bytes_min=1, group_bytes_min=1, recent_bytes_max=64 * 1024
    ),
}


def settings_of(layout: str) -> EngineSettings:
    return EngineSettings(
        policies=TopicPolicies(retention=Retention(bytes_max=100_000)),
        maintenance_seconds=0.05,
        segments=LAYOUTS[layout],
    )


def entry_of(number: int) -> bytes:
    """The entry with that number: its size and bytes follow from the number, so that the parent can tell."""
    metadata = MessageMetadata(producer_name="child", sequence_id=number, publish_time=1, num_messages_in_batch=BATCH)
    body = bytearray()
    for index in range(BATCH):
        payload = random.Random(number + index).randbytes((number + index) * 7919 % 2000)
        append_to_batch(body, SingleMessageMetadata(payload_size=0), payload)
    return encode_entry(metadata, body)


def say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


async def publish(topic: Topic, name: str, chance: random.Random) -> None:
    while True:
        numbers = [chance.randrange(2**40) for _ in range(chance.randrange(1, 6))]
        positions = await topic.publish([entry_of(number) for number in numbers])
        for position, number in zip(positions, numbers, strict=True):
            say(f"P {name} {position} {number}")


async def consume(topic: Topic, kind: SubscriptionType, chance: random.Random) -> None:
    arrived: asyncio.Queue[Delivery] = asyncio.Queue()

    def deliver(deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            arrived.put_nowait(delivery)

    consumer = await topic.subscribe(
        kind.value, SubscribeOptions(type=kind, consumer_name="c", initial=InitialPosition.EARLIEST), deliver
    )
    consumer.flow(100_000)
    while True:
        delivery = await arrived.get()
        if kind is SubscriptionType.EXCLUSIVE:
            await consumer.acknowledge_cumulative(delivery.position)
            say(f"C {delivery.position}")
            continue
        luck = chance.random()
        if luck < 0.6:
            await consumer.acknowledge([Ack(delivery.position)])
            say(f"A {kind.value} {delivery.position}")
        elif luck < 0.8:
            index = chance.randrange(BATCH)
            await consumer.acknowledge([Ack(delivery.position, (index,))])
            say(f"B {kind.value} {delivery.position} {index}")


async def delete(engine: Engine, chance: random.Random) -> None:
    """Topics come and go."""
    for number in range(sys.maxsize):
        topic = await engine.topic(f"gone-{number % 3}")
        for _ in range(chance.randrange(1, 8)):
            await topic.publish([entry_of(chance.randrange(2**40))])
        await engine.deleting.delete(topic.name)


async def compact(engine: Engine) -> None:
    while True:
        await engine.writer.compact_segments()
        await asyncio.sleep(0.01)


async def main(directory: Path, seed: int, layout: str) -> None:
    chance = random.Random(seed)
    writer.COMPACTION_PAUSE_SECONDS = 0.001  # type: ignore[misc]
    compacting.MOVED_BYTES_MAX = STEP_BYTES  # type: ignore[misc]
    engine = await Engine.open(directory, cluster="us-east", settings=settings_of(layout))
    topics = {name: await engine.topic(name) for name in TOPICS}
    async with asyncio.TaskGroup() as group:
        group.create_task(delete(engine, chance))
        group.create_task(compact(engine))
        for name, topic in topics.items():
            group.create_task(publish(topic, name, chance))
            group.create_task(publish(topic, name, chance))
        for kind in SubscriptionType:
            group.create_task(consume(topics["one"], kind, chance))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
