"""The process that the deletion test kills: makes topics with rows everywhere and deletes them, a few rows at a time.

Usage: ``python deletion_child.py DIRECTORY SEED``. It writes ``M name incarnation`` when a topic is made, ``X name``
before it asks for a deletion and ``D name`` when that has returned; ``parted`` is a partitioned topic. ``K number``
says that an entry of the topic ``kept`` is confirmed, which is published to and acknowledged all the while.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from contextlib import suppress
from pathlib import Path

from replicator.engine.engine import Engine
from replicator.engine.errors import TopicNotFound
from replicator.engine.log.entry import encode_entry
from replicator.engine.policies import TopicPolicies
from replicator.engine.topic import Topic
from replicator.engine.topic_name import parse_topic
from replicator.engine.topics import topic_deletion
from replicator.engine.types import Ack
from replicator.metadata.metadata_pb2 import MessageMetadata
from snapshots.position import BEFORE_ALL

NAMES = ("one", "two", "three")
PARTED = "parted"


def say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


def entry_of(number: int) -> bytes:
    metadata = MessageMetadata(producer_name="p", sequence_id=number, publish_time=1, partition_key=f"{number % 7}")
    return encode_entry(metadata, b"payload %d" % number)


async def fill(topic: Topic, chance: random.Random) -> None:
    await topic.policies.set(TopicPolicies(deduplication=True))
    positions = []
    for number in range(chance.randrange(5, 30)):
        positions += await topic.publish([entry_of(number)])
    subscription = await topic.subscriptions.create("sub", BEFORE_ALL, replicated=False)
    await subscription.acknowledge([Ack(position) for position in positions[2::2]])
    await topic.compaction.run()


async def make_and_delete(engine: Engine, name: str, chance: random.Random) -> None:
    while True:
        topic = await engine.topic(name)
        say(f"M {topic.name} {topic.incarnation}")
        await fill(topic, chance)
        say(f"X {topic.name}")
        await engine.deleting.delete(name)
        say(f"D {topic.name}")


async def make_and_delete_partitioned(engine: Engine, chance: random.Random) -> None:
    while True:
        await engine.partitioned.adopt(PARTED, chance.randrange(2, 5))
        await engine.partitioned.adopt(PARTED, chance.randrange(4, 8))
        await fill(await engine.topic(f"{PARTED}-partition-1"), chance)
        say(f"X {PARTED}")
        await engine.partitioned.delete(PARTED)
        say(f"D {PARTED}")


async def keep(engine: Engine) -> None:
    topic = await engine.topic("kept")
    subscription = await topic.subscriptions.create("sub", BEFORE_ALL, replicated=False)
    await subscription.moves.clear_backlog()  # an earlier life may have been killed before it acknowledged its last
    number = topic.log.messages
    while True:
        (position,) = await topic.publish([entry_of(number)])
        await subscription.acknowledge([Ack(position)])
        say(f"K {number}")
        number += 1


async def main(directory: Path, seed: int) -> None:
    topic_deletion.SWEEP_ROWS_MAX = 3  # type: ignore[misc]
    chance = random.Random(seed)
    engine = await Engine.open(directory, cluster="us-east")
    for name in (*NAMES, PARTED):  # what an earlier life left, in whatever state
        full_name = PARTED if name == PARTED else str(parse_topic(name))
        say(f"X {full_name}")
        with suppress(TopicNotFound):
            await (engine.partitioned.delete(name) if name == PARTED else engine.deleting.delete(name))
        say(f"D {full_name}")
    async with asyncio.TaskGroup() as group:
        for name in NAMES:
            group.create_task(make_and_delete(engine, name, chance))
        group.create_task(make_and_delete_partitioned(engine, chance))
        group.create_task(keep(engine))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
