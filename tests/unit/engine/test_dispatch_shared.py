"""Shared; :mod:`test_dispatcher_machine` checks it in every order of events."""

from __future__ import annotations

from collections import Counter

import pytest

from replicator.engine.subscriptions.dispatch.plan import Assignment, Candidate, ReadAgain, ReadTail, UnackedLimits
from replicator.engine.subscriptions.dispatch.shared import TURN_MESSAGES_MAX, SharedDispatcher
from replicator.engine.types import SubscribeOptions, SubscriptionType
from snapshots.position import BEFORE_ALL, Position

SHARED = SubscriptionType.SHARED
UNLIMITED = UnackedLimits()


def at(entry: int) -> Position:
    return Position(1, entry)


def entries(*numbers: int, messages: int = 1, deliver_at_ms: int = 0) -> list[Candidate]:
    return [Candidate(at(number), messages, True, messages, 0, deliver_at_ms) for number in numbers]


def shared(
    *permits: int,
    limits: UnackedLimits = UNLIMITED,
    priorities: tuple[int, ...] = (),
) -> SharedDispatcher:
    """Consumers 0, 1, … that have these permits."""
    tested = SharedDispatcher(limits=limits)
    for consumer_id, count in enumerate(permits):
        priority = priorities[consumer_id] if priorities else 0
        tested.add_consumer(consumer_id, SubscribeOptions(SHARED, f"c{consumer_id}", priority))
        if count:
            tested.flow(consumer_id, count)
    return tested


def sent(tested: SharedDispatcher, candidates: list[Candidate], now_ms: int = 0) -> list[Assignment]:
    plan = tested.next_read(now_ms)
    assert plan is not None
    return tested.assign(plan, candidates, now_ms)


def takers(assignments: list[Assignment]) -> list[int]:
    return [assignment.consumer_id for assignment in assignments]


def test_nothing_is_read_while_nobody_has_a_permit() -> None:
    tested = shared(0, 0)
    assert tested.next_read(0) is None
    tested.flow(1, 1)
    assert tested.next_read(0) == ReadTail(BEFORE_ALL)


def test_consumers_with_one_permit_at_a_time_take_turns() -> None:
    tested = shared(1, 1)
    taken: list[int] = []
    for number in range(6):
        (taker,) = takers(sent(tested, entries(number)))
        tested.flow(taker, 1)
        taken.append(taker)
    assert taken == [0, 1, 0, 1, 0, 1]


def test_what_a_leaving_consumer_held_goes_to_others_before_the_tail_and_in_order() -> None:
    tested = shared(2, 0)
    sent(tested, entries(0, 1, 2, 3))
    tested.remove_consumer(0)
    tested.flow(1, 10)
    assert tested.next_read(0) == ReadAgain([at(0), at(1)])
    assert sent(tested, entries(0, 1)) == [Assignment(1, 0, 0), Assignment(1, 1, 0)]
    assert tested.next_read(0) == ReadTail(at(1))


def test_a_consumer_gets_again_only_what_it_asks_for_and_holds() -> None:
    tested = shared(2, 2)
    sent(tested, entries(0, 1, 2, 3))
    held_by_1 = set(tested.consumers[1].pending)
    tested.redeliver(0, [at(0), *held_by_1, at(99)])
    tested.flow(0, 10)
    assert tested.next_read(0) == ReadAgain([at(0)])
    assert set(tested.consumers[1].pending) == held_by_1
    assert sent(tested, entries(0)) == [Assignment(0, 0, 1)]


def test_an_entry_that_is_named_twice_in_a_request_is_redelivered_once() -> None:
    tested = shared(10)
    sent(tested, entries(0))
    tested.redeliver(0, [at(0), at(0)])
    assert sent(tested, entries(0)) == [Assignment(0, 0, 1)]


