"""Makes the page that lists what is tested beside Apache Pulsar: names of tests are sentences."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

PAGE: Final = "reference/apache-pulsar-tests.md"
FILES: Final = ("tests/support/bridge_contract*.py", "tests/peers/test_apache_*.py")
TEXT: Final = """\
# What is tested beside Apache Pulsar

<!-- made by `make reference` -->

Each line is a test with real brokers (Apache Pulsar 4.0.0), or with workers of ours that play them.
[apache-pulsar.md](../apache-pulsar.md) says what works, what the limits are, and what ends a halt.
Invariants are those of [architecture.md](../architecture.md#the-invariants).
"""


def page(repository: Path) -> str:
    """Return the page: a list of tests for each file that has some."""
    parts = [TEXT]
    for file in sorted(file for pattern in FILES for file in repository.glob(pattern)):
        tree = ast.parse(file.read_text())
        if tests := list(_tests(tree)):
            heading = _plain(ast.get_docstring(tree) or file.stem)
            lines = "\n".join(f"* {each}" for each in tests)
            parts.append(f"\n## {file.relative_to(repository)}\n\n{heading}\n\n{lines}\n")
    return "".join(parts)


def _plain(docstring: str) -> str:
    """Return the first sentence of a docstring, in Markdown."""
    text = re.sub(r":\w+:`([^`]+)`", r"`\1`", " ".join(docstring.split())).replace("``", "`")
    return text.partition(". ")[0].rstrip(".") + "."


def _tests(tree: ast.Module) -> Iterator[str]:
    """Yield the name of each test as a sentence."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            words = node.name.removeprefix("test_")
            found = re.fullmatch(r"invariants?_((?:\d+_(?:and_)?)+)(.*)", words)
            if found is None or found[2].startswith("hold"):
                sentence, numbers = words, []
            else:
                sentence, numbers = found[2], re.findall(r"\d+", found[1])
            sentence = sentence.replace("_", " ")
            yield sentence[:1].upper() + sentence[1:] + (f" (invariant {', '.join(numbers)})" if numbers else "")
