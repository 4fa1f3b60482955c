"""The search for the last message of a log, which is its last entry that is delivered. Pure.

It is no marker (invariant 7), and not the later one of twins: consumers get the earlier one.

A log that is read and not written to ends with the markers of its subscriptions, up to tens of thousands an hour. So
the place is found by halving, not by walking back:

1. Ledger by ledger from the end, those that hold nothing but markers are passed over by counting.
2. In the first other one, the highest entry above which all are markers is found by halving.
"""

from __future__ import annotations

from replicator.engine.log.log_index import LogIndex
from snapshots.position import BEFORE_ALL, Position


def last_message(log: LogIndex, upto: Position | None = None) -> Position:
    """Return the position of the log's last message at or below ``upto``, or BEFORE_ALL if it has none.

    Each ledger is looked at once, so this ends whatever was trimmed.
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
    if log.twins is not None:
        passed += log.twins.hidden.count_between(after, upto)
    return log.entries_between(after, upto) == passed
