"""Differences between two clusters that are gaps, and the ways to end each."""

from __future__ import annotations

from dataclasses import replace

import pytest

from replicator.engine.lineage import Judgement
from replicator.links.gaps import (
    COPY_ANEW,
    KEEP_BOTH,
    LOST_DATA,
    MADE_ANEW,
    POLICIES,
    SKIP_AND_RECORD,
    STOP,
    TRIMMED,
    Gap,
    GapPlace,
    Mark,
    Missing,
    PolicyRefused,
    SourceState,
    find_gap,
    lives_to_raise,
)
from snapshots.position import BEFORE_ALL, Position

EARLIER = Position(5, 3)
"""Last position of an earlier life of the source's own topic."""


def at(entry: int) -> Position:
    return Position(8, entry)


def source(
    *, trimmed: dict[str, Position], holes: dict[str, list[tuple[Position, Position]]], kept: bool
) -> SourceState:
    """Return a source that has its own messages up to 9, and those of x up to 5:9; with ``kept`` the earlier lives,
    too."""
    marks = {"own": Mark(7, at(9)), "x": Mark(3, Position(5, 9))}
    return SourceState(
        "own", "there", 7, marks, Missing(trimmed, holes), lambda position: position <= at(9), lambda *_: kept
    )


def gap(
    there: dict[str, Mark],
    *,
    trimmed: dict[str, Position] | None = None,
    holes: dict[str, list[tuple[Position, Position]]] | None = None,
    copied_before: bool = False,
    elsewhere: str = "",
    kept: bool = False,
    accepted: dict[str, tuple[Position, Position]] | None = None,
) -> Gap | None:
    """Return the gap of :func:`source`."""
    here = source(trimmed=trimmed or {}, holes=holes or {}, kept=kept)
    return find_gap(
        here,
        there,
        ("x", "own"),
        copied_before=copied_before,
        comes_elsewhere=lambda origin: origin == elsewhere,
        accepted=accepted or {},
    )


def raised(there: dict[str, Mark], *, kept: bool = False, asked: bool = False) -> dict[str, int]:
    """Return the lives that the destination must take up."""
    here = source(trimmed={}, holes={}, kept=kept)
    return {origin: mark.incarnation for origin, mark in lives_to_raise(here, there, ("x", "own"), asked=asked).items()}


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


def test_a_gap_names_the_missing_messages_of_each_origin_and_comes_after_the_other_kinds() -> None:
    trimmed, there = {"own": at(5), "x": Position(5, 5)}, {"own": Mark(7, at(4)), "x": Mark(3, Position(5, 1))}
    found = gap(there, trimmed=trimmed)
    assert found is not None
    assert found.missing == {"own": (at(4), at(5)), "x": (Position(5, 1), Position(5, 5))}
    assert found.what.startswith("messages of own after 8:4 up to 8:5, of x after 5:1 up to 5:5 are not here any more")
    assert [(part.origin, part.what.count("after")) for part in found.by_origin()] == [("own", 1), ("x", 1)]
    other = {**there, "x": Mark(2, Position(3, 1), Position(3, 1))}
    assert kind(gap(other, trimmed=trimmed)) == (MADE_ANEW, "x")


def test_messages_that_may_be_left_out_are_no_gap_until_the_destination_loses_what_it_had() -> None:
    there, accepted = {"own": Mark(7, at(4))}, {"own": (at(4), at(6))}
    assert gap(there, trimmed={"own": at(6)}, accepted=accepted) is None
    assert kind(gap(there, trimmed={"own": at(7)}, accepted=accepted)) == (TRIMMED, "own"), "more was trimmed since"
    assert kind(gap({"own": Mark(7, at(3))}, trimmed={"own": at(6)}, accepted=accepted)) == (TRIMMED, "own")
    assert kind(gap({}, trimmed={"own": at(6)}, accepted=accepted, copied_before=True)) == (TRIMMED, "own")


def test_a_destination_that_has_nothing_is_a_gap_only_if_it_was_copied_to_or_will_get_it_elsewhere() -> None:
    assert gap({}, trimmed={"own": at(5)}) is None
    assert kind(gap({}, trimmed={"own": at(5)}, copied_before=True)) == (TRIMMED, "own")
    assert gap({"x": Mark(3, Position(5, 1))}, trimmed={"own": at(5)}, copied_before=True) is None
    assert gap({}, trimmed={"x": Position(5, 5)}) is None
    assert kind(gap({}, trimmed={"x": Position(5, 5)}, elsewhere="x")) == (TRIMMED, "x")


