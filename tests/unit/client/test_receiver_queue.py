"""The receiver queue asks for as much as was consumed, never for more, and in halves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator.client.receiver_queue import ReceiverQueue


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
