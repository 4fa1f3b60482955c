"""The check that docstrings open with a sentence that stands alone."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_spec = importlib.util.spec_from_file_location("plain_docstrings", ROOT / ".ci" / "plain_docstrings.py")
assert _spec is not None
assert _spec.loader is not None
plain_docstrings = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(plain_docstrings)


@pytest.mark.parametrize(
    "text",
    [
        '"""Of the route."""',
        'class A:\n    """Who asks."""',
        'def f() -> None:\n    """\n    What a link holds back.\n    """',
        'A = 1\n"""Where it lies."""',
        'class A:\n    a: int\n    """The same of all."""',
    ],
)
def test_a_fragment_is_found_wherever_a_docstring_may_be(text: str) -> None:
    assert len(plain_docstrings.fragments(text)) == 1


@pytest.mark.parametrize("text", ['"""Offers of producers."""', 'x = 1\n\nprint("Of all")', 'f("""What""")', ""])
def test_a_sentence_and_a_string_that_documents_nothing_pass(text: str) -> None:
    assert plain_docstrings.fragments(text) == []
