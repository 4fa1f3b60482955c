"""Filters that Spark pushes down, so that unwanted topics, blocks and entries are not read or sent. Pure.

A filter is either applied here, exactly and to every row, or left to Spark. Spark does not check the applied ones
again.

1. Filters on cluster and topic: they choose the topics that are planned at all.
2. Filters on the ledger, and on the entry within one ledger: they choose the positions that are planned.
3. Filters on kind, origin, incarnation and origin ledger: they choose the blocks that are read; all entries of a block
   share these values.
4. Filters on entry, origin entry and publish time: they choose the entries that become rows; all messages of an entry
   share these values.

A publish time does not limit a range of positions: it is by the producer's clock, which may be ahead of the worker's or
behind another's. The option ``start`` is for users who can accept that.

A comparison with null is left to Spark, which knows that nothing passes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from replicator.pipeline.source.schema import BLOCK_NUMBERS, BLOCK_TEXTS, TIME_MS_MAX
from snapshots.position import Position

Operation = Literal["=", "in", "<", "<=", ">", ">=", "starts", "there"]

_OF_ENTRIES: Final = ("entry", "origin_entry")
PUBLISH_TIME: Final = "publish_time"
_NUMBERS: Final = (*BLOCK_NUMBERS, *_OF_ENTRIES)
_IN_MAX: Final = 10_000
"""Limit of the values of an ``IN``. Spark compares longer lists faster than they are carried to every task."""
_ENTRY_MAX: Final = 2**63 - 1

_COMPARED: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "=": lambda left, right: left == right,
    "<": lambda left, right: left < right,
    "<=": lambda left, right: left <= right,
    ">": lambda left, right: left > right,
    ">=": lambda left, right: left >= right,
}


@dataclass(frozen=True, slots=True)
class Condition:
    """One filter on one column. ``publish_time`` is compared in microseconds since the epoch."""

    column: str
    operation: Operation
    value: Any = None
    negated: bool = False

    def holds(self, value: Any) -> bool:
        """Return whether a value that is not null passes."""
        return self._passes(value) is not self.negated

    def mask(self, values: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return, for each of many numbers, whether it passes. The numbers must not be null."""
        passing: npt.NDArray[np.bool_]
        if self.operation == "in":
            passing = np.isin(values, np.array(sorted(self.value), dtype=np.int64))
        elif self.operation == "there":
            passing = np.ones(len(values), np.bool_)
        else:
            passing = _COMPARED[self.operation](values, self.value)
        return ~passing if self.negated else passing

    def _passes(self, value: Any) -> bool:
        match self.operation:
            case "in":
                return value in self.value
            case "starts":
                return bool(value.startswith(self.value))
            case "there":
                return True
        return bool(_COMPARED[self.operation](value, self.value))


@dataclass(frozen=True, slots=True)
class PushedFilters:
    """Filters that are applied here; a row must pass each."""

    conditions: tuple[Condition, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.conditions)

    def wants_topic(self, cluster: str, topic: str) -> bool:
        values = {"cluster": cluster, "topic": topic}
        return all(each.holds(values[each.column]) for each in self.conditions if each.column in values)

    def narrowed(self, after: Position, upto: Position) -> tuple[Position, Position]:
        """Return the smallest range that has all wanted entries p with ``after < p <= upto``."""
        low_ledger, high_ledger = self._bounds("ledger", 0, _ENTRY_MAX)
        low = Position(low_ledger, -1)
        high = Position(high_ledger, _ENTRY_MAX)
        if low_ledger == high_ledger:
            low_entry, high_entry = self._bounds("entry", 0, _ENTRY_MAX)
            low, high = Position(low_ledger, low_entry - 1), Position(high_ledger, high_entry)
        return max(after, low), min(upto, high)

    def wants_block(self, shared: Mapping[str, Any]) -> bool:
        return all(each.holds(shared[each.column]) for each in self.conditions if each.column in shared)

    def wants_entries(
        self, entry: npt.NDArray[np.int64], origin_entry: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.bool_] | None:
        columns = {"entry": entry, "origin_entry": origin_entry}
        return _all(each.mask(columns[each.column]) for each in self.conditions if each.column in columns)

    def wants_times(self, publish_time_ms: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_] | None:
        conditions = [each for each in self.conditions if each.column == PUBLISH_TIME]
        if not conditions:
            return None
        known = publish_time_ms <= np.uint64(TIME_MS_MAX)  # a later one is null in its row
        micros = np.where(known, publish_time_ms, np.uint64(0)).astype(np.int64) * 1000
        return _all([known, *(each.mask(micros) for each in conditions)])

    def _bounds(self, column: str, low: int, high: int) -> tuple[int, int]:
        """Return the smallest and the largest value that may pass."""
        for each in self.conditions:
            if each.column != column or each.negated:
                continue
            match each.operation:
                case "=":
                    low, high = max(low, each.value), min(high, each.value)
                case "in":
                    low, high = max(low, min(each.value)), min(high, max(each.value))
                case ">":
                    low = max(low, each.value + 1)
                case ">=":
                    low = max(low, each.value)
                case "<":
                    high = min(high, each.value - 1)
                case "<=":
                    high = min(high, each.value)
        return low, high


def condition_of(pushed: Filter) -> Condition | None:
    """Return a filter of Spark as a condition; None if it must stay with Spark."""
    negated = isinstance(pushed, Not)
    inner = pushed.child if isinstance(pushed, Not) else pushed
    operation = next((word for kind, word in _OPERATIONS if isinstance(inner, kind)), None)
    if operation is None or len(inner.attribute) != 1:
        return None
    (column,) = inner.attribute
    if negated and isinstance(inner, EqualNullSafe):
        return None  # passes nulls, which nothing here does
    if operation == "there":
        return Condition(column, "there") if column in (*BLOCK_TEXTS, *_NUMBERS, PUBLISH_TIME) and not negated else None
    values = list(inner.value) if operation == "in" else [inner.value]
    if not values or len(values) > _IN_MAX or (operation == "starts" and column not in BLOCK_TEXTS):
        return None
    converted = [_value(column, value) for value in values]
    if any(value is None for value in converted):
        return None
    if column in BLOCK_TEXTS and operation not in ("=", "in", "starts"):
        return None
    return Condition(column, operation, frozenset(converted) if operation == "in" else converted[0], negated)


_OPERATIONS: Final[tuple[tuple[type[Filter], Operation], ...]] = (
    (EqualTo, "="),
    (EqualNullSafe, "="),
    (In, "in"),
    (GreaterThan, ">"),
    (GreaterThanOrEqual, ">="),
    (LessThan, "<"),
    (LessThanOrEqual, "<="),
    (StringStartsWith, "starts"),
    (IsNotNull, "there"),
)


def _value(column: str, value: Any) -> Any:
    """Return a value in the form in which it is compared with the column; None if it has another type, or is null."""
    if column in BLOCK_TEXTS:
        return value if isinstance(value, str) else None
    if column in _NUMBERS:
        return value if type(value) is int else None
    if column == PUBLISH_TIME and isinstance(value, datetime):
        since = (value if value.tzinfo else value.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
        return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    return None


def _all(masks: Iterable[npt.NDArray[np.bool_]]) -> npt.NDArray[np.bool_] | None:
    whole: npt.NDArray[np.bool_] | None = None
    for mask in masks:
        whole = mask if whole is None else whole & mask
    return whole