def test_another_incarnation_is_a_gap_of_its_own_kind_also_of_what_is_forwarded() -> None:
    assert kind(gap({"own": Mark(6, EARLIER)})) == (MADE_ANEW, "own")
    assert kind(gap({"x": Mark(2, Position(3, 1))})) == (MADE_ANEW, "x")


def test_markers_alone_say_nothing_of_lives() -> None:
    markers = Mark(6, EARLIER, BEFORE_ALL, 0)
    assert gap({"own": markers, "x": Mark(2, Position(3, 1), BEFORE_ALL, 0)}) is None
    assert raised({"own": markers, "x": Mark(2, Position(3, 1), BEFORE_ALL, 0)}) == {"own": 7, "x": 3}
    assert gap({"own": Mark(7, at(10), BEFORE_ALL)}) is None, "it lost markers, if anything"
    assert gap({"own": Mark(7, at(10), at(9))}) is None
    assert kind(gap({"own": Mark(7, at(10), at(10))})) == (LOST_DATA, "own")


def test_an_earlier_life_is_taken_up_without_asking_only_where_the_source_has_it_too() -> None:
    there = {"own": Mark(6, EARLIER, EARLIER, 4), "x": Mark(2, Position(3, 1), Position(3, 1), 4)}
    assert (kind(gap(there)), raised(there)) == ((MADE_ANEW, "own"), {})
    assert raised(there, asked=True) == {"own": 7, "x": 3}
    assert (gap(there, kept=True), raised(there, kept=True)) == (None, {"own": 7, "x": 3})


def test_after_both_lives_are_kept_the_position_of_the_earlier_one_is_no_lost_data() -> None:
    assert gap({"own": Mark(7, EARLIER, EARLIER, 4)}) is None
    assert raised({"own": Mark(7, EARLIER, EARLIER, 4)}, asked=True) == {}


def test_a_later_life_at_the_destination_is_a_gap_of_the_source_alone() -> None:
    found = gap({"own": Mark(9, Position(10, 0), Position(10, 0))})
    assert kind(found) == (LOST_DATA, "own")
    assert found is not None
    assert not any(found.allows(policy, asked=True) for policy in POLICIES), "it takes back what it lost"
    assert gap({"x": Mark(4, Position(6, 0), Position(6, 0))}) is None, "what is here of x lies below it"


def test_the_text_of_a_gap_names_first_the_way_that_loses_nothing_and_in_numbers_what_another_one_deletes() -> None:
    found = gap({"own": Mark(6, EARLIER, EARLIER, 4_321)})
    assert found is not None
    assert found.detail.index(KEEP_BOTH) < found.detail.index(COPY_ANEW)
    assert "4321 messages" in found.detail
    for there in ({"own": Mark(7, at(10))}, {"own": Mark(9, Position(10, 0))}):
        lost = gap(there)
        assert lost is not None
        assert "delete" not in lost.detail
        assert lost.detail.index("backup reclaim") < len(lost.detail)


def test_a_gap_of_an_origin_of_which_the_destination_has_nothing_says_how_many_messages_would_be_deleted() -> None:
    found = gap({"own": Mark(7, at(9), at(9), 4_321)}, trimmed={"x": Position(5, 1)}, elsewhere="x")
    assert found is not None
    assert "4321 messages" in found.detail


PLACE = GapPlace("us-east", "eu-west", "persistent://public/default/it's", "second")
RESOLVE = (
    "`replicator links resolve -f FILE --from us-east --to eu-west --name second "
    "--topic 'persistent://public/default/it'\"'\"'s' --policy "
)
RECLAIM = "`replicator backup reclaim -f FILE --cluster us-east`"


@pytest.mark.parametrize(
    ("found", "commands"),
    [
        (Gap.trimmed({"x": (at(1), at(2))}), [f"{RESOLVE}skip-and-record`"]),
        (Gap.earlier_life("x", at(2), "eu-west"), [f"{RESOLVE}keep-both`"]),
        (Gap(MADE_ANEW, "x", "two lives"), [f"{RESOLVE}keep-both`"]),
        (Gap(LOST_DATA, "us-east", "lost"), [RECLAIM, f"{RESOLVE}skip-and-record`"]),
        (Gap(LOST_DATA, "us-east", "older", reclaim_only=True), [RECLAIM]),
    ],
)
def test_the_text_of_a_gap_has_whole_commands(found: Gap, commands: list[str]) -> None:
    text = replace(found, place=PLACE).detail
    places = [text.index(command) for command in commands]
    assert places == sorted(places)
    assert text.count("`replicator ") == len(commands)


