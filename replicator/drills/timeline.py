"""The record of a drill in the order of time, and what is worked out from several of its tables.

Owns what was stranded at a failover, and the lags of copies and of acknowledgements. Pure; no loop runs over
messages. The lag of an acknowledgement:

1. Each poll of a cluster gave intervals of places that are acknowledged there (:class:`Place`, whole entries and
   single batch indexes alike); the poller records what an earlier poll had not found.
2. An acknowledged id has one place in each other cluster: where the tail reader saw it. All places and all ends of
   intervals are ranked together, so that an interval is a slice of the places in their order.
3. In the order of time each interval gives its time to those of its slice that have none yet.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from replicator.drills.observations import Column, FailoverKind, Observations, Table
from replicator.drills.vectors import first_rows, ranks


class ObservationsIncomplete(Exception):
    """Something was not recorded without which a measure would be a guess."""


@dataclass(frozen=True, slots=True)
class LostMessages:
    """Messages that a cluster confirmed, and that were lost with its disk because no other cluster had them."""

    cluster: str
    lost: int
    """Number of them, as the drill's clients saw it."""
    named: int
    """Number of messages that the cluster's status names as lost."""
    differing: int
    """Number of messages that are lost and not named, or named and not lost."""


class Timeline:
    """The columns of a drill, in the order of time."""

    def __init__(self, observations: Observations) -> None:
        self._observations = observations
        self.receipts = observations.receipts
        self.clusters = list(observations.clusters)
        self.key_of = observations.messages.column("key")
        self.topic_of = observations.messages.column("topic")
        self.topics = observations.topics
        self.count = len(self.key_of)
        self.sent_time_s, self.sent_id = by_time(observations.sends, "id")
        self.confirm_time_s, self.confirm_id, self.confirm_cluster, self._ledger, self._entry = by_time(
            observations.confirms, "id", "cluster", "ledger", "entry"
        )
        self.is_confirmed = np.zeros(self.count, bool)
        self.is_confirmed[self.confirm_id] = True
        # Failovers are recorded in order, and high-water marks name them by their number.
        self.failover_s = observations.failovers.column("time_s")
        self.failover_cluster = observations.failovers.column("cluster")
        self.failover_to = observations.failovers.column("to")
        self.cut_s = observations.failovers.column("cut_s")
        self.kinds = [observations.kind_of(number) for number in range(len(self.failover_s))]
        self.planned = np.array([kind is FailoverKind.PLANNED for kind in self.kinds], bool)
        self._return_s, self._return_cluster = by_time(observations.returns, "cluster")
        self._first_copies()
        self._find_breaks()
        times = (self.sent_time_s, self.confirm_time_s, self.failover_s)
        self.start_s = min((float(column[0]) for column in times if len(column)), default=0.0)

    def _first_copies(self) -> None:
        """Find the time at which the tail readers first saw each id in each cluster."""
        time_s, cluster, ids, ledger, entry, index = by_time(
            self._observations.copies, "cluster", "id", "ledger", "entry", "batch_index"
        )
        first = first_rows(cluster * np.int64(max(self.count, 1)) + ids)
        self.copy_time_s, self.copy_cluster, self.copy_id = time_s[first], cluster[first], ids[first]
        self._copy_place = (ledger[first], entry[first], index[first])

    def _find_breaks(self) -> None:
        """Find ``(source, destination, from, to)`` for each time in which a link was broken."""
        broke_s, source, destination = by_time(self._observations.link_breaks, "source", "destination")
        repaired_s, repaired_source, repaired_destination = by_time(
            self._observations.link_repairs, "source", "destination"
        )
        self._breaks: list[tuple[int, int, float, float]] = []
        for from_s, a, b in zip(broke_s.tolist(), source.tolist(), destination.tolist(), strict=True):
            of_link = repaired_s[(repaired_source == a) & (repaired_destination == b) & (repaired_s >= from_s)]
            self._breaks.append((a, b, from_s, float(of_link[0]) if len(of_link) else np.inf))

    def return_after(self, failover: int) -> float:
        """Return when confirmations of the cluster that clients left reached the others again, or infinity."""
        of_cluster = self._return_s[self._return_cluster == self.failover_cluster[failover]]
        later = of_cluster[of_cluster >= self.cut_s[failover]]
        return float(later[0]) if len(later) else np.inf

    def stranded_at(self, failover: int) -> Column:
        """Return ids that only the cluster that clients left had confirmed. Raise :class:`ObservationsIncomplete`
        without a mark.

        A confirmation may be read from a socket after the kill of its sender, so it counts until the return.
        """
        marks = self._observations.high_waters
        topics, ledgers, entries = (marks.column(name) for name in ("topic", "ledger", "entry"))
        mark_of: dict[int, tuple[int, int]] = {}
        for row in np.flatnonzero(marks.column("failover") == failover).tolist():
            mark = int(ledgers[row]), int(entries[row])
            mark_of[int(topics[row])] = max(mark_of.get(int(topics[row]), mark), mark)
        if len(mark_of) < self.topics:
            name = self.clusters[self.failover_cluster[failover]]
            raise ObservationsIncomplete(
                f"no high-water mark was recorded when clients left {name}, so what they had there cannot be judged: "
                "run the drill again"
            )
        in_order = [mark_of[topic] for topic in range(self.topics)]
        topic_of = self.topic_of[self.confirm_id]
        ledger = np.array([mark[0] for mark in in_order], np.uint64)[topic_of]
        entry = np.array([mark[1] for mark in in_order], np.int64)[topic_of]
        above = (self._ledger > ledger) | ((self._ledger == ledger) & (self._entry > entry))
        here = self.confirm_cluster == self.failover_cluster[failover]
        ids: Column = self.confirm_id[above & here & (self.confirm_time_s < self.return_after(failover))]
        return ids

    def lost_with_disk(self) -> Column:
        """Return the ids of messages that a cluster confirmed before it lost its disk, and that no client saw
        in another cluster."""
        lost = np.zeros(len(self.confirm_id), bool)
        for cluster, before in self._lost_disks():
            lost |= before & self._nowhere_else(cluster)
        ids: Column = self.confirm_id[lost]
        return ids

    def disks(self) -> list[LostMessages]:
        """Return what each lost disk cost: as the drill's clients saw it, and as the status of the cluster names it."""
        found = []
        for cluster, before in self._lost_disks():
            lost, named = before & self._nowhere_else(cluster), before & self._is_named(cluster)
            found.append(
                LostMessages(self.clusters[cluster], int(lost.sum()), int(named.sum()), int((lost != named).sum()))
            )
        return found

    def _lost_disks(self) -> list[tuple[int, Column]]:
        """Return each cluster that lost its disk, with a flag for each confirmation of that cluster before it served
        again.

        A confirmation may be read from a socket after the kill of its sender, so it counts until then.
        """
        back = self._observations.taken_back
        disks = dict(zip(back.column("cluster").tolist(), back.column("time_s").tolist(), strict=True))
        return [
            (cluster, (self.confirm_cluster == cluster) & (self.confirm_time_s < time_s))
            for cluster, time_s in disks.items()
        ]

    def _nowhere_else(self, cluster: int) -> Column:
        """Return, for each confirmation, whether no reader and no subscription saw its message outside ``cluster``."""
        receipts = self._observations.receipts
        seen = np.zeros(self.count, bool)
        seen[self.copy_id[self.copy_cluster != cluster]] = True
        seen[receipts.column("id")[receipts.column("cluster") != cluster]] = True
        found: Column = ~seen[self.confirm_id]
        return found

    def _is_named(self, cluster: int) -> Column:
        """Return, for each confirmation, whether the status of ``cluster`` names its position as lost."""
        back = self._observations.taken_back
        columns = (back.column(name).tolist() for name in ("topic", "cluster", "ledger", "entry"))
        topic_of = self.topic_of[self.confirm_id]
        named = np.zeros(len(self.confirm_id), bool)
        for topic, of, ledger, entry in zip(*columns, strict=True):
            if of == cluster:
                above = (self._ledger > ledger) | ((self._ledger == ledger) & (self._entry > entry))
                named |= above & (topic_of == topic)
        return named

    def first_acks(self, subscription: int) -> tuple[Column, Column, Column]:
        """Return ``(ids, clusters, times)`` of each id's first acknowledgement."""
        time_s, of, cluster, ids = by_time(self._observations.acks, "subscription", "cluster", "id")
        rows = np.flatnonzero(of == subscription)
        rows = rows[first_rows(ids[rows])]
        return ids[rows], cluster[rows], time_s[rows]

    def copied_elsewhere_s(self) -> Column:
        """Return when each confirmed id was first seen in each cluster but the one that confirmed it."""
        times: Column = self.copy_time_s[self._home_of_copies() != self.copy_cluster]
        return times

    def _home_of_copies(self) -> Column:
        """Return the cluster that confirmed each copy, or the copy's own cluster if nobody confirmed it."""
        home = np.full(self.count, -1, np.int64)
        home[self.confirm_id] = self.confirm_cluster
        homes = home[self.copy_id]
        return np.where(homes < 0, self.copy_cluster, homes)

    def copy_lags(self) -> tuple[Column, Column, Column]:
        """Return ``(when confirmed, when seen, lag in ms)`` of each first copy whose link did not break in between."""
        confirmed_s = np.zeros(self.count)
        confirmed_s[self.confirm_id] = self.confirm_time_s
        home, from_s = self._home_of_copies(), confirmed_s[self.copy_id]
        counts = (home != self.copy_cluster) & ~self._broken(home, self.copy_cluster, from_s, self.copy_time_s)
        from_s, seen_s = from_s[counts], self.copy_time_s[counts]
        return from_s, seen_s, np.maximum(seen_s - from_s, 0.0) * 1000

    def sync_lags(self, subscription: int) -> tuple[Column, Column]:
        """Return ``(when acknowledged, lag in ms)`` of each (acknowledged id, other cluster) that was seen to settle.

        Only acknowledgements before the first failover count, and only while the link was whole.
        """
        end_s = float(self.cut_s[0]) if len(self.cut_s) else np.inf
        ack_id, ack_cluster, ack_time_s = self.first_acks(subscription)
        columns = ("subscription", "cluster", "topic", "first_ledger", "first_entry", "first_index")
        cover_s, of, cover_cluster, *ends = by_time(
            self._observations.covers, *columns, "topic", "last_ledger", "last_entry", "last_index"
        )
        when, lags_ms = [np.zeros(0)], [np.zeros(0)]
        for cluster in range(len(self.clusters)):
            covers = np.flatnonzero((of == subscription) & (cover_cluster == cluster) & (cover_s < end_s))
            copies = np.flatnonzero(self.copy_cluster == cluster)
            row_of = np.full(self.count, -1, np.int64)
            row_of[self.copy_id[copies]] = copies
            acked = (ack_cluster != cluster) & (ack_time_s < end_s) & (row_of[ack_id] >= 0)
            places = [column[row_of[ack_id[acked]]] for column in (self.topic_of[self.copy_id], *self._copy_place)]
            firsts, lasts = ([column[covers] for column in part] for part in (ends[:4], ends[4:]))
            seen_s = _first_covered_s(places, firsts, lasts, cover_s[covers])
            from_s = ack_time_s[acked]
            broken = self._broken(ack_cluster[acked], np.full(len(from_s), cluster), from_s, seen_s)
            kept = np.isfinite(seen_s) & ~broken
            when.append(from_s[kept])
            lags_ms.append(np.maximum(seen_s[kept] - from_s[kept], 0.0) * 1000)
        return np.concatenate(when), np.concatenate(lags_ms)

    def _broken(self, sources: Column, destinations: Column, from_s: Column, to_s: Column) -> Column:
        """Return, for each stretch of time, whether the link from source to destination was broken at any moment of
        it.
        """
        broken = np.zeros(len(from_s), bool)
        for source, destination, broke_s, repaired_s in self._breaks:
            of_link = (sources == source) & (destinations == destination)
            broken |= of_link & (from_s <= repaired_s) & (to_s >= broke_s)
        return broken


