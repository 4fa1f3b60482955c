"""The measures of a drill, from what producers and consumers saw; nothing is computed from intent.

Pure: :class:`~replicator.drills.observations.Observations` in, :class:`Measures` out. The definitions are those of
``docs/drills.md``; "delivery" is one hand-over of a message to a consumer, in the order of its time, and "first
delivery" the first of an id to a subscription.

published            ids that a producer sent
confirmed            ids that a worker confirmed to a producer
consumed_unique      ids that *every* subscription received
lost                 (subscription, confirmed id) pairs without a delivery
repeated             deliveries beyond the first of their id to their subscription
repeated_acked_over_1s_before_kill
                     of those, the ones after a kill whose id a consumer of the subscription had acknowledged more than
                     1 s before that kill; at the top for cumulative subscriptions only
out_of_order         first deliveries to an ordered subscription whose origin position is lower than that of an
                     earlier first delivery with the same key and origin
stranded             confirmed at a cluster before it was back from a kill, above all survivors' high-water marks
rpo_messages         distinct stranded ids
late                 distinct stranded ids whose first delivery to some subscription came after one of a newer id of their key
overtaken            the same of ids that were *not* stranded, for ordered subscriptions
rto_seconds          from a kill to the last of: the first confirm elsewhere, and each subscription's first delivery elsewhere
copy_lag_ms          from confirmation to the tail reader's first sight of the message in another cluster, but for
                     stranded messages and for destinations that were down in between
sync_lag_ms          from an id's first acknowledgement to the first poll of another cluster whose mark-delete covers the
                     message's position there; all of it before the first kill

Algorithm: deliveries are brought into the order of time once; first deliveries are the first rows of their id; the
order within a key is a running maximum by group (:mod:`replicator.drills.vectors`). No loop runs over messages.
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from replicator.drills.observations import Column, DrillSubscription, Observations, Table
from replicator.drills.series import Series, make_series
from replicator.drills.vectors import first_rows, nearest_rank, ranks, running_max_before

ACKED_BEFORE_KILL_S: Final = 1.0
"""What was acknowledged in the last second before a cut may not have travelled yet; what is older must have."""


class ObservationsIncomplete(Exception):
    """Something was not recorded without which a measure would be a guess."""


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Nearest-rank percentiles of ``samples`` values, in milliseconds; None without samples."""

    p50: float | None
    p99: float | None
    samples: int


@dataclass(frozen=True, slots=True)
class SubscriptionMeasures:
    """The measures of one subscription."""

    name: str
    type: str
    cumulative: bool
    deliveries: int
    consumed_unique: int
    acknowledged: int
    lost: int
    repeated: int
    repeated_acked_over_1s_before_kill: int
    out_of_order: int | None
    """None where the subscription does not promise order."""
    overtaken: int | None
    late: int
    sync_lag_ms: Percentiles


@dataclass(frozen=True, slots=True)
class KillMeasures:
    """One kill; times are seconds since the first send, durations since the kill."""

    cluster: str
    at_seconds: float
    restarted_at_seconds: float | None
    rpo_messages: int
    rto_seconds: float | None
    """None if nothing was confirmed or delivered elsewhere afterwards."""
    first_confirm_seconds: float | None
    first_delivery_seconds: Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class Measures:
    """Everything that is measured; see the module's docstring for each definition."""

    published: int
    confirmed: int
    consumed_unique: int
    lost: int
    repeated: int
    repeated_acked_over_1s_before_kill: int
    out_of_order: int
    late: int
    rpo_messages: int
    rto_seconds: float | None
    """The longest of the kills."""
    copy_lag_ms: Percentiles
    sync_lag_ms: Percentiles
    subscriptions: tuple[SubscriptionMeasures, ...]
    kills: tuple[KillMeasures, ...]
    series: Series


