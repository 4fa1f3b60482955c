#!/usr/bin/env python3
"""Lists docstrings whose first sentence begins with a word that leaves the reader without a subject.

``make lint`` runs it. Such a sentence is a fragment, or has to be turned round to be understood: "Of the route.", "What
a link holds back". Write a verb first for a function, and a noun phrase for a class or a module.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("replicator", "snapshots", "migrations", "bench", "tests", ".ci")
OPENINGS = re.compile(r"(Of|What|Who|Whose|Whom|As|So|Where|Which|The same)\b")
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and text of each docstring, also of those behind constants and fields."""
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and (docstring := ast.get_docstring(node)):
            yield getattr(node, "lineno", 1), docstring
        body = getattr(node, "body", None)
        for before, each in pairwise(body if isinstance(body, list) else ()):
            match before, each:
                case ast.Assign() | ast.AnnAssign(), ast.Expr(value=ast.Constant(value=str(docstring))):
                    yield each.lineno, docstring.strip()


def fragments(text: str) -> list[tuple[int, str]]:
    """Return line and first line of each docstring of a module's text that opens with one of the words."""
    found = docstrings(ast.parse(text))
    return [(line, docstring.splitlines()[0]) for line, docstring in found if OPENINGS.match(docstring)]


def main() -> int:
    """Print each fragment with its place; return 1 if there is one."""
    found = 0
    for folder in FOLDERS:
        for file in sorted((ROOT / folder).rglob("*.py")):
            for line, opening in fragments(file.read_text()):
                print(f"{file.relative_to(ROOT)}:{line}: {opening}")
                found += 1
    print(f"{found} docstrings open with a fragment." if found else "No docstring opens with a fragment.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