def test_an_acknowledged_entry_is_not_sent_again() -> None:
    tested = shared(10)
    sent(tested, entries(0, 1, 2))
    tested.acknowledged(at(1))
    tested.redeliver(0, None)
    assert tested.next_read(0) == ReadAgain([at(0), at(2)])
    tested.acknowledged_through(at(0))
    assert tested.next_read(0) == ReadAgain([at(2)])


@pytest.mark.parametrize("consumers", [2, 3, 7])
@pytest.mark.parametrize("messages", [1, 30, 250])
def test_consumers_with_permits_get_equal_shares_up_to_one_turn(consumers: int, messages: int) -> None:
    tested = shared(*[10**9] * consumers)
    got: Counter[int] = Counter()
    for assignment in sent(tested, entries(*range(2000), messages=messages)):
        got[assignment.consumer_id] += messages
    shares = [got[consumer_id] for consumer_id in range(consumers)]
    assert sum(shares) == 2000 * messages
    assert max(shares) - min(shares) <= TURN_MESSAGES_MAX + messages


def test_single_messages_that_trickle_in_go_round() -> None:
    tested = shared(100, 100, 100)
    assert [takers(sent(tested, entries(number))) for number in range(9)] == [[0], [1], [2]] * 3


def test_a_consumer_without_permits_is_left_out_of_the_round() -> None:
    tested = shared(500, 0, 500)
    assert set(takers(sent(tested, entries(*range(600))))) == {0, 2}


def test_a_lower_priority_is_served_only_when_the_higher_ones_have_no_permits() -> None:
    tested = shared(300, 150, 150, priorities=(1, 0, 0))
    assert Counter(takers(sent(tested, entries(*range(450))))) == {0: 150, 1: 150, 2: 150}
    tested = shared(300, 300, 300, priorities=(1, 0, 0))
    assert set(takers(sent(tested, entries(*range(600))))) == {1, 2}


def test_a_delayed_entry_holds_up_nothing_and_comes_when_it_is_due() -> None:
    tested = shared(10)
    assert takers(sent(tested, [*entries(0, deliver_at_ms=1_000), *entries(1)])) == [0]
    assert tested.held() == {at(1): 0}
    assert tested.wake_at_ms == 1_000
    assert tested.next_read(999) == ReadTail(at(1))
    assert tested.next_read(1_000) == ReadAgain([at(0)])
    assert sent(tested, entries(0, deliver_at_ms=1_000), 1_000) == [Assignment(0, 0, 0)]
    assert tested.wake_at_ms is None


def test_a_consumer_with_too_much_unacknowledged_pauses_until_half_of_it_is_left() -> None:
    tested = shared(100, 100, limits=UnackedLimits(per_consumer=4))
    sent(tested, entries(*range(12)))
    assert Counter(tested.held().values()) == {0: 4, 1: 4}
    assert tested.consumer_status(0)["blocked_on_unacked"] is True
    assert tested.next_read(0) is None
    mine = list(tested.consumers[0].pending)
    tested.acknowledged(mine[0])
    assert tested.next_read(0) is None, "3 of 4 are left"
    tested.acknowledged(mine[1])
    assert tested.next_read(0) == ReadTail(at(7))


def test_a_subscription_with_too_much_unacknowledged_pauses_for_everybody() -> None:
    tested = shared(100, 100, limits=UnackedLimits(per_subscription=6))
    sent(tested, entries(0, 1, messages=3))
    assert tested.status()["blocked_on_unacked"] is True
    assert tested.next_read(0) is None
    tested.partly_acknowledged(at(0), 1)
    assert tested.next_read(0) is None, "4 of 6 are left"
    tested.acknowledged(at(0))
    assert tested.next_read(0) == ReadTail(at(1))


def test_raising_the_limit_lets_a_paused_consumer_go_on() -> None:
    tested = shared(100, limits=UnackedLimits(per_consumer=2))
    sent(tested, entries(0, 1, 2))
    assert tested.next_read(0) is None
    tested.set_limits(UnackedLimits(per_consumer=10))
    assert tested.next_read(0) == ReadTail(at(1))
