"""Ownership of a link that others carry for, and the plans that were handed out."""

from __future__ import annotations

import pytest

from replicator.links.errors import BadReport, LinkTaken
from replicator.links.plans import (
    BACKFILL,
    CARRIER_SILENCE_SECONDS,
    HAND_OVER_SECONDS,
    LANE_SILENCE_SECONDS,
    LIVE,
    CarriedTopic,
    Carriers,
    Done,
    Plan,
    Segment,
    Shift,
)
from snapshots.position import Position

SILENCE = CARRIER_SILENCE_SECONDS[LIVE]


def segment(number: int, lane: int = 0) -> Segment:
    return Segment(number, lane, 10, {})


def test_a_newer_live_carrier_has_the_link_at_once_and_the_older_one_does_not_take_it_back() -> None:
    carriers = Carriers()
    assert carriers.asks("a>b", "old", LIVE, 0)
    assert carriers.asks("a>b", "new", LIVE, 1)
    assert not carriers.asks("a>b", "old", LIVE, 2)
    assert carriers.asks("a>b", "new", LIVE, 3)


def test_the_older_carrier_has_it_again_when_the_newer_one_is_silent_or_lets_go() -> None:
    for ended in ("silent", "released"):
        carriers = Carriers()
        carriers.asks("a>b", "old", LIVE, 0)
        carriers.asks("a>b", "new", LIVE, 1)
        if ended == "released":
            assert carriers.release("new")
            assert carriers.asks("a>b", "old", LIVE, 2)
        else:
            assert not carriers.asks("a>b", "old", LIVE, 1 + SILENCE)
            assert carriers.asks("a>b", "old", LIVE, 1.1 + SILENCE)


def test_a_carrier_keeps_the_link_while_it_is_heard_of() -> None:
    carriers = Carriers()
    carriers.asks("a>b", "one", LIVE, 0)
    assert carriers.heard("one", SILENCE)
    assert carriers.silent(SILENCE + 1) is None
    assert not carriers.heard("other", SILENCE)
    assert carriers.silent(2 * SILENCE + 1) == "one"
    assert carriers.holder is None


def test_a_backfill_takes_the_link_from_live_copy_and_keeps_it_until_it_lets_go() -> None:
    carriers = Carriers()
    carriers.asks("a>b", "driver", LIVE, 0)
    assert carriers.asks("a>b", "fill", BACKFILL, 1)
    assert carriers.backfilling
    assert not carriers.asks("a>b", "driver", LIVE, 2)
    with pytest.raises(LinkTaken, match="a>b is being backfilled by fill, last heard of 2 s ago"):
        carriers.asks("a>b", "another", BACKFILL, 3)
    assert not carriers.release("another")
    assert carriers.release("fill")
    assert not carriers.backfilling
    assert carriers.asks("a>b", "driver", LIVE, 4), "it was not superseded"


def test_what_a_lane_does_not_hold_is_given_to_it_again_until_it_is_reported() -> None:
    plan = Plan(1, 2, 100)
    plan.handed_out(segment(7))
    plan.handed_out(segment(8))
    plan.handed_out(segment(9, lane=1))
    assert plan.lost(0, [7, 8]) is None
    assert plan.lost(0, [8]) == segment(7)
    assert plan.reported(7) == segment(7)
    assert plan.reported(7) is None, "it counts once"
    assert plan.lost(0, []) == segment(8)
    assert plan.unreported() == [segment(8), segment(9, lane=1)]


def carried_plan(*numbers: int) -> Plan:
    plan = Plan(1, 1, 100)
    plan.heard(0, 1, 0.0)
    for number in numbers:
        plan.handed_out(segment(number))
    return plan


def test_the_tasks_of_a_plan_are_relieved_only_while_they_have_something_to_carry() -> None:
    plan = carried_plan(7)
    plan.reported(7)
    assert plan.shift(0.0) is Shift.QUIET, "what they had in their time does not count"
    plan.handed_out(segment(8))
    plan.reported(8)
    assert plan.shift(1.0) is Shift.BUSY
    assert carried_plan(7).shift(0.0) is Shift.BUSY


def test_tasks_that_left_or_are_not_heard_of_need_no_relief() -> None:
    assert Plan(1, 1, 100).shift(0.0) is Shift.OVER, "it never asked"
    plan = carried_plan()
    assert plan.shift(LANE_SILENCE_SECONDS) is Shift.QUIET
    assert plan.shift(LANE_SILENCE_SECONDS + 0.1) is Shift.OVER
    plan.heard(0, 1, 10.0)
    plan.leaves(0, 1)
    assert plan.shift(10.0) is Shift.OVER


def test_a_lane_goes_on_with_its_old_task_until_the_new_one_asks_and_that_waits_for_what_the_old_one_has() -> None:
    plan = carried_plan(7).relief(2)
    assert (plan.number, plan.before, plan.first) == (2, 1, [None])
    assert not plan.is_relieved(0, 1)
    plan.handed_out(segment(8))
    assert plan.relieve(0, 10.0)
    assert not plan.relieve(0, 10.5)
    assert plan.is_relieved(0, 1)
    assert not plan.is_relieved(0, 2)
    assert plan.settling_seconds(0, 10.0) == HAND_OVER_SECONDS
    plan.heard(0, 1, 14.0)
    assert plan.settling_seconds(0, 14.0) == HAND_OVER_SECONDS, "it still carries"
    plan.reported(7)
    assert plan.settling_seconds(0, 14.0)
    plan.reported(8)
    assert not plan.settling_seconds(0, 14.0)


@pytest.mark.parametrize("how", ["silent", "left"])
def test_what_the_old_task_does_not_finish_is_given_to_the_new_one(how: str) -> None:
    plan = carried_plan(7).relief(2)
    plan.relieve(0, 10.0)
    if how == "left":
        plan.leaves(0, 1)
        assert not plan.settling_seconds(0, 10.0)
    assert not plan.settling_seconds(0, 10.0 + HAND_OVER_SECONDS)
    assert plan.lost(0, []) == segment(7)


def test_a_report_is_read_as_it_comes_from_the_network() -> None:
    topics = [
        {"topic": "t", "reached": "3:4", "refused": None},
        {"topic": "u", "reached": "0:-1", "refused": {"code": "TopicNotFound", "message": "gone"}},
    ]
    done = Done.parse({"segment": 5, "topics": topics, "blocks": 2, "bytes": 30, "extents": []})
    assert done.topics == {
        "t": CarriedTopic(Position(3, 4)),
        "u": CarriedTopic(Position(0, -1), ("TopicNotFound", "gone")),
    }
    assert (done.segment, done.blocks, done.size_bytes, done.wire_bytes) == (5, 2, 30, 0)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (None, "must be an object"),
        ({"segment": 1}, "topics"),
        ({"segment": "1", "topics": []}, "segment of a carrier's report"),
        ({"segment": True, "topics": []}, "segment of a carrier's report"),
        ({"segment": 1, "topics": [], "bytes": -1}, "bytes of a carrier's report"),
        ({"segment": 1, "topics": [{"topic": "t"}]}, "lacks the texts topic and reached"),
        ({"segment": 1, "topics": [{"topic": "t", "reached": "x"}]}, "reached of 't'"),
        ({"segment": 1, "topics": [{"topic": "t", "reached": "1:1", "refused": "no"}]}, "refused of 't'"),
    ],
)
def test_a_report_that_cannot_be_read_names_the_field(raw: object, expected: str) -> None:
    with pytest.raises(BadReport, match=expected):
        Done.parse(raw)
