"""Python's garbage collector in the program that measures."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collector() -> Iterator[None]:
    """Times that are taken meanwhile are not those of the collector: to go through the half a million objects that this
    program imports and records takes it 50 ms, some four times a second."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
