"""Pages that name tests: which they name, and whether those are there."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parents[1]
DOCS = TESTS.parent / "docs"


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


def named(page: str) -> list[tuple[str, str]]:
    """File below ``tests/`` and name of every test in a page's text."""
    return re.findall(r"`([\w/]+\.py)::(\w+)`", page)


def missing(page: str) -> list[str]:
    """Return the tests that a page names and that do not exist."""
    return [
        f"{file}::{name}"
        for file, name in named(page)
        if not (TESTS / file).is_file() or name not in defined(TESTS / file)
    ]


def cases(page: str) -> list[str]:
    """Return the rows of a page's tables whose last column is for tests."""
    rows: list[str] = []
    of_tests = False
    for line in page.splitlines():
        if not line.startswith("| "):
            of_tests = False
        elif line.endswith(("| test |", "| tests |")):
            of_tests = True
        elif of_tests and not line.startswith("| ---"):
            rows.append(line)
    return rows
