"""New acknowledgements in a poll of a subscription's exact state, compared with the earlier polls. Pure.

Recording only the news keeps the record as large as what happened, however often is polled:

1. a mark-delete position that has moved covers everything from the old one to the new one;
2. a new or changed run of individually deleted entries covers the whole run;
3. an entry with newly acknowledged indexes of its batch covers the runs of its indexes.

The state of a higher generation is new as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from replicator.drills.observations import FIRST_INDEX, LAST_INDEX, Place
from snapshots.position import BEFORE_ALL, Position

Interval = tuple[Place, Place]


class AckNews:
    """Finds what is new in each poll of one subscription in one cluster."""

    def __init__(self) -> None:
        self._generation = -1
        self._restart()

    def _restart(self) -> None:
        self._mark_delete = BEFORE_ALL
        self._runs: set[tuple[str, str]] = set()
        self._batches: dict[str, int] = {}

    def news(self, state: Mapping[str, Any]) -> list[Interval]:
        """Return the intervals of places that this poll shows as acknowledged and no earlier one did."""
        if state["generation"] > self._generation:
            self._generation = state["generation"]
            self._restart()
        mark_delete = Position.parse(state["mark_delete"])
        found: list[Interval] = []
        if mark_delete > self._mark_delete:
            found.append((_first(self._mark_delete), _last(mark_delete)))
            self._mark_delete = mark_delete
        runs = {(first, last) for first, last in state["individually_deleted"]}
        found += [(_first(Position.parse(a)), _last(Position.parse(b))) for a, b in runs - self._runs]
        self._runs = runs
        batches: Mapping[str, Sequence[int]] = state["batch_acks"]
        for text, indexes in batches.items():
            if self._batches.get(text) != len(indexes):  # within a generation the acknowledged only grow
                position = Position.parse(text)
                found += [(Place(*position, first), Place(*position, last)) for first, last in _runs_of(indexes)]
        self._batches = {text: len(indexes) for text, indexes in batches.items()}
        return found


def _first(position: Position) -> Place:
    return Place(max(position.ledger, 0), position.entry, FIRST_INDEX)


def _last(position: Position) -> Place:
    return Place(position.ledger, position.entry, LAST_INDEX)


def _runs_of(indexes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield ascending numbers as runs."""
    start = previous = None
    for index in indexes:
        if previous is None or index != previous + 1:
            if start is not None and previous is not None:
                yield start, previous
            start = index
        previous = index
    if start is not None and previous is not None:
        yield start, previous
