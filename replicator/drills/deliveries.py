"""Deliveries to one subscription, split into first deliveries and repeats.

Owns the counting over deliveries: order by key, overtaking, and repeats of acknowledged ids. Pure, and
vectorised: deliveries are brought into the order of time once, first deliveries are the first rows of their id, and
the order within a key is a running maximum by group (:mod:`replicator.drills.vectors`).
"""

from __future__ import annotations

from typing import Final

import numpy as np

from replicator.drills.observations import Column
from replicator.drills.timeline import Timeline, by_time
from replicator.drills.vectors import first_rows, ranks, running_max_before

ACKED_BEFORE_CUT_S: Final = 1.0
"""Time before a cut in which acknowledgements may not have reached the other clusters yet; earlier ones must have."""


class Deliveries:
    """The deliveries to one subscription, in the order of time."""

    def __init__(self, timeline: Timeline, subscription: int) -> None:
        self._timeline = timeline
        self.subscription = subscription
        time_s, of, ids, origin, ledger, entry, batch_index = by_time(
            timeline.receipts, "subscription", "id", "origin", "origin_ledger", "origin_entry", "batch_index"
        )
        rows = np.flatnonzero(of == subscription)
        first = rows[first_rows(ids[rows])]
        repeats = np.setdiff1d(rows, first, assume_unique=True)
        self.first_id, self.first_time_s = ids[first], time_s[first]
        self.repeat_id, self.repeat_time_s = ids[repeats], time_s[repeats]
        self._origin = origin[first]
        self._origin_rank = ranks(ledger[first], entry[first], batch_index[first])
        self.received = np.zeros(timeline.count, bool)
        self.received[self.first_id] = True

    def out_of_order(self) -> int:
        """Count first deliveries that came after one of the same key and origin with a later place in the origin's
        log.
        """
        key_of = self._timeline.key_of
        by_key_and_origin = key_of[self.first_id] * max(len(self._timeline.clusters), 1) + self._origin
        return int((self._origin_rank < running_max_before(by_key_and_origin, self._origin_rank)).sum())

    def overtaken_ids(self) -> Column:
        """Return ids whose first delivery came after that of a newer id of their key."""
        newest_before = running_max_before(self._timeline.key_of[self.first_id], self.first_id)
        ids: Column = self.first_id[self.first_id < newest_before]
        return ids

    def repeated_acked_before_cut(self, *, planned: bool, margin_s: float) -> int:
        """Count repeats after a failover, planned or not, of ids acknowledged more than ``margin_s`` before its cut."""
        timeline = self._timeline
        failed_over = np.flatnonzero(timeline.planned == planned)
        if not len(failed_over):
            return 0
        left_s = timeline.failover_s[failed_over]
        # Before the first failover there is none, and a repeat is nothing to count.
        cut_s = np.concatenate(([-np.inf], np.maximum.accumulate(timeline.cut_s[failed_over])))
        acked_s = np.full(timeline.count, np.inf)
        ids, _clusters, times_s = timeline.first_acks(self.subscription)
        acked_s[ids] = times_s
        # Of the failovers before a delivery the last is the one before which the most was acknowledged.
        before = np.searchsorted(left_s, self.repeat_time_s, side="left")
        return int((cut_s[before] - acked_s[self.repeat_id] > margin_s).sum())
