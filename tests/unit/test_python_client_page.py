"""Each public name of the official Python client has a program, and docs/compatibility.md has each difference."""

from __future__ import annotations

import re

import pytest
import yaml
from named_tests import DOCS

pytest.importorskip("pulsar")

from differential import programs  # noqa: F401
from differential.harness import PROGRAMS
from differential.public_names import public_names

PAGE = (DOCS / "compatibility.md").read_text()
DIFFERENCES = PAGE[PAGE.index("## Where ours differs from Pulsar 4.0.0") :]
EXPLAINED = DIFFERENCES[DIFFERENCES.index("### The official Python client, name by name") :]
NAMES = yaml.safe_load((DOCS.parent / "tests" / "differential" / "names.yaml").read_text())
PROGRAMS_MIN = 150


def rows(section: str) -> list[list[str]]:
    """The cells of the lines of its first table."""
    table = re.search(r"(?:^\|.*\n)+", section, re.MULTILINE)
    assert table is not None
    return [line.strip("| ").split(" | ") for line in table[0].splitlines()[2:]]


def test_the_differences_are_those_that_programs_show() -> None:
    documented = [cells[0].strip("`") for cells in rows(DIFFERENCES)]
    assert documented == sorted({each.differs.why for each in PROGRAMS.values() if each.differs is not None})


def test_every_public_name_is_listed_once() -> None:
    assert sorted(name for group in NAMES for name in group["names"]) == sorted(public_names())


def test_every_name_has_a_program_that_is_there_or_says_why_not() -> None:
    known = {name.partition("[")[0] for name in PROGRAMS}
    for group in NAMES:
        assert group["programs"] == "the client alone" or set(group["programs"]) <= known, group


def test_names_and_differences_that_the_page_explains_are_there() -> None:
    differences = {cells[0] for cells in rows(DIFFERENCES)}
    for names, here in rows(EXPLAINED):
        assert set(re.findall(r"`([^`]+)`", names)) <= public_names(), names
        assert set(re.findall(r"`[a-z]+(?:-[a-z]+)+`", here)) <= differences, here


def test_there_are_programs_of_every_feature() -> None:
    assert len(PROGRAMS) >= PROGRAMS_MIN
