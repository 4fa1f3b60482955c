"""When a link's next frame goes: at once after a pause, and together with others where many topics move seldom."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from replicator.links.frame_pace import (
    GATHER_MANY_SECONDS,
    GATHER_SECONDS,
    MANY_TOPICS,
    MANY_WITHIN_SECONDS,
    SMALL_FRAME_BYTES,
    FramePace,
)

SMALL = 200


def names(count: int) -> list[str]:
    return [f"t-{number}" for number in range(count)]


def busy_with_many() -> FramePace:
    """Return the pace of a link that sent blocks of many topics at second 0."""
    pace = FramePace()
    pace.sent(names(MANY_TOPICS), SMALL, 0.0)
    return pace


def test_the_first_frame_goes_at_once() -> None:
    assert FramePace().wait_seconds(0.0, in_flight=False) == 0


def test_while_few_topics_move_a_frame_waits_only_for_the_answer_to_the_last_one_and_not_long() -> None:
    pace = FramePace()
    pace.sent(names(MANY_TOPICS - 1), SMALL, 0.0)
    assert pace.wait_seconds(0.0, in_flight=True) == GATHER_SECONDS
    assert pace.wait_seconds(0.0, in_flight=False) == 0
    assert pace.wait_seconds(GATHER_SECONDS, in_flight=True) == 0


def test_while_many_topics_move_frames_lie_apart_whatever_is_answered() -> None:
    pace = busy_with_many()
    for in_flight in (True, False):
        assert pace.wait_seconds(0.0, in_flight=in_flight) == GATHER_MANY_SECONDS
        assert pace.wait_seconds(GATHER_MANY_SECONDS, in_flight=in_flight) == 0


def test_a_frame_after_a_large_one_goes_at_once() -> None:
    pace = busy_with_many()
    pace.sent(names(MANY_TOPICS), SMALL_FRAME_BYTES, 0.0)
    assert pace.wait_seconds(0.0, in_flight=True) == 0


def test_one_topic_that_is_busy_is_not_many() -> None:
    pace = FramePace()
    for number in range(10 * MANY_TOPICS):
        pace.sent(["busy", "beside"], SMALL, number / 1000)
    assert not pace.has_many(0.16)


def test_many_topics_are_forgotten_when_they_rest() -> None:
    pace = busy_with_many()
    for number in range(100):
        pace.sent(["busy"], SMALL, number * MANY_WITHIN_SECONDS / 10)
    assert not pace.has_many(MANY_WITHIN_SECONDS * 10)
    assert pace.wait_seconds(MANY_WITHIN_SECONDS * 10, in_flight=False) == 0


@given(st.lists(st.tuples(st.integers(0, 1_000), st.integers(0, 400)), max_size=300))
def test_what_is_remembered_is_bounded_and_no_frame_waits_longer_than_the_longest_wait(
    sent: list[tuple[int, int]],
) -> None:
    """Invariant 11. (Topic, milliseconds before it.)"""
    pace, now = FramePace(), 0.0
    last: dict[str, float] = {}
    for number, pause_ms in sent:
        now += pause_ms / 1000
        assert 0 <= pace.wait_seconds(now, in_flight=True) <= GATHER_MANY_SECONDS
        pace.sent([f"t-{number}"], SMALL, now)
        last[f"t-{number}"] = now
        assert len(pace._topics) <= MANY_TOPICS
        recent = sum(at >= now - MANY_WITHIN_SECONDS for at in last.values())
        assert pace.has_many(now) == (recent >= MANY_TOPICS)


def test_200_topics_with_a_message_and_an_update_a_second_make_50_frames_a_second() -> None:
    """Each frame is answered before the next block comes, as on a quiet machine. Without the pace 400 would go."""
    pace, frames, waiting = FramePace(), 0, list[str]()
    for millisecond in range(10_000):
        now = millisecond / 1000
        if millisecond % 5 in (0, 3):  # the message, and its acknowledgement
            waiting.append(f"t-{millisecond // 5 % 200}")
        if waiting and pace.wait_seconds(now, in_flight=False) <= 1e-9:
            pace.sent(waiting, SMALL * len(waiting), now)
            waiting.clear()
            frames += 1
    assert frames <= 10 / GATHER_MANY_SECONDS + 2 * MANY_TOPICS
