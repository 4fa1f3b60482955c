"""Which differences between two clusters are gaps, and what may end each."""

from __future__ import annotations

import pytest

from replicator.links.gaps import (
    COPY_ANEW,
    LOST_DATA,
    MADE_ANEW,
    SKIP_AND_RECORD,
    STOP,
    TRIMMED,
    Gap,
    Here,
    Mark,
    Missing,
    find_gap,
)
from snapshots.position import BEFORE_ALL, Position


def at(entry: int) -> Position:
    return Position(1, entry)


def gap(
    there: dict[str, Mark],
    *,
    trimmed: dict[str, Position] | None = None,
    holes: dict[str, list[tuple[Position, Position]]] | None = None,
    copied_before: bool = False,
    elsewhere: str = "",
) -> Gap | None:
    """Of a source that has its own messages up to 9, and those of x up to 5:9."""
    marks = {"own": Mark(7, at(9)), "x": Mark(3, Position(5, 9))}
    here = Here("own", "there", 7, marks, Missing(trimmed or {}, holes or {}), lambda position: position <= at(9))
    return find_gap(
        here, there, ("x", "own"), copied_before=copied_before, comes_elsewhere=lambda origin: origin == elsewhere
    )


def kind(found: Gap | None) -> tuple[str, str] | None:
    return None if found is None else (found.kind, found.origin)


def test_where_all_that_is_missing_is_at_the_destination_there_is_no_gap() -> None:
    assert gap({}) is None
    assert gap({"own": Mark(7, at(4))}, trimmed={"own": at(4)}) is None
    assert gap({"x": Mark(3, Position(5, 2))}, holes={"x": [(Position(5, 0), Position(5, 2))]}) is None
    assert gap({"own": Mark(7, at(9)), "x": Mark(3, Position(6, 0))}) is None, "it has more of x than is here"


def test_what_was_trimmed_or_left_out_above_what_the_destination_has_is_a_gap() -> None:
    assert kind(gap({"own": Mark(7, at(4))}, trimmed={"own": at(5)})) == (TRIMMED, "own")
    assert kind(gap({"x": Mark(3, Position(5, 1))}, holes={"x": [(Position(5, 1), Position(5, 2))]})) == (TRIMMED, "x")


def test_a_destination_that_has_nothing_is_a_gap_only_if_it_was_copied_to_or_will_get_it_elsewhere() -> None:
    assert gap({}, trimmed={"own": at(5)}) is None
    assert kind(gap({}, trimmed={"own": at(5)}, copied_before=True)) == (TRIMMED, "own")
    assert gap({"x": Mark(3, Position(5, 1))}, trimmed={"own": at(5)}, copied_before=True) is None
    assert gap({}, trimmed={"x": Position(5, 5)}) is None
    assert kind(gap({}, trimmed={"x": Position(5, 5)}, elsewhere="x")) == (TRIMMED, "x")


def test_another_incarnation_is_a_gap_of_its_own_kind_also_of_what_is_forwarded() -> None:
    assert kind(gap({"own": Mark(6, at(1))})) == (MADE_ANEW, "own")
    assert kind(gap({"x": Mark(2, Position(5, 1))})) == (MADE_ANEW, "x")


def test_messages_that_only_the_destination_has_are_lost_data() -> None:
    assert kind(gap({"own": Mark(7, at(10))})) == (LOST_DATA, "own")


@pytest.mark.parametrize(
    ("what", "allowed"),
    [(TRIMMED, {SKIP_AND_RECORD, COPY_ANEW}), (MADE_ANEW, {COPY_ANEW}), (LOST_DATA, set())],
)
def test_each_kind_of_gap_ends_only_by_what_loses_nothing_in_silence(what: str, allowed: set[str]) -> None:
    found = Gap(what, "own", "")
    assert {policy for policy in (STOP, SKIP_AND_RECORD, COPY_ANEW) if found.allows(policy)} == allowed
    asked = {policy for policy in (STOP, SKIP_AND_RECORD, COPY_ANEW) if found.allows(policy, asked=True)}
    assert asked == (allowed or {SKIP_AND_RECORD}), "an operator may go on where the link by itself may not"


def test_what_is_missing_before_a_block_is_the_newest_below_it() -> None:
    missing = Missing({"x": at(3)}, {"x": [(at(5), at(6)), (at(8), at(9))]})
    assert [missing.before("x", at(entry)) for entry in (5, 7, 8, 10)] == [at(3), at(6), at(6), at(9)]
    assert missing.newest("x") == at(9)
    assert missing.before("own", at(5)) == missing.newest("own") == BEFORE_ALL
