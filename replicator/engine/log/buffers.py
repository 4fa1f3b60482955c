"""Memory that is used again once nobody refers to it any more.

New memory is slow: its first touch takes longer than copying data there. So memory for reading, receiving and gathering
blocks is used again. It comes back by itself when the last view of it is gone.

Invariant (DESIGN §3): 11, no more than ``spare_bytes_max`` waits to be used again.
"""

from __future__ import annotations

import mmap
import weakref
from collections import deque
from contextlib import suppress
from typing import Final

import numpy as np

HUGE_PAGE_BYTES: Final = 2 * 1024 * 1024
STEP_BYTES: Final = 1024 * 1024
"""Sizes from here on are rounded up to a multiple of it, smaller ones to a power of two. So the memory of one block
also fits a next block that is a little larger."""
REUSED_BYTES_MIN: Final = 256 * 1024
"""Smaller pieces come from the allocator, which uses its own memory again."""


class Buffers:
    """Pool of memory. It is safe for several threads, and for garbage collection that gives memory back during a call:
    each step on the queue is atomic."""

    def __init__(self, spare_bytes_max: int) -> None:
        self._spare_bytes_max = spare_bytes_max
        self._spare: deque[mmap.mmap] = deque()

    def take(self, size: int) -> memoryview:
        """Return ``size`` bytes of memory with arbitrary content."""
        return self.take_aligned(size) if size >= REUSED_BYTES_MIN else np.empty(size, np.uint8).data

    def take_aligned(self, size: int) -> memoryview:
        """Return ``size`` bytes of memory with arbitrary content that begin at a page boundary."""
        rounded = _rounded(size)
        memory = self._take_spare(rounded) or _mapped(rounded)
        array = np.frombuffer(memory, np.uint8, count=size)  # lives as long as anything that refers to a part of it
        weakref.finalize(array, self._give_back, memory).atexit = False
        return array.data

    @property
    def spare_bytes(self) -> int:
        """Bytes that wait to be used again; an approximation while other threads take and give back."""
        total = 0
        for index in range(len(self._spare)):
            with suppress(IndexError):
                total += len(self._spare[index])
        return total

    def clear(self) -> None:
        """Release all waiting memory. Call this when there may be nothing to do for a while."""
        self._spare.clear()

    def _take_spare(self, size: int) -> mmap.mmap | None:
        for _ in range(len(self._spare)):
            try:
                found = self._spare.popleft()
            except IndexError:
                return None
            if size <= len(found) <= 2 * size:
                return found
            self._spare.append(found)
        return None

    def _give_back(self, memory: mmap.mmap) -> None:
        """Keep ``memory`` for later use. If more than the limit waits, release the memory that has waited longest."""
        self._spare.append(memory)
        while self.spare_bytes > self._spare_bytes_max:
            with suppress(IndexError):
                self._spare.popleft()


def _rounded(size: int) -> int:
    if size >= STEP_BYTES:
        return -(-size // STEP_BYTES) * STEP_BYTES
    return int(max(mmap.PAGESIZE, 1 << (size - 1).bit_length()))


def _mapped(size: int) -> mmap.mmap:
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if size >= HUGE_PAGE_BYTES:
        with suppress(OSError):  # a kernel without them; by small pages the first touch takes ten times as long
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