def measure(observations: Observations) -> Measures:
    """All measures; raises :class:`ObservationsIncomplete` for a kill without a survivor's high-water mark."""
    drill = _Drill(observations)
    stranded_by_kill = [drill.stranded_at(kill) for kill in range(len(drill.kill_time_s))]
    stranded = np.zeros(drill.count, bool)
    for ids in stranded_by_kill:
        stranded[ids] = True
    deliveries = [drill.deliveries(code) for code in range(len(observations.subscriptions))]
    sync_lags_ms = [drill.sync_lags_ms(code) for code in range(len(observations.subscriptions))]
    late = np.zeros(drill.count, bool)
    subscriptions = []
    for subscription, seen, lags_ms in zip(observations.subscriptions, deliveries, sync_lags_ms, strict=True):
        overtaken = seen.overtaken_ids(drill)
        late[overtaken[stranded[overtaken]]] = True
        subscriptions.append(_subscription(subscription, seen, drill, stranded, lags_ms))
    received_by_all = np.ones(drill.count, bool) if deliveries else np.zeros(drill.count, bool)
    for seen in deliveries:
        received_by_all &= seen.received
    kills = tuple(drill.kill(number, len(ids)) for number, ids in enumerate(stranded_by_kill))
    lag_rows, copy_lags_ms = drill.copy_lags_ms(stranded)
    return Measures(
        published=len(np.unique(drill.sent_id)),
        confirmed=int(drill.is_confirmed.sum()),
        consumed_unique=int(received_by_all.sum()),
        lost=sum(each.lost for each in subscriptions),
        repeated=sum(each.repeated for each in subscriptions),
        repeated_acked_over_1s_before_kill=sum(
            each.repeated_acked_over_1s_before_kill for each in subscriptions if each.cumulative
        ),
        out_of_order=sum(each.out_of_order or 0 for each in subscriptions),
        late=int(late.sum()),
        rpo_messages=int(stranded.sum()),
        rto_seconds=max((kill.rto_seconds for kill in kills if kill.rto_seconds is not None), default=None),
        copy_lag_ms=_percentiles(copy_lags_ms),
        sync_lag_ms=_percentiles(np.concatenate(sync_lags_ms) if sync_lags_ms else np.zeros(0)),
        subscriptions=tuple(subscriptions),
        kills=kills,
        series=make_series(
            start_s=drill.start_s,
            published_s=drill.sent_time_s[first_rows(drill.sent_id)],
            confirmed_s=drill.confirm_time_s,
            copied_s=drill.copied_elsewhere_s(),
            copy_lag_s=drill.copy_time_s[lag_rows],
            copy_lag_ms=copy_lags_ms,
            consumed_s={each.name: seen.first_time_s for each, seen in zip(subscriptions, deliveries, strict=True)},
            acknowledged_s={each.name: drill.first_acks(code)[2] for code, each in enumerate(subscriptions)},
            repeated_s={each.name: seen.repeat_time_s for each, seen in zip(subscriptions, deliveries, strict=True)},
        ),
    )


def _subscription(
    subscription: DrillSubscription,
    seen: _Deliveries,
    drill: _Drill,
    stranded: Column,
    sync_lags_ms: Column,
) -> SubscriptionMeasures:
    overtaken = seen.overtaken_ids(drill)
    return SubscriptionMeasures(
        name=subscription.name,
        type=subscription.type.value,
        cumulative=subscription.cumulative,
        deliveries=len(seen.first_id) + len(seen.repeat_id),
        consumed_unique=len(seen.first_id),
        acknowledged=len(drill.first_acks(seen.subscription)[0]),
        lost=int((drill.is_confirmed & ~seen.received).sum()),
        repeated=len(seen.repeat_id),
        repeated_acked_over_1s_before_kill=seen.repeated_acked_before_kill(drill),
        out_of_order=seen.out_of_order(drill) if subscription.ordered else None,
        overtaken=int((~stranded[overtaken]).sum()) if subscription.ordered else None,
        late=int(stranded[overtaken].sum()),
        sync_lag_ms=_percentiles(sync_lags_ms),
    )


def _percentiles(samples: Column) -> Percentiles:
    ordered = np.sort(samples)
    return Percentiles(nearest_rank(ordered, 50), nearest_rank(ordered, 99), len(ordered))


