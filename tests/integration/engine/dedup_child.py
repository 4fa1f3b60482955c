"""The process that the deduplication test kills. Its producers send again every message without a confirmation.

Usage: ``python dedup_child.py DIRECTORY SEED``. It writes ``P name number`` when message ``number`` of a producer is
confirmed. Each producer numbers its messages from 0; when the process starts again, it repeats some earlier messages,
like a producer that heard no answer.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from pathlib import Path

from replicator.engine.engine import Engine, EngineSettings
from replicator.engine.log.entry import encode_entry
from replicator.engine.policies import TopicPolicies
from replicator.engine.topic import Topic
from replicator.engine.types import ProducerOptions
from replicator.metadata.metadata_pb2 import MessageMetadata

TOPIC = "orders"
NAMES = ("one", "two", "three")
SETTINGS = EngineSettings(policies=TopicPolicies(deduplication=True))


def entries_of(name: str, number: int) -> list[bytes]:
    """The entries of one message: every fifth one comes in three chunks."""
    metadata = MessageMetadata(producer_name=name, sequence_id=number, publish_time=1)
    payload = random.Random(f"{name} {number}").randbytes(number * 7919 % 3000)
    if number % 5:
        return [encode_entry(metadata, payload)]
    metadata.num_chunks_from_msg, metadata.total_chunk_msg_size, metadata.uuid = 3, 3000, f"{name}-{number}"
    chunks = []
    for at in range(3):
        metadata.chunk_id = at
        chunks.append(encode_entry(metadata, payload[at * 1000 : (at + 1) * 1000]))
    return chunks


async def produce(topic: Topic, name: str, chance: random.Random) -> None:
    while True:
        producer = await topic.producers.create(ProducerOptions(name=name))
        number = max(0, producer.last_sequence_id + 1 - chance.randrange(10))
        for _ in range(chance.randrange(1, 40)):
            entries = entries_of(name, number)
            again = entries[: chance.randrange(1, len(entries) + 1)]
            sent = asyncio.ensure_future(producer.publish(again))
            if chance.random() < 0.5:  # its answer gets lost, and it sends the whole message while that is on its way
                await producer.publish(entries)
            await sent
            await producer.publish(entries)
            os.write(1, f"P {name} {number}\n".encode())
            number += 1
        producer.close()


async def main(directory: Path, seed: int) -> None:
    chance = random.Random(seed)
    engine = await Engine.open(directory, cluster="us-east", settings=SETTINGS)
    topic = await engine.topic(TOPIC)
    async with asyncio.TaskGroup() as group:
        for name in NAMES:
            group.create_task(produce(topic, name, chance))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
