"""Check of docs/compared.md: it goes through every problem and scenario, and the tests that it names exist."""

from __future__ import annotations

from named_tests import DOCS, cases, missing, named

PAGE = (DOCS / "compared.md").read_text()
PROBLEMS = 17
SCENARIOS = 22


def test_every_test_that_the_page_names_exists() -> None:
    assert len(named(PAGE)) > 60
    assert not missing(PAGE)


def test_every_problem_and_every_scenario_has_a_test() -> None:
    problems, _, scenarios = PAGE.partition("## Scenarios")
    assert [line.split(" | ")[0] for line in cases(problems)] == [f"| {number}" for number in range(1, PROBLEMS + 1)]
    assert len(cases(scenarios)) >= SCENARIOS
    for line in cases(PAGE):
        assert named(line), line
