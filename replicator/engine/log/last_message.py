"""The search for the last message of a log that consumers receive. Pure.

Markers are no messages (invariant 7). Consumers receive only the earliest of duplicates, so the later ones do not
count.

A topic that is read but not written to gets only markers of its subscriptions, up to tens of thousands an hour. So
the search halves ranges, and does not walk back entry by entry:

1. It goes through the ledgers from the newest one. By counting, it skips ledgers that have only markers and duplicates.
2. In the first ledger with a message, it halves the range to find the highest entry that is a message.
"""

from __future__ import annotations

from replicator.engine.log.log_index import LogIndex
from snapshots.position import BEFORE_ALL, Position


def last_message(log: LogIndex, upto: Position | None = None) -> Position:
    """Return the position of the last message at or below ``upto``, or BEFORE_ALL if there is none.

    Without ``upto`` the whole log counts. Each ledger is visited once, so the search always ends.
    """
    for ledger, first, last in log.ledgers_back():
        if upto is not None and upto < (ledger, last):
            last = upto.entry if upto.ledger == ledger else first - 1
        if last >= first and not _only_markers(log, Position(ledger, first - 1), Position(ledger, last)):
            return _last_message_of_ledger(log, ledger, first, last)
    return BEFORE_ALL


def _last_message_of_ledger(log: LogIndex, ledger: int, first: int, last: int) -> Position:
    end = Position(ledger, last)
    some, none = first - 1, last
    # (some, end] holds a message, (none, end] does not.
    while none - some > 1:
        middle = (some + none) // 2
        if _only_markers(log, Position(ledger, middle), end):
            none = middle
        else:
            some = middle
    return Position(ledger, none)


def _only_markers(log: LogIndex, after: Position, upto: Position) -> bool:
    passed = log.markers.count_between(after, upto)
    if log.duplicates is not None:
        passed += log.duplicates.hidden.count_between(after, upto)
    return log.entries_between(after, upto) == passed
