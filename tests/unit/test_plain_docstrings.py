"""The check that docstrings open with a sentence that stands alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from reference_support import script

ROOT = Path(__file__).resolve().parents[2]
plain_docstrings = script(ROOT / ".ci" / "plain_docstrings.py")


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
