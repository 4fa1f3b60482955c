"""Makes the page that lists what is tested beside Apache Pulsar: a row for each file of tests."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Final

PAGE: Final = "reference/apache-pulsar-tests.md"
FILES: Final = ("tests/support/bridge_contract*.py", "tests/peers/test_apache_*.py")
TEXT: Final = """\
# What is tested beside Apache Pulsar

<!-- Made by `make reference` from the tests. Do not edit it. -->

Tests with real brokers (Apache Pulsar 4.0.0) are in `tests/peers`; those of `tests/support` run there, and with workers
of ours that play brokers. The name of each test is a sentence that says what holds.
[apache-pulsar.md](../apache-pulsar.md) says what works, what the limits are, and what ends a halt.

| file | what its tests are about |
| --- | --- |
"""


def page(repository: Path) -> str:
    """Return the page: a row for each file that has tests."""
    rows = [TEXT]
    for file in sorted(file for pattern in FILES for file in repository.glob(pattern)):
        tree = ast.parse(file.read_text())
        functions = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        if any(node.name.startswith("test_") for node in functions):
            rows.append(f"| `{file.name}` | {_plain(ast.get_docstring(tree) or file.stem)} |\n")
    return "".join(rows)


def _plain(docstring: str) -> str:
    """Return the first sentence of a docstring, in Markdown."""
    text = re.sub(r":\w+:`([^`]+)`", r"`\1`", " ".join(docstring.split())).replace("``", "`")
    return text.partition(". ")[0].rstrip(".") + "."
