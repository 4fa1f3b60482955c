"""Names in docs/architecture.md and docs/glossary.md exist in the tree: paths, modules, classes and functions."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ("docs/architecture.md", "docs/glossary.md", "README.md")
MADE_BY_READERS = frozenset({"example.py"})


def missing(text: str) -> list[str]:
    """Return the names in a page that are not in the tree."""
    paths = {word for word in re.findall(r"[\w./-]+\.py\b|[\w./-]+/(?=[`\s:)])", text) if not word.startswith("..")}
    paths -= MADE_BY_READERS
    dotted = set(re.findall(r"\b(?:replicator|snapshots)(?:\.\w+)+", text))
    dotted -= {word for word in dotted if any(path.startswith(word) for path in paths)}
    absent = [path for path in paths if not any((ROOT / room / path).exists() for room in ("", "replicator", "docs"))]
    return sorted(absent + [name for name in dotted if not is_there(name)])


def is_there(name: str) -> bool:
    """Return whether a dotted name is a package or a module, or a class, a function, a method or a constant in one."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        place = ROOT.joinpath(*parts[:end])
        for path in (place.with_suffix(".py"), place / "__init__.py"):
            if path.is_file():
                return stands_in(ast.parse(path.read_text()), parts[end:])
    return False


def stands_in(tree: ast.AST, names: list[str]) -> bool:
    if not names:
        return True
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name == names[0]:
            return stands_in(node, names[1:])
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if len(names) == 1 and any(isinstance(each, ast.Name) and each.id == names[0] for each in targets):
                return True
    return False


@pytest.mark.parametrize("page", PAGES)
def test_every_place_in_the_tree_that_a_page_names_is_there(page: str) -> None:
    assert missing((ROOT / page).read_text()) == []


def test_a_name_that_is_not_there_is_found_out() -> None:
    assert missing("see `replicator.links.copier.Copier.on_block`, `snapshots/markers.py`, `engine/topic.py: ok`") == []
    assert missing("`replicator.links.copier.Gone` `replicator.links.nowhere` `engine/gone.py` and `links/none/`") == [
        "engine/gone.py",
        "links/none/",
        "replicator.links.copier.Gone",
        "replicator.links.nowhere",
    ]


def test_every_word_of_the_glossary_has_a_place() -> None:
    rows = re.findall(r"^\| \*\*(.+?)\*\* \|(.*)\|(.*)\|$", (ROOT / "docs/glossary.md").read_text(), re.MULTILINE)
    assert len(rows) > 30
    assert [word for word, _, place in rows if not re.search(r"`(replicator|snapshots)[./]\w", place)] == []
    words = [word.lower() for word, _, _ in rows]
    assert words == sorted(words), "the words are in the order of the alphabet"


def test_every_record_of_a_decision_says_whether_it_holds() -> None:
    """The second paragraph is ``Status: accepted``, with those that revise it, or ``Status: superseded by`` another."""
    records = sorted((ROOT / "docs" / "adr").glob("0*.md"))
    pattern = re.compile(r"# .*\n\nStatus: (accepted|superseded by \[\d+\]\([\w-]+\.md\))")
    assert len(records) > 100
    assert [each.name for each in records if not pattern.match(each.read_text())] == []
