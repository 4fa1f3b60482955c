"""Deduplication against a real kill -9: nothing is stored twice and nothing confirmed is lost, despite repeated
sends."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import dedup_child
import pytest
from engine_support import logged, opened

from replicator.engine.engine import Engine
from replicator.engine.log.entry import decode_entry
from replicator.engine.types import ProducerOptions


def run_and_kill(directory: Path, seed: int, confirmed: dict[str, int]) -> None:
    """Let the child work, and kill it after a random number of confirmations."""
    child = subprocess.Popen(
        [sys.executable, dedup_child.__file__, str(directory), str(seed)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    with child:
        for _ in range(random.Random(seed).randrange(20, 400)):
            line = child.stdout.readline()
            assert line, "the child ended by itself"
            note(line, confirmed)
        child.kill()
        for line in child.stdout:
            if line.endswith("\n"):
                note(line, confirmed)


def note(line: str, confirmed: dict[str, int]) -> None:
    _, name, number = line.split()
    confirmed[name] = max(confirmed[name], int(number))


async def check(engine: Engine, confirmed: dict[str, int]) -> None:
    topic = await engine.topic(dedup_child.TOPIC)
    stored = defaultdict(list)
    for _, _, entry in logged(topic):
        stored[decode_entry(entry)[0].producer_name].append(entry)
    for name, highest in confirmed.items():
        expected = [entry for number in range(highest + 1) for entry in dedup_child.entries_of(name, number)]
        assert stored[name][: len(expected)] == expected, "a message was lost, stored twice or out of order"
        unconfirmed = stored[name][len(expected) :]  # stored, and killed before it was said; at most the last message
        following = dedup_child.entries_of(name, highest + 1)
        assert unconfirmed == following[: len(unconfirmed)]
        producer = await topic.producers.create(ProducerOptions(name=name))
        complete = len(unconfirmed) == len(following)
        assert producer.last_sequence_id == highest + complete


@pytest.mark.parametrize("seed", [1, 2])
def test_nothing_is_stored_twice_and_nothing_confirmed_is_lost_by_kill_9(tmp_path: Path, seed: int) -> None:
    confirmed: dict[str, int] = defaultdict(lambda: -1)

    async def reopen() -> None:
        async with opened(tmp_path, settings=dedup_child.SETTINGS) as engine:
            await check(engine, confirmed)

    for kill in range(4):
        run_and_kill(tmp_path, seed * 100 + kill, confirmed)
        asyncio.run(reopen())
    assert len(confirmed) == len(dedup_child.NAMES)
