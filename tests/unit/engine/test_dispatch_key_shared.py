"""Key_Shared; :mod:`test_dispatcher_machine` checks it in every order of events."""

from __future__ import annotations

import pytest

from replicator.engine.errors import ConsumerBusy, InvalidHashRanges
from replicator.engine.policies import KeyAssignment, KeyOrdering
from replicator.engine.subscriptions.dispatch.key_shared import KeySharedDispatcher
from replicator.engine.subscriptions.dispatch.plan import Assignment, Candidate, ReadAgain, ReadTail, UnackedLimits
from replicator.engine.types import HashRange, KeySharedPolicy, SubscribeOptions, SubscriptionType
from snapshots.position import Position

LOW, LOW_TOO, HIGH = 7, 8, 40_000
"""Hashes: with two consumers and hash ranges the newcomer has the lower half."""


def at(entry: int) -> Position:
    return Position(1, entry)


def entries(*keyed: tuple[int, int], messages: int = 1) -> list[Candidate]:
    """Candidates of (entry, key hash)."""
    return [Candidate(at(number), messages, True, messages, key_hash) for number, key_hash in keyed]


def options(name: str, *ranges: tuple[int, int], out_of_order: bool = False) -> SubscribeOptions:
    sticky = tuple(HashRange(*each) for each in ranges) or None
    return SubscribeOptions(SubscriptionType.KEY_SHARED, name, 0, KeySharedPolicy(sticky, out_of_order))


def key_shared(*permits: int, **settings: object) -> KeySharedDispatcher:
    """Consumers 0, 1, … that have these permits, on hash ranges."""
    tested = KeySharedDispatcher(assignment=KeyAssignment.HASH_RANGE, **settings)  # type: ignore[arg-type]
    for consumer_id, count in enumerate(permits):
        join(tested, consumer_id, count)
    return tested


def join(tested: KeySharedDispatcher, consumer_id: int, permits: int = 100) -> None:
    tested.add_consumer(consumer_id, options(f"c{consumer_id}"))
    if permits:
        tested.flow(consumer_id, permits)


def sent(tested: KeySharedDispatcher, candidates: list[Candidate]) -> dict[Position, int]:
    """Return the consumer of each position that is handed out of ``candidates``."""
    plan = tested.next_read(0)
    assert plan is not None
    return {candidates[a.candidate].position: a.consumer_id for a in tested.assign(plan, candidates, 0)}


def test_a_key_is_with_one_consumer() -> None:
    tested = key_shared(100, 100)
    assert sent(tested, entries((0, LOW), (1, HIGH), (2, LOW), (3, HIGH))) == {at(0): 1, at(1): 0, at(2): 1, at(3): 0}


def test_a_newcomer_waits_only_for_its_own_keys() -> None:
    tested = key_shared(100)
    sent(tested, entries((0, LOW), (1, HIGH)))
    join(tested, 1)
    # The low key is the newcomer's now, but the old consumer is not done with it; another low key is free.
    assert sent(tested, entries((2, LOW), (3, LOW_TOO), (4, HIGH))) == {at(3): 1, at(4): 0}
    assert tested.consumer_status(0)["draining_hashes"] == [LOW]
    tested.acknowledged(at(0))
    assert tested.next_read(0) == ReadAgain([at(2)])
    assert sent(tested, entries((2, LOW))) == {at(2): 1}
    assert tested.consumer_status(0)["draining_hashes"] == []


def test_an_entry_behind_a_waiting_one_of_its_key_waits_too() -> None:
    tested = key_shared(100)
    sent(tested, entries((0, LOW)))
    join(tested, 1)
    assert sent(tested, entries((1, LOW), (2, LOW))) == {}
    tested.acknowledged(at(0))
    assert sent(tested, entries((1, LOW), (2, LOW))) == {at(1): 1, at(2): 1}


