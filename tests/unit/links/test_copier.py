"""Single rules of the copy state machine; :mod:`test_copier_machine` checks them in every order."""

from __future__ import annotations

import pytest

from replicator.links.copier import FRAME_BYTES_TARGET, Copier, Read
from snapshots.position import BEFORE_ALL, Position


def at(entry: int) -> Position:
    return Position(1, entry)


def connected(*topics: str, **high_water: Position) -> Copier:
    copier = Copier()
    for topic in topics:
        copier.topic_moved(topic, at(9))
    copier.on_connected(high_water)
    return copier


def test_reading_starts_after_what_the_destination_has() -> None:
    copier = connected("a", "b", a=at(4))
    assert copier.next_read() == Read("a", at(4), FRAME_BYTES_TARGET)
    assert copier.next_read() == Read("b", BEFORE_ALL, FRAME_BYTES_TARGET)
    assert copier.next_read() is None


def test_a_destination_that_has_more_than_the_source_is_left_alone() -> None:
    """The source was restored from an old backup: what it writes next has higher positions."""
    copier = connected("a", a=at(50))
    assert copier.next_read() is None
    copier.topic_moved("a", Position(2, 0))
    assert copier.next_read() == Read("a", at(50), FRAME_BYTES_TARGET)


def test_nothing_is_read_before_the_destination_has_said_what_it_has() -> None:
    copier = Copier()
    copier.topic_moved("a", at(3))
    assert copier.next_read() is None
    copier.on_connected({})
    copier.on_disconnected()
    assert copier.next_read() is None


def test_topics_that_are_behind_take_turns() -> None:
    copier = connected("a", "b", "c")
    order = []
    for step in range(6):
        read = copier.next_read()
        assert read is not None
        order.append(read.topic)
        copier.on_read(read.topic, at(step))
    assert order == ["a", "b", "c", "a", "b", "c"]


def test_each_block_is_sent_with_the_one_sent_before_it() -> None:
    copier = connected("a", a=at(1))
    assert copier.on_block("a", at(3)) == at(1)
    assert copier.on_block("a", at(7)) == at(3)
    with pytest.raises(AssertionError):
        copier.on_block("a", at(7))


def test_a_frame_that_is_full_takes_no_more() -> None:
    copier = connected("a", "b")
    assert copier.next_read(FRAME_BYTES_TARGET) is None
    assert copier.next_read(FRAME_BYTES_TARGET - 10) == Read("a", BEFORE_ALL, 10)


def test_invariant_11_a_full_window_stops_reading_until_a_frame_is_acknowledged() -> None:
    copier = Copier(window_bytes_max=100)
    copier.topic_moved("a", at(9))
    copier.on_connected({})
    copier.on_sent(60)
    assert copier.next_read() is not None
    copier.on_read("a", at(3))
    copier.on_sent(40)
    assert copier.next_read() is None
    copier.on_acknowledged()
    assert copier.next_read() == Read("a", at(3), FRAME_BYTES_TARGET)


def test_a_halted_topic_does_not_stop_the_others_and_is_tried_again_on_the_next_connection() -> None:
    copier = connected("a", "b")
    copier.on_halted("a", "another incarnation")
    copier.topic_moved("a", at(20))
    assert copier.next_read() == Read("b", BEFORE_ALL, FRAME_BYTES_TARGET)
    assert copier.next_read() is None
    copier.on_disconnected()
    copier.on_connected({})
    assert copier.next_read() == Read("a", BEFORE_ALL, FRAME_BYTES_TARGET)


def test_a_topic_can_be_halted_before_it_has_anything_to_copy() -> None:
    copier = connected("b")
    copier.on_halted("a", "another incarnation")
    copier.topic_moved("a", at(3))
    assert copier.next_read() == Read("b", BEFORE_ALL, FRAME_BYTES_TARGET)
    assert copier.next_read() is None


def test_a_disconnect_forgets_what_was_in_flight() -> None:
    copier = connected("a")
    copier.on_block("a", at(9))
    copier.on_read("a", at(9))
    copier.on_sent(10**9)
    copier.on_disconnected()
    assert copier.in_flight == 0
    copier.on_connected({"a": at(2)})
    assert copier.next_read() == Read("a", at(2), FRAME_BYTES_TARGET)
    assert copier.on_block("a", at(5)) == at(2)


def test_a_log_that_goes_back_is_a_bug() -> None:
    copier = connected("a")
    with pytest.raises(AssertionError):
        copier.topic_moved("a", at(8))
