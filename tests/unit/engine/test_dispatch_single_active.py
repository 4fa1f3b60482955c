"""Exclusive and Failover; :mod:`test_dispatcher_machine` checks them in every order of events."""

from __future__ import annotations

import pytest

from replicator.engine.errors import ConsumerBusy
from replicator.engine.subscriptions.dispatch.plan import ActiveChange, Assignment, Candidate, ReadAgain, ReadTail
from replicator.engine.subscriptions.dispatch.single_active import NOT_PARTITIONED, SingleActiveDispatcher
from replicator.engine.types import SubscribeOptions, SubscriptionType
from snapshots.position import BEFORE_ALL, Position

EXCLUSIVE, FAILOVER = SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER


def at(entry: int) -> Position:
    return Position(1, entry)


def entries(*numbers: int, messages: int = 1) -> list[Candidate]:
    return [Candidate(at(number), messages, True) for number in numbers]


def exclusive(permits: int) -> SingleActiveDispatcher:
    tested = SingleActiveDispatcher(EXCLUSIVE)
    tested.add_consumer(0, SubscribeOptions(EXCLUSIVE, "A"))
    if permits:
        tested.flow(0, permits)
    return tested


def failover(*names: str, partition: int = NOT_PARTITIONED, topic: str = "t") -> SingleActiveDispatcher:
    """Consumers of these names, ids from 0; ``name:priority`` gives a priority."""
    tested = SingleActiveDispatcher(FAILOVER, topic=topic, partition=partition)
    for consumer_id, name in enumerate(names):
        name, _, priority = name.partition(":")
        tested.add_consumer(consumer_id, SubscribeOptions(FAILOVER, name, int(priority or 0)))
    return tested


def active(tested: SingleActiveDispatcher) -> str:
    assert tested.active is not None
    return tested.consumers[tested.active].options.consumer_name


def sent(tested: SingleActiveDispatcher, candidates: list[Candidate]) -> list[Assignment]:
    plan = tested.next_read(0)
    assert plan is not None
    return tested.assign(plan, candidates, 0)


def test_nothing_is_read_while_there_is_no_permit() -> None:
    tested = exclusive(0)
    assert tested.next_read(0) is None
    tested.flow(0, 1)
    assert tested.next_read(0) == ReadTail(BEFORE_ALL)


def test_a_second_consumer_of_an_exclusive_subscription_is_refused_and_changes_nothing() -> None:
    tested = exclusive(5)
    with pytest.raises(ConsumerBusy, match="Failover"):
        tested.add_consumer(1, SubscribeOptions(EXCLUSIVE, "B"))
    assert list(tested.consumers) == [0]
    assert tested.active == 0


def test_markers_and_consumed_entries_are_passed_over_without_a_permit() -> None:
    tested = exclusive(1)
    passed = [Candidate(at(0), 0, False), *entries(1), Candidate(at(2), 0, False), *entries(3)]
    assert sent(tested, passed) == [Assignment(0, 1, 0)]
    assert tested.read_position == at(2)
    assert tested.consumers[0].permits == 0


def test_a_batch_may_overdraw_the_permits_once() -> None:
    tested = exclusive(3)
    assert sent(tested, entries(0, 1, messages=50)) == [Assignment(0, 0, 0)]
    assert tested.consumers[0].permits == -47
    tested.flow(0, 47)
    assert tested.next_read(0) is None
    tested.flow(0, 1)
    assert tested.next_read(0) == ReadTail(at(0))


def test_an_exclusive_consumer_gets_all_of_it_again_when_it_asks_for_some() -> None:
    tested = exclusive(10)
    sent(tested, entries(0, 1, 2))
    tested.redeliver(0, [at(1)])
    assert tested.next_read(0) == ReadAgain([at(0), at(1), at(2)])
    assert sent(tested, entries(0, 1, 2)) == [Assignment(0, index, 1) for index in range(3)]


