"""Results of group ``peers``, as figures of the results file and as the table of docs/benchmarks.md. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from bench.cases import Case
from bench.disk import DiskLimits
from bench.lag import Lag
from bench.measurement import Measurement, significant

GROUP: Final = "peers"
TABLE_DIGITS: Final = 3
_MB: Final = 1e6


@dataclass(frozen=True, slots=True)
class Name:
    """Name and promise of a system, for the table."""

    key: str
    title: str
    promise: str
    ours: bool


@dataclass(slots=True)
class Taken:
    """Copies of one size by one system: rates, and CPU time and memory of its processes. A GB is 10**9 bytes."""

    mb_s: list[float] = field(default_factory=list)
    cpu_s_a_gb: list[float] = field(default_factory=list)
    rss_mb: list[float] = field(default_factory=list)
    anonymous_mb: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class PeerResults:
    """Results of all rounds. The table compares with the first of ``systems``. The figures compare each of ours with
    each peer. A system that lacks a figure is left out where that is needed."""

    systems: Sequence[Name]
    cases: Sequence[Case]
    taken: Mapping[tuple[str, str], Taken]
    """Copies by the name of the case and the key of the system."""
    lags: Mapping[str, Sequence[Lag]]
    """Lags by the key of the system, one a round."""
    disk: DiskLimits

    def measurements(self) -> list[Measurement]:
        """Return our figures, each beside each peer that has it, and beside the disk. A system of ours that is not the
        first has its key behind the group."""
        found = self.disk.measurements(GROUP)
        peers = [system for system in self.systems if not system.ours]
        for place, ours in enumerate(system for system in self.systems if system.ours):
            found += self._of(ours, peers, GROUP if place == 0 else f"{GROUP}/{ours.key}")
        return found

    def _of(self, ours: Name, peers: Sequence[Name], prefix: str) -> list[Measurement]:
        found: list[Measurement] = []
        columns: tuple[tuple[str, str, Callable[[Taken], Sequence[float]]], ...] = (
            ("copy", "MB/s", lambda taken: taken.mb_s),
            ("cpu", "s/GB", lambda taken: taken.cpu_s_a_gb),
            ("memory", "MB", lambda taken: taken.rss_mb),
        )
        for case in self.cases:
            here = self.taken[case.name, ours.key]
            for column, unit, of in columns:
                beside = {peer: of(self.taken[case.name, peer.key]) for peer in peers}
                found += _beside(f"{prefix}/{case.name}/{column}", unit, of(here), beside)
            found += self.disk.beside(f"{prefix}/{case.name}/copy/of-the-disk", tuple(here.mb_s))
        for percent in (50, 99):
            beside = {peer: _lag_ms(self.lags[peer.key], percent) for peer in peers}
            found += _beside(f"{prefix}/lag/p{percent}", "ms", _lag_ms(self.lags[ours.key], percent), beside)
        return found

    def markdown(self) -> str:
        """Return the table, to be put into docs/benchmarks.md as it is."""
        return "\n".join([*self._copies(), "", *self._lags(), "", *self._disk()])

    def _copies(self) -> list[str]:
        headings = ("copy", "system", "safe", "msg/s", "MB/s", "ours : it", "of the disk", "CPU s/GB", "peak RSS, MB")
        lines = [_row(*headings, "of it anonymous"), _row(*["---"] * (len(headings) + 1))]
        for case in self.cases:
            ours = self.taken[case.name, self.systems[0].key]
            for system in self.systems:
                taken = self.taken[case.name, system.key]
                if not taken.mb_s:
                    continue
                mb_s = median(taken.mb_s)
                lines.append(
                    _row(
                        case.name.replace("/", " "),
                        system.title,
                        system.promise,
                        _figure(mb_s * _MB / case.size_bytes),
                        _spread(taken.mb_s),
                        f"{_figure(median(ours.mb_s) / mb_s)} ×" if ours.mb_s and taken is not ours else "",
                        f"{mb_s / median(self.disk.past_mb_s):.2f}" if self.disk.past_mb_s else "",
                        _figure(median(taken.cpu_s_a_gb)),
                        _figure(max(taken.rss_mb)),
                        _figure(max(taken.anonymous_mb)),
                    )
                )
        return lines

    def _lags(self) -> list[str]:
        lines = [
            "| lag, 100 B batched | sustained, msg/s | p50 at half of it, ms | p99, ms |",
            "| --- | --- | --- | --- |",
        ]
        for system in self.systems:
            if lags := self.lags[system.key]:
                sustained = _figure(median(lag.sustained for lag in lags))
                percentiles = (_spread(_lag_ms(lags, percent)) for percent in (50, 99))
                lines.append(_row(system.title, sustained, *percentiles))
        return lines

    def _disk(self) -> list[str]:
        rows = {
            "a new file through the page cache, no sync": self.disk.through_mb_s,
            "the same with a sync of each 8 MiB": self.disk.through_synced_mb_s,
            "past the page cache into a preallocated file, a sync of each 8 MiB": self.disk.past_mb_s,
        }
        lines = [_row(name, _spread(runs)) for name, runs in rows.items() if runs]
        return [_row("the disk", "MB/s"), _row("---", "---"), *lines]


def _beside(name: str, unit: str, ours: Sequence[float], peers: Mapping[Name, Sequence[float]]) -> list[Measurement]:
    """Return our figure beside each peer that has runs; once without a peer if none has; nothing if ours has none."""
    if not ours:
        return []
    found = [
        Measurement(f"{name}/{peer.key}", unit, tuple(ours), peer.title, tuple(runs))
        for peer, runs in peers.items()
        if runs
    ]
    return found or [Measurement(name, unit, tuple(ours))]


def _lag_ms(lags: Sequence[Lag], percent: float) -> list[float]:
    """Return the percentile ``percent`` of the lag of each run of all rounds, in milliseconds."""
    return [value for lag in lags for value in lag.percentiles(percent)]


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _spread(runs: Sequence[float]) -> str:
    """Format the median of runs, with the least and the greatest if there are several."""
    if len(runs) == 1:
        return _figure(runs[0])
    return f"{_figure(median(runs))} ({_figure(min(runs))} to {_figure(max(runs))})"


def _figure(value: float) -> str:
    rounded = significant(value, TABLE_DIGITS)
    return f"{rounded:,.0f}" if abs(rounded) >= 100 else f"{rounded:g}"
