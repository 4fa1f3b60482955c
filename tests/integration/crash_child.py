"""The process that the crash test kills: publishes and acknowledges without end, and prints what was confirmed.

Usage: ``python crash_child.py DIRECTORY SEED``. Each line is written in one system call, after the confirmation:
``P topic position number`` for a publish, ``A subscription position`` for an individual ack, ``B subscription position
index`` for one message of a batch, ``C position`` for a cumulative one. Meanwhile logs are trimmed.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections.abc import Sequence
from pathlib import Path

from replicator.engine.engine import Engine, EngineSettings
from replicator.engine.log.entry import append_to_batch, encode_entry
from replicator.engine.policies import Retention, TopicPolicies
from replicator.engine.topic import Topic
from replicator.engine.types import Ack, Delivery, InitialPosition, SubscribeOptions, SubscriptionType
from replicator.metadata.metadata_pb2 import MessageMetadata, SingleMessageMetadata

TOPICS = ("one", "two")
BATCH = 3
SETTINGS = EngineSettings(
    policies=TopicPolicies(retention=Retention(bytes_max=100_000)),
    maintenance_seconds=0.05,
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


async def main(directory: Path, seed: int) -> None:
    chance = random.Random(seed)
    engine = await Engine.open(directory, cluster="us-east", settings=SETTINGS)
    topics = {name: await engine.topic(name) for name in TOPICS}
    async with asyncio.TaskGroup() as group:
        for name, topic in topics.items():
            group.create_task(publish(topic, name, chance))
            group.create_task(publish(topic, name, chance))
        for kind in SubscriptionType:
            group.create_task(consume(topics["one"], kind, chance))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
