"""Acknowledgements of subscriptions among the entries that two copies of a topic both have. Pure; by whole columns.

Brokers show which entries are acknowledged, and not which messages of a batch: so whole entries are compared.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from replicator.apache.broker_cursor import BrokerCursor
from replicator.peering.comparing import SubscriptionState
from replicator.pipeline.verify.brokers.comparison import EXAMPLES_MAX
from replicator.pipeline.verify.brokers.differences import Difference, EntryLocation, identity_at
from replicator.pipeline.verify.brokers.entry_log import EntryLog, Int64s
from replicator.pipeline.verify.comparison.acked import Acked
from snapshots.position import Position

_CODE_BITS = 33


@dataclass(frozen=True, slots=True)
class SharedEntries:
    """Entries that both of two copies have: their first places in each log."""

    source: EntryLog
    destination: EntryLog
    at_source: Int64s
    at_destination: Int64s


def common_of(source: EntryLog, destination: EntryLog) -> SharedEntries:
    """Return the common entries, ordered by life, and within a life by entry."""
    here: list[Int64s] = [np.zeros(0, np.int64)]
    there: list[Int64s] = [np.zeros(0, np.int64)]
    ledgers = np.unique(np.concatenate([np.unique(source.origin_ledger), np.unique(destination.origin_ledger)]))
    for number, life in enumerate(source.lives):
        if life not in destination.lives:
            continue
        rows = np.flatnonzero(source.life == number), np.flatnonzero(destination.life == destination.lives.index(life))
        codes = _codes(source, rows[0], ledgers), _codes(destination, rows[1], ledgers)
        _, first, second = np.intersect1d(*codes, return_indices=True)
        here.append(rows[0][first])
        there.append(rows[1][second])
    return SharedEntries(source, destination, np.concatenate(here), np.concatenate(there))


def _codes(log: EntryLog, rows: npt.NDArray[np.intp], ledgers: Int64s) -> Int64s:
    codes: Int64s = np.searchsorted(ledgers, log.origin_ledger[rows]) << _CODE_BITS | log.origin_entry[rows]
    return codes


def acked_at_broker(name: str, cursor: BrokerCursor) -> Acked:
    ranges = tuple((first, last) for first, last in cursor.beyond.runs())
    return Acked.of(SubscriptionState(name, True, 0, cursor.mark_delete, ranges, {}))


def only_acked_at_source(common: SharedEntries, source: Acked, destination: Acked | None) -> Int64s:
    """Return the indexes in ``common`` of entries that are acknowledged at the source only.

    A destination without the subscription has acknowledged nothing. An entry that lacks messages at the source, and has
    other content at the destination, does not count: consuming the rest of a batch does not consume the batch.
    """
    here, at_source = common.source, common.at_source
    log, at = common.destination, common.at_destination
    acked = source.contains(here.ledger[at_source], here.entry[at_source])
    acked &= ~((here.absent[at_source] > 0) & (here.checksum[at_source] != log.checksum[at]))
    if destination is not None:
        acked &= ~destination.contains(log.ledger[at], log.entry[at])
    return np.flatnonzero(acked)


def difference(common: SharedEntries, found: Int64s, subscription: str, source: str, destination: str) -> Difference:
    """Return a difference for the entries at indexes ``found`` of ``common``; ``source`` and ``destination`` name the
    copies."""
    log, rows = common.source, common.at_source[found]

    def text(start: int, stop: int) -> str:
        row, other = int(rows[start]), int(common.at_destination[found[start]])
        here = Position(int(log.ledger[row]), int(log.entry[row]))
        there = Position(int(common.destination.ledger[other]), int(common.destination.entry[other]))
        more = f" to {int(log.origin_entry[rows[stop - 1]])}" if stop - start > 1 else ""
        return (
            f"{identity_at(log, row)}{more} ({source} at {here}, {destination} at {there}) {subscription}: "
            f"acknowledged in {source}, not in {destination}"
        )

    messages = int(log.messages[rows].sum(dtype=np.int64))
    shown = tuple(text(at, at + 1) for at in range(min(len(found), EXAMPLES_MAX)))
    where = EntryLocation(log, rows, text, source, subscription)
    return Difference("ack_mismatch", destination, len(found), messages, shown, where)
