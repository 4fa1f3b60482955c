"""Limit of the memory that slices of recent writes keep alive."""

from __future__ import annotations

import gc
import weakref
from typing import Any

from replicator.engine.log.segments.places import Place
from replicator.engine.log.segments.recent import RecentBytes

SPAN = 4096 * 4


def filled(recent: RecentBytes, segment: int) -> weakref.ref[Any]:
    span = recent.new_span(segment, 0, SPAN)
    span.memory[:] = bytes([segment % 256]) * SPAN
    span.filled = SPAN
    return weakref.ref(span.memory.obj)


def alive(spans: list[weakref.ref[Any]]) -> int:
    gc.collect()
    return sum(span() is not None for span in spans)


def test_invariant_11_a_reader_that_keeps_a_slice_of_each_buffer_keeps_a_bounded_number_of_them() -> None:
    recent = RecentBytes(8 * SPAN)
    spans, slices = [], []
    for number in range(100):
        spans.append(filled(recent, number))
        found = recent.find(Place(number, 100, 50))
        assert found is not None
        slices.append(found)
    assert all(bytes(found) == bytes([number]) * 50 for number, found in enumerate(slices))
    assert alive(spans) <= 8 + 8 + 4
    slices.clear()
    assert alive(spans) == 8
    found = recent.find(Place(99, 0, 10))
    assert found is not None
    assert found.obj is spans[99](), "when they are let go of, slices are handed out again without a copy"


def test_what_nobody_keeps_is_given_back_at_once() -> None:
    recent = RecentBytes(2 * SPAN)
    spans = [filled(recent, number) for number in range(50)]
    assert alive(spans) == 2
    assert len(recent._lent) < 10, "nor is it remembered for ever"
    recent.forget(49)
    assert alive(spans) == 1


def test_a_buffer_is_used_again_when_nothing_refers_to_it_and_not_before() -> None:
    recent = RecentBytes(1)
    filled(recent, 1)
    kept = recent.find(Place(1, 8, 100))
    assert kept is not None
    for number in range(2, 50):
        filled(recent, number)
    assert bytes(kept) == bytes([1]) * 100
    before = recent.new_span(50, 0, SPAN)
    assert bytes(before.memory[:1]) != bytes(1), "memory of a span that has gone"
    larger = recent.new_span(51, 0, 3 * SPAN)
    assert len(larger.memory) == 3 * SPAN
    smaller = recent.new_span(52, 0, SPAN // 2)
    assert len(smaller.memory) == SPAN // 2
