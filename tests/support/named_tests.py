"""Tests of the cases of a page (``shown_by.yaml``), and whether they are there."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import yaml

TESTS = Path(__file__).parents[1]
DOCS = TESTS.parent / "docs"
HEADS = "case|scenario|#|what|client|how a mark-delete position moves"
"""The first cells of tables of cases, as a pattern."""
SHOWN_BY = Path(__file__).with_name("shown_by.yaml")


@cache
def defined(file: Path) -> frozenset[str]:
    """Return the tests of a file: functions, and test cases that are made of state machines."""
    names: set[str] = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names.update(target.id for target in node.targets if isinstance(target, ast.Name))
    return frozenset(name for name in names if name.startswith(("test_", "Test")))


def shown_by(page: str) -> dict[str, dict[str, list[str] | str]]:
    """Return the tests of each case of a page (``shown_by.yaml``), by section: a list, or why there is none."""
    shown: dict[str, dict[str, list[str] | str]] = yaml.safe_load(SHOWN_BY.read_text())[page]
    return {section: {str(case): tests for case, tests in cases.items()} for section, cases in shown.items()}


def missing(page: str) -> list[str]:
    """Return the tests that a page's cases name and that do not exist."""
    tests = (test for cases in shown_by(page).values() for named in cases.values() for test in _tests(named))
    parts = [(test, *test.split("::")) for test in tests]
    return [test for test, file, name in parts if not (TESTS / file).is_file() or name not in defined(TESTS / file)]


def without_tests(page: str) -> list[str]:
    """Return the cases of a page that have neither a test nor a reason."""
    return [
        f"{section}: {case}"
        for section, cases in shown_by(page).items()
        for case, named in cases.items()
        if not _tests(named) and not re.match(r"none: \w+", str(named))
    ]


def unknown(page: str) -> list[str]:
    """Return the rows of a page's tables of cases that ``shown_by.yaml`` does not have."""
    shown = shown_by(page)
    found: list[str] = []
    section: str = ""
    of_cases: bool | None = None
    for line in (DOCS / page).read_text().splitlines():
        if heading := re.match(r"#+ (.+)", line):
            section = heading[1]
        if not line.startswith("| "):
            of_cases = None
        elif of_cases is None:  # the head of a table
            of_cases = bool(re.match(rf"\| ({HEADS}) \|", line))
        elif of_cases and not line.startswith("| ---"):
            case = line[2:].split(" | ")[0]
            if case not in shown.get(section, {}):
                found.append(f"{section}: {case}")
    return found


def _tests(named: list[str] | str) -> list[str]:
    return named if isinstance(named, list) else []
