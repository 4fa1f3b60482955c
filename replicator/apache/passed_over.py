"""Noticing that brokers have passed over messages which the bridge has not read.

Invariant (DESIGN §3): 2, nothing of a topic is left out in silence.

An expiry, a backlog quota or an operator moves the bridge's cursor at the brokers. They say nothing of it: a consumer
that is connected gets what follows. So wherever positions do not follow each other the cursor is asked for. Positions
are also left out where nothing is missing: at the end of a ledger, and where entries are shown to nobody (ends of
transactions, and what was aborted). An entry up to the cursor is one that was passed over unless it is such a one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from replicator.apache.admin import BrokerAdmin
from replicator.apache.shown import TopicInternals
from snapshots.position import BEFORE_ALL, Position


class Gap(NamedTuple):
    """Between two entries that came one after the other, and are not known to be neighbours."""

    after: Position
    through: Position
    """The last position that something may have been at."""


def gaps_among(reached: Position, positions: Iterable[Position]) -> list[Gap]:
    """The gaps in what came after all up to ``reached``. Before the first entry that was ever read is none. Pure."""
    gaps: list[Gap] = []
    for at in positions:
        if at <= reached:
            continue  # it came again
        if at != (reached.ledger, reached.entry + 1) and reached != BEFORE_ALL:
            gaps.append(Gap(reached, Position(at.ledger, at.entry - 1)))
        reached = at
    return gaps


def runs_in(gap: Gap, last_entries: Mapping[int, int]) -> Iterator[tuple[Position, Position]]:
    """The first and the last entry of each run of a gap, as far as the topic still has the ledgers: ``last_entries``
    has the last entries of those. Pure."""
    for ledger in sorted(last_entries):
        if not gap.after.ledger <= ledger <= gap.through.ledger:
            continue
        first = gap.after.entry + 1 if ledger == gap.after.ledger else 0
        last = gap.through.entry if ledger == gap.through.ledger else last_entries[ledger]
        if first <= last:
            yield Position(ledger, first), Position(ledger, last)


async def first_passed_over(
    admin: BrokerAdmin, topic: str, gaps: Sequence[Gap], internals: TopicInternals, moved_to: Position
) -> Position | None:
    """The first entry in the gaps that a cursor has passed over, which brokers would have shown; ``moved_to`` is its
    mark-delete position in ``internals``, which are to be younger than the gaps. Raises :class:`AdminFailed`."""
    there = {ledger: last for ledger, last in internals.last_entries.items() if ledger in internals.ledgers}
    for gap in gaps:
        for first, last in runs_in(gap, there):
            passed = min(last, moved_to)
            if passed >= first and not await admin.all_hidden(topic, Position(first.ledger, first.entry - 1), passed):
                return first
    return None
