"""A limit on the steps of pure code: a loop without an end fails its test instead of hanging it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class TooManySteps(AssertionError):
    """The code ran more lines than it may."""


@contextmanager
def at_most_steps(lines_max: int) -> Iterator[None]:
    """Raise :class:`TooManySteps` out of the block as soon as it ran ``lines_max`` lines of Python in this thread.

    Counting lines does not depend on how busy the machine is. C code is not counted: each call of it ends by itself.
    """
    left = lines_max

    def count(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal left
        if event == "line":
            left -= 1
            if left < 0:
                raise TooManySteps(f"more than {lines_max} lines ran, the last one in {frame.f_code.co_qualname}")
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        yield
    finally:
        sys.settrace(before)
