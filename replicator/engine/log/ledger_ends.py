"""Where the ledgers ended that were trimmed: for each the last entry of it that was ever here. Pure.

Invariant (DESIGN §3): 5. A log that was restored from an old copy goes on in a new ledger, and others may have more of
the ledger before than it ever had again. So what is claimed of a log is claimed ledger by ledger, up to the last entry
that was here; when a ledger is trimmed, that is kept.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from snapshots.position import Position

HERE: Final = ""
"""The log itself, among origins: its ledgers are not those of its own entries alone."""
LEDGER_ENDS_MAX: Final = 200
"""Of one topic and origin. A topic takes a new ledger when its worker starts. Nothing is claimed of older ones, which
repeats messages that somebody kept for so long after a seek elsewhere, and never skips one."""


def note_end(ends: list[Position], last: Position) -> None:
    """Record that the log is trimmed up to ``last``.

    Positions come in ascending order, except those of an earlier life that was put back below later lives
    (:mod:`replicator.engine.log.commit.putting_back`).
    """
    at = bisect_left(ends, last.ledger, key=lambda end: end.ledger)
    if at < len(ends) and ends[at].ledger == last.ledger:
        ends[at] = max(ends[at], last)
    else:
        ends.insert(at, last)
        del ends[:-LEDGER_ENDS_MAX]
