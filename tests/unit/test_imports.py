"""No circle of imports among the modules of the tree, not even one for types alone (LAYOUT: the rooms).

Every import counts wherever it stands: at the top, in a function, under ``if TYPE_CHECKING``. A package counts as its
``__init__`` module. Circles are the strongly connected components of the graph; Tarjan's algorithm finds them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOTS = ("replicator", "snapshots", "migrations")


def modules(root: Path) -> dict[str, Path]:
    """Return every module by its dotted name."""
    found: dict[str, Path] = {}
    for package in ROOTS:
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(name: str, source: str, known: Iterable[str], *, package: bool = False) -> set[str]:
    """Return the modules of ``known`` that the module ``name`` imports, except itself."""
    known = set(known)
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:  # from . import x: one level up for each dot, but the first of a package is itself
                parts = name.split(".")
                up = parts[: len(parts) - node.level + package]
                base = ".".join([*up, *([node.module] if node.module else [])])
            for alias in node.names:
                whole = f"{base}.{alias.name}"
                found.add(whole if whole in known else base)
    return (found & known) - {name}


def circles(graph: Mapping[str, Iterable[str]]) -> set[frozenset[str]]:
    """Return the strongly connected components of more than one member."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    found: set[frozenset[str]] = set()

    def visit(name: str) -> None:
        number[name] = lowest[name] = len(number)
        path.append(name)
        for other in graph[name]:
            if other not in number:
                visit(other)
                lowest[name] = min(lowest[name], lowest[other])
            elif other in path:
                lowest[name] = min(lowest[name], number[other])
        if lowest[name] == number[name]:
            at = path.index(name)
            members = frozenset(path[at:])
            del path[at:]
            if len(members) > 1:
                found.add(members)

    for name in graph:
        if name not in number:
            visit(name)
    return found


def graph_of(root: Path) -> dict[str, set[str]]:
    paths = modules(root)
    return {
        name: imported(name, path.read_text(encoding="utf-8"), paths, package=path.name == "__init__.py")
        for name, path in paths.items()
    }


def test_no_circle_of_imports() -> None:
    found = sorted(sorted(circle) for circle in circles(graph_of(ROOT)))
    assert not found, f"these modules import each other in a circle: {found}"


def test_a_circle_is_found_however_it_is_imported(tmp_path: Path) -> None:
    sources = {
        "replicator/__init__.py": "",
        "replicator/a.py": "import replicator.b",
        "replicator/b.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from replicator.c import C",
        "replicator/c.py": "def later():\n    from . import a",
        "replicator/d.py": "from replicator import a",  # leads to the circle, is not of it
        "replicator/e/__init__.py": "from replicator.e.f import F",
        "replicator/e/f.py": "from .. import e",
        "snapshots/x.py": "from .y import Y\nimport snapshots.z",
        "snapshots/y.py": "",
        "snapshots/z.py": "from snapshots.y import Y",
    }
    for name, source in sources.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(source)
    assert circles(graph_of(tmp_path)) == {
        frozenset({"replicator.a", "replicator.b", "replicator.c"}),
        frozenset({"replicator.e", "replicator.e.f"}),
    }
