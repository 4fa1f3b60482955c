"""The measures of a drill, from what producers and consumers saw; nothing is computed from intent.

Pure: :class:`~replicator.drills.observations.Observations` in, :class:`Measures` out. The definitions are those of
``docs/drills.md``; "delivery" is one hand-over of a message to a consumer, in the order of its time, and "first
delivery" the first of an id to a subscription. A failover is a move of the clients from one cluster to another; its
*cut* is the moment from which what happened at the first could not be relied on to reach the second: the kill, the
beginning of the partition, or, where nothing broke, the move itself.

published            ids that a producer sent
confirmed            ids that a worker confirmed to a producer
consumed_unique      ids that *every* subscription received
lost                 (subscription, confirmed id) pairs without a delivery
lost_with_disk       of these, those that a cluster confirmed before it lost its disk, and that no tail reader and no
                     subscription saw in another cluster: no other cluster had them
lost_disks           by lost disk the same, and what the status of the cluster names as lost
repeated             deliveries beyond the first of their id to their subscription
repeated_acked_before_kill
                     of those, the ones after an unplanned failover whose id a consumer of the subscription had
                     acknowledged before its cut: the worker had confirmed the acknowledgement
repeated_acked_over_1s_before_kill
                     of those, the ones acknowledged more than 1 s before
repeated_acked_before_planned
                     of those repeated, the ones after a planned failover whose id had been acknowledged before it was begun
out_of_order         first deliveries to an ordered subscription whose origin position is lower than that of an
                     earlier first delivery with the same key and origin
stranded             confirmed at a cluster before it was back after a failover away from it, above the high-water mark of
                     the cluster that clients went to
rpo_messages         distinct stranded ids
late                 distinct stranded ids whose first delivery to some subscription came after one of a newer id of their key
overtaken            distinct ids that were *not* stranded, counted as in late, for ordered subscriptions
rto_seconds          from a failover's beginning to the last of: the first confirm at the other cluster, and each
                     subscription's first delivery there; with several topics that of the last topic
copy_lag_ms          from confirmation to the tail reader's first sight of the message in another cluster, but for those
                     whose link was broken in between
sync_lag_ms          from an id's first acknowledgement to the first poll of another cluster that finds it acknowledged there:
                     by its mark-delete, as individually deleted, or by its index in a batch; before the first cut, and while
                     the link was whole
over_topics          lost, repeated and time to recover topic by topic (:mod:`replicator.drills.over_topics`)
phases               parts of the drill: what was confirmed and copied in each, and its lags
"""  # noqa: E501

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from replicator.drills.deliveries import ACKED_BEFORE_CUT_S, Deliveries
from replicator.drills.observations import Column, DrillSubscription, Observations
from replicator.drills.over_topics import TopicMeasures, first_elsewhere, measure_topics, recover_seconds
from replicator.drills.phases import PhaseMeasures, measure_phases
from replicator.drills.series import Series, make_series
from replicator.drills.timeline import LostMessages, ObservationsIncomplete, Timeline
from replicator.drills.vectors import Percentiles, first_rows, percentiles

__all__ = [
    "FailoverMeasures",
    "Measures",
    "ObservationsIncomplete",
    "Percentiles",
    "PhaseMeasures",
    "SubscriptionMeasures",
    "measure",
]


@dataclass(frozen=True, slots=True)
class SubscriptionMeasures:
    """Measures of one subscription."""

    name: str
    type: str
    cumulative: bool
    deliveries: int
    consumed_unique: int
    acknowledged: int
    lost: int
    lost_with_disk: int
    repeated: int
    repeated_acked_before_kill: int
    repeated_acked_over_1s_before_kill: int
    repeated_acked_before_planned: int
    out_of_order: int | None
    """Number of deliveries out of order; None if the subscription does not promise order."""
    overtaken: int | None
    late: int
    sync_lag_ms: Percentiles