def test_a_consumer_without_permits_does_not_hold_up_other_keys() -> None:
    tested = key_shared(100, 1)
    assert sent(tested, entries((0, LOW), (1, LOW), (2, HIGH))) == {at(0): 1, at(2): 0}
    assert tested.status()["waiting_entries"] == 1
    assert tested.consumer_status(1)["waiting_entries"] == 1
    assert tested.next_read(0) == ReadTail(at(2))
    tested.flow(1, 1)
    assert tested.next_read(0) == ReadAgain([at(1)])


def test_what_waits_is_bounded() -> None:
    tested = key_shared(100, 0, waiting_max=3)
    assert sent(tested, entries((0, LOW), (1, LOW), (2, LOW), (3, LOW), (4, HIGH))) == {}
    assert tested.read_position == at(2)
    assert tested.next_read(0) is None, "until some of it has gone nothing more is read"
    tested.flow(1, 2)
    assert sent(tested, entries((0, LOW), (1, LOW))) == {at(0): 1, at(1): 1}
    assert tested.next_read(0) == ReadTail(at(2))


def test_when_a_consumer_goes_its_pending_entries_go_to_the_keys_new_owner_in_order() -> None:
    tested = key_shared(100, 100)
    sent(tested, entries((0, LOW), (1, LOW), (2, HIGH)))
    tested.remove_consumer(1)
    assert tested.next_read(0) == ReadAgain([at(0), at(1)])
    assert sent(tested, entries((0, LOW), (1, LOW))) == {at(0): 0, at(1): 0}


def test_a_negative_acknowledgement_counts_and_comes_again_to_the_owner() -> None:
    tested = key_shared(100)
    sent(tested, entries((0, LOW), (1, LOW)))
    tested.redeliver(0, [at(0)])
    plan = tested.next_read(0)
    assert plan == ReadAgain([at(0)])
    assert tested.assign(plan, entries((0, LOW)), 0) == [Assignment(0, 0, 1)]


def test_a_negative_acknowledgement_of_a_key_that_moved_waits_for_the_rest_of_the_key() -> None:
    tested = key_shared(100)
    sent(tested, entries((0, LOW), (1, LOW)))
    join(tested, 1)
    tested.redeliver(0, [at(0)])
    assert tested.next_read(0) == ReadTail(at(1)), "the old consumer holds another entry of the key"
    tested.acknowledged(at(1))
    assert sent(tested, entries((0, LOW))) == {at(0): 1}


def test_out_of_order_delivery_does_not_wait_for_the_old_consumer() -> None:
    tested = KeySharedDispatcher(assignment=KeyAssignment.HASH_RANGE)
    tested.add_consumer(0, options("a", out_of_order=True))
    tested.flow(0, 10)
    sent(tested, entries((0, LOW)))
    tested.add_consumer(1, options("b", out_of_order=True))
    tested.flow(1, 10)
    assert sent(tested, entries((1, LOW))) == {at(1): 1}
    tested.acknowledged(at(1))
    assert tested.consumer_status(0)["held_hashes"] == 0, "the newer holder is remembered, and has let go"
    assert tested.held() == {at(0): 0}


def test_recently_joined_waits_for_all_that_was_sent_before_it_came() -> None:
    tested = key_shared(100, ordering=KeyOrdering.RECENTLY_JOINED)
    sent(tested, entries((0, LOW), (1, HIGH)))
    join(tested, 1)
    assert tested.consumer_status(1)["recently_joined_at"] == str(at(1))
    assert sent(tested, entries((2, LOW_TOO), (3, HIGH))) == {at(3): 0}, "even a key that nobody holds"
    tested.acknowledged(at(0))
    tested.acknowledged_through(at(0))
    assert tested.next_read(0) == ReadTail(at(3))
    tested.acknowledged(at(1))
    tested.acknowledged_through(at(1))
    assert sent(tested, entries((2, LOW_TOO))) == {at(2): 1}


def test_recently_joined_does_not_wait_for_what_was_read_and_not_sent() -> None:
    tested = key_shared(100, ordering=KeyOrdering.RECENTLY_JOINED, waiting_max=100)
    tested.remove_consumer(0)
    tested.add_consumer(0, options("c0"))
    tested.flow(0, 1)
    sent(tested, entries((0, LOW), (1, LOW), (2, LOW)))  # one is sent, two wait
    join(tested, 1)
    assert tested.consumer_status(1)["recently_joined_at"] == str(at(0))


