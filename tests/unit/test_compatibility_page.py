"""The tests that docs/compatibility.md names are there, and no case of it is without a test or a reason."""

from __future__ import annotations

import re

from named_tests import DOCS, cases, missing, named

PAGE = (DOCS / "compatibility.md").read_text()


def test_every_test_that_the_page_names_exists() -> None:
    assert len(named(PAGE)) > 100
    assert not missing(PAGE)


def test_every_case_has_a_test_or_says_why_not() -> None:
    assert len(cases(PAGE)) > 80
    for line in cases(PAGE):
        *_, tests, _ = line.split(" |")
        assert "::" in tests or re.match(r" none: \w+", tests), line
