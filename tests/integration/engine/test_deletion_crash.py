"""Deletion of topics against a real kill -9: deleted topics stay away, half-done deletions get finished, other topics
stay whole.

A transaction deletes three rows, so that most kills come amid a deletion.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import deletion_child
import pytest
from catalog_support import rows_of_nobody
from engine_support import logged, opened

from replicator.engine.engine import Engine


@dataclass
class Said:
    """Reports of the child in all its lives."""

    there: dict[str, bool | None] = field(default_factory=dict)
    """Whether a topic is there, by name; None while a deletion was asked for and not confirmed."""
    incarnations: dict[str, list[int]] = field(default_factory=dict)
    kept: int = -1
    deletions: int = 0

    def note(self, line: str) -> None:
        what, name, *rest = line.split()
        if what == "M":
            self.there[name] = True
            self.incarnations.setdefault(name, []).append(int(rest[0]))
        elif what == "X":
            self.there[name] = None
        elif what == "D":
            self.there[name] = False
            self.deletions += 1
        else:
            self.kept = int(name)


def run_and_kill(directory: Path, seed: int, said: Said) -> None:
    """Let the child work, and kill it after a random number of lines."""
    child = subprocess.Popen(
        [sys.executable, deletion_child.__file__, str(directory), str(seed)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    with child:
        for _ in range(random.Random(seed).randrange(10, 300)):
            line = child.stdout.readline()
            assert line, "the child ended by itself"
            said.note(line)
        child.kill()
        for line in child.stdout:
            if line.endswith("\n"):
                said.note(line)


async def check(engine: Engine, said: Said) -> int:
    """Check the store; return how many topics' rows were left to be deleted."""
    for name, there in said.there.items():
        if name == deletion_child.PARTED:
            if there is False and engine.partitioned.count(name):  # it was made again, and nobody was told yet
                assert len(engine.catalog.index.partitions_here(f"persistent://public/default/{name}")) > 0
            continue
        topic = engine.find(name)
        if there:
            assert topic is not None, f"{name} was lost"
            assert topic.incarnation == said.incarnations[name][-1]
        elif topic is not None and there is False:  # it was made again, and nobody was told yet
            assert topic.incarnation > said.incarnations[name][-1]
    for incarnations in said.incarnations.values():
        assert incarnations == sorted(set(incarnations)), "an incarnation was used again"
    partitions = engine.partitioned.count(deletion_child.PARTED)
    names = {f"persistent://public/default/{deletion_child.PARTED}-partition-{n}" for n in range(partitions)}
    assert {topic.name for topic in engine.topics() if deletion_child.PARTED in topic.name} == names, (
        "a partitioned topic is there with all its partitions, or not at all"
    )
    kept = engine.find("kept")
    if said.kept >= 0:
        assert kept is not None
        expected = [deletion_child.entry_of(number) for number in range(said.kept + 1)]
        assert [entry for _, _, entry in logged(kept)][: len(expected)] == expected
        assert kept.subscriptions["sub"].backlog_messages() <= kept.log.messages - len(expected)
    return len(engine.store.deleted_topics())


@pytest.mark.parametrize("seed", [1, 2])
def test_a_deletion_that_is_killed_is_finished_at_the_next_start(tmp_path: Path, seed: int) -> None:
    said = Said()
    half_deleted = 0

    async def reopen() -> int:
        async with opened(tmp_path) as engine:
            left = await check(engine, said)
            await engine.deleting.sweeper.swept()
            assert rows_of_nobody(engine.store) == set()
            return left

    for kill in range(5):
        run_and_kill(tmp_path, seed * 100 + kill, said)
        half_deleted += asyncio.run(reopen())
    assert said.deletions > 0
    assert half_deleted > 0, "no kill came amid a deletion: the test is not worth much"
