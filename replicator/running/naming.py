"""Text that names the first of many things."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

NAMED_MAX: Final = 10
"""Most names in a text."""


def named(names: Sequence[str], count: int | None = None) -> str:
    """Return the first :data:`NAMED_MAX` of ``names``, and how many more of the ``count`` there are."""
    shown = names[:NAMED_MAX]
    more = (len(names) if count is None else count) - len(shown)
    return f"{', '.join(shown)}{f' and {more} more' if more > 0 else ''}"
