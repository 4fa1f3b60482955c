"""Single rules of the copy state machine; :mod:`test_copier_machine` checks them in every order."""

from __future__ import annotations

import pytest

from replicator.links.copier import FRAME_BYTES_TARGET, Copier, Read, Send, Start
from replicator.links.gaps import TRIMMED, Gap
from snapshots.position import BEFORE_ALL, Position

OWN = frozenset({"own"})


def at(entry: int) -> Position:
    return Position(1, entry)


def start(position: Position) -> Start:
    """Return the start of a topic; the destination has the source's own entries up to there."""
    return Start(position, {"own": position})


def connected(*topics: str, **high_water: Position) -> Copier:
    copier = Copier()
    for topic in topics:
        copier.topic_moved(topic, at(9), OWN)
    copier.on_connected({topic: start(position) for topic, position in high_water.items()})
    return copier


def test_reading_starts_after_what_the_destination_has() -> None:
    copier = connected("a", "b", a=at(4))
    assert copier.next_read() == Read("a", at(4), FRAME_BYTES_TARGET, OWN)
    assert copier.next_read() == Read("b", BEFORE_ALL, FRAME_BYTES_TARGET, OWN)
    assert copier.next_read() is None


def test_a_destination_that_has_more_than_the_source_is_left_alone() -> None:
    """The source was restored from an old backup: what it writes next has higher positions."""
    copier = connected("a", a=at(50))
    assert copier.next_read() is None
    copier.topic_moved("a", Position(2, 0), OWN)
    assert copier.next_read() == Read("a", at(9), FRAME_BYTES_TARGET, OWN)
    assert copier.on_block("a", "own", at(50)) is None
    assert copier.on_block("a", "own", Position(2, 0)) == Send(at(50), left_out=False)


def test_nothing_is_read_before_the_destination_has_said_what_it_has() -> None:
    copier = Copier()
    copier.topic_moved("a", at(3), OWN)
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
    assert copier.on_block("a", "own", at(3)) == Send(at(1), left_out=False)
    assert copier.on_block("a", "own", at(7)) == Send(at(3), left_out=False)
    assert copier.on_block("a", "own", at(7)) is None, "the destination has it"


def test_what_was_sent_is_told_apart_by_origin() -> None:
    copier = Copier()
    origins = frozenset({"own", "east"})
    copier.topic_moved("a", at(9), origins)
    copier.on_connected({"a": Start(at(2), {"own": at(2), "east": Position(7, 5)})})
    assert copier.next_read() == Read("a", at(2), FRAME_BYTES_TARGET, origins)
    assert copier.on_block("a", "east", Position(7, 5)) is None
    assert copier.on_block("a", "east", Position(7, 8)) == Send(Position(7, 5), left_out=False)
    assert copier.on_block("a", "own", at(9)) == Send(at(2), left_out=False)


def test_invariant_4_a_block_of_an_origin_that_is_not_for_the_link_is_a_bug() -> None:
    with pytest.raises(AssertionError):
        connected("a").on_block("a", "east", at(3))


def test_a_block_after_something_missing_is_a_gap_and_only_what_may_be_left_out_is_passed() -> None:
    copier = Copier()
    copier.topic_moved("a", at(99), OWN)
    copier.on_connected({"a": Start(at(1), {"own": at(1)}, passable={"own": at(20)})})
    assert copier.on_block("a", "own", at(9), missing=at(1)) == Send(at(1), left_out=False)
    assert copier.on_block("a", "own", at(30), missing=at(20)) == Send(at(9), left_out=True)
    gap = copier.on_block("a", "own", at(50), missing=at(40))
    assert isinstance(gap, Gap)
    assert gap.kind == TRIMMED
    assert copier.on_block("a", "own", at(50)) == Send(at(30), left_out=False), "nothing was noted as sent"


def test_acknowledged_is_what_was_read_before_the_frame_that_is_acknowledged() -> None:
    copier = connected("a", "b", a=at(1))
    copier.on_read("a", at(4))
    copier.on_sent(10)
    copier.on_read("a", at(6))
    copier.on_read("b", at(2))
    assert copier.on_idle() == {}, "a frame is in flight"
    assert copier.on_acknowledged() == {"a": at(4)}
    copier.on_halted("b", "refused")
    assert copier.on_idle() == {"a": at(6)}
    assert [copier.topics[topic].acknowledged for topic in "ab"] == [at(6), BEFORE_ALL]


