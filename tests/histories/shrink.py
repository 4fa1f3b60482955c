"""Shrink a failing history: leave steps out while it still fails (delta debugging, Zeller and Hildebrandt 2002)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

from histories.steps import IDLE, NAMED, PARTED, TOPICS, Step

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


def failure_kind(failure: str) -> str:
    """Return the words of a failure without names, positions and numbers; "" if nothing failed.

    Failures of one kind have the same words, so a step is only left out if the same kind of failure remains.
    """
    first_line = failure.partition("\n")[0]
    words = re.findall(r"(?<![\w-])[A-Za-z_]{2,}(?![\w-])", first_line)
    return " ".join([word for word in words if word not in (*TOPICS, IDLE, NAMED, PARTED)][:6])
