"""Single rules of the dispatcher; :mod:`test_dispatcher_machine` checks them in every order."""

from __future__ import annotations

from collections import Counter

import pytest

from replicator.engine.dispatcher import TURN_MESSAGES_MAX, Assignment, Candidate, Dispatcher, ReadPlan
from replicator.engine.errors import ConsumerBusy
from replicator.engine.types import SubscriptionType
from snapshots.position import BEFORE_ALL, Position

EXCLUSIVE, SHARED = SubscriptionType.EXCLUSIVE, SubscriptionType.SHARED


def at(entry: int) -> Position:
    return Position(1, entry)


def entries(*numbers: int, messages: int = 1) -> list[Candidate]:
    return [Candidate(at(number), messages, True) for number in numbers]


def dispatcher(kind: SubscriptionType, *permits: int) -> Dispatcher:
    """A dispatcher with consumers 0, 1, … that have these permits."""
    tested = Dispatcher(kind)
    for consumer_id, count in enumerate(permits):
        tested.add_consumer(consumer_id, kind)
        if count:
            tested.flow(consumer_id, count)
    return tested


def test_nothing_is_read_while_nobody_has_a_permit() -> None:
    tested = dispatcher(SHARED, 0, 0)
    assert tested.next_read() is None
    tested.flow(1, 1)
    assert tested.next_read() == ReadPlan(BEFORE_ALL, None)


def test_a_second_consumer_of_an_exclusive_subscription_is_refused_and_changes_nothing() -> None:
    tested = dispatcher(EXCLUSIVE, 5)
    for kind in (EXCLUSIVE, SHARED):
        with pytest.raises(ConsumerBusy):
            tested.add_consumer(1, kind)
    assert list(tested.consumers) == [0]
    assert tested.consumers[0].permits == 5
    assert tested.type is EXCLUSIVE


def test_the_type_changes_only_between_consumers() -> None:
    tested = dispatcher(SHARED, 1)
    with pytest.raises(ConsumerBusy, match="Shared"):
        tested.add_consumer(1, EXCLUSIVE)
    tested.remove_consumer(0)
    tested.add_consumer(1, EXCLUSIVE)
    assert tested.type is EXCLUSIVE


def test_markers_and_consumed_entries_are_passed_over_without_a_permit() -> None:
    tested = dispatcher(EXCLUSIVE, 1)
    plan = tested.next_read()
    assert plan is not None
    passed = [Candidate(at(0), 0, False), *entries(1), Candidate(at(2), 0, False), *entries(3)]
    assert tested.assign(plan, passed) == [Assignment(0, 1, 0)]
    assert tested.read_position == at(2)
    assert tested.consumers[0].permits == 0


def test_a_batch_may_overdraw_the_permits_once() -> None:
    tested = dispatcher(EXCLUSIVE, 3)
    plan = tested.next_read()
    assert plan is not None
    assert tested.assign(plan, entries(0, 1, messages=50)) == [Assignment(0, 0, 0)]
    assert tested.consumers[0].permits == -47
    assert tested.next_read() is None
    tested.flow(0, 47)
    assert tested.next_read() is None
    tested.flow(0, 1)
    assert tested.next_read() == ReadPlan(at(0), None)


def test_what_a_leaving_consumer_held_goes_to_others_before_the_tail_and_in_order() -> None:
    tested = dispatcher(SHARED, 2, 0)
    plan = tested.next_read()
    assert plan is not None
    tested.assign(plan, entries(0, 1, 2, 3))
    tested.remove_consumer(0)
    tested.flow(1, 10)
    plan = tested.next_read()
    assert plan == ReadPlan(at(-1), at(1))
    assert tested.assign(plan, entries(0, 1)) == [Assignment(1, 0, 1), Assignment(1, 1, 1)]
    assert tested.next_read() == ReadPlan(at(1), None)


def test_an_exclusive_consumer_gets_all_of_it_again_when_it_asks_for_some() -> None:
    tested = dispatcher(EXCLUSIVE, 10)
    plan = tested.next_read()
    assert plan is not None
    tested.assign(plan, entries(0, 1, 2))
    tested.redeliver(0, [at(1)])
    assert list(tested.replay) == [at(0), at(1), at(2)]


def test_a_shared_consumer_gets_again_only_what_it_asks_for_and_holds() -> None:
    tested = dispatcher(SHARED, 2, 2)
    plan = tested.next_read()
    assert plan is not None
    tested.assign(plan, entries(0, 1, 2, 3))
    held_by_1 = set(tested.consumers[1].pending)
    tested.redeliver(0, [at(0), *held_by_1, at(99)])
    assert list(tested.replay) == [at(0)]
    assert set(tested.consumers[1].pending) == held_by_1


def test_an_acknowledged_entry_is_not_sent_again() -> None:
    tested = dispatcher(SHARED, 10)
    plan = tested.next_read()
    assert plan is not None
    tested.assign(plan, entries(0, 1, 2))
    tested.acknowledged(at(1))
    tested.redeliver(0, None)
    assert list(tested.replay) == [at(0), at(2)]
    tested.acknowledged_through(at(0))
    assert list(tested.replay) == [at(2)]


def test_acknowledging_ahead_of_reading_skips_ahead() -> None:
    tested = dispatcher(EXCLUSIVE, 1)
    tested.acknowledged_through(at(7))
    assert tested.next_read() == ReadPlan(at(7), None)


@pytest.mark.parametrize("consumers", [2, 3, 7])
@pytest.mark.parametrize("messages", [1, 30, 250])
def test_shared_consumers_with_permits_get_equal_shares_up_to_one_turn(consumers: int, messages: int) -> None:
    tested = dispatcher(SHARED, *[10**9] * consumers)
    plan = tested.next_read()
    assert plan is not None
    got: Counter[int] = Counter()
    for assignment in tested.assign(plan, entries(*range(2000), messages=messages)):
        got[assignment.consumer_id] += messages
    shares = [got[consumer_id] for consumer_id in range(consumers)]
    assert sum(shares) == 2000 * messages
    assert max(shares) - min(shares) <= TURN_MESSAGES_MAX + messages


def test_single_messages_that_trickle_in_go_round() -> None:
    tested = dispatcher(SHARED, 100, 100, 100)
    takers = []
    for number in range(9):
        plan = tested.next_read()
        assert plan is not None
        (assignment,) = tested.assign(plan, entries(number))
        takers.append(assignment.consumer_id)
    assert takers == [0, 1, 2] * 3


def test_a_consumer_without_permits_is_left_out_of_the_round() -> None:
    tested = dispatcher(SHARED, 500, 0, 500)
    plan = tested.next_read()
    assert plan is not None
    assert {assignment.consumer_id for assignment in tested.assign(plan, entries(*range(600)))} == {0, 2}