@pytest.mark.parametrize("judgement", [Judgement.LOST, Judgement.ABOVE_THE_END])
def test_where_the_source_lost_its_store_both_lives_may_be_kept_after_the_cause_and_nothing_is_deleted(
    judgement: Judgement,
) -> None:
    found = Gap(MADE_ANEW, "us-east", "two lives", place=PLACE, judgement=judgement, cause=f"lost. {RECLAIM} takes it")
    assert found.detail.index(RECLAIM) < found.detail.index(f"{RESOLVE}keep-both` before that does no harm")
    assert COPY_ANEW not in found.detail


def test_what_was_deleted_on_purpose_is_not_to_be_brought_back() -> None:
    found = Gap(LOST_DATA, "us-east", "more", place=PLACE, judgement=Judgement.DELETED_ON_PURPOSE, cause="deleted")
    assert "reclaim" not in found.detail
    assert f"{RESOLVE}skip-and-record`" in found.detail
    older = replace(found, reclaim_only=True).detail
    assert older.index("begin a new life of the topic") < older.index(RECLAIM)
    assert "topics delete" not in older, "it can have the only copy"
    for text in (found.detail, older):
        assert "back" not in text.replace("replicator backup", "")


def test_what_the_destination_refused_comes_first_and_is_not_offered_again() -> None:
    for found in (Gap.trimmed({"x": (at(1), at(2))}, 8), Gap(MADE_ANEW, "x", "two lives", held=8)):
        assert COPY_ANEW in found.detail
        assert COPY_ANEW not in replace(found, held=None).detail, "how many messages it deletes, nobody said"
        text = replace(found, refused=PolicyRefused(COPY_ANEW, "NotAllowed: it has its own")).detail
        assert text.startswith("the destination refuses copy-anew: NotAllowed: it has its own. ")
        assert text.count(COPY_ANEW) == 1
        assert COPY_ANEW in replace(found, refused=PolicyRefused(KEEP_BOTH, "too old")).detail


def test_messages_that_only_the_destination_has_are_lost_data() -> None:
    assert kind(gap({"own": Mark(7, at(10))})) == (LOST_DATA, "own")


@pytest.mark.parametrize(
    ("what", "allowed"),
    [(TRIMMED, {SKIP_AND_RECORD, COPY_ANEW}), (MADE_ANEW, {KEEP_BOTH, COPY_ANEW}), (LOST_DATA, set())],
)
def test_each_kind_of_gap_ends_only_by_what_loses_nothing_in_silence(what: str, allowed: set[str]) -> None:
    found = Gap(what, "own", "")
    assert {policy for policy in (STOP, *POLICIES) if found.allows(policy)} == allowed
    asked = {policy for policy in (STOP, *POLICIES) if found.allows(policy, asked=True)}
    assert asked == (allowed or {SKIP_AND_RECORD}), "an operator may go on where the link by itself may not"


def test_what_is_missing_before_a_block_is_the_newest_below_it() -> None:
    missing = Missing({"x": at(3)}, {"x": [(at(5), at(6)), (at(8), at(9))]})
    assert [missing.before("x", at(entry)) for entry in (5, 7, 8, 10)] == [at(3), at(6), at(6), at(9)]
    assert missing.newest("x") == at(9)
    assert missing.before("own", at(5)) == missing.newest("own") == BEFORE_ALL


def test_a_later_life_known_by_markers_alone_ends_by_copying_anew_which_loses_no_message() -> None:
    found = gap({"own": Mark(9, Position(9, 3), BEFORE_ALL, 4)})
    assert found is not None
    assert (found.kind, found.policies()) == (LOST_DATA, ["copy-anew"])
    assert "by markers" in found.detail
    assert "its 4 messages" in found.detail
    assert "reclaim" not in found.detail
    assert not found.allows("copy-anew"), "an operator decides it"


def test_a_destination_that_cannot_say_what_it_lacks_is_to_be_upgraded_and_an_operator_may_go_on() -> None:
    found = Gap.unknown_lives("own", Position(3, 4), "there")
    assert found.policies() == ["keep-both"]
    assert found.detail.index("upgrade there") < found.detail.index("keep-both")
