"""The pure parts of benchmark group ``peers``: when its clock runs, CPU time between samples, and its table."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from bench import disk
from bench.arrival import Arrival, arrival, arrival_during
from bench.cases import CASES, Case
from bench.disk import PAST_THE_CACHE, DiskLimits, measure_disk
from bench.lag import Lag
from bench.peer_table import Name, PeerResults, Taken
from bench.usage import Sample, Usage, cpu_seconds_until

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc, and writes past the page cache")
CASE = Case("1kB", 1_000, True, 3_000, 3_000)
OURS = Name("ours", "Ours", "synced", ours=True)
PEER, ABSENT = Name("peer", "Peer", "cached", ours=False), Name("absent", "Absent", "lost", ours=False)
NO_DISK = DiskLimits((), (), ())


def results(disk_limits: DiskLimits = NO_DISK) -> PeerResults:
    taken = {
        (CASE.name, "ours"): Taken([400.0, 300.0, 500.0], [1.0, 2.0, 3.0], [300.0, 310.0], [200.0]),
        (CASE.name, "peer"): Taken([50.0], [20.0], [4_000.0], [3_000.0]),
        (CASE.name, "absent"): Taken(),
    }
    lags = {"ours": [Lag(100_000.0, ((1.0, 2.0), (3.0, 4.0)))], "peer": [Lag(10.0, ((9.0, 9.0),))], "absent": []}
    return PeerResults([OURS, PEER, ABSENT], [CASE], taken, lags, disk_limits)


class _Backlog:
    """Nothing is there until it is let go, then one more at each look."""

    def __init__(self) -> None:
        self.gone = False
        self._here = 0

    async def count(self) -> int:
        self._here += self.gone
        return self._here

    async def let_go(self) -> None:
        self.gone = True


def test_a_backlog_is_looked_at_before_it_is_let_go() -> None:
    backlog = _Backlog()
    arrived = asyncio.run(arrival_during(backlog.let_go(), backlog.count, 3, 0.0))
    assert arrived.began_empty
    assert arrived.seconds > 0


def test_a_copy_that_began_before_the_looks_is_told_from_one_that_did_not() -> None:
    backlog = _Backlog()
    backlog.gone = True
    assert not asyncio.run(arrival(backlog.count, 1, 0.0)).began_empty


def test_what_lets_a_backlog_go_may_fail() -> None:
    async def fails() -> None:
        raise OSError("not started")

    with pytest.raises(OSError, match="not started"):
        asyncio.run(arrival_during(fails(), _Backlog().count, 1, 0.0))


def test_an_arrival_takes_from_nothing_to_everything() -> None:
    assert Arrival(2.0, 5.5, True).seconds == 3.5


@pytest.mark.parametrize(("moment", "expected"), [(0.0, 10.0), (1.0, 10.0), (1.5, 12.0), (2.0, 14.0), (9.0, 14.0)])
def test_cpu_time_is_read_off_between_samples(moment: float, expected: float) -> None:
    assert cpu_seconds_until([Sample(1.0, 10.0, 0, 0), Sample(2.0, 14.0, 0, 0)], moment) == expected


@linux_only
def test_usage_counts_processes_and_their_memory_and_survives_those_that_are_gone() -> None:
    with Usage(lambda: [os.getpid(), 2**22 + 1]) as usage:
        usage.wait_beyond(0.0)
    assert usage.rss_bytes_max > usage.anonymous_bytes_max > 1_000_000


@linux_only
def test_the_disk_is_measured_and_its_file_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "FILE_BYTES", 2 * disk.WRITE_BYTES)
    limits = measure_disk(tmp_path)
    assert len(limits.through_mb_s) == len(limits.through_synced_mb_s) == disk.RUNS
    assert all(rate > 0 for rate in limits.past_mb_s)
    assert list(tmp_path.iterdir()) == []


def test_without_direct_writes_nothing_is_compared_with_them() -> None:
    assert NO_DISK.beside("copy/x", (1.0,)) == []
    (beside,) = DiskLimits((), (), (1_000.0,)).beside("copy/x", (250.0,))
    assert (beside.peer, beside.ratio) == (PAST_THE_CACHE, 0.25)


def test_each_system_of_ours_stands_beside_each_peer_under_a_name_of_its_own() -> None:
    found = results()
    bridge = Name("bridge", "Ours beside it", "synced", ours=True)
    taken = {**found.taken, (CASE.name, "bridge"): Taken([100.0], [9.0], [500.0], [400.0])}
    both = PeerResults([OURS, bridge, PEER], [CASE], taken, {**found.lags, "bridge": []}, NO_DISK)
    ratios = {measurement.name: measurement.ratio for measurement in both.measurements()}
    assert ratios["peers/1kB/batched/copy/peer"] == 8.0
    assert ratios["peers/bridge/1kB/batched/copy/peer"] == 2.0
    assert not [name for name in ratios if name.endswith("/bridge")]


def test_ours_stands_beside_each_peer_that_has_a_figure() -> None:
    found = {measurement.name: measurement for measurement in results(DiskLimits((), (), (800.0,))).measurements()}
    assert found["peers/1kB/batched/copy/peer"].ratio == 8.0
    assert found["peers/1kB/batched/cpu/peer"].ratio == 0.1
    assert found["peers/1kB/batched/copy/of-the-disk"].ratio == 0.5
    assert found["peers/lag/p99/peer"].runs == (2.0, 4.0)
    assert not [name for name in found if "absent" in name]


def test_without_any_peer_ours_stands_alone() -> None:
    alone = PeerResults([OURS], [CASE], results().taken, results().lags, NO_DISK)
    names = {measurement.name: measurement.peer for measurement in alone.measurements()}
    assert names["peers/1kB/batched/copy"] is None


def test_the_table_has_a_line_for_each_system_that_has_figures() -> None:
    copies, lags, disk_lines = results(DiskLimits((900.0,), (), (800.0,))).markdown().split("\n\n")
    ours, peer = copies.splitlines()[2:]
    assert ours == "| 1kB batched | Ours | synced | 400,000 | 400 (300 to 500) |  | 0.50 | 2 | 310 | 200 |"
    assert peer == "| 1kB batched | Peer | cached | 50,000 | 50 | 8 × | 0.06 | 20 | 4,000 | 3,000 |"
    assert lags.splitlines()[2:] == ["| Ours | 100,000 | 2 (1 to 3) | 3 (2 to 4) |", "| Peer | 10 | 9 | 9 |"]
    assert len(disk_lines.splitlines()) == 4


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_rate_is_weighed_by_its_unit(case: Case) -> None:
    rate = case.rate(case.messages, 2.0)
    assert case.mb_s(rate) == pytest.approx(case.messages * case.size_bytes / 2e6)
