"""Settings of Python's garbage collector: it skips objects that live from the start of a process to its end.

A worker imports half a million objects. To look for garbage among them took 0.3 s of the 2.4 s of CPU of its start.
Later, each full collection took 0.15 s, in which its event loop stood still. What is made later is looked through less
often than Python does by default: where a thousand subscriptions moved, that took a fourteenth of a worker's CPU.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

THRESHOLDS: Final = (5_000, 10, 10)
"""Thresholds for :func:`gc.set_threshold`: a number of objects, most of them gone by then, and how often younger
generations come first.
"""


@contextmanager
def made_to_stay() -> Iterator[None]:
    """Keep all objects that exist or are made in this context out of garbage collection for ever. Use it only in a
    process with a single purpose: in others, such as tests, the objects would stay after their use.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.set_threshold(*THRESHOLDS)
        gc.enable()
