"""Ends of ledgers that brokers may have deleted before they were read. Pure.

Invariant (DESIGN §3): 2, nothing of a topic is left out in silence.

Brokers say how many entries a ledger has as long as they have that ledger. If a cursor was moved past the end of a
ledger and the ledger was deleted, nothing shows what the ledger had behind the last entry that was read. They delete
ledgers from the front. So this is a question only if the ledger of the last entry that was read is gone.

1. The last entries of the ledgers, and the number of entries that the brokers have added, are kept from each look at
   the topic.
2. If the brokers have added as many entries since the last look as were read or are there, nothing is missing. They
   count anew after they have loaded the topic, and entries may come meanwhile. So a number that does not fit says
   nothing.
3. Otherwise messages may be missing. If a ledger that is gone was seen with more entries than were read, their number
   is known. They may also be entries that brokers show to nobody, such as ends of transactions.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from replicator.apache.shown import TopicInternals
from replicator.apache.skipped_messages import Gap
from snapshots.position import BEFORE_ALL, Position

MAY_BE_MISSING_MAX: Final = 100
"""Places that are kept where messages may be missing; later ones stand in the log only."""


class PossibleGap(NamedTuple):
    """Between these two positions of the brokers messages may be missing, since ``at_ms``."""

    after: Position
    before: Position
    at_ms: int
    entries: int = 0
    """Number of entries that were seen there and not read; 0 if none was seen."""
    acknowledged_ms: int = 0
    """The time at which an operator acknowledged that; 0 if nobody did."""

    def shown(self) -> dict[str, Any]:
        return {"after": str(self.after), "before": str(self.before), "entries": self.entries, "at_ms": self.at_ms}


def noted(places: Sequence[PossibleGap], place: PossibleGap) -> list[PossibleGap]:
    """Return ``places`` with one more, which is joined with the last one if it follows that one."""
    if any(each.after == place.after for each in places):
        return list(places)
    last = places[-1] if places else None
    follows = last is not None and last.before == (place.after.ledger, place.after.entry + 1)
    if last is not None and follows and not last.acknowledged_ms:
        return [*places[:-1], last._replace(before=place.before, entries=last.entries + place.entries)]
    return [*places, place]


def acknowledged(places: Sequence[PossibleGap], now_ms: int) -> list[PossibleGap]:
    """Return what is kept of ``places`` after an operator has acknowledged them: the last one.

    The same place may be found again as long as nothing behind it was read.
    """
    return [each._replace(acknowledged_ms=each.acknowledged_ms or now_ms) for each in places[-1:]]


class LedgerEnds:
    """The ends of one topic's ledgers, as they were seen at the last look."""

    __slots__ = ("_added", "_ends", "_last")

    def __init__(self) -> None:
        self._ends: dict[int, int] = {}
        self._last = BEFORE_ALL
        self._added: int | None = None

    def look(self, internals: TopicInternals, read_through: Position) -> None:
        """Keep what ``internals`` say of the ledgers that were not read to their ends."""
        self._ends = {ledger: last for ledger, last in internals.last_entries.items() if ledger >= read_through.ledger}
        self._last, self._added = internals.last, internals.added

    def deleted(self, gap: Gap, internals: TopicInternals) -> int | None:
        """Return how many entries in ``gap`` were seen, not read, and deleted by the brokers.

        Return 0 if nobody can know whether there were any, and None if there were none.
        """
        after, now = gap.after, internals.ledgers
        if after > BEFORE_ALL and after.ledger == gap.through.ledger and after.ledger not in now:
            return max(gap.through.entry - after.entry, 0) or None
        if after == BEFORE_ALL or after.ledger in now or after.ledger >= min(gap.through.ledger, internals.last.ledger):
            return None
        seen = 0
        for ledger, last in self._ends.items():
            if after.ledger <= ledger < gap.through.ledger and ledger not in now:
                seen += max(last - (after.entry if ledger == after.ledger else -1), 0)
        if not seen and self._added is not None and self._last.ledger == after.ledger:
            beyond = sum(last + 1 for ledger, last in internals.last_entries.items() if ledger in now)
            if internals.added - self._added == after.entry - self._last.entry + beyond:
                return None
        return seen


def to_json(places: Sequence[PossibleGap]) -> bytes:
    kept = [
        [*each.after, *each.before, each.at_ms, each.entries, each.acknowledged_ms]
        for each in places[:MAY_BE_MISSING_MAX]
    ]
    return json.dumps(kept).encode()


def from_json(stored: bytes) -> list[PossibleGap]:
    """Return the places where messages may be missing, as :func:`to_json` wrote them."""
    rows = json.loads(stored)  # those of earlier versions have no acknowledgement
    return [PossibleGap(Position(row[0], row[1]), Position(row[2], row[3]), *row[4:7]) for row in rows]
