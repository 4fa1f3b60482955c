"""The tests that docs/compatibility.md names are there, and no case of it is without a test or a reason."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "compatibility.md"


@cache
def defined(file: Path) -> frozenset[str]:
    """The tests of a file: functions, and test cases that are made of state machines."""
    names: set[str] = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names.update(target.id for target in node.targets if isinstance(target, ast.Name))
    return frozenset(name for name in names if name.startswith(("test_", "Test")))


def test_every_test_that_the_page_names_exists() -> None:
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", PAGE.read_text())
    assert len(named) > 100
    missing = [f"{file}::{name}" for file, name in named if not (TESTS / file).is_file()]
    assert not missing
    missing = [f"{file}::{name}" for file, name in named if name not in defined(TESTS / file)]
    assert not missing


def test_every_case_has_a_test_or_says_why_not() -> None:
    page = PAGE.read_text().partition("## Key_Shared")[2]
    cases = [line for line in page.splitlines() if line.startswith("| ") and not line.startswith(("| case |", "| ---"))]
    assert len(cases) > 80
    for line in cases:
        *_, tests, _ = line.split(" |")
        assert "::" in tests or re.match(r" none: \w+", tests), line
