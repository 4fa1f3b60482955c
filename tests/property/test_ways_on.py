"""Random lives of a topic: deleted, made again, kept, put back by backups and by snapshots of the disk. Each gap has a
way on, and what a cluster has stays there.

Invariants (DESIGN §3): 12 and 13. Engines, HTTP, links and the reclaim are real. The suite runs some seeds; ``make
soak`` runs :data:`RUNS_OF_SOAK`. ``WAYS_SEED`` runs one.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from engine_support import TOPIC, entries_of, eventually, message, opened
from test_reclaim_faults import NAMES, Clusters, blocks_of, clusters

from replicator.engine.engine import Engine
from replicator.engine.log.block import BlockView
from replicator.engine.restored import RestoredMark, put_mark
from replicator.links import link as links
from replicator.links import transfer
from replicator.links.errors import NotResolved
from replicator.links.link import Link

RUNS_OF_SUITE: Final = 6
RUNS_OF_SOAK: Final = 200
OWN: Final = "us-east"
SECONDS: Final = 30.0
"""Limit of a wait for a link to come to rest, on a busy machine."""


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry soon, and look often at topics that wait."""
    monkeypatch.setattr(transfer, "RETRY_SECONDS_MIN", 0.005)
    monkeypatch.setattr(transfer, "RETRY_SECONDS_MAX", 0.05)
    monkeypatch.setattr(links, "SETTLE_SECONDS", 0.05)


def seeds() -> range:
    if "WAYS_SEED" in os.environ:
        seed = int(os.environ["WAYS_SEED"])
        return range(seed, seed + 1)
    return range(RUNS_OF_SOAK if "SOAK" in os.environ else RUNS_OF_SUITE)


