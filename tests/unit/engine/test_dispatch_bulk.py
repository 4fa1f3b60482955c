"""Acknowledging many entries at once leaves every dispatcher as acknowledging them one by one does."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from replicator.engine.policies import TopicPolicies
from replicator.engine.subscriptions.dispatch.choice import make_dispatcher
from replicator.engine.subscriptions.dispatch.dispatcher import Dispatcher
from replicator.engine.subscriptions.dispatch.plan import Candidate, ReadTail
from replicator.engine.types import SubscribeOptions, SubscriptionType
from snapshots.position import BEFORE_ALL, Position
from snapshots.position_set import PositionSet

ENTRIES = 40


def at(entry: int) -> Position:
    return Position(1, entry)


def half_way(kind: SubscriptionType) -> Dispatcher:
    """Return a dispatcher with entries that are held, wait for a consumer, or wait to be sent again."""
    policies = TopicPolicies(max_unacked_messages_per_consumer=25)
    dispatcher = make_dispatcher(kind, BEFORE_ALL, policies=policies, topic="t", partition=-1)
    dispatcher.add_consumer(1, SubscribeOptions(kind, "first"))
    dispatcher.flow(1, 20)
    if kind is not SubscriptionType.EXCLUSIVE:
        dispatcher.add_consumer(2, SubscribeOptions(kind, "second"))
        dispatcher.flow(2, 5)
    candidates = [Candidate(at(entry), 1, True, 1, entry * 0x1234567 & 0xFFFFFFFF) for entry in range(ENTRIES)]
    dispatcher.assign(ReadTail(BEFORE_ALL), candidates, 0)
    dispatcher.redeliver(1, [at(entry) for entry in range(0, ENTRIES, 3)])
    dispatcher.flow(1, 5)
    if kind is SubscriptionType.KEY_SHARED:
        dispatcher.add_consumer(3, SubscribeOptions(kind, "third"))
    return dispatcher


def seen(dispatcher: Dispatcher) -> tuple[object, ...]:
    return (
        dispatcher.held(),
        dispatcher.permits(1_000_000),
        dict(dispatcher.status()),
        {consumer_id: dict(dispatcher.consumer_status(consumer_id)) for consumer_id in dispatcher.consumers},
        [dispatcher.redeliveries.count(at(entry)) for entry in range(ENTRIES)],
        dispatcher.next_read(0),
    )


@pytest.mark.parametrize("kind", list(SubscriptionType))
@pytest.mark.parametrize("entries", [(), (0,), range(0, ENTRIES, 3), range(5, 12), range(1, ENTRIES), (99,)])
def test_at_once_is_as_one_by_one(kind: SubscriptionType, entries: Sequence[int]) -> None:
    at_once = half_way(kind)
    one_by_one = half_way(kind)
    assert seen(at_once) == seen(one_by_one)
    at_once.acknowledged_all(PositionSet(at(entry) for entry in entries))
    for entry in entries:
        one_by_one.acknowledged(at(entry))
    assert seen(at_once) == seen(one_by_one)


def test_what_is_half_way_is_of_every_kind() -> None:
    """Otherwise the test above would show little."""
    shared = half_way(SubscriptionType.SHARED)
    assert shared.held()
    assert shared.status()["replay_entries"]
    assert len(shared.redeliveries)
    keyed = half_way(SubscriptionType.KEY_SHARED)
    assert keyed.held()
    assert keyed.status()["waiting_entries"]
