"""Event counts for each second of a drill, for the charts of its report.

Owns the cutting of event times into buckets. All series of a drill have the same buckets, which start at its first
send; a bucket is one second, or more in a drill of hours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from replicator.drills.observations import Column
from replicator.drills.vectors import nearest_ranks_by_group

BUCKETS_MAX: Final = 3600
"""Most buckets of a series. A chart has no more pixels for them."""


@dataclass(frozen=True, slots=True)
class Series:
    """Counts for each bucket of time, and percentiles of the copy lag of messages first seen in it, or None."""

    bucket_seconds: int
    published: list[int]
    confirmed: list[int]
    copied: list[int]
    consumed: Mapping[str, list[int]]
    """First deliveries, by subscription."""
    acknowledged: Mapping[str, list[int]]
    """First acknowledgements, by subscription."""
    repeated: Mapping[str, list[int]]
    """Deliveries beyond the first, by subscription."""
    copy_lag_ms_p50: list[float | None]
    copy_lag_ms_p99: list[float | None]

    def __len__(self) -> int:
        return len(self.published)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def make_series(
    *,
    start_s: float,
    published_s: Column,
    confirmed_s: Column,
    copied_s: Column,
    copy_lag_s: Column,
    copy_lag_ms: Column,
    consumed_s: Mapping[str, Column],
    acknowledged_s: Mapping[str, Column],
    repeated_s: Mapping[str, Column],
) -> Series:
    """Cut the times of events (``…_s``, of one clock) into buckets; ``copy_lag_s`` says when each lag was seen."""
    every = [published_s, confirmed_s, copied_s, *consumed_s.values(), *acknowledged_s.values(), *repeated_s.values()]
    end_s = max((float(times.max()) for times in every if len(times)), default=start_s)
    length_s = max(end_s - start_s, 0.0)
    width_s = int(length_s // BUCKETS_MAX) + 1
    buckets = int(length_s // width_s) + 1

    def bucket_of(times_s: Column) -> Column:
        return np.clip((times_s - start_s) // width_s, 0, buckets - 1).astype(np.int64)

    def count(times_s: Column) -> list[int]:
        return [int(each) for each in np.bincount(bucket_of(times_s), minlength=buckets)]

    seen_in = bucket_of(copy_lag_s)
    return Series(
        bucket_seconds=width_s,
        published=count(published_s),
        confirmed=count(confirmed_s),
        copied=count(copied_s),
        consumed={name: count(times_s) for name, times_s in consumed_s.items()},
        acknowledged={name: count(times_s) for name, times_s in acknowledged_s.items()},
        repeated={name: count(times_s) for name, times_s in repeated_s.items()},
        copy_lag_ms_p50=nearest_ranks_by_group(seen_in, copy_lag_ms, buckets, 50),
        copy_lag_ms_p99=nearest_ranks_by_group(seen_in, copy_lag_ms, buckets, 99),
    )
