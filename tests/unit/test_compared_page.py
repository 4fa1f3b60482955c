"""docs/compared.md goes through every problem and scenario, and the tests that show them exist."""

from __future__ import annotations

from named_tests import DOCS, missing, shown_by, unknown, without_tests

PAGE = "compared.md"
PROBLEMS = 17
SCENARIOS = 22


def test_every_test_of_a_case_exists() -> None:
    assert not missing(PAGE)


def test_every_problem_and_every_scenario_has_a_test() -> None:
    shown = shown_by(PAGE)
    assert list(shown["Problems"]) == [str(number) for number in range(1, PROBLEMS + 1)]
    assert len(shown["Scenarios"]) >= SCENARIOS
    assert not without_tests(PAGE)


def test_the_page_goes_through_all_of_them() -> None:
    text = (DOCS / PAGE).read_text()
    assert not unknown(PAGE)
    assert [case for cases in shown_by(PAGE).values() for case in cases if f"\n| {case} | " not in text] == []
