"""The planned switch, step by step: what it asks for, what it waits for, and how it is undone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from replicator.failover.obstacles import Obstacle
from replicator.failover.planned import (
    HALTED_MS_MAX,
    AnnounceEpoch,
    AskTarget,
    CheckLinks,
    Compare,
    FenceSource,
    PlannedSwitch,
    Refuse,
    Release,
    RequiredEntries,
    Step,
    WriteEpoch,
)
from snapshots.position import Position

GOAL = RequiredEntries(7, Position(1, 9))


GAP = Obstacle("link A>B has a gap (made-anew) in t: `replicator links resolve` ends it", lasting=True)
HALT = Obstacle("link A>B has halted t: a block is damaged", lasting=False)


def checked(switch: PlannedSwitch) -> None:
    switch.start()
    assert switch.on_checked({}) == [FenceSource()]


def drained(switch: PlannedSwitch) -> None:
    checked(switch)
    switch.on_fenced({"t": GOAL}, ["t"])
    switch.on_copies({"t": GOAL}, 0)


def test_each_step_waits_for_the_one_before_it() -> None:
    switch = PlannedSwitch("A", "B", deadline_ms=100)
    assert switch.start() == [CheckLinks()]
    assert switch.on_checked({}) == [FenceSource()]
    assert switch.on_fenced({"t": GOAL, "u": GOAL}, ["t"]) == [AskTarget(("t", "u"))]
    assert switch.on_copies({"t": GOAL}, 1) == [AskTarget(("u",))]
    assert "nothing of it" in switch.missing["u"]
    assert switch.on_copies({"u": RequiredEntries(7, Position(2, 0))}, 2) == [Compare(("t",))]
    assert switch.on_compared({"t": "subscription s differs"}, 3) == [Compare(("t",))]
    assert switch.on_compared({}, 4) == [WriteEpoch()]
    assert switch.on_written() == [AnnounceEpoch()]
    assert switch.on_announced() == []
    assert switch.step is Step.DONE


def test_a_copy_that_is_not_whole_or_of_another_incarnation_is_not_enough() -> None:
    for copy in (RequiredEntries(7, Position(1, 8)), RequiredEntries(8, Position(1, 9))):
        switch = PlannedSwitch("A", "B", deadline_ms=100)
        checked(switch)
        switch.on_fenced({"t": GOAL}, [])
        assert switch.on_copies({"t": copy}, 1) == [AskTarget(("t",))]
        assert "1:" not in switch.missing["t"]


def test_past_the_deadline_the_source_is_released_and_the_topics_are_named() -> None:
    switch = PlannedSwitch("A", "B", deadline_ms=100)
    checked(switch)
    switch.on_fenced({f"t{n}": GOAL for n in range(5)}, [])
    (release,) = switch.on_copies({}, 100)
    assert isinstance(release, Release)
    assert "t0 (it has nothing of it), t1 (" in release.reason, "positions are only in the details and in JSON"
    assert "and 2 more topics" in release.reason
    assert switch.step is Step.REFUSED


def test_acknowledgements_that_do_not_come_in_time_release_the_source_too() -> None:
    switch = PlannedSwitch("A", "B", deadline_ms=100)
    drained(switch)
    (release,) = switch.on_compared({"t": "backlog 5 of 3 messages"}, 100)
    assert isinstance(release, Release)
    assert "every acknowledgement" in release.reason


def test_a_step_that_fails_before_the_epoch_is_written_is_undone_once() -> None:
    switch = PlannedSwitch("A", "B", deadline_ms=100)
    drained(switch)
    assert switch.on_failed("B is gone") == [Release("B is gone")]
    assert switch.on_failed("again") == []


@pytest.mark.parametrize("reason", ["no answer", "the operator gave up"])
def test_whatever_ends_a_switch_that_the_target_may_have_written_releases_nobody(reason: str) -> None:
    switch = PlannedSwitch("A", "B", deadline_ms=100)
    drained(switch)
    switch.on_compared({}, 1)
    switch.on_writing()
    assert switch.on_failed(reason) == []
    assert switch.step is Step.IN_DOUBT
    assert switch.on_failed("again") == []


def test_only_a_refusal_of_the_target_releases_the_source_once_it_was_asked_to_write() -> None:
    switch = PlannedSwitch("A", "B", deadline_ms=100)
    drained(switch)
    switch.on_compared({}, 1)
    switch.on_writing()
    assert switch.on_failed("another epoch", refused=True) == [Release("another epoch")]


def test_a_source_that_does_not_confirm_its_hold_is_released_because_nothing_was_asked_of_the_target() -> None:
    switch = PlannedSwitch("A", "B", deadline_ms=100)
    drained(switch)
    switch.on_compared({}, 1)
    assert switch.on_failed("A does not answer") == [Release("A does not answer")]


def test_nothing_is_undone_once_the_epoch_is_written() -> None:
    switch = PlannedSwitch("A", "B", deadline_ms=100)
    drained(switch)
    switch.on_compared({}, 1)
    switch.on_written()
    assert switch.on_failed("C does not answer") == []


def test_where_consumers_stay_their_states_are_not_waited_for() -> None:
    switch = PlannedSwitch("A", "B", deadline_ms=100, flush=False)
    checked(switch)
    switch.on_fenced({"t": GOAL}, ["t"])
    assert switch.on_copies({"t": GOAL}, 1) == [WriteEpoch()]


def test_a_source_without_messages_is_switched_at_once() -> None:
    switch = PlannedSwitch("A", "B", deadline_ms=100)
    checked(switch)
    assert switch.on_fenced({}, []) == [WriteEpoch()]


def test_messages_of_an_earlier_life_that_the_source_has_are_awaited_too() -> None:
    switch = PlannedSwitch("a", "b", deadline_ms=100)
    checked(switch)
    old = Position(1, 4)
    goal = replace(GOAL, earlier=(old,))
    assert switch.on_fenced({"t": goal, "u": GOAL}, []) == [AskTarget(("t", "u"), {"t": (old,)})]
    assert switch.on_copies({"t": GOAL, "u": GOAL}, 1, {"t": (old,)}) == [AskTarget(("t",), {"t": (old,)})]
    assert switch.missing == {"t": "it lacks messages that belong to an earlier life, or that a reclaim put back"}
    assert switch.on_copies({"t": GOAL}, 2) == [WriteEpoch()]


def test_a_gap_that_keeps_messages_from_the_target_is_refused_before_anything_is_fenced() -> None:
    switch = PlannedSwitch("A", "B", deadline_ms=100_000)
    switch.start()
    assert switch.on_checked({"t": GOAL}) == [AskTarget(("t",))]
    (refuse,) = switch.on_copies({}, 1, {}, {"t": GAP})
    assert isinstance(refuse, Refuse), "nothing is fenced that could be released"
    assert refuse.reason.endswith(f"t (it has nothing of it): {GAP.text}")
    assert switch.step is Step.REFUSED


def test_a_gap_is_in_the_way_only_while_the_target_lacks_something_behind_it() -> None:
    switch = PlannedSwitch("A", "B", deadline_ms=100_000)
    switch.start()
    assert switch.on_checked({"t": GOAL, "u": GOAL, "v": GOAL}) == [AskTarget(("t", "u", "v"))]
    assert switch.on_copies({"t": GOAL}, 1, {}, {"t": GAP, "v": HALT}) == [AskTarget(("v",))]
    assert switch.on_copies({}, 2, {}, {"t": GAP}) == [FenceSource()], "the halt has ended by itself"


@pytest.mark.parametrize("fenced", [False, True])
def test_a_halt_is_given_time_to_end_by_itself(fenced: bool) -> None:
    switch = PlannedSwitch("A", "B", deadline_ms=100_000)
    switch.start()
    if fenced:
        switch.on_checked({})
        switch.on_fenced({"t": GOAL}, [])
    else:
        switch.on_checked({"t": GOAL})
    assert switch.on_copies({}, 1, {}, {"t": HALT}) == [AskTarget(("t",))]
    (end,) = switch.on_copies({}, 1 + HALTED_MS_MAX, {}, {"t": HALT})
    assert isinstance(end, Release if fenced else Refuse)
    assert HALT.text in end.reason


def test_a_gap_that_appears_under_the_fence_ends_the_wait_and_releases_the_source() -> None:
    switch = PlannedSwitch("A", "B", deadline_ms=100_000)
    checked(switch)
    switch.on_fenced({"t": GOAL}, ["t"])
    assert switch.on_copies({}, 1) == [AskTarget(("t",))]
    (release,) = switch.on_copies({}, 2, {}, {"t": GAP})
    assert isinstance(release, Release)
    assert GAP.text in release.reason

    switch = PlannedSwitch("A", "B", deadline_ms=100_000)
    drained(switch)
    (release,) = switch.on_compared({"t": "subscription s differs"}, 3, {"t": GAP})
    assert isinstance(release, Release)
    assert release.reason.endswith(f"t (subscription s differs): {GAP.text}")