def test_what_the_log_does_not_have_any_more_is_not_asked_for_for_ever() -> None:
    tested = exclusive(10)
    sent(tested, entries(0, 1, 2))
    tested.redeliver(0, None)
    assert sent(tested, entries(2)) == [Assignment(0, 0, 1)]
    assert tested.next_read(0) == ReadTail(at(2))


def test_acknowledging_ahead_of_reading_skips_ahead() -> None:
    tested = exclusive(1)
    tested.acknowledged_through(at(7))
    assert tested.next_read(0) == ReadTail(at(7))


def test_seed_two_partitions_and_four_consumers() -> None:
    p0, p1 = failover("A", "B", "C", "D", partition=0), failover("A", "B", "C", "D", partition=1)
    assert (active(p0), active(p1)) == ("A", "B")
    p0.remove_consumer(0)
    assert active(p0) == "B", "the next in line for P0 when A disconnects"
    for consumer_id in (0, 1):
        p1.remove_consumer(consumer_id)
    p0.remove_consumer(1)
    assert (active(p0), active(p1)) == ("C", "D"), "when both A and B have disconnected"


def test_seed_nine_partitions_and_three_consumers() -> None:
    partitions = [failover("C", "A", "B", partition=index) for index in range(9)]
    assert [active(tested) for tested in partitions] == ["A", "B", "C"] * 3


def test_seed_one_topic_that_is_not_partitioned_goes_by_the_order_of_subscribing() -> None:
    tested = failover("B", "A")
    assert active(tested) == "B"
    tested.remove_consumer(0)
    assert active(tested) == "A"


def test_seed_several_topics_that_are_not_partitioned_spread_over_the_consumers() -> None:
    chosen = []
    for number in range(200):
        tested = failover("A", "B", topic=f"persistent://public/default/topic-{number}")
        tested.spread_over_topics(True)
        chosen.append(active(tested))
    assert 60 <= chosen.count("A") <= 140
    tested.spread_over_topics(False)
    assert active(tested) == "A"


def test_only_consumers_of_the_highest_priority_count() -> None:
    tested = failover("A:1", "C:0", "B:0", partition=3)
    assert active(tested) == "C", "B and C have the highest priority; 3 mod 2 is the second by name"
    for consumer_id in (1, 2):
        tested.remove_consumer(consumer_id)
    assert active(tested) == "A"


def test_everyone_is_told_who_is_active() -> None:
    tested = failover("B", "A")
    assert tested.take_active_changes() == [ActiveChange(0, True), ActiveChange(1, False)]
    tested.add_consumer(2, SubscribeOptions(FAILOVER, "C", -1 + 1))
    tested.take_active_changes()
    tested.remove_consumer(0)
    assert tested.take_active_changes() == [ActiveChange(1, True)]


def test_when_the_active_one_goes_the_next_gets_all_that_is_unacknowledged_from_the_first_on() -> None:
    tested = failover("A", "B")
    tested.flow(0, 10)
    tested.flow(1, 10)
    sent(tested, entries(0, 1, 2, 3))
    tested.acknowledged_through(at(0))
    tested.acknowledged(at(2))
    tested.remove_consumer(0)
    assert tested.next_read(0) == ReadAgain([at(1), at(3)])
    # A disconnect is no redelivery: the consumer may not have looked at them.
    assert sent(tested, entries(1, 3)) == [Assignment(1, 0, 0), Assignment(1, 1, 0)]


def test_the_going_of_a_standby_disturbs_nobody() -> None:
    tested = failover("A", "B")
    tested.flow(0, 10)
    sent(tested, entries(0, 1))
    tested.take_active_changes()
    tested.remove_consumer(1)
    assert tested.take_active_changes() == []
    assert tested.held() == {at(0): 0, at(1): 0}


def test_a_newcomer_of_higher_priority_takes_over() -> None:
    tested = failover("A:1")
    tested.flow(0, 10)
    sent(tested, entries(0, 1))
    tested.take_active_changes()
    tested.add_consumer(1, SubscribeOptions(FAILOVER, "B", 0))
    assert tested.take_active_changes() == [ActiveChange(0, False), ActiveChange(1, True)]
    assert tested.held() == {}
