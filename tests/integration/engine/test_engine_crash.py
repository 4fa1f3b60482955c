"""Invariant 1 against a real kill -9: whatever was confirmed is there afterwards, to the byte, or was trimmed.

With SOAK set, some 200 kills of a store whose bodies lie in small segments.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import crash_child
import pytest
from engine_support import logged, message, opened
from segment_support import check_no_segment_leaks, check_places

from replicator.engine.engine import Engine, EngineSettings
from replicator.engine.types import SubscriptionType
from snapshots.position import BEFORE_ALL, Position


@dataclass
class Confirmed:
    """All that the child ever said was durable."""

    published: dict[tuple[str, Position], int] = field(default_factory=dict)
    acked: dict[str, set[Position]] = field(default_factory=lambda: defaultdict(set))
    """Confirmed acknowledgements, by subscription."""
    indexes_acked: dict[str, set[tuple[Position, int]]] = field(default_factory=lambda: defaultdict(set))
    acked_through: Position = BEFORE_ALL

    def note(self, line: str) -> None:
        what, *values = line.split()
        if what == "P":
            name, position, number = values
            key = (name, Position.parse(position))
            assert key not in self.published, f"invariant 10: {key} was used twice"
            self.published[key] = int(number)
        elif what == "A":
            self.acked[values[0]].add(Position.parse(values[1]))
        elif what == "B":
            self.indexes_acked[values[0]].add((Position.parse(values[1]), int(values[2])))
        else:
            self.acked_through = max(self.acked_through, Position.parse(values[0]))


def run_and_kill(directory: Path, seed: int, layout: str, confirmed: Confirmed) -> None:
    """Let the child work, and kill it after a random number of confirmations."""
    lines_wanted = random.Random(seed).randrange(20, 900)
    child = subprocess.Popen(
        [sys.executable, crash_child.__file__, str(directory), str(seed), layout], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    with child:
        for _ in range(lines_wanted):
            line = child.stdout.readline()
            assert line, "the child ended by itself"
            confirmed.note(line)
        child.kill()
        for line in child.stdout:  # what it said before the kill took effect
            if line.endswith("\n"):
                confirmed.note(line)


async def check(engine: Engine, confirmed: Confirmed) -> None:
    for name in crash_child.TOPICS:
        topic = await engine.topic(name)
        found = {position: entry for _, position, entry in logged(topic)}
        expected = {position: number for (at, position), number in confirmed.published.items() if at == name}
        expected = {position: number for position, number in expected.items() if position > topic.log.trimmed}
        missing = expected.keys() - found.keys()
        assert not missing, f"{len(missing)} confirmed publishes are gone"
        for position, number in expected.items():
            assert found[position] == crash_child.entry_of(number)
        assert sorted(found) == list(found), "entries are not in the order of positions"
    subscriptions = (await engine.topic("one")).subscriptions
    for name, acked in confirmed.acked.items():
        cursor = subscriptions[name].cursor
        forgotten = [position for position in acked if not cursor.is_consumed(position)]
        assert not forgotten, f"{len(forgotten)} confirmed acks of {name} are gone"
        for position, index in confirmed.indexes_acked[name]:
            assert cursor.is_consumed(position) or index in (cursor.acked_indexes(position) or ()), (
                f"the confirmed ack of {position} index {index} of {name} is gone"
            )
    exclusive = subscriptions[SubscriptionType.EXCLUSIVE.value].cursor
    assert exclusive.mark_delete >= confirmed.acked_through


async def check_room(engine: Engine) -> None:
    """Whatever was cut off, each segment is of use; a commit that frees something gives back what is not."""
    await engine.deleting.sweeper.swept()
    check_places(engine.store)
    topic = await engine.topic("two")
    await topic.publish([message()])
    await topic.publish([message()])
    await engine.writer.trim(topic.topic_id, topic.log.last, topic.tail)
    check_places(engine.store)
    check_no_segment_leaks(engine.store)


KILLS = 3
SEEDS = range(1, 68) if os.environ.get("SOAK") else (1, 2)


@pytest.mark.parametrize(("layout", "seed"), [("table", 1), ("table", 2), *(("segments", seed) for seed in SEEDS)])
def test_invariant_1_what_was_confirmed_survives_kill_9_at_any_moment(tmp_path: Path, layout: str, seed: int) -> None:
    confirmed, trimmed = Confirmed(), list[Position]()

    async def reopen() -> None:
        async with opened(tmp_path, settings=EngineSettings(segments=crash_child.LAYOUTS[layout])) as engine:
            await check(engine, confirmed)
            trimmed.append((await engine.topic("two")).log.trimmed)
            await check_room(engine)

    for kill in range(KILLS):
        run_and_kill(tmp_path, seed * 100 + kill, layout, confirmed)
        asyncio.run(reopen())
    assert confirmed.published
    assert confirmed.acked
    assert confirmed.indexes_acked
    assert confirmed.acked_through > BEFORE_ALL
    assert max(trimmed) > BEFORE_ALL, "nothing was trimmed"
