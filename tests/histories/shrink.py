"""Shrink a failing history: leave steps out while it still fails (delta debugging, Zeller and Hildebrandt 2002)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from histories.steps import Step

TRIES_MAX: Final = 80
"""Runs of one shrinking. Each takes seconds."""


def shrunk(steps: Sequence[Step], fails: Callable[[list[Step]], bool], tries_max: int = TRIES_MAX) -> list[Step]:
    """Return few of ``steps`` with which ``fails`` is still true; all of them if it is not true again."""
    left, tries = list(steps), 0
    parts = 2
    while len(left) > 1 and tries < tries_max:
        size = max(1, len(left) // parts)
        for start in range(0, len(left), size):
            fewer = left[:start] + left[start + size :]
            tries += 1
            if fewer and fails(fewer):
                left = fewer
                parts = max(2, parts - 1)
                break
            if tries >= tries_max:
                break
        else:
            if size == 1:
                break
            parts = min(len(left), parts * 2)
    return left
