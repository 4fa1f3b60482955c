"""The cluster that a producer loses: an engine with a link to another cluster, and a producer with deduplication.

Usage: ``python duplicates_child.py DIRECTORY ADDRESS SEED``. It writes ``P number`` when message ``number`` is
confirmed, and is killed some time. From a random message on the link stands still, so that what follows is stored here
alone.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from pathlib import Path

from duplicates_support import ON, chunks_of, numbered, numbered_batch

from replicator.engine.engine import Engine
from replicator.engine.types import InitialPosition, ProducerOptions, SubscribeOptions, SubscriptionType
from replicator.links.link import Link

TOPIC = "persistent://public/default/orders"
IN_FLIGHT = 8


def entries_of(number: int) -> list[bytes]:
    """Message ``number``, ten sequence ids each: a single one, a batch of four, or one in three chunks."""
    first = 10 * number
    if number % 5 == 4:
        return chunks_of(first, 3, uuid=f"u{number}")
    return [numbered_batch(first, first + 3) if number % 3 == 1 else numbered(first)]


async def main(directory: Path, address: str, seed: int) -> None:
    chance = random.Random(seed)
    stands_still_from = chance.randrange(10, 60)
    engine = await Engine.open(directory, cluster="us-east", settings=ON)
    topic = await engine.topic(TOPIC)
    options = SubscribeOptions(SubscriptionType.SHARED, initial=InitialPosition.EARLIEST)
    (await topic.subscribe("sub", options, lambda _: None)).close()
    link = Link(engine, "eu-west", address)
    link.start()
    producer = await topic.producers.create(ProducerOptions(name="p"))

    async def send(number: int) -> None:
        await producer.publish(entries_of(number))
        os.write(1, f"P {number}\n".encode())

    number = 0
    while True:
        if number >= stands_still_from:
            await link.stop()
        flight = [asyncio.ensure_future(send(number + at)) for at in range(IN_FLIGHT)]
        await asyncio.gather(*flight)
        await asyncio.sleep(0.001)
        number += IN_FLIGHT


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
