"""The run of a store that a destination serves, after restarts, half-open connections, twins and an operator's word."""

from __future__ import annotations

from itertools import count

import pytest

from replicator.links.served_runs import (
    ANSWER_SECONDS,
    FRESH_SECONDS,
    OLDER,
    OTHERS_MAX,
    TWIN_SECONDS,
    RunUnknown,
    ServedRuns,
    StoredRuns,
    Verdict,
)
from replicator.peering.runs import EARLIER_MAX, Run, RunAnnouncement, RunAnswer, RunVerdict

FIRST = Run("first", (), "h1", 1)
RESTARTED = Run("restarted", ("first",), "h1", 2)
COPY = Run("copy", ("first",), "h2", 3)
SERVED = Verdict(RunVerdict.SERVED)


def runs(kept: StoredRuns | None = None, now: float = 0.0) -> ServedRuns:
    numbers = count(1)
    return ServedRuns(lambda: f"q{next(numbers)}", now, kept)


def connected(run: Run = FIRST) -> ServedRuns:
    made = runs()
    assert made.arrives(run, 0.0) == SERVED
    made.connected(run.id)
    return made


def with_twins() -> ServedRuns:
    """First and copy at second 1; the first is connected."""
    made = connected()
    assert made.arrives(COPY, 0.5) == Verdict(RunVerdict.ASKING, question="q1")
    made.answered("first", "q1", 0.6)
    assert made.arrives(COPY, 1.0) == Verdict(RunVerdict.TWIN)
    return made


def test_a_run_that_comes_while_no_other_is_connected_is_served_at_once() -> None:
    made = connected()
    made.disconnected("first", 1.0)
    assert made.arrives(RESTARTED, 1.0) == Verdict(RunVerdict.SERVED, ended="first")
    assert made.serves("restarted")
    assert not made.serves("first")


def test_a_run_that_comes_again_is_served_as_before() -> None:
    made = connected()
    assert made.arrives(FIRST, 1.0) == SERVED
    assert made.twins(1.0) == []


def test_a_first_run_that_does_not_answer_within_the_time_has_ended_and_the_next_takes_its_place() -> None:
    made = connected()
    assert made.arrives(RESTARTED, 10.0) == Verdict(RunVerdict.ASKING, question="q1")
    assert made.arrives(RESTARTED, 10.0 + ANSWER_SECONDS - 0.1) == Verdict(RunVerdict.ASKING)
    assert made.serves("first")
    assert made.arrives(RESTARTED, 10.0 + ANSWER_SECONDS) == Verdict(RunVerdict.SERVED, ended="first")
    assert made.twins(10.0 + ANSWER_SECONDS) == []


def test_an_answer_to_another_question_or_of_another_run_does_not_count() -> None:
    made = connected()
    made.arrives(COPY, 0.0)
    made.answered("first", "q0", 0.1)
    made.answered("copy", "q1", 0.1)
    assert made.arrives(COPY, ANSWER_SECONDS) == Verdict(RunVerdict.SERVED, ended="first")


def test_two_runs_are_twins_only_after_both_answered() -> None:
    made = connected()
    made.arrives(COPY, 0.0)
    assert made.arrives(COPY, 0.5) == Verdict(RunVerdict.ASKING)
    assert made.twins(0.5) == []
    made.answered("first", "q1", 0.6)
    assert made.twins(0.6) == [], "the second has not come again"
    assert made.arrives(COPY, 0.7) == Verdict(RunVerdict.TWIN)
    assert made.twins(0.7) == [COPY]
    assert made.serves("first")


def test_an_answer_counts_for_the_runs_that_it_was_asked_for_and_not_for_long() -> None:
    made = connected()
    made.arrives(COPY, 0.0)
    made.answered("first", "q1", 0.1)
    assert made.arrives(Run("another", ("first",)), 0.2) == Verdict(RunVerdict.ASKING, question="q2")
    made.answered("first", "q2", 0.3)
    late = 0.4 + FRESH_SECONDS
    assert made.arrives(Run("another", ("first",)), late) == Verdict(RunVerdict.ASKING, question="q3")


def test_a_twin_whose_first_stops_answering_waits_until_the_place_is_not_kept_any_more() -> None:
    made = with_twins()
    asked_at = 1.0 + FRESH_SECONDS
    assert made.arrives(COPY, asked_at).question == "q2"
    assert made.arrives(COPY, asked_at + ANSWER_SECONDS) == Verdict(RunVerdict.TWIN, ended="first")
    assert made.arrives(COPY, 0.6 + TWIN_SECONDS) == Verdict(RunVerdict.TWIN)
    assert made.arrives(COPY, 0.7 + TWIN_SECONDS) == Verdict(RunVerdict.SERVED, ended="first")
    assert made.twins(0.7 + TWIN_SECONDS) == []


def test_while_there_are_twins_a_restart_of_the_first_takes_its_place_and_the_copy_does_not() -> None:
    made = with_twins()
    made.disconnected("first", 2.0)
    assert made.arrives(COPY, 2.1) == Verdict(RunVerdict.TWIN)
    copy_restarted = Run("copy restarted", COPY.line)
    assert made.arrives(copy_restarted, 2.2) == Verdict(RunVerdict.TWIN)
    assert made.arrives(RESTARTED, 3.0) == Verdict(RunVerdict.SERVED, ended="first")


