"""The parts of a drill, side by side: what was confirmed, copied and synced in each, and how fast.

Owns the comparison in time that isolation is judged by: before a cluster was lost and while it was away. A phase
lasts from its beginning to that of the next one; the last one to the last event. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from replicator.drills.observations import Column, Observations
from replicator.drills.vectors import Percentiles, percentiles


@dataclass(frozen=True, slots=True)
class PhaseMeasures:
    """Measures of one phase. Times are seconds since the first send."""

    name: str
    at_seconds: float
    seconds: float
    confirmed: int
    copied: int
    copy_lag_ms: Percentiles
    """Copy lag of the messages that were confirmed in the phase."""
    sync_lag_ms: Percentiles
    """Sync lag of the messages that were acknowledged in the phase."""
    counts: Mapping[str, Mapping[str, int]]
    """Growth of each counter by cluster, without clusters that were away or began anew in the phase."""

    def per_second(self, count: float) -> float:
        return count / self.seconds if self.seconds > 0 else 0.0


def measure_phases(
    observations: Observations,
    *,
    start_s: float,
    confirmed_s: Column,
    copied_s: Column,
    copy_lags: tuple[Column, Column],
    sync_lags: tuple[Column, Column],
) -> tuple[PhaseMeasures, ...]:
    """Return the measures of the phases, in order; ``…_lags`` are ``(when, milliseconds)``."""
    begins_s = observations.phases.column("time_s")
    names = list(observations.phase_names)
    every = [confirmed_s, copied_s, begins_s, observations.counters.column("time_s")]
    end_s = max((float(times.max()) for times in every if len(times)), default=start_s)
    ends_s = [*begins_s.tolist(), end_s][1:]
    measured = []
    for code, from_s, to_s in zip(observations.phases.column("phase"), begins_s.tolist(), ends_s, strict=True):

        def count(times_s: Column, from_s: float = from_s, to_s: float = to_s) -> int:
            return int(((times_s >= from_s) & (times_s < to_s)).sum())

        def lags(of: tuple[Column, Column], from_s: float = from_s, to_s: float = to_s) -> Percentiles:
            when, lags_ms = of
            return percentiles(lags_ms[(when >= from_s) & (when < to_s)])

        measured.append(
            PhaseMeasures(
                name=names[code],
                at_seconds=from_s - start_s,
                seconds=max(to_s - from_s, 0.0),
                confirmed=count(confirmed_s),
                copied=count(copied_s),
                copy_lag_ms=lags(copy_lags),
                sync_lag_ms=lags(sync_lags),
                counts=_growth(observations, from_s, to_s),
            )
        )
    return tuple(measured)


def _growth(observations: Observations, from_s: float, to_s: float) -> dict[str, dict[str, int]]:
    """Return the growth of each cluster's counters between its counts at both ends of the phase."""
    table = observations.counters
    counter, cluster, value, time_s = (table.column(name) for name in ("counter", "cluster", "value", "time_s"))
    growth: dict[str, dict[str, int]] = {}
    for code, name in enumerate(observations.counter_names):
        for cluster_code, cluster_name in enumerate(observations.clusters):
            rows = np.flatnonzero((counter == code) & (cluster == cluster_code) & (time_s >= from_s) & (time_s <= to_s))
            if len(rows) >= 2 and (grown := int(value[rows[-1]] - value[rows[0]])) >= 0:
                growth.setdefault(name, {})[cluster_name] = grown
    return growth
