"""Each case of docs/compatibility.md has a test or a reason, and the tests are there."""

from __future__ import annotations

from named_tests import missing, shown_by, unknown, without_tests

PAGE = "compatibility.md"


def test_every_test_of_a_case_exists() -> None:
    assert not missing(PAGE)


def test_every_case_has_a_test_or_says_why_not() -> None:
    assert sum(map(len, shown_by(PAGE).values())) > 180
    assert not without_tests(PAGE)


def test_every_case_of_the_page_is_among_those_that_are_tested() -> None:
    assert not unknown(PAGE)