def test_entries_that_the_link_does_not_carry_are_not_read() -> None:
    copier = connected("a", a=at(9))
    assert copier.topic_passed("a", at(12)) == {"a": at(12)}, "nothing holds the log back for it"
    assert copier.next_read() is None
    copier.topic_moved("a", at(13), OWN)
    assert copier.next_read() == Read("a", at(12), FRAME_BYTES_TARGET, OWN)


def test_entries_that_the_link_does_not_carry_count_as_acknowledged_when_what_is_before_them_is() -> None:
    copier = connected("a", a=at(1))
    assert copier.topic_passed("a", at(12)) == {}, "what is before them was not read"
    assert copier.next_read() == Read("a", at(1), FRAME_BYTES_TARGET, OWN)
    copier.on_read("a", at(12))
    copier.on_sent(10)
    assert copier.topic_passed("a", at(14)) == {}
    assert copier.on_idle() == {}, "a frame is in flight"
    assert copier.on_acknowledged() == {"a": at(12)}
    assert copier.next_read() is None
    assert copier.on_idle() == {"a": at(14)}


def test_entries_that_the_link_does_not_carry_end_no_halt() -> None:
    copier = connected("a", a=at(9))
    copier.on_halted("a", "refused")
    assert copier.topic_passed("a", at(12)) == {}
    assert copier.topics["a"].acknowledged == at(9)
    copier.on_disconnected()
    copier.on_connected({"a": start(at(9))})
    assert copier.next_read() == Read("a", at(9), FRAME_BYTES_TARGET, OWN)


def test_a_frame_that_is_full_takes_no_more() -> None:
    copier = connected("a", "b")
    assert copier.next_read(FRAME_BYTES_TARGET) is None
    assert copier.next_read(FRAME_BYTES_TARGET - 10) == Read("a", BEFORE_ALL, 10, OWN)


def test_invariant_11_a_full_window_stops_reading_until_a_frame_is_acknowledged() -> None:
    copier = Copier(window_bytes_max=100)
    copier.topic_moved("a", at(9), OWN)
    copier.on_connected({})
    copier.on_sent(60)
    assert copier.next_read() is not None
    copier.on_read("a", at(3))
    copier.on_sent(40)
    assert copier.next_read() is None
    copier.on_acknowledged()
    assert copier.next_read() == Read("a", at(3), FRAME_BYTES_TARGET, OWN)


def test_a_halted_topic_does_not_stop_the_others_and_is_tried_again_on_the_next_connection() -> None:
    copier = connected("a", "b")
    copier.on_halted("a", "another incarnation")
    copier.topic_moved("a", at(20), OWN)
    assert copier.next_read() == Read("b", BEFORE_ALL, FRAME_BYTES_TARGET, OWN)
    assert copier.next_read() is None
    copier.on_disconnected()
    copier.on_connected({})
    assert copier.next_read() == Read("a", BEFORE_ALL, FRAME_BYTES_TARGET, OWN)


def test_a_topic_can_be_halted_before_it_has_anything_to_copy() -> None:
    copier = connected("b")
    copier.topic_moved("a", BEFORE_ALL, OWN)
    assert copier.on_halted("a", "another incarnation")
    assert not copier.on_halted("a", "another incarnation"), "it is no news"
    copier.topic_moved("a", at(3), OWN)
    assert copier.next_read() == Read("b", BEFORE_ALL, FRAME_BYTES_TARGET, OWN)
    assert copier.next_read() is None


def test_a_disconnect_forgets_what_was_in_flight() -> None:
    copier = connected("a")
    copier.on_block("a", "own", at(9))
    copier.on_read("a", at(9))
    copier.on_sent(10**9)
    copier.on_disconnected()
    assert copier.in_flight == 0
    copier.on_connected({"a": start(at(2))})
    assert copier.next_read() == Read("a", at(2), FRAME_BYTES_TARGET, OWN)
    assert copier.on_block("a", "own", at(5)) == Send(at(2), left_out=False)


def test_a_log_that_goes_back_is_a_bug() -> None:
    copier = connected("a")
    with pytest.raises(AssertionError):
        copier.topic_moved("a", at(8), OWN)


def in_flight_past_a_refusal() -> Copier:
    """Return a copier with two frames in flight: up to entry 3, and up to entry 9 without entries of the topic."""
    copier = connected("a")
    copier.on_read("a", at(3))
    copier.on_sent(10)
    copier.on_read("a", at(9))
    copier.on_sent(10)
    return copier


def test_invariant_2_what_was_in_flight_when_a_topic_started_again_does_not_count_as_arrived() -> None:
    copier = in_flight_past_a_refusal()
    copier.on_halted("a", "refused")
    copier.on_acknowledged()
    copier.on_resumed("a", start(at(1)))
    assert copier.is_stale("a")
    assert copier.on_acknowledged() == {}
    assert copier.topics["a"].acknowledged == at(1)
    copier.on_read("a", at(9))
    copier.on_sent(10)
    assert not copier.is_stale("a")
    assert copier.on_acknowledged() == {"a": at(9)}