class Lives:
    """Driver of us-east and its links, with the steps done to its topic."""

    def __init__(self, found: Clusters, drawn: random.Random) -> None:
        self.found, self.drawn = found, drawn
        self.number = 0
        self.saved: list[Path] = []
        self.deleted: set[bytes] = set()
        """Entries of topics that us-east deleted on purpose."""
        self.said: list[str] = []
        """Steps so far, for the text of a failure."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[tuple[Engine, dict[str, Link]]]:
        async with AsyncExitStack() as stack:
            engine = await stack.enter_async_context(opened(self.found.data, OWN))
            made: dict[str, Link] = {}
            for peer in self.found.peers:
                made[peer.engine.cluster] = link = Link(engine, peer.engine.cluster, peer.server.address)
                link.start()
                stack.push_async_callback(link.stop)
            yield engine, made
            for link in made.values():
                await link.stop()
                link.detach()

    async def work(self, steps: list[str]) -> None:
        """Do some steps while the worker of us-east runs."""
        async with self.running() as (engine, made):
            for step in steps:
                if step == "publish":
                    await self.publish(engine)
                elif (topic := engine.find(TOPIC)) is not None:
                    self.deleted.update(entries_of(topic, OWN), *map(partial(self.of_life, topic.incarnation), NAMES))
                    await engine.deleting.delete(TOPIC, force=True)
                if self.drawn.random() < 0.6:
                    await self.settle(engine, made)

    async def publish(self, engine: Engine) -> bytes:
        self.number += 1
        entry = message(b"%d" % self.number)
        await (await engine.topic(TOPIC)).publish([entry])
        return entry

    async def settle(self, engine: Engine, made: dict[str, Link]) -> bool:
        """End each gap by the first policy that loses nothing. Return whether a reclaim must come first."""
        for link in made.values():
            try:
                async with asyncio.timeout(SECONDS):
                    while not self.rests(engine, link):
                        for gap in link.status()["gaps"]:
                            if "replicator backup reclaim" in gap["detail"] and gap["kind"] == "lost-data":
                                return True
                            kept = self.at(link.spec.destination)
                            policy = "skip-and-record" if gap["kind"] == "lost-data" else "keep-both"
                            try:
                                await link.resolve(TOPIC, policy)
                            except NotResolved as refused:
                                if "begin a new life of the topic" in str(refused):
                                    return True
                                raise
                            assert self.at(link.spec.destination)[: len(kept)] == kept
                        await asyncio.sleep(0.01)
            except TimeoutError:
                raise AssertionError(f"{link.key} has no way on after {self.said}: {link.status()}") from None
        return False

    def rests(self, engine: Engine, link: Link) -> bool:
        """Return whether the link has nothing left to do."""
        topic = engine.find(TOPIC)
        if link.state not in ("idle", "copying") or link.status()["gaps"]:
            return False
        return topic is None or (link.backlog_entries() == 0 and not link.status()["halted"])

    def at(self, name: str) -> list[bytes]:
        engine = self.found.peers[NAMES.index(name)].engine
        topic = engine.find(TOPIC)
        return [] if topic is None else entries_of(topic, OWN)

    def of_life(self, incarnation: int, name: str) -> list[bytes]:
        """Return the entries that a peer has of one life of us-east's topic."""
        topic = self.found.peers[NAMES.index(name)].engine.find(TOPIC)
        blocks = [] if topic is None else blocks_of(topic)
        found = [each for each in blocks if (each.header.origin, each.header.incarnation) == (OWN, incarnation)]
        return [bytes(entry) for each in found for entry in BlockView(each.block, each.header).entries()]

    def have(self, last: bytes) -> bool:
        """Return whether every peer has the entry ``last`` at the end."""
        return all(self.at(name)[-1:] == [last] for name in NAMES)

    def save(self) -> None:
        self.saved.append(self.found.path / f"saved{len(self.saved)}")
        shutil.copytree(self.found.data, self.saved[-1])

    async def put_back(self, *, restored: bool) -> None:
        """Put a saved directory back, as a snapshot of a disk or by a restore."""
        shutil.rmtree(self.found.data)
        shutil.copytree(self.drawn.choice(self.saved), self.found.data)
        if restored:
            async with opened(self.found.data, OWN) as engine:
                put_mark(engine.store, RestoredMark(uuid.uuid4().hex, "backup", 1, 1))
            await self.reclaim()

    async def reclaim(self) -> None:
        async with opened(self.found.data, OWN) as engine:
            topic = engine.find(TOPIC)
            before = [] if topic is None else entries_of(topic, OWN)
        done = await self.found.reclaim()
        async with opened(self.found.data, OWN) as engine:
            topic = engine.find(TOPIC)
            after = [] if topic is None else entries_of(topic, OWN)
        gone = {*before} - {*after} - self.deleted
        assert not gone, f"{gone} are gone after {self.said}: {done}"
        lacking = {each for name in NAMES for each in self.at(name)} - {*after} - self.deleted
        assert not lacking or done.lost, f"{lacking} did not come back after {self.said}: {done}"
        self.said.append(f"reclaimed: {done.begun} {done.lost}")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", seeds())
def test_invariant_12_each_gap_of_a_topic_of_random_lives_has_a_way_on_that_loses_nothing(
    tmp_path: Path, seed: int
) -> None:
    async def main() -> None:
        drawn = random.Random(seed)
        async with clusters(tmp_path) as found:
            lives = Lives(found, drawn)
            await lives.work(["publish"])
            lives.save()
            for _ in range(drawn.randint(2, 5)):
                had = {name: lives.at(name) for name in NAMES}
                steps = [drawn.choice(("publish", "delete")) for _ in range(drawn.randint(1, 4))]
                lives.said.append(str(steps))
                await lives.work(steps)
                if drawn.random() < 0.6:
                    lives.said.append("save")
                    lives.save()
                if drawn.random() < 0.6:
                    restored = drawn.random() < 0.5
                    lives.said.append("restore" if restored else "snapshot")
                    await lives.put_back(restored=restored)
                for name in NAMES:
                    assert lives.at(name)[: len(had[name])] == had[name], f"{name} lost something: {lives.said}"
            lives.said.append("end")
            for _ in range(3):
                async with lives.running() as (engine, made):
                    last = await lives.publish(engine)
                    if not await lives.settle(engine, made):
                        await eventually(partial(lives.have, last), str(lives.said))
                        return
                await lives.reclaim()
            raise AssertionError(f"no way on after {lives.said}")

    asyncio.run(main())
