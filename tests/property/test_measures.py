"""The measures of a drill equal those of a slow reference that reads like their definitions."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from replicator.drills.measures import Percentiles, measure
from replicator.drills.observations import DrillSubscription, FailoverKind, Observations, Place
from replicator.engine.types import SubscriptionType
from snapshots.position import Position

SUBSCRIPTIONS = (
    DrillSubscription("ordered", SubscriptionType.EXCLUSIVE, cumulative=True),
    DrillSubscription("shared", SubscriptionType.SHARED, cumulative=False),
    DrillSubscription("keyed", SubscriptionType.KEY_SHARED, cumulative=False),
)
NAMES = [each.name for each in SUBSCRIPTIONS]
ORDERED = [each.name for each in SUBSCRIPTIONS if each.ordered]
CLUSTERS = ("a", "b", "c")


class Confirm(NamedTuple):
    id: int
    cluster: str
    position: Position
    time_s: float


class Receipt(NamedTuple):
    subscription: str
    cluster: str
    id: int
    origin: str
    position: Position
    batch_index: int
    time_s: float


class Ack(NamedTuple):
    subscription: str
    cluster: str
    id: int
    time_s: float


class Copy(NamedTuple):
    cluster: str
    id: int
    place: Place
    time_s: float


class Cover(NamedTuple):
    subscription: str
    cluster: str
    first: Place
    last: Place
    time_s: float


class Failover(NamedTuple):
    kind: FailoverKind
    cluster: str
    to: str
    cut_s: float
    time_s: float
    high_waters: list[tuple[str, Position]]


class Break(NamedTuple):
    source: str
    destination: str
    time_s: float


@dataclass
class History:
    keys: list[str]
    sends: list[tuple[int, float]] = field(default_factory=list)
    confirms: list[Confirm] = field(default_factory=list)
    receipts: list[Receipt] = field(default_factory=list)
    acks: list[Ack] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)
    covers: list[Cover] = field(default_factory=list)
    failovers: list[Failover] = field(default_factory=list)
    returns: list[tuple[str, float]] = field(default_factory=list)
    breaks: list[Break] = field(default_factory=list)
    repairs: list[Break] = field(default_factory=list)

    def observations(self) -> Observations:
        seen = Observations(SUBSCRIPTIONS)
        for cluster in CLUSTERS:
            seen.clusters.code(cluster)
        for key in self.keys:
            seen.add_message(key)
        for message_id, time_s in self.sends:
            seen.sent(message_id, time_s)
        for c in self.confirms:
            seen.confirmed(c.id, c.cluster, c.position, 0, c.time_s)
        for r in self.receipts:
            seen.received(r.subscription, "c", r.cluster, r.id, r.origin, r.position, r.batch_index, 0, r.time_s)
        for a in self.acks:
            seen.acked(a.subscription, a.cluster, a.id, a.time_s)
        for o in self.copies:
            seen.observed(o.cluster, o.id, Position(o.place.ledger, o.place.entry), o.place.batch_index, o.time_s)
        for cover in self.covers:
            seen.covered(*cover)
        for f in self.failovers:
            number = seen.failed_over(f.kind, f.cluster, f.to, f.cut_s, f.time_s)
            for survivor, position in f.high_waters:
                seen.high_water(number, survivor, position)
        for cluster, time_s in self.returns:
            seen.returned(cluster, time_s)
        for b in self.breaks:
            seen.link_broke(*b)
        for b in self.repairs:
            seen.link_repaired(*b)
        return seen


def random_history(seed: int, messages: int, events: int, failovers: int) -> History:
    """Return a random history with few keys, clusters, positions and moments, so that ties and repeats are the rule."""
    chance = random.Random(seed)
    if not messages:
        return History([])

    def moment() -> float:
        return chance.randrange(13) / 2  # half seconds: exactly 1 s before a kill comes up

    def position() -> Position:
        return Position(chance.choice((1, 2, 2**63 + 5)), chance.randrange(4))

    def mark() -> Position:
        return chance.choice((position(), position(), Position(0, -1), Position(2, -1)))

    def place() -> Place:
        return Place(*position(), chance.choice((-1, 0, 1, 2)))

    def failover() -> Failover:
        time_s = moment() + 1
        marks = [(cluster(), mark()) for _ in range(chance.randint(1, 2))]
        cut_s = time_s - chance.choice((0, 0, 0.5, 2))
        return Failover(chance.choice(list(FailoverKind)), cluster(), cluster(), cut_s, time_s, marks)

    def cluster() -> str:
        return chance.choice(CLUSTERS)

    def message() -> int:
        return chance.randrange(messages)

    def name() -> str:
        return chance.choice(NAMES)

    def some(make: Callable[[], Any], share: float = 1.0) -> list[Any]:
        return [make() for _ in range(chance.randint(0, int(events * share)))]

    confirmed = [message_id for message_id in range(messages) if chance.random() < 0.8]
    return History(
        keys=[chance.choice(("k1", "k2")) for _ in range(messages)],
        sends=some(lambda: (message(), moment()), 0.3),
        confirms=[Confirm(message_id, cluster(), position(), moment()) for message_id in confirmed],
        receipts=some(
            lambda: Receipt(name(), cluster(), message(), cluster(), position(), chance.randrange(2), moment())
        ),
        acks=some(lambda: Ack(name(), cluster(), message(), moment())),
        copies=some(lambda: Copy(cluster(), message(), place(), moment())),
        covers=some(lambda: Cover(name(), cluster(), *sorted((place(), place())), moment()), 2),
        failovers=sorted((failover() for _ in range(failovers)), key=lambda each: each.time_s),
        returns=some(lambda: (cluster(), moment() + 1), 0.3),
        breaks=some(lambda: Break(cluster(), cluster(), moment()), 0.15),
        repairs=some(lambda: Break(cluster(), cluster(), moment()), 0.4),
    )


histories = st.builds(
    random_history,
    seed=st.integers(0, 2**32),
    messages=st.integers(0, 8),
    events=st.integers(0, 60),
    failovers=st.integers(0, 3),
)


class Reference:
    """Reference for the measures: each is computed from its definition, message by message."""

    def __init__(self, history: History) -> None:
        self.h = history
        self.confirm = {each.id: each for each in history.confirms}
        self.stranded = {message_id for each in history.failovers for message_id in self.stranded_at(each)}

    def in_time(self, events: Iterable[Any]) -> list[Any]:
        return sorted(events, key=lambda event: event.time_s)

    def return_after(self, failover: Failover) -> float:
        return min((t for c, t in self.h.returns if c == failover.cluster and t >= failover.cut_s), default=math.inf)

    def stranded_at(self, failover: Failover) -> set[int]:
        high = max(position for _survivor, position in failover.high_waters)
        return {
            c.id
            for c in self.h.confirms
            if c.cluster == failover.cluster and c.position > high and c.time_s < self.return_after(failover)
        }

    def broken(self, source: str, destination: str, from_s: float, to_s: float) -> bool:
        def repaired_s(broke: Break) -> float:
            times_s = [r.time_s for r in self.h.repairs if r[:2] == broke[:2] and r.time_s >= broke.time_s]
            return min(times_s, default=math.inf)

        return any(
            each.time_s <= to_s and repaired_s(each) >= from_s
            for each in self.h.breaks
            if (each.source, each.destination) == (source, destination)
        )

    def deliveries(self, subscription: str) -> tuple[list[Receipt], list[Receipt]]:
        first: list[Receipt] = []
        repeats: list[Receipt] = []
        for receipt in self.in_time(r for r in self.h.receipts if r.subscription == subscription):
            (repeats if receipt.id in {r.id for r in first} else first).append(receipt)
        return first, repeats

    def lost(self, subscription: str) -> int:
        return len(set(self.confirm) - {r.id for r in self.h.receipts if r.subscription == subscription})

    def first_acks(self, subscription: str) -> list[Ack]:
        first: dict[int, Ack] = {}
        for ack in self.in_time(a for a in self.h.acks if a.subscription == subscription):
            first.setdefault(ack.id, ack)
        return list(first.values())

    def repeated_acked(self, subscription: str, *, planned: bool, margin_s: float) -> int:
        return sum(
            any(
                each.time_s < repeat.time_s
                and any(
                    ack.id == repeat.id and each.cut_s - ack.time_s > margin_s
                    for ack in self.h.acks
                    if ack.subscription == subscription
                )
                for each in self.h.failovers
                if each.kind.planned == planned
            )
            for repeat in self.deliveries(subscription)[1]
        )

    def out_of_order(self, subscription: str) -> int:
        first, _ = self.deliveries(subscription)
        return sum(
            any(
                self.h.keys[earlier.id] == self.h.keys[each.id]
                and earlier.origin == each.origin
                and (earlier.position, earlier.batch_index) > (each.position, each.batch_index)
                for earlier in first[:index]
            )
            for index, each in enumerate(first)
        )

    def overtaken(self, subscription: str) -> set[int]:
        first, _ = self.deliveries(subscription)
        return {
            each.id
            for index, each in enumerate(first)
            if any(
                self.h.keys[earlier.id] == self.h.keys[each.id] and earlier.id > each.id for earlier in first[:index]
            )
        }

    def first_copies(self) -> list[Copy]:
        first: dict[tuple[str, int], Copy] = {}
        for copy in self.in_time(self.h.copies):
            first.setdefault((copy.cluster, copy.id), copy)
        return list(first.values())

    def copies_elsewhere(self) -> list[Copy]:
        return [c for c in self.first_copies() if c.id in self.confirm and self.confirm[c.id].cluster != c.cluster]

    def copy_lags(self) -> list[tuple[Copy, float]]:
        lags = []
        for copy in self.copies_elsewhere():
            confirm = self.confirm[copy.id]
            if not self.broken(confirm.cluster, copy.cluster, confirm.time_s, copy.time_s):
                lags.append((copy, max(copy.time_s - confirm.time_s, 0) * 1000))
        return lags

    def sync_lags_ms(self, subscription: str) -> list[float]:
        end_s = next((each.cut_s for each in self.h.failovers), math.inf)
        lags = []
        for ack in self.first_acks(subscription):
            for copy in self.first_copies():
                if copy.id != ack.id or copy.cluster == ack.cluster or ack.time_s >= end_s:
                    continue
                covering = [
                    cover.time_s
                    for cover in self.h.covers
                    if (cover.subscription, cover.cluster) == (subscription, copy.cluster)
                    and cover.time_s < end_s
                    and cover.first <= copy.place <= cover.last
                ]
                if covering and not self.broken(ack.cluster, copy.cluster, ack.time_s, min(covering)):
                    lags.append(max(min(covering) - ack.time_s, 0) * 1000)
        return lags

    def rto(self, failover: Failover) -> tuple[float | None, dict[str, float | None], float | None]:
        def since(times_s: list[float]) -> float | None:
            return min(times_s) - failover.time_s if times_s else None

        def elsewhere(event: Any) -> bool:
            return bool(event.cluster != failover.cluster and event.time_s > failover.time_s)

        confirm = since([c.time_s for c in self.h.confirms if elsewhere(c)])
        first = {
            name: since([r.time_s for r in self.h.receipts if r.subscription == name and elsewhere(r)])
            for name in NAMES
        }
        return confirm, first, max((v for v in (confirm, *first.values()) if v is not None), default=None)


def percentiles(values: list[float]) -> Percentiles:
    ordered = sorted(values)

    def rank(percent: int) -> float | None:
        # The least value that at least `percent` % of all do not exceed.
        for value in ordered:
            if sum(other <= value for other in ordered) * 100 >= percent * len(ordered):
                return value
        return None

    return Percentiles(rank(50), rank(99), len(ordered))


@given(histories)
def test_measures_equal_the_reference(history: History) -> None:
    measures = measure(history.observations())
    expected = Reference(history)
    received = [{r.id for r in history.receipts if r.subscription == name} for name in NAMES]

    assert measures.published == len({message_id for message_id, _ in history.sends})
    assert measures.confirmed == len(expected.confirm)
    assert measures.consumed_unique == len(set.intersection(*received))
    assert measures.lost == sum(map(expected.lost, NAMES))
    assert measures.repeated == sum(len(expected.deliveries(name)[1]) for name in NAMES)
    killed = {name: expected.repeated_acked(name, planned=False, margin_s=0) for name in NAMES}
    unplanned = {name: expected.repeated_acked(name, planned=False, margin_s=1) for name in NAMES}
    planned = {name: expected.repeated_acked(name, planned=True, margin_s=0) for name in NAMES}
    assert measures.repeated_acked_before_kill == sum(killed.values())
    assert measures.repeated_acked_over_1s_before_kill == sum(unplanned.values())
    assert measures.repeated_acked_before_planned == sum(planned.values())
    assert measures.out_of_order == sum(map(expected.out_of_order, ORDERED))
    assert measures.rpo_messages == len(expected.stranded)
    assert measures.late == len(set.union(*map(expected.overtaken, NAMES)) & expected.stranded)
    assert measures.late <= measures.rpo_messages
    assert measures.copy_lag_ms == percentiles([lag for _, lag in expected.copy_lags()])
    assert measures.sync_lag_ms == percentiles([v for name in NAMES for v in expected.sync_lags_ms(name)])

    for subscription, each in zip(SUBSCRIPTIONS, measures.subscriptions, strict=True):
        name = subscription.name
        first, repeats = expected.deliveries(name)
        overtaken = expected.overtaken(name)
        assert each.deliveries == len(first) + len(repeats)
        assert each.consumed_unique == len(first)
        assert each.acknowledged == len(expected.first_acks(name))
        assert each.lost == expected.lost(name)
        assert each.repeated == len(repeats)
        assert each.repeated_acked_before_kill == killed[name]
        assert each.repeated_acked_over_1s_before_kill == unplanned[name]
        assert each.repeated_acked_before_planned == planned[name]
        assert each.out_of_order == (expected.out_of_order(name) if subscription.ordered else None)
        assert each.overtaken == (len(overtaken - expected.stranded) if subscription.ordered else None)
        assert each.late == len(overtaken & expected.stranded)
        assert each.sync_lag_ms == percentiles(expected.sync_lags_ms(name))

    assert len(measures.failovers) == len(history.failovers)
    for failover, made in zip(history.failovers, measures.failovers, strict=True):
        confirm, first_delivery, rto = expected.rto(failover)
        assert (made.kind, made.cluster, made.to) == (failover.kind.value, failover.cluster, failover.to)
        assert made.rpo_messages == len(expected.stranded_at(failover))
        assert made.first_confirm_seconds == confirm
        assert made.first_delivery_seconds == first_delivery
        assert made.rto_seconds == rto
    assert measures.rto_seconds == max(
        (each.rto_seconds for each in measures.failovers if each.rto_seconds is not None), default=None
    )


@given(histories)
def test_series_hold_each_event_once_in_its_second(history: History) -> None:
    series = measure(history.observations()).series
    expected = Reference(history)
    starts = [t for _, t in history.sends] + [c.time_s for c in history.confirms]
    start_s = min([*starts, *(each.time_s for each in history.failovers)], default=0.0)

    def counts(times_s: Iterable[float]) -> list[int]:
        buckets = [0] * len(series)
        for time_s in times_s:
            buckets[max(int(time_s - start_s), 0)] += 1
        return buckets

    first_sends: dict[int, float] = {}
    for message_id, time_s in history.sends:
        first_sends[message_id] = min(time_s, first_sends.get(message_id, math.inf))
    assert series.bucket_seconds == 1
    assert series.published == counts(first_sends.values())
    assert series.confirmed == counts(c.time_s for c in history.confirms)
    assert series.copied == counts(copy.time_s for copy in expected.copies_elsewhere())
    for name in NAMES:
        first, repeats = expected.deliveries(name)
        assert series.consumed[name] == counts(r.time_s for r in first)
        assert series.repeated[name] == counts(r.time_s for r in repeats)
        assert series.acknowledged[name] == counts(a.time_s for a in expected.first_acks(name))
    for second in range(len(series)):
        lags = [lag for copy, lag in expected.copy_lags() if max(int(copy.time_s - start_s), 0) == second]
        assert series.copy_lag_ms_p50[second] == percentiles(lags).p50
        assert series.copy_lag_ms_p99[second] == percentiles(lags).p99