@dataclass(frozen=True, slots=True)
class FailoverMeasures:
    """Measures of one failover. Times are seconds since the first send, durations since the failover was begun."""

    kind: str
    cluster: str
    """Cluster that clients left."""
    to: str
    cut_at_seconds: float
    at_seconds: float
    returned_at_seconds: float | None
    rpo_messages: int
    rto_seconds: float | None
    """Recovery time of the failover; None if nothing was confirmed or delivered elsewhere afterwards."""
    first_confirm_seconds: float | None
    first_delivery_seconds: Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class Measures:
    """All measures of a drill. The docstring of the module defines each."""

    published: int
    confirmed: int
    consumed_unique: int
    lost: int
    lost_with_disk: int
    """Distinct confirmed ids that no other cluster had when a cluster lost its disk, consumed before or not."""
    lost_disks: tuple[LostMessages, ...]
    repeated: int
    repeated_acked_before_kill: int
    repeated_acked_over_1s_before_kill: int
    repeated_acked_before_planned: int
    out_of_order: int
    late: int
    rpo_messages: int
    rto_seconds: float | None
    """Longest recovery time of all failovers."""
    copy_lag_ms: Percentiles
    sync_lag_ms: Percentiles
    subscriptions: tuple[SubscriptionMeasures, ...]
    failovers: tuple[FailoverMeasures, ...]
    phases: tuple[PhaseMeasures, ...]
    series: Series
    over_topics: TopicMeasures


def measure(observations: Observations) -> Measures:
    """Return all measures. Raise :class:`ObservationsIncomplete` for a failover without a high-water mark."""
    timeline = Timeline(observations)
    stranded_by_failover = [timeline.stranded_at(number) for number in range(len(timeline.failover_s))]
    stranded = np.zeros(timeline.count, bool)
    for ids in stranded_by_failover:
        stranded[ids] = True
    deliveries = [Deliveries(timeline, code) for code in range(len(observations.subscriptions))]
    sync_lags = [timeline.sync_lags(code) for code in range(len(observations.subscriptions))]
    late, with_disk = np.zeros(timeline.count, bool), np.zeros(timeline.count, bool)
    with_disk[timeline.lost_with_disk()] = True
    subscriptions = []
    for subscription, seen, (_when, lags_ms) in zip(observations.subscriptions, deliveries, sync_lags, strict=True):
        overtaken = seen.overtaken_ids()
        late[overtaken[stranded[overtaken]]] = True
        subscriptions.append(_subscription(subscription, seen, timeline, stranded, with_disk, lags_ms))
    received_by_all = np.ones(timeline.count, bool) if deliveries else np.zeros(timeline.count, bool)
    for seen in deliveries:
        received_by_all &= seen.received
    firsts = [
        first_elsewhere(timeline, number, len(observations.subscriptions)) for number in range(len(timeline.failover_s))
    ]
    failovers = tuple(
        _failover(timeline, observations, number, len(ids), first_s)
        for number, (ids, first_s) in enumerate(zip(stranded_by_failover, firsts, strict=True))
    )
    copy_from_s, copy_seen_s, copy_lags_ms = timeline.copy_lags()
    acked_s, all_sync_lags_ms = (
        (np.concatenate(parts) for parts in zip(*sync_lags, strict=True)) if sync_lags else (np.zeros(0), np.zeros(0))
    )
    return Measures(
        published=len(np.unique(timeline.sent_id)),
        confirmed=int(timeline.is_confirmed.sum()),
        consumed_unique=int(received_by_all.sum()),
        lost=sum(each.lost for each in subscriptions),
        lost_with_disk=int(with_disk.sum()),
        lost_disks=tuple(timeline.disks()),
        repeated=sum(each.repeated for each in subscriptions),
        repeated_acked_before_kill=sum(each.repeated_acked_before_kill for each in subscriptions),
        repeated_acked_over_1s_before_kill=sum(each.repeated_acked_over_1s_before_kill for each in subscriptions),
        repeated_acked_before_planned=sum(each.repeated_acked_before_planned for each in subscriptions),
        out_of_order=sum(each.out_of_order or 0 for each in subscriptions),
        late=int(late.sum()),
        rpo_messages=int(stranded.sum()),
        rto_seconds=max((each.rto_seconds for each in failovers if each.rto_seconds is not None), default=None),
        copy_lag_ms=percentiles(copy_lags_ms),
        sync_lag_ms=percentiles(all_sync_lags_ms),
        subscriptions=tuple(subscriptions),
        failovers=failovers,
        phases=measure_phases(
            observations,
            start_s=timeline.start_s,
            confirmed_s=timeline.confirm_time_s,
            copied_s=timeline.copied_elsewhere_s(),
            copy_lags=(copy_from_s, copy_lags_ms),
            sync_lags=(acked_s, all_sync_lags_ms),
        ),
        series=_series(timeline, subscriptions, deliveries, copy_seen_s, copy_lags_ms),
        over_topics=measure_topics(timeline, deliveries, list(map(recover_seconds, firsts))),
    )


