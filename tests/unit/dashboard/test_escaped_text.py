"""No text of the dashboard is replaced, or taken for HTML, after it was escaped."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import replicator.dashboard

FOLDER = Path(replicator.dashboard.__file__).parent
REPLACING = {"rendering.py": 1, "policy_catalog.py": 1, "sessions.py": 2}
"""Calls of ``str.replace`` by file: separators of a number before it is escaped, and the check of a session's name."""


def test_only_parts_that_templates_made_are_inserted_unescaped() -> None:
    inserted = [
        use
        for file in (FOLDER / "templates").rglob("*.html")
        for use in re.findall(r"\{[{%][^{}]*\bsafe\b[^{}]*[}%]\}|autoescape", file.read_text())
    ]
    assert inserted
    assert [use for use in inserted if re.fullmatch(r"\{\{ parts\.\w+ \| safe \}\}", use) is None] == []


def test_no_module_marks_text_as_escaped_and_none_replaces_text_of_a_page() -> None:
    replacing: dict[str, int] = {}
    for file in FOLDER.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Name | ast.Attribute):
                name = node.id if isinstance(node, ast.Name) else node.attr
                assert name not in ("Markup", "autoescape"), file
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                assert node.func.attr not in ("sub", "subn"), file
                if node.func.attr == "replace" and len(node.args) >= 2:
                    replacing[file.name] = replacing.get(file.name, 0) + 1
    assert replacing == REPLACING
