"""A producer with deduplication loses its cluster to kill -9, and goes on in the other: nothing twice, nothing lost."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from pathlib import Path

import duplicates_child
import pytest
from duplicates_child import IN_FLIGHT, TOPIC, entries_of
from duplicates_support import ON, ids_of
from engine_support import eventually, logged, opened, serving, subscribed

from replicator.engine.engine import Engine
from replicator.engine.log.entry import decode_entry
from replicator.engine.types import Ack, ProducerOptions
from replicator.links.link import Link

pytestmark = pytest.mark.usefixtures("short_link_pauses")


def run_and_kill(directory: Path, address: str, seed: int) -> int:
    """Let the child publish, and kill it in the middle; returns the last message of whose confirmation we heard."""
    paths = os.pathsep.join([str(Path(duplicates_child.__file__).parents[2]), *sys.path])
    child = subprocess.Popen(
        [sys.executable, duplicates_child.__file__, str(directory), address, str(seed)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    )
    assert child.stdout is not None
    heard = -1
    with child:
        messages = random.Random(seed).randrange(20, 120)
        while heard < messages:
            line = child.stdout.readline()
            assert line, "the child ended by itself"
            if line.startswith("P "):  # else the link's log
                heard = max(heard, int(line.split()[1]))
        child.kill()  # what it still confirms, nobody reads
    return heard


async def consume_all(engine: Engine, expected: set[tuple[str, int, int]]) -> None:
    """Every consumer gets each message once: of a subscription that was here all the time, and of a new one."""
    topic = await engine.topic(TOPIC)
    for name in ("sub", "new"):
        consumer, inbox = await subscribed(topic, name, permits=100_000)
        await inbox.holds(len(expected))
        assert sorted(ids_of(inbox.deliveries)) == sorted(expected)
        await consumer.acknowledge([Ack(position) for position in inbox.positions])
        subscription = topic.subscriptions[name]
        assert (subscription.backlog_messages(), subscription.cursor.mark_delete) == (0, topic.log.last)
        assert len(inbox.deliveries) == len(expected)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_producer_that_moves_and_sends_again_makes_no_duplicates_in_either_cluster(tmp_path: Path, seed: int) -> None:
    async def main() -> None:
        async with opened(tmp_path / "eu-west", "eu-west", ON) as west, serving(west, {"us-east"}) as server:
            b = await west.topic(TOPIC)
            (await subscribed(b))[0].close()
            heard = await asyncio.to_thread(run_and_kill, tmp_path / "us-east", server.address, seed)
            # What was in flight when the cluster was lost is sent again, and some that was confirmed as well.
            producer = await b.producers.create(ProducerOptions(name="p"))
            last = heard + 3 * IN_FLIGHT
            for number in range(max(0, heard - IN_FLIGHT), last + 1):
                await producer.publish(entries_of(number))
            messages = [entry for number in range(last + 1) for entry in entries_of(number)]
            async with opened(tmp_path / "us-east", "us-east", ON) as east, serving(east, {"eu-west"}) as back:
                a = await east.topic(TOPIC)
                stranded = len(logged(a))
                there, here = Link(east, "eu-west", server.address), Link(west, "us-east", back.address)
                there.start()
                here.start()
                try:
                    await eventually(lambda: sorted(logged(a)) == sorted(logged(b)), "both have all")
                finally:
                    await there.stop()
                    await here.stop()
                assert stranded >= heard
                assert {entry for _, _, entry in logged(a)} == set(messages), "a message was lost"
                expected = set(ids_of_entries(messages))
                for engine in (east, west):
                    await consume_all(engine, expected)
                assert a.log.has_duplicates, "some were sent to both, else this shows nothing"

    asyncio.run(main())


def ids_of_entries(entries: list[bytes]) -> list[tuple[str, int, int]]:
    metadata = [decode_entry(entry)[0] for entry in entries]
    return [(each.producer_name, each.sequence_id, each.chunk_id) for each in metadata]