def _subscription(
    subscription: DrillSubscription,
    seen: Deliveries,
    timeline: Timeline,
    stranded: Column,
    with_disk: Column,
    sync_lags_ms: Column,
) -> SubscriptionMeasures:
    overtaken = seen.overtaken_ids()
    return SubscriptionMeasures(
        name=subscription.name,
        type=subscription.type.value,
        cumulative=subscription.cumulative,
        deliveries=len(seen.first_id) + len(seen.repeat_id),
        consumed_unique=len(seen.first_id),
        acknowledged=len(timeline.first_acks(seen.subscription)[0]),
        lost=int((timeline.is_confirmed & ~seen.received).sum()),
        lost_with_disk=int((timeline.is_confirmed & ~seen.received & with_disk).sum()),
        repeated=len(seen.repeat_id),
        repeated_acked_before_kill=seen.repeated_acked_before_cut(planned=False, margin_s=0.0),
        repeated_acked_over_1s_before_kill=seen.repeated_acked_before_cut(planned=False, margin_s=ACKED_BEFORE_CUT_S),
        repeated_acked_before_planned=seen.repeated_acked_before_cut(planned=True, margin_s=0.0),
        out_of_order=seen.out_of_order() if subscription.ordered else None,
        overtaken=int((~stranded[overtaken]).sum()) if subscription.ordered else None,
        late=int(stranded[overtaken].sum()),
        sync_lag_ms=percentiles(sync_lags_ms),
    )


def _failover(
    timeline: Timeline, observations: Observations, number: int, rpo_messages: int, firsts: Sequence[Column]
) -> FailoverMeasures:
    at_s, cluster = float(timeline.failover_s[number]), int(timeline.failover_cluster[number])
    recovered_s = recover_seconds(firsts)
    recovered = recovered_s[~np.isnan(recovered_s)]
    first_confirm, *deliveries = (_or_none(float(first_s.min())) for first_s in firsts)
    first_delivery = {each.name: seconds for each, seconds in zip(observations.subscriptions, deliveries, strict=True)}
    return_s = timeline.return_after(number)
    return FailoverMeasures(
        kind=timeline.kinds[number].value,
        cluster=timeline.clusters[cluster],
        to=timeline.clusters[timeline.failover_to[number]],
        cut_at_seconds=float(timeline.cut_s[number]) - timeline.start_s,
        at_seconds=at_s - timeline.start_s,
        returned_at_seconds=return_s - timeline.start_s if return_s < np.inf else None,
        rpo_messages=rpo_messages,
        rto_seconds=float(recovered.max()) if len(recovered) else None,
        first_confirm_seconds=first_confirm,
        first_delivery_seconds=first_delivery,
    )


def _or_none(seconds: float) -> float | None:
    return seconds if math.isfinite(seconds) else None


def _series(
    timeline: Timeline,
    subscriptions: Sequence[SubscriptionMeasures],
    deliveries: Sequence[Deliveries],
    copy_seen_s: Column,
    copy_lags_ms: Column,
) -> Series:
    named = list(zip((each.name for each in subscriptions), deliveries, strict=True))
    return make_series(
        start_s=timeline.start_s,
        published_s=timeline.sent_time_s[first_rows(timeline.sent_id)],
        confirmed_s=timeline.confirm_time_s,
        copied_s=timeline.copied_elsewhere_s(),
        copy_lag_s=copy_seen_s,
        copy_lag_ms=copy_lags_ms,
        consumed_s={name: seen.first_time_s for name, seen in named},
        acknowledged_s={name: timeline.first_acks(seen.subscription)[2] for name, seen in named},
        repeated_s={name: seen.repeat_time_s for name, seen in named},
    )
