"""The receiver queue asks for as much as was consumed, never for more, and in halves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator.client.consuming.receiver_queue import ReceiverQueue
from snapshots.position import Position


def _unreadable(*messages: int) -> Iterator[int]:
    yield from messages
    raise ValueError("corrupt")


def test_a_new_connection_is_granted_the_whole_queue() -> None:
    queue: ReceiverQueue[int] = ReceiverQueue(10)
    assert queue.restart() == 10
    assert queue.take_permits() == 0
    assert queue.pop() is None


def test_permits_are_asked_for_when_half_of_the_queue_is_consumed() -> None:
    queue: ReceiverQueue[int] = ReceiverQueue(10)
    queue.restart()
    queue.put(iter(range(10)), 10)
    for expected in range(4):
        assert queue.pop() == expected
        assert queue.take_permits() == 0
    assert queue.pop() == 4
    assert queue.take_permits() == 5
    assert queue.take_permits() == 0


def test_messages_that_are_left_out_of_a_batch_are_paid_for() -> None:
    queue: ReceiverQueue[int] = ReceiverQueue(4)
    queue.restart()
    queue.put(iter([3]), 4)  # three of the batch are acknowledged already
    assert queue.pop() == 3
    assert queue.pop() is None
    assert queue.take_permits() == 4


def test_dropping_all_returns_every_permit_and_restarting_none() -> None:
    queue: ReceiverQueue[int] = ReceiverQueue(4)
    queue.restart()
    queue.put(iter(range(4)), 4)
    queue.pop()
    queue.drop_all()
    assert len(queue) == 0
    assert queue.take_permits() == 4
    queue.put(iter(range(4)), 4)
    assert queue.restart() == 4
    assert queue.take_permits() == 0
    assert queue.pop() is None


def test_an_unreadable_entry_raises_once_and_the_next_one_follows() -> None:
    queue: ReceiverQueue[int] = ReceiverQueue(6)
    queue.restart()
    queue.put(_unreadable(1), 3)
    queue.put(iter([7]), 1)
    assert queue.pop() == 1
    with pytest.raises(ValueError, match="corrupt"):
        queue.pop()
    assert queue.pop() == 7
    assert queue.take_permits() == 4


def test_taking_many_hands_out_what_was_read_before_the_error() -> None:
    queue: ReceiverQueue[int] = ReceiverQueue(6)
    queue.restart()
    queue.put(iter([0]), 1)
    queue.put(_unreadable(1, 2), 3)
    queue.put(iter([7, 8]), 2)
    assert queue.pop_many(2) == [0, 1]
    assert queue.pop_many(10) == [2]
    with pytest.raises(ValueError, match="corrupt"):
        queue.pop_many(10)
    assert queue.pop_many(10) == [7, 8]
    assert queue.pop_many(10) == []


@given(st.data())
def test_permits_out_and_messages_in_the_queue_never_exceed_its_size(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 20))
    queue: ReceiverQueue[int] = ReceiverQueue(size)
    permits = queue.restart()
    for _ in range(data.draw(st.integers(0, 60))):
        match data.draw(st.sampled_from(["deliver", "pop", "pop_many", "drop", "drop_all"])):
            case "deliver" if permits > 0:
                batch = data.draw(st.integers(1, permits))
                shown = data.draw(st.integers(0, batch))
                queue.put(iter(range(shown)), batch)
                permits -= batch
            case "drop" if permits > 0:
                queue.drop(1)
                permits -= 1
            case "pop":
                queue.pop()
            case "pop_many":
                queue.pop_many(data.draw(st.integers(1, 10)))
            case "drop_all":
                queue.drop_all()
        permits += queue.take_permits()
        assert permits + len(queue) <= size
    queue.pop_many(10_000)
    assert len(queue) == 0
    permits += queue.take_permits()
    assert permits > 0, "the consumer would stall"


def test_without_a_queue_a_permit_is_granted_for_each_receiver_that_waits() -> None:
    queue: ReceiverQueue[int] = ReceiverQueue(0)
    assert queue.restart() == 0
    assert queue.take_permits(0) == 0
    assert queue.take_permits(2) == 2
    assert queue.take_permits(2) == 0, "both have theirs"
    queue.put(iter([1]), 1)
    assert queue.pop() == 1
    assert queue.take_permits(1) == 0, "the other's is still out"
    assert queue.take_permits(2) == 1


def test_without_a_queue_a_receiver_that_gave_up_leaves_its_permit_to_the_next() -> None:
    queue: ReceiverQueue[int] = ReceiverQueue(0)
    assert queue.take_permits(1) == 1
    assert queue.take_permits(0) == 0
    assert queue.take_permits(1) == 0
    queue.put(iter([7]), 1)
    assert queue.take_permits(1) == 0, "the message that came is for the receiver that waits"
    assert queue.pop() == 7


def test_without_a_queue_what_is_dropped_is_asked_for_again() -> None:
    queue: ReceiverQueue[int] = ReceiverQueue(0)
    assert queue.take_permits(1) == 1
    queue.drop(1)
    assert queue.take_permits(1) == 1


def test_dropping_an_entry_takes_the_rest_of_it_and_returns_its_permits() -> None:
    queue: ReceiverQueue[int] = ReceiverQueue(8)
    queue.restart()
    queue.put(iter(range(4)), 4, Position(1, 0))
    queue.put(iter([10, 11]), 2, Position(1, 1))
    queue.put(iter([20, 21]), 2, Position(1, 2))
    assert queue.pop() == 0
    queue.drop_entries({Position(1, 0), Position(1, 2), Position(9, 9)})
    assert queue.pop_many(10) == [10, 11]
    assert queue.take_permits() == 8


def test_messages_that_are_put_back_come_first_and_cost_nothing_again() -> None:
    queue: ReceiverQueue[int] = ReceiverQueue(4)
    queue.restart()
    queue.put(iter(range(4)), 4)
    taken = queue.pop_many(2)
    assert queue.take_permits() == 2
    queue.put_back(taken)
    assert len(queue) == 4
    assert queue.pop_many(10) == [0, 1, 2, 3]
    assert queue.take_permits() == 2


@given(st.data())
def test_without_a_queue_no_more_permits_are_out_than_receivers_ever_waited_and_none_is_lost(
    data: st.DataObject,
) -> None:
    queue: ReceiverQueue[int] = ReceiverQueue(0)
    queue.restart()
    waiting = granted = 0
    waiting_max = 0
    for _ in range(data.draw(st.integers(0, 60))):
        match data.draw(st.sampled_from(["wait", "give_up", "deliver", "drop", "restart"])):
            case "wait":
                waiting += 1
                waiting_max = max(waiting_max, waiting)
            case "give_up" if waiting:
                waiting -= 1
            case "deliver" if granted:
                queue.put(iter([1]), 1)
                granted -= 1
            case "drop" if granted:
                queue.drop(1)
                granted -= 1
            case "restart":
                granted = queue.restart()
        while waiting and queue.pop() is not None:
            waiting -= 1
        granted += queue.take_permits(waiting)
        assert granted + len(queue) <= waiting_max
        assert granted + len(queue) >= waiting, "a receiver waits for a message that nobody asked for"


@given(st.data())
def test_permits_are_never_lost_whatever_is_dropped_or_put_back(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 20))
    queue: ReceiverQueue[int] = ReceiverQueue(size)
    permits = queue.restart()
    position = 0
    for _ in range(data.draw(st.integers(0, 60))):
        match data.draw(st.sampled_from(["deliver", "pop_many", "put_back", "drop_entries", "drop_all"])):
            case "deliver" if permits > 0:
                batch = data.draw(st.integers(1, permits))
                position += 1
                queue.put(iter(range(data.draw(st.integers(0, batch)))), batch, Position(1, position))
                permits -= batch
            case "pop_many":
                queue.pop_many(data.draw(st.integers(1, 10)))
            case "put_back":
                queue.put_back(queue.pop_many(data.draw(st.integers(1, 10))))
            case "drop_entries":
                chosen = data.draw(st.sets(st.integers(0, position)))
                queue.drop_entries({Position(1, entry) for entry in chosen})
            case "drop_all":
                queue.drop_all()
        permits += queue.take_permits()
        assert permits <= size
    queue.pop_many(10_000)
    permits += queue.take_permits()
    assert permits > size - max(1, size // 2), "only less than the threshold may be owed"


def test_an_entry_that_waits_for_something_keeps_its_place_and_its_permits() -> None:
    queue: ReceiverQueue[int] = ReceiverQueue(4)
    queue.restart()
    opened: list[int] = []

    def entry() -> Iterator[int | None]:
        while not opened:
            yield None
        yield from opened

    queue.put(entry(), 2)
    queue.put(iter([9]), 1)
    assert queue.pop() is None
    assert queue.pop_many(10) == []
    assert len(queue) == 3
    assert queue.take_permits() == 0
    opened += [7, 8]
    assert queue.pop_many(10) == [7, 8, 9]
    assert queue.take_permits() == 3


def test_an_entry_that_waits_is_closed_when_it_is_dropped() -> None:
    queue: ReceiverQueue[int] = ReceiverQueue(4)
    queue.restart()
    ended: list[bool] = []

    def entry() -> Iterator[int | None]:
        try:
            while True:
                yield None
        finally:
            ended.append(True)

    queue.put(entry(), 1, Position(1, 1))
    assert queue.pop() is None
    queue.drop_entries({Position(1, 1)})
    assert ended == [True]