class _Drill:
    """The columns of a drill in the order of time, and what is worked out from several tables."""

    def __init__(self, observations: Observations) -> None:
        self._observations = observations
        self.clusters = list(observations.clusters)
        self.key_of = observations.messages.column("key")
        self.count = len(self.key_of)
        self.sent_time_s, self.sent_id = _by_time(observations.sends, "id")
        self.confirm_time_s, self.confirm_id, self.confirm_cluster, self._ledger, self._entry = _by_time(
            observations.confirms, "id", "cluster", "ledger", "entry"
        )
        self.is_confirmed = np.zeros(self.count, bool)
        self.is_confirmed[self.confirm_id] = True
        self.kill_time_s, self.kill_cluster = _by_time(observations.kills, "cluster")
        self._restart_time_s, self._restart_cluster = _by_time(observations.restarts, "cluster")
        self._first_copies()
        times = (self.sent_time_s, self.confirm_time_s, self.kill_time_s)
        self.start_s = min((float(column[0]) for column in times if len(column)), default=0.0)

    def _first_copies(self) -> None:
        """The tail readers' first sight of each id in each cluster."""
        time_s, cluster, ids, ledger, entry = _by_time(self._observations.copies, "cluster", "id", "ledger", "entry")
        first = first_rows(cluster * np.int64(max(self.count, 1)) + ids)
        self.copy_time_s, self.copy_cluster, self.copy_id = time_s[first], cluster[first], ids[first]
        self._copy_ledger, self._copy_entry = ledger[first], entry[first]

    def restart_after(self, kill: int) -> float:
        """When the killed cluster was back, or infinity."""
        of_cluster = self._restart_time_s[self._restart_cluster == self.kill_cluster[kill]]
        later = of_cluster[of_cluster >= self.kill_time_s[kill]]
        return float(later[0]) if len(later) else np.inf

    def stranded_at(self, kill: int) -> Column:
        """Ids confirmed at the killed cluster that no survivor had.

        A confirmation may be read from a socket after the kill of its sender, so it counts until the restart.
        """
        marks = self._observations.high_waters
        of_kill = np.flatnonzero(marks.column("kill") == kill)
        if not len(of_kill):
            name = self.clusters[self.kill_cluster[kill]]
            raise ObservationsIncomplete(f"no survivor's high-water mark was recorded for the kill of {name}")
        ledgers, entries = marks.column("ledger"), marks.column("entry")
        ledger, entry = max((int(ledgers[row]), int(entries[row])) for row in of_kill)
        above = (self._ledger > np.uint64(ledger)) | ((self._ledger == np.uint64(ledger)) & (self._entry > entry))
        here = self.confirm_cluster == self.kill_cluster[kill]
        ids: Column = self.confirm_id[above & here & (self.confirm_time_s < self.restart_after(kill))]
        return ids

    def deliveries(self, subscription: int) -> _Deliveries:
        return _Deliveries(self._observations.receipts, subscription, self.count)

    def first_acks(self, subscription: int) -> tuple[Column, Column, Column]:
        """``(ids, clusters, times)`` of each id's first acknowledgement."""
        time_s, of, cluster, ids = _by_time(self._observations.acks, "subscription", "cluster", "id")
        rows = np.flatnonzero(of == subscription)
        rows = rows[first_rows(ids[rows])]
        return ids[rows], cluster[rows], time_s[rows]

    def copied_elsewhere_s(self) -> Column:
        """When each confirmed id was first seen in each cluster but the one that confirmed it."""
        times: Column = self.copy_time_s[self._is_copy()]
        return times

    def _is_copy(self) -> Column:
        home = np.full(self.count, -1, np.int64)
        home[self.confirm_id] = self.confirm_cluster
        is_copy: Column = (home[self.copy_id] >= 0) & (home[self.copy_id] != self.copy_cluster)
        return is_copy

    def copy_lags_ms(self, stranded: Column) -> tuple[Column, Column]:
        """``(rows of the first copies, their lag)``."""
        confirmed_s = np.zeros(self.count)
        confirmed_s[self.confirm_id] = self.confirm_time_s
        from_s = confirmed_s[self.copy_id]
        counts = self._is_copy() & ~stranded[self.copy_id]
        for kill, (killed_s, cluster) in enumerate(zip(self.kill_time_s, self.kill_cluster, strict=True)):
            down = (killed_s <= self.copy_time_s) & (from_s <= self.restart_after(kill))
            counts &= ~(down & (self.copy_cluster == cluster))
        rows = np.flatnonzero(counts)
        return rows, np.maximum(self.copy_time_s[rows] - from_s[rows], 0.0) * 1000

    def sync_lags_ms(self, subscription: int) -> Column:
        """One value for each (acknowledged id, other cluster) whose mark-delete was seen to cover it in time."""
        end_s = float(self.kill_time_s[0]) if len(self.kill_time_s) else np.inf
        ack_id, ack_cluster, ack_time_s = self.first_acks(subscription)
        poll_s, of, poll_cluster, poll_ledger, poll_entry = _by_time(
            self._observations.mark_deletes, "subscription", "cluster", "ledger", "entry"
        )
        samples = [np.zeros(0)]
        for cluster in range(len(self.clusters)):
            polls = np.flatnonzero((of == subscription) & (poll_cluster == cluster) & (poll_s < end_s))
            copies = np.flatnonzero(self.copy_cluster == cluster)
            row_of = np.full(self.count, -1, np.int64)
            row_of[self.copy_id[copies]] = copies
            acked = (ack_cluster != cluster) & (ack_time_s < end_s) & (row_of[ack_id] >= 0)
            here = row_of[ack_id[acked]]
            rank = ranks(
                np.concatenate((poll_ledger[polls], self._copy_ledger[here])),
                np.concatenate((poll_entry[polls], self._copy_entry[here])),
            )
            reached = np.maximum.accumulate(rank[: len(polls)])
            first = np.searchsorted(reached, rank[len(polls) :], side="left")
            covered = first < len(polls)
            lag_s = poll_s[polls[first[covered]]] - ack_time_s[acked][covered]
            samples.append(np.maximum(lag_s, 0.0) * 1000)
        return np.concatenate(samples)

    def kill(self, number: int, rpo_messages: int) -> KillMeasures:
        at_s, cluster = float(self.kill_time_s[number]), int(self.kill_cluster[number])
        elsewhere = self.confirm_time_s[(self.confirm_cluster != cluster) & (self.confirm_time_s > at_s)]
        first_confirm = float(elsewhere[0]) - at_s if len(elsewhere) else None
        first_delivery: dict[str, float | None] = {}
        time_s, of, at_cluster = _by_time(self._observations.receipts, "subscription", "cluster")
        for code, subscription in enumerate(self._observations.subscriptions):
            seen = time_s[(of == code) & (at_cluster != cluster) & (time_s > at_s)]
            first_delivery[subscription.name] = float(seen[0]) - at_s if len(seen) else None
        seconds = [each for each in (first_confirm, *first_delivery.values()) if each is not None]
        restart_s = self.restart_after(number)
        return KillMeasures(
            cluster=self.clusters[cluster],
            at_seconds=at_s - self.start_s,
            restarted_at_seconds=restart_s - self.start_s if restart_s < np.inf else None,
            rpo_messages=rpo_messages,
            rto_seconds=max(seconds, default=None),
            first_confirm_seconds=first_confirm,
            first_delivery_seconds=first_delivery,
        )