def test_sticky_consumers_get_their_own_slots_and_nobodys_slots_wait() -> None:
    tested = KeySharedDispatcher()
    tested.add_consumer(0, options("a", (0, 99)))
    tested.flow(0, 10)
    assert sent(tested, entries((0, 50), (1, 30_000))) == {at(0): 0}
    with pytest.raises(InvalidHashRanges):
        tested.add_consumer(1, options("b", (50, 200)))
    assert list(tested.consumers) == [0]
    tested.add_consumer(1, options("b", (100, 65_535)))
    tested.flow(1, 10)
    assert sent(tested, entries((1, 30_000))) == {at(1): 1}


def test_consumers_must_agree_on_what_they_ask_for() -> None:
    tested = key_shared(1)
    with pytest.raises(ConsumerBusy, match="sticky"):
        tested.add_consumer(1, options("b", (0, 99)))
    with pytest.raises(ConsumerBusy, match="allow_out_of_order_delivery"):
        tested.add_consumer(1, options("b", out_of_order=True))
    assert list(tested.consumers) == [0]


def test_who_brings_no_ranges_is_refused_as_one_with_wrong_ranges() -> None:
    tested = key_shared()
    tested.add_consumer(0, options("a", (0, 99)))
    with pytest.raises(InvalidHashRanges, match="sticky ranges"):
        tested.add_consumer(1, options("b"))
    assert list(tested.consumers) == [0]


def test_the_kind_of_selector_changes_only_when_all_have_gone() -> None:
    tested = key_shared(1)
    tested.remove_consumer(0)
    tested.add_consumer(1, options("b", (0, 99)))
    assert tested.status()["key_assignment"] == "sticky"


def test_the_limit_on_unacknowledged_messages_pauses_one_consumer_and_its_keys_only() -> None:
    tested = key_shared(100, 100, limits=UnackedLimits(per_consumer=2))
    assert sent(tested, entries((0, LOW), (1, LOW), (2, LOW), (3, HIGH))) == {at(0): 1, at(1): 1, at(3): 0}
    assert tested.consumer_status(1)["blocked_on_unacked"] is True
    tested.acknowledged(at(0))
    assert sent(tested, entries((2, LOW))) == {at(2): 1}


def test_joins_and_leaves_in_a_burst_lose_nothing() -> None:
    tested = key_shared(100)
    sent(tested, entries((0, LOW), (1, HIGH)))
    for consumer_id in range(1, 20):
        join(tested, consumer_id)
    for consumer_id in range(19):
        tested.remove_consumer(consumer_id)
    assert sent(tested, entries((0, LOW), (1, HIGH))) == {at(0): 19, at(1): 19}


def test_an_entry_consumed_elsewhere_while_it_waits_is_forgotten() -> None:
    tested = key_shared(100, 0)
    sent(tested, entries((0, LOW), (1, LOW), (2, HIGH)))
    tested.acknowledged_through(at(0))
    tested.acknowledged(at(1))
    assert tested.status()["waiting_entries"] == 0
    tested.flow(1, 10)
    assert tested.next_read(0) == ReadTail(at(2))


def test_what_waits_is_sorted_once_for_all_the_consumers_that_leave_together() -> None:
    tested = key_shared(*[1] * 50)
    asked = 0
    selects = tested._select

    def counted(key_hash: int) -> int | None:
        nonlocal asked
        asked += 1
        return selects(key_hash)

    waiting = entries(*((entry, entry * 1_300) for entry in range(1_000)))
    plan = tested.next_read(0)
    assert plan is not None
    tested.assign(plan, waiting, 0)
    tested._select = counted  # type: ignore[method-assign]
    for consumer_id in range(49):
        tested.remove_consumer(consumer_id)
    tested.flow(49, 2_000)
    again = tested.next_read(0)
    assert isinstance(again, ReadAgain)
    assert len(again.positions) == 999, "but for the one that the last consumer holds"
    assert asked < 2_000
