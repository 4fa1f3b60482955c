"""Memory that is used again once nobody refers to it."""

from __future__ import annotations

import gc
import mmap

import numpy as np

from replicator.engine.log.buffers import REUSED_BYTES_MIN, STEP_BYTES, Buffers

MARK = b"used before"


def address(memory: memoryview) -> int:
    return int(np.frombuffer(memory, np.uint8).ctypes.data)


def used(buffers: Buffers, size: int) -> int:
    """Take memory, write to it, let go of it; returns where it was."""
    memory = buffers.take_aligned(size)
    memory[: len(MARK)] = MARK
    found = address(memory)
    del memory
    gc.collect()
    return found


def test_memory_is_used_again_when_the_last_slice_of_it_has_gone_and_not_before() -> None:
    buffers = Buffers(16 * STEP_BYTES)
    memory = buffers.take(STEP_BYTES)
    memory[: len(MARK)] = MARK
    where = address(memory)
    kept = memory[2 : len(MARK)].toreadonly()
    del memory
    gc.collect()
    other = buffers.take(STEP_BYTES)
    assert address(other) != where
    other[:] = b"x" * STEP_BYTES
    assert bytes(kept) == MARK[2:]
    del kept
    gc.collect()
    again = buffers.take(STEP_BYTES)
    assert (address(again), bytes(again[: len(MARK)])) == (where, MARK)


def test_invariant_11_no_more_waits_than_is_said() -> None:
    buffers = Buffers(3 * STEP_BYTES)
    several = [buffers.take(STEP_BYTES) for _ in range(10)]
    places = {address(memory) for memory in several}
    assert len(places) == 10
    several.clear()
    gc.collect()
    assert buffers.spare_bytes == 3 * STEP_BYTES
    used(buffers, 2 * STEP_BYTES)
    assert buffers.spare_bytes == 3 * STEP_BYTES, "those that waited longest went"
    used(buffers, 4 * STEP_BYTES)
    assert buffers.spare_bytes == 0
    used(buffers, STEP_BYTES)
    buffers.clear()
    assert buffers.spare_bytes == 0


def test_what_is_too_small_or_far_too_large_is_not_used_for_another_size() -> None:
    buffers = Buffers(16 * STEP_BYTES)
    small = used(buffers, STEP_BYTES)
    larger = buffers.take(STEP_BYTES + 1)
    assert address(larger) != small
    large = used(buffers, 8 * STEP_BYTES)
    assert address(buffers.take(3 * STEP_BYTES)) != large
    assert address(buffers.take(5 * STEP_BYTES)) == large
    assert address(buffers.take(STEP_BYTES - 5)) == small, "what did not fit others still waits"


def test_memory_has_the_size_that_was_asked_for_and_begins_with_a_page_where_that_is_wanted() -> None:
    buffers = Buffers(16 * STEP_BYTES)
    for size in (1, 100, 4096, REUSED_BYTES_MIN - 1, REUSED_BYTES_MIN, STEP_BYTES - 1, STEP_BYTES + 1):
        assert len(buffers.take(size)) == size
        aligned = buffers.take_aligned(size)
        assert len(aligned) == size
        assert address(aligned) % mmap.PAGESIZE == 0
    assert len(buffers.take(0)) == 0
