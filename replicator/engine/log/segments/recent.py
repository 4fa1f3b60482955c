"""The bytes that were written last, in memory, for those who read the tail: links and dispatchers.

A buffer stands for a stretch of one segment. It is filled from its start while the segment is; slices of it are handed
out without a copy, and keep it alive after it has left here. So what readers of the tail need does not depend on what
the page cache keeps, and whoever reads far behind takes nothing from them.

A buffer that nobody has any more is used again (:mod:`replicator.engine.log.buffers`).

Invariant (DESIGN §3): 11, a reader that stands still with a small slice of each buffer would keep them all. So what is
kept alive by slices alone is counted, and past a limit readers get copies.
"""

from __future__ import annotations

import threading
import weakref
from bisect import bisect_right, insort
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final

from replicator.engine.log.buffers import Buffers
from replicator.engine.log.segments.places import Place

SPARE_BYTES_MAX: Final = 16 * 1024 * 1024
"""What waits to be used again: two buffers."""


@dataclass(slots=True)
class Span:
    """``memory`` holds a segment's bytes from ``start`` on, as far as ``filled``; it begins at a page's start."""

    segment: int
    start: int
    memory: memoryview
    filled: int = 0
    pending: int = 0
    """From here on it is not handed to the disk yet."""

    @property
    def room(self) -> int:
        return len(self.memory) - self.filled


@dataclass(slots=True)
class _OfSegment:
    starts: list[int] = field(default_factory=list)
    spans: dict[int, Span] = field(default_factory=dict)


class RecentBytes:
    """The youngest spans of about ``bytes_max``, at least the one that is being filled; and those of which slices are
    out, about as much again at most. Safe for several threads."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._bytes = 0
        self._order: deque[Span] = deque()
        self._segments: dict[int, _OfSegment] = {}
        self._buffers = Buffers(SPARE_BYTES_MAX)
        self._lent: list[tuple[weakref.ref[Any], int]] = []
        """What has left here and is still alive, with its size."""
        self._lent_bytes = 0

    @property
    def size_bytes(self) -> int:
        return self._bytes

    def new_span(self, segment: int, start: int, size: int) -> Span:
        """A buffer for ``size`` bytes of a segment from ``start`` on, which is here from now on as it fills."""
        span = Span(segment, start, self._buffers.take_aligned(size))
        self._add(span)
        return span

    def _add(self, span: Span) -> None:
        with self._lock:
            found = self._segments.setdefault(span.segment, _OfSegment())
            if span.start in found.spans:
                self._drop(found.spans[span.start])
                found = self._segments.setdefault(span.segment, found)
            insort(found.starts, span.start)
            found.spans[span.start] = span
            self._order.append(span)
            self._bytes += len(span.memory)
            while self._bytes > self._bytes_max and len(self._order) > 1:
                self._drop(self._order[0])

    def forget(self, segment: int, offset: int = 0) -> None:
        """What is kept of that segment from ``offset`` on: it is written over."""
        with self._lock:
            found = self._segments.get(segment)
            for start in list(found.starts) if found else ():
                assert found is not None
                span = found.spans[start]
                if start >= offset:
                    self._drop(span)
                elif start + span.filled > offset:
                    span.filled = offset - start

    def find(self, place: Place) -> memoryview | None:
        with self._lock:
            found = self._segments.get(place.segment)
            if found is None:
                return None
            at = bisect_right(found.starts, place.offset) - 1
            if at < 0:
                return None
            span = found.spans[found.starts[at]]
            begin = place.offset - span.start
            if begin + place.size > span.filled:
                return None
            slice_ = span.memory[begin : begin + place.size].toreadonly()
            lends = self._may_lend()
        return slice_ if lends else memoryview(bytes(slice_))

    def _may_lend(self) -> bool:
        if self._lent_bytes > self._bytes_max // 2:
            self._count_lent()
        return self._lent_bytes <= self._bytes_max // 2

    def _count_lent(self) -> None:
        self._lent = [(memory, size) for memory, size in self._lent if memory() is not None]
        self._lent_bytes = sum(size for _, size in self._lent)

    def _drop(self, span: Span) -> None:
        self._order.remove(span)
        found = self._segments[span.segment]
        found.starts.remove(span.start)
        del found.spans[span.start]
        if not found.starts:
            del self._segments[span.segment]
        self._bytes -= len(span.memory)
        self._lent.append((weakref.ref(span.memory.obj), len(span.memory)))
        self._lent_bytes += len(span.memory)
        if self._lent_bytes > self._bytes_max // 2:
            self._count_lent()
