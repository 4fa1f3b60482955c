"""Detection of messages that the brokers have passed over before the bridge read them.

Invariant (DESIGN §3): 2, nothing of a topic is left out in silence.

An expiry, a backlog quota or an operator may move the bridge's cursor at the brokers. They do not report that: a
connected consumer gets the messages behind it. So wherever positions do not follow each other, the bridge asks for the
cursor. Positions also have gaps where nothing is missing: at the end of a ledger, and where entries are shown to nobody
(ends of transactions, and aborted messages). All other entries in a gap up to the cursor were passed over.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from replicator.apache.admin import BrokerAdmin
from replicator.apache.shown import TopicInternals
from snapshots.position import BEFORE_ALL, Position


class Gap(NamedTuple):
    """Range between two entries that came one after the other, and are not known to be neighbours."""

    after: Position
    through: Position
    """Last position at which an entry may be missing."""


def gaps_among(reached: Position, positions: Iterable[Position]) -> list[Gap]:
    """Return the gaps in ``positions``, which came after ``reached``. The first entry ever read has no gap before it.
    Pure."""
    gaps: list[Gap] = []
    for at in positions:
        if at <= reached:
            continue  # it came again
        if at != (reached.ledger, reached.entry + 1) and reached != BEFORE_ALL:
            gaps.append(Gap(reached, Position(at.ledger, at.entry - 1)))
        reached = at
    return gaps


def runs_in(gap: Gap, last_entries: Mapping[int, int]) -> Iterator[tuple[Position, Position]]:
    """Yield the first and last entry of each ledger's part of a gap, for the ledgers that the topic still has. Pure.

    ``last_entries`` has the last entry of each such ledger."""
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
    """Return the first entry in ``gaps`` that a cursor passed over although brokers would show it; None without one.

    ``moved_to`` is the mark-delete position of that cursor in ``internals``, which must be younger than the gaps.
    Raises :class:`AdminFailed`."""
    there = {ledger: last for ledger, last in internals.last_entries.items() if ledger in internals.ledgers}
    for gap in gaps:
        for first, last in runs_in(gap, there):
            passed = min(last, moved_to)
            if passed >= first and not await admin.all_hidden(topic, Position(first.ledger, first.entry - 1), passed):
                return first
    return None