def test_a_twin_that_was_not_heard_of_for_long_is_none_any_more() -> None:
    made = with_twins()
    assert made.twins(1.0 + TWIN_SECONDS) == [COPY]
    assert made.twins(1.1 + TWIN_SECONDS) == []
    assert made.kept() is None


@pytest.mark.parametrize(("stays", "goes"), [(FIRST, COPY), (COPY, FIRST)])
def test_an_operator_says_which_of_them_stays_whichever_was_first(stays: Run, goes: Run) -> None:
    made = with_twins()
    assert made.stays(stays.id, 2.0) == (None if stays is FIRST else "first")
    assert made.arrives(stays, 2.0) == SERVED
    assert made.arrives(goes, 2.0) == Verdict(RunVerdict.DISMISSED)
    later_start = Run("later start", goes.line)
    assert made.arrives(later_start, 2.0) == Verdict(RunVerdict.DISMISSED)
    later_start_of_the_one_that_stays = Run("later", stays.line)
    made.disconnected(stays.id, 3.0)
    assert made.arrives(later_start_of_the_one_that_stays, 3.0).standing is RunVerdict.SERVED


def test_a_dismissed_store_stays_dismissed_however_often_it_is_started() -> None:
    """A run names only the last runs of its store before it."""
    made = with_twins()
    made.stays("first", 2.0)
    line: tuple[str, ...] = COPY.line
    for number in range(3 * EARLIER_MAX):
        run = Run(f"copy {number}", line[:EARLIER_MAX], "h2", number)
        assert made.arrives(run, 3.0 + number).standing is RunVerdict.DISMISSED
        line = run.line
    assert len(made.decisions.gone) < 8, "and not each start of it is remembered"
    assert made.arrives(Run("later", ("first",), "h1", 9), 500.0).standing is not RunVerdict.DISMISSED


def test_a_decision_may_be_taken_back() -> None:
    made = with_twins()
    made.stays("first", 2.0)
    assert made.arrives(COPY, 2.0) == Verdict(RunVerdict.DISMISSED)
    assert made.stays("copy", 3.0) == "first"
    assert made.arrives(COPY, 3.0) == SERVED
    assert made.arrives(FIRST, 3.0) == Verdict(RunVerdict.DISMISSED)


def test_a_store_that_was_restored_from_before_both_runs_is_not_refused() -> None:
    made = with_twins()
    made.stays("first", 2.0)
    made.disconnected("first", 3.0)
    assert made.arrives(Run("restored", ("long before",)), 3.0).standing is RunVerdict.SERVED


def test_an_operator_can_name_only_a_run_that_is_known_and_has_a_twin() -> None:
    with pytest.raises(RunUnknown):
        connected().stays("first", 1.0)
    with pytest.raises(RunUnknown):
        with_twins().stays("nobody", 1.0)


def test_twins_and_decisions_survive_a_restart_of_the_destination() -> None:
    made = with_twins()
    kept = StoredRuns.of_json(made.kept().as_json())  # type: ignore[union-attr]
    again = runs(kept, 100.0)
    assert again.arrives(COPY, 100.1) == Verdict(RunVerdict.TWIN)
    assert again.arrives(FIRST, 100.2) == SERVED
    again.stays("copy", 101.0)
    last = runs(StoredRuns.of_json(again.kept().as_json()), 200.0)  # type: ignore[union-attr]
    assert last.arrives(FIRST, 200.0) == Verdict(RunVerdict.DISMISSED)
    assert last.arrives(COPY, 200.0) == SERVED


def test_a_worker_of_an_earlier_version_gives_way_to_a_run_and_a_run_is_asked_before_it_gives_way() -> None:
    made = runs()
    assert made.arrives(OLDER, 0.0) == SERVED
    made.connected(OLDER.id)
    assert made.arrives(FIRST, 1.0) == Verdict(RunVerdict.SERVED, ended=OLDER.id)
    made.connected("first")
    assert made.arrives(OLDER, 2.0) == Verdict(RunVerdict.ASKING, question="q1")
    made.answered("first", "q1", 2.1)
    assert made.arrives(OLDER, 2.2) == Verdict(RunVerdict.TWIN)


def test_not_more_twins_are_remembered_than_the_limit() -> None:
    made = connected()
    for number in range(3 * OTHERS_MAX):
        copy = Run(f"copy {number}", ("first",))
        made.arrives(copy, number)
        made.answered("first", f"q{number + 1}", number)
        assert made.arrives(copy, number) == Verdict(RunVerdict.TWIN)
        assert len(made.twins(number)) <= OTHERS_MAX


def test_messages_are_the_same_after_their_way_as_json() -> None:
    told = RunAnnouncement(COPY, "q1")
    assert RunAnnouncement.of_json(told.as_json()) == told
    answer = RunAnswer(RunVerdict.TWIN, FIRST, [COPY], "why")
    assert RunAnswer.of_json(answer.as_json()) == answer
