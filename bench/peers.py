"""Group ``peers``: the copy beside Pulsar's geo-replication and Kafka's MirrorMaker 2, with and without syncs.

A round takes each size, and of each size every system in turn: it is started with nothing, gets its backlog, and copies
it :data:`RUNS` times after one copy that does not count, for the brokers compile their code as they run. Then it is
ended and its data deleted. With the first size each system's lag is measured too. The disk is measured at the beginning
of each round. Medians are of all rounds.

It takes the better part of an hour, so it is measured only if it is named.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaException

from bench import kafka_pair, pulsar_pair
from bench.arrival import NotArrived
from bench.bridge_pair import BRIDGE
from bench.cases import CASES, Case
from bench.cases import RUNS as PARTS
from bench.disk import DiskLimits, measure_disk
from bench.lag import Lag
from bench.our_pair import OURS
from bench.pairs import System
from bench.peer_table import Name, PeerResults, Taken
from bench.usage import Usage
from replicator.client.errors import PulsarException
from replicator.drills.peers.jvm import PeerFailed

SYSTEMS: Final = (OURS, BRIDGE, *pulsar_pair.SYSTEMS, *kafka_pair.SYSTEMS)
SYSTEM_NAMES: Final = tuple(system.name for system in SYSTEMS)
ROUNDS: Final = 3
RUNS: Final = 2
UNCOUNTED: Final = 1
MESSAGES: Final = {"100B": 1_800_000, "1kB": 300_000, "100kB": 3_000}
"""180 to 300 MB: half a second of the fastest system, ten seconds and more of the slowest."""
_MB: Final = 1e6
_GB: Final = 1e9

Say = Callable[[str], None]


async def measure_peers(
    directory: Path, say: Say, *, rounds: int = ROUNDS, scale: float = 1.0, only: Collection[str] = ()
) -> PeerResults:
    """Measure all systems, or those named in ``only``, and return all results. ``say`` prints the progress.

    ``scale`` shrinks the backlogs, for a trial. A peer that fails is reported, and lacks that run.
    """
    wanted = [system for system in SYSTEMS if not only or system.name in only]
    systems = [system for system in wanted if _is_here(system, say)]
    found = _Found.of(systems, _cases(scale))
    for number in range(rounds):
        limits = await asyncio.to_thread(measure_disk, directory)
        found.limits.append(limits)
        for case in found.cases:
            for system in systems:
                say(f"round {number + 1} of {rounds}, {case.name}: {system.title}")
                await _measure_one(system, case, directory / "pair", found, say)
    return found.results()


def _is_here(system: System, say: Say) -> bool:
    why = system.missing()
    if why is not None:
        say(f"{system.title} is left out: {why}")
    return why is None


def _cases(scale: float) -> list[Case]:
    """Return the batched cases with the backlogs of :data:`MESSAGES` times ``scale``, a multiple of the equal parts."""
    return [
        replace(case, messages=max(1, int(MESSAGES[case.size_name] * scale) // PARTS) * PARTS)
        for case in CASES
        if case.batched
    ]


@dataclass(frozen=True, slots=True)
class _Found:
    """Results so far; each measurement adds to them."""

    systems: Sequence[System]
    cases: Sequence[Case]
    taken: dict[tuple[str, str], Taken]
    lags: dict[str, list[Lag]]
    limits: list[DiskLimits]

    @classmethod
    def of(cls, systems: Sequence[System], cases: Sequence[Case]) -> _Found:
        taken = {(case.name, system.name): Taken() for case in cases for system in systems}
        return cls(systems, cases, taken, {system.name: [] for system in systems}, [])

    def results(self) -> PeerResults:
        names = [Name(system.name, system.title, system.promise, system.ours) for system in self.systems]
        disk = DiskLimits(
            tuple(rate for limits in self.limits for rate in limits.through_mb_s),
            tuple(rate for limits in self.limits for rate in limits.through_synced_mb_s),
            tuple(rate for limits in self.limits for rate in limits.past_mb_s),
        )
        return PeerResults(names, self.cases, self.taken, self.lags, disk)


async def _measure_one(system: System, case: Case, directory: Path, found: _Found, say: Say) -> None:
    """Measure one size with one system, and add the results to ``found``; with the first size, its lag too.

    Report the error of a peer, and go on; raise that of a system of ours.
    """
    lags = found.lags[system.name] if case is found.cases[0] else None
    with _own(directory):
        try:
            await _copies(system, case, directory, found.taken[case.name, system.name], lags, say)
        except (PeerFailed, NotArrived, PulsarException, KafkaException, OSError) as why:
            if system.ours:
                raise
            say(f"{system.title} failed: {why}")


@contextmanager
def _own(directory: Path) -> Iterator[None]:
    """Make ``directory`` and remove it on leaving the context, so that the disk holds the data of one system only."""
    directory.mkdir()
    directory.chmod(0o755)  # as root, Postgres runs as another user
    try:
        yield
    finally:
        shutil.rmtree(directory)


async def _copies(system: System, case: Case, directory: Path, taken: Taken, lags: list[Lag] | None, say: Say) -> None:
    bytes_copied = case.messages * case.size_bytes
    async with system.started(directory) as pair:
        with Usage(pair.pids) as usage:
            await pair.fill(case)
            for run in range(UNCOUNTED + RUNS):
                arrived = await pair.copy(case)
                if not arrived.began_empty:
                    raise NotArrived("the copy began before anybody looked: it cannot be timed")
                mb_s = bytes_copied / _MB / arrived.seconds
                cpu = await asyncio.to_thread(usage.cpu_seconds, arrived.empty_at, arrived.full_at)
                cpu_s_a_gb = cpu * _GB / bytes_copied
                counted = "" if run >= UNCOUNTED else ", not counted"
                say(f"  {mb_s:.4g} MB/s, {cpu_s_a_gb:.3g} s of CPU a GB{counted}")
                if run >= UNCOUNTED:
                    taken.mb_s.append(mb_s)
                    taken.cpu_s_a_gb.append(cpu_s_a_gb)
            taken.rss_mb.append(usage.rss_bytes_max / _MB)
            taken.anonymous_mb.append(usage.anonymous_bytes_max / _MB)
        if lags is not None:
            lags.append(await pair.lag())