def _first_covered_s(places: list[Column], firsts: list[Column], lasts: list[Column], times_s: Column) -> Column:
    """Return, for each place, the earliest of ``times_s`` (ascending) whose interval holds the place, or infinity."""
    covers, seen_s = len(times_s), np.full(len(places[0]), np.inf)
    rank = ranks(*(np.concatenate(parts) for parts in zip(firsts, lasts, places, strict=True)))
    order = np.argsort(rank[2 * covers :], kind="stable")
    ordered = rank[2 * covers :][order]
    starts = np.searchsorted(ordered, rank[:covers], side="left")
    stops = np.searchsorted(ordered, rank[covers : 2 * covers], side="right")
    in_order_s = np.full(len(ordered), np.inf)
    for start, stop, time_s in zip(starts.tolist(), stops.tolist(), times_s.tolist(), strict=True):
        stretch = in_order_s[start:stop]
        np.minimum(stretch, time_s, out=stretch)
    seen_s[order] = in_order_s
    return seen_s


def by_time(table: Table, *names: str) -> tuple[Column, ...]:
    """Return the column ``time_s`` and the named ones, in the order of time. Rows of one time stay in their order."""
    time_s = table.column("time_s")
    if len(time_s) and (np.diff(time_s) < 0).any():
        order = np.argsort(time_s, kind="stable")
        return (time_s[order], *(table.column(name)[order] for name in names))
    return (time_s, *(table.column(name) for name in names))