class _Deliveries:
    """What one subscription was handed, split into first deliveries and repeats, each in the order of time."""

    def __init__(self, receipts: Table, subscription: int, count: int) -> None:
        self.subscription = subscription
        time_s, of, ids, origin, ledger, entry, batch_index = _by_time(
            receipts, "subscription", "id", "origin", "origin_ledger", "origin_entry", "batch_index"
        )
        rows = np.flatnonzero(of == subscription)
        first = rows[first_rows(ids[rows])]
        repeats = np.setdiff1d(rows, first, assume_unique=True)
        self.first_id, self.first_time_s = ids[first], time_s[first]
        self.repeat_id, self.repeat_time_s = ids[repeats], time_s[repeats]
        self._origin = origin[first]
        self._origin_rank = ranks(ledger[first], entry[first], batch_index[first])
        self.received = np.zeros(count, bool)
        self.received[self.first_id] = True

    def out_of_order(self, drill: _Drill) -> int:
        by_key_and_origin = drill.key_of[self.first_id] * max(len(drill.clusters), 1) + self._origin
        return int((self._origin_rank < running_max_before(by_key_and_origin, self._origin_rank)).sum())

    def overtaken_ids(self, drill: _Drill) -> Column:
        """Ids whose first delivery came after that of a newer id of their key."""
        newest_before = running_max_before(drill.key_of[self.first_id], self.first_id)
        ids: Column = self.first_id[self.first_id < newest_before]
        return ids

    def repeated_acked_before_kill(self, drill: _Drill) -> int:
        if not len(drill.kill_time_s):
            return 0
        acked_s = np.full(drill.count, np.inf)
        ids, _clusters, times_s = drill.first_acks(self.subscription)
        acked_s[ids] = times_s
        # Of the kills before a delivery the last is the one before which the most was acknowledged.
        last_kill = np.searchsorted(drill.kill_time_s, self.repeat_time_s, side="left") - 1
        gap_s = drill.kill_time_s[last_kill] - acked_s[self.repeat_id]
        return int(((last_kill >= 0) & (gap_s > ACKED_BEFORE_KILL_S)).sum())


def _by_time(table: Table, *names: str) -> tuple[Column, ...]:
    """The column ``time_s`` and the named ones, in the order of time; rows of one time as recorded."""
    time_s = table.column("time_s")
    if len(time_s) and (np.diff(time_s) < 0).any():
        order = np.argsort(time_s, kind="stable")
        return (time_s[order], *(table.column(name)[order] for name in names))
    return (time_s, *(table.column(name) for name in names))
