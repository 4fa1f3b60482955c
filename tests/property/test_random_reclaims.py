"""Random reclaims: peers with ordinary retention, one damaged block, a peer that is killed, a disk that gets full.

Nothing is lost that anybody has when it is asked, each loss is named, and exit statuses are the documented ones. The
suite runs some seeds; ``make soak`` runs :data:`RUNS_OF_SOAK`. ``RECLAIM_SEED`` runs one.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pytest
from aiohttp import web
from test_reclaim_faults import (
    Clusters,
    Fault,
    Peer,
    check,
    clusters,
    damage,
    give,
    in_directory,
    is_killed,
    restored_from,
)

from replicator.backup.reclaiming import Reclaimed
from replicator.cli.backup import reclaim
from replicator.cli.exit_status import exit_status_of
from replicator.engine.engine import EngineSettings
from replicator.engine.policies import Retention, TopicPolicies
from replicator.engine.upkeep.maintenance import HELD_BACK_SECONDS

RUNS_OF_SUITE: Final = 3
RUNS_OF_SOAK: Final = 200
DISK_BYTES: Final = 96 << 20
LARGER_DISK_BYTES: Final = 256 << 20
REFUSED_BELOW: Final = DISK_BYTES // 8
"""Bytes of a small disk that are left for data other than messages."""
RUNS_MAX: Final = 10
"""Limit of runs of the command in one reclaim: each fault ends it once at most."""
STEPS: Final = ("publish", "publish", "publish", "copy", "marker", "local marker", "reopen")


def seeds() -> range:
    if "RECLAIM_SEED" in os.environ:
        seed = int(os.environ["RECLAIM_SEED"])
        return range(seed, seed + 1)
    return range(RUNS_OF_SOAK if "SOAK" in os.environ else RUNS_OF_SUITE)


class Retaining:
    """The ordinary retention of a peer, whose clock goes on between pages."""

    def __init__(self, drawn: random.Random) -> None:
        self._drawn = drawn
        self.now = 1_000.0

    async def strike(self, peer: Peer, _: web.Request) -> None:
        """Let time go by, sometimes more than a reclaim's pause may be, and run a pass of retention."""
        self.now += self._drawn.choice([1.0, 30.0, HELD_BACK_SECONDS + 1])
        await peer.engine.maintenance.run_once()


def steps(drawn: random.Random) -> list[str]:
    return [drawn.choice(STEPS) for _ in range(drawn.randint(3, 14))]


def faults_of(drawn: random.Random, retaining: Retaining, *, killed: bool) -> dict[int, Fault]:
    found: dict[int, Fault] = {page: retaining.strike for page in range(1, 12) if drawn.random() < 0.4}
    if killed:
        found[drawn.randint(1, 6)] = is_killed
    return found


@contextmanager
def small_disk(directory: Path, drawn: random.Random, *, wanted: bool) -> Iterator[bool]:
    """Mount a small disk at a directory, if ``wanted`` and possible; yield whether it has one."""
    directory.mkdir(parents=True, exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(directory)]
    if not wanted or subprocess.run(mount, capture_output=True).returncode:
        yield False
        return
    try:
        yield True
    finally:
        subprocess.run(["umount", str(directory)], check=True)


def fill(directory: Path, left_bytes: int) -> None:
    """Fill the disk of a directory until ``left_bytes`` bytes are left."""
    with (directory / "filler").open("wb", buffering=0) as filler, suppress(OSError):
        while True:
            filler.write(bytes(4096))
    with (directory / "filler").open("rb+") as filler:
        filler.truncate(max(0, filler.seek(0, os.SEEK_END) - left_bytes))


def make_room(directory: Path) -> None:
    subprocess.run(["mount", "-o", f"remount,size={LARGER_DISK_BYTES}", str(directory)], check=True)
    (directory / "filler").unlink(missing_ok=True)


def run_command(found: Clusters) -> tuple[int, Any, str]:
    """Run ``replicator backup reclaim``; return its exit status, its JSON output, and its error text."""
    try:
        shown = reclaim(found.path / "topology.yaml", "us-east")
    except Exception as error:
        status = exit_status_of(error)
        if status is None:  # nobody expected it
            raise
        return status, None, str(error)
    return shown.status, shown.value, ""


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", seeds())
def test_invariant_5_a_random_reclaim_loses_nothing_that_anybody_has_and_names_all_else(seed: int) -> None:
    drawn = random.Random(seed)
    retention = drawn.choice([None, Retention(0, 0), Retention(None, 2_000)])
    policies = TopicPolicies() if retention is None else TopicPolicies(retention=retention)
    retaining = Retaining(drawn)

    async def main(path: Path) -> None:
        with small_disk(path / "us-east", drawn, wanted=drawn.random() < 0.5) as full:
            async with clusters(path, EngineSettings(policies=policies, maintained=False)) as found:
                published = await restored_from(found, ["publish", *steps(drawn)], ["publish", *steps(drawn)])
                one, two = found.peers
                for peer in found.peers:
                    peer.engine.maintenance._monotonic = lambda: retaining.now
                await give(one, published, between=drawn.randint(0, 3))
                await give(two, published[: drawn.randint(1, len(published))])
                damage(drawn.choice(found.peers), drawn.randrange(20), head=drawn.random() < 0.5)
                killed = drawn.choice(found.peers)
                for peer in found.peers:
                    peer.faults = faults_of(drawn, retaining, killed=peer is killed)
                if full:
                    fill(found.data, drawn.choice([0, REFUSED_BELOW]) + drawn.randrange(0, 1 << 19, 4096))
                await check(found, published, await finished(found, full=full))

    in_directory(main)


async def finished(found: Clusters, *, full: bool) -> Reclaimed:
    """Run ``replicator backup reclaim`` again and again until it succeeds, and return what it lost.

    After a failure, bring killed peers back, or make room on the disk if it is ``full``.
    """
    for _ in range(RUNS_MAX):
        status, value, error = await asyncio.to_thread(run_command, found)
        if status in (0, 4):
            assert (status == 4) == any("damaged block" in each for each in value["lost"]), value["lost"]
            return Reclaimed(lost=value["lost"], damaged=status == 4)
        assert status == 3, (status, error)
        if any(peer.gone for peer in found.peers):
            assert "replicator backup reclaim" in error
            for peer in found.peers:
                peer.gone = False
        else:
            assert full, error
            assert "room" in error, error
            make_room(found.data)
            full = False
    raise AssertionError("there is no end to it")
