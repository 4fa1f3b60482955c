"""The few array operations that the measures are made of, each with its meaning in one sentence.

All work on one-dimensional numpy arrays of equal length and none changes its arguments.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from replicator.drills.observations import Column

NONE_BEFORE = -1
"""Result of :func:`running_max_before` for the first row of a group."""


def ranks(*columns: Column) -> Column:
    """Return dense ranks (0, 1, …) of rows compared as tuples, first column first; equal rows have equal ranks."""
    count = len(columns[0])
    if count == 0:
        return np.zeros(0, np.int64)
    order = np.lexsort(columns[::-1])
    steps = np.zeros(count, np.int64)
    for column in columns:
        ordered = column[order]
        steps[1:] |= ordered[1:] != ordered[:-1]
    result = np.empty(count, np.int64)
    result[order] = np.cumsum(steps)
    return result


def first_rows(values: Column) -> Column:
    """Return the index of each distinct value's first row, in ascending order of rows."""
    return np.sort(np.unique(values, return_index=True)[1])


def running_max_before(groups: Column, values: Column) -> Column:
    """Return, for each row, the highest of ``values`` (≥ 0) in the earlier rows of its group, or :data:`NONE_BEFORE`.
    The rows are brought together by group, and each group is lifted above the one before it, so that one running
    maximum over all serves every group.
    """
    count = len(values)
    if count == 0:
        return np.zeros(0, np.int64)
    order = np.argsort(groups, kind="stable")
    starts = np.ones(count, bool)
    starts[1:] = groups[order][1:] != groups[order][:-1]
    lift = (np.cumsum(starts) - 1) * (int(values.max()) + 1)
    highest = np.maximum.accumulate(values[order] + lift)
    before = np.full(count, NONE_BEFORE, np.int64)
    before[1:] = highest[:-1] - lift[1:]
    before[starts] = NONE_BEFORE
    result = np.empty(count, np.int64)
    result[order] = before
    return result


def nearest_rank(ordered: Column, percent: int) -> float | None:
    """Return the percentile of ascending values: the least value that ``percent`` of them do not exceed."""
    count = len(ordered)
    return float(ordered[(count * percent + 99) // 100 - 1]) if count else None


def nearest_ranks_by_group(groups: Column, values: Column, group_count: int, percent: int) -> list[float | None]:
    """Return :func:`nearest_rank` of each group 0 … ``group_count`` - 1; None for a group without rows."""
    ordered = values[np.lexsort((values, groups))]
    ends = np.cumsum(np.bincount(groups, minlength=group_count))
    starts = np.concatenate(([0], ends[:-1]))
    return [nearest_rank(ordered[start:end], percent) for start, end in zip(starts, ends, strict=True)]


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Nearest-rank percentiles of ``samples`` values, in milliseconds; None without samples."""

    p50: float | None
    p99: float | None
    samples: int


def percentiles(samples: Column) -> Percentiles:
    ordered = np.sort(samples)
    return Percentiles(nearest_rank(ordered, 50), nearest_rank(ordered, 99), len(ordered))
