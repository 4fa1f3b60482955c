"""Ends of trimmed ledgers: for each ledger the last entry that was ever here. Pure.

Invariant (DESIGN §3): 5. A log that was restored from an old copy goes on in a new ledger, and other clusters may have
more of the ledger before. So claims are made ledger by ledger, up to the last entry that was here. That entry stays
known after the ledger is trimmed.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from snapshots.position import Position

HERE: Final = ""
"""Stands among origins for the log itself, whose ledgers hold entries of all origins."""
LEDGER_ENDS_MAX: Final = 200
"""Limit of remembered ledgers of one topic and origin. A topic takes a new ledger when its worker starts. Nothing is
claimed of older ledgers: that may repeat messages after a seek elsewhere, but never skips one."""


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
