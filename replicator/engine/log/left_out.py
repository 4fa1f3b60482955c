"""What links have left out of a topic: for each origin, the holes in what is here of it. Pure.

Invariant (DESIGN §3): 5. "All of origin A up to p" may be said by a cluster only if it has all of A up to p, or
excludes what it does not have; otherwise a failback would mark as consumed what nobody consumed (DESIGN §4.4).

1. A hole (``after``, ``upto``] lies between the high-water mark that was here and the first entry of a block that a
   link sent with the note that it may have left something out before it. It is written in the block's transaction.
2. High-water marks only grow, so a hole is never filled, and each new one lies above all that are there.
3. Too many holes are joined where they are nearest. What lies between two that are joined then counts as left out
   though it is here: less is claimed than is known, which repeats messages after a failback and never skips one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from snapshots.position import Position

HOLES_MAX: Final = 1_000
"""Of one topic and origin: what a claim may have to list, 16 bytes each."""
HOLES_KEPT: Final = 900
"""Left when there were too many: joining some at once means that the distances are compared once in a hundred holes."""

Hole = tuple[Position, Position]
"""``after`` and ``upto``: origin positions p with ``after < p <= upto`` may be missing here."""


def with_hole(holes: Sequence[Hole], after: Position, upto: Position) -> tuple[Hole, ...]:
    """``holes``, in order, and one more at their end; touching ones are merged, too many are joined."""
    assert after < upto
    if holes and after <= holes[-1][1]:
        return (*holes[:-1], (holes[-1][0], max(upto, holes[-1][1])))
    grown = (*holes, (after, upto))
    return grown if len(grown) <= HOLES_MAX else _joined(grown, HOLES_KEPT)


def _joined(holes: Sequence[Hole], kept: int) -> tuple[Hole, ...]:
    by_distance = sorted(range(1, len(holes)), key=lambda at: _distance(holes[at - 1][1], holes[at][0]))
    closed = set(by_distance[: len(holes) - kept])
    found: list[Hole] = []
    for at, hole in enumerate(holes):
        if at in closed:
            found[-1] = (found[-1][0], hole[1])
        else:
            found.append(hole)
    return tuple(found)


def _distance(end: Position, start: Position) -> tuple[int, int]:
    """Inside of a ledger entries are counted; how many lie between two ledgers nobody knows here, so those are last."""
    return start.ledger - end.ledger, start.entry - end.entry
