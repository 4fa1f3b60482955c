"""First and last entry of each ledger that were read from the brokers. Pure.

Brokers that are put back to an older copy of their data may give a position that was read to another message. The
stored entries show that, even if the worker's own copy was trimmed (:mod:`replicator.apache.new_life`).
"""

from __future__ import annotations

from typing import Final, NamedTuple

READ_LEDGERS_MAX: Final = 200
"""Number of ledgers for which the first and the last entry that were read are kept."""


class ReadEntry(NamedTuple):
    """Identity of an entry that was read from the brokers: its number in the ledger, publish time and sequence id.

    The identity shows whether the brokers still have this entry, even if the worker's own copy was trimmed.
    """

    entry: int
    publish_time_ms: int
    sequence_id: int


def forget_old_ledgers(*read: dict[int, ReadEntry]) -> list[int]:
    """Keep the newest :data:`READ_LEDGERS_MAX` ledgers in all of ``read``, and return the others."""
    known = set().union(*read)
    gone = sorted(known)[:-READ_LEDGERS_MAX] if len(known) > READ_LEDGERS_MAX else []
    for each in gone:
        for ledgers in read:
            ledgers.pop(each, None)
    return gone
