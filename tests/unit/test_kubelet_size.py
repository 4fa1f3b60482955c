"""The node that stands in for kubelet stays small enough to be read in one sitting (docs/adr/0053)."""

from __future__ import annotations

import ast
import io
import tokenize
from pathlib import Path
from typing import Final

KUBELET: Final = Path(__file__).parents[1] / "kubelet"
LINES_MAX: Final = 650
_NO_CODE: Final = frozenset(
    {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    }
)


def lines_of_code(text: str) -> int:
    """Lines on which code stands: no empty ones, no comments, no docstrings."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def test_code_is_counted_and_nothing_else() -> None:
    text = (
        '"""A module."""\n\n# why\nx = [  # here\n    1,\n]\n"""Of x."""\n\n\ndef f():\n    """Do."""\n    return x\n'
    )
    assert lines_of_code(text) == 5


def test_the_node_has_650_lines_of_code_at_most() -> None:
    counted = {file.name: lines_of_code(file.read_text()) for file in KUBELET.glob("*.py")}
    assert len(counted) > 5
    assert sum(counted.values()) <= LINES_MAX, counted