def test_a_topic_that_was_refused_is_tried_with_one_piece_before_more_of_it_is_sent() -> None:
    copier = connected("a")
    copier.on_halted("a", "refused")
    copier.on_resumed("a", start(at(1)), probing=True)
    assert copier.next_read() == Read("a", at(1), 1, OWN)
    copier.on_read("a", at(2))
    copier.on_sent(10)
    copier.topic_moved("a", at(20), OWN)
    assert copier.next_read() is None
    copier.on_acknowledged()
    assert copier.next_read() == Read("a", at(2), FRAME_BYTES_TARGET, OWN)


def test_what_was_in_flight_of_a_deleted_topic_says_nothing_of_the_one_made_anew() -> None:
    copier = in_flight_past_a_refusal()
    copier.topic_gone("a")
    copier.topic_moved("a", at(2), OWN)
    assert copier.is_stale("a")
    assert copier.on_acknowledged() == {}
    assert copier.on_acknowledged() == {}
    assert copier.topics["a"].acknowledged == BEFORE_ALL


def in_flight(*reads: tuple[str, int]) -> tuple[Copier, list[int]]:
    """Put a frame for each topic in flight, with how far it was read; return the frames' numbers."""
    copier = connected("a", "b")
    frames = []
    for topic, entry in reads:
        copier.on_read(topic, at(entry))
        frames.append(copier.on_sent(10))
    return copier, frames


def test_frames_acknowledged_out_of_order_count_only_once_those_before_them_are() -> None:
    copier, (first, second, third) = in_flight(("a", 2), ("b", 3), ("a", 5))
    assert copier.on_acknowledged(third) == {}
    assert copier.on_acknowledged(second) == {"b": at(3)}
    assert copier.on_acknowledged(first) == {"a": at(5)}
    assert copier.in_flight == copier.in_flight_bytes == 0


def test_a_frame_that_is_given_up_takes_with_it_what_later_ones_say_of_its_topics() -> None:
    copier, (first, second, third) = in_flight(("a", 2), ("b", 3), ("a", 5))
    assert copier.on_given_up(first) == ["a"]
    assert copier.is_stale("a", third)
    assert copier.on_acknowledged(third) == {}
    copier.on_resumed("a", start(at(1)))
    assert copier.next_read() == Read("a", at(1), FRAME_BYTES_TARGET, OWN)
    assert copier.on_acknowledged(second) == {"b": at(3)}


def test_what_is_in_flight_of_a_topic_that_was_started_again_counts_no_more() -> None:
    copier, (first,) = in_flight(("a", 4))
    copier.on_halted("a", "refused")
    copier.on_resumed("a", start(at(1)))
    assert copier.is_stale("a", first)
    assert copier.on_acknowledged(first) == {}
    assert copier.topics["a"].acknowledged == at(1)


def test_topics_are_dealt_to_lanes_which_have_windows_of_their_own() -> None:
    copier = Copier(window_bytes_max=20)
    names = [f"topic-{number}" for number in range(40)]
    for name in names:
        copier.topic_moved(name, at(9), OWN)
    copier.on_connected({})
    copier.deal(4)
    dealt = {lane: [] for lane in range(4)}  # type: dict[int, list[str]]
    for lane, topics in dealt.items():
        while read := copier.next_read(lane=lane):
            topics.append(read.topic)
            copier.on_read(read.topic, at(9))
        copier.on_sent(20, lane=lane)
    assert sorted(name for topics in dealt.values() for name in topics) == sorted(names)
    assert all(dealt.values())
    copier.topic_moved(dealt[0][0], at(20), OWN)
    copier.topic_moved(dealt[1][0], at(20), OWN)
    copier.on_acknowledged(2)  # of lane 1
    assert copier.next_read(lane=0) is None, "its window is full"
    assert copier.next_read(lane=1) == Read(dealt[1][0], at(9), FRAME_BYTES_TARGET, OWN)


def test_only_the_topics_that_were_asked_for_are_read_until_all_are_again() -> None:
    copier = connected("a", "b")
    copier.deal(1, lambda topic: topic == "b")
    assert copier.next_read() == Read("b", BEFORE_ALL, FRAME_BYTES_TARGET, OWN)
    assert copier.next_read() is None
    copier.deal(1)
    assert copier.next_read() == Read("a", BEFORE_ALL, FRAME_BYTES_TARGET, OWN)
