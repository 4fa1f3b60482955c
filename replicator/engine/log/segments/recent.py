"""The last written bytes of segments, in memory, for readers of the tail: links and dispatchers.

A buffer mirrors a range of one segment, and is filled together with it. Readers get slices without a copy. A slice
keeps its buffer alive after the buffer was evicted. So readers of the tail do not depend on the page cache, and readers
far behind take nothing from them.

A buffer without references is used again (:mod:`replicator.engine.log.buffers`).

Invariant (DESIGN §3): 11, a reader that stops with a small slice of each buffer would keep all buffers. So buffers that
only slices keep alive are counted, and past a limit readers get copies.
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
"""Memory that waits to be used again: two buffers."""


@dataclass(slots=True)
class Span:
    """A range of a segment in memory: its bytes from ``start`` on, up to ``filled``. ``memory`` begins at a page
    boundary."""

    segment: int
    start: int
    memory: memoryview
    filled: int = 0
    pending: int = 0
    """Offset in ``memory`` from which on bytes are not yet handed to the disk."""

    @property
    def room(self) -> int:
        return len(self.memory) - self.filled


@dataclass(slots=True)
class _SegmentBytes:
    starts: list[int] = field(default_factory=list)
    spans: dict[int, Span] = field(default_factory=dict)


class RecentBytes:
    """The newest spans, of about ``bytes_max``, at least the one that is being filled. Evicted spans that slices keep
    alive may take about as much again. Safe for several threads."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._bytes = 0
        self._order: deque[Span] = deque()
        self._segments: dict[int, _SegmentBytes] = {}
        self._buffers = Buffers(SPARE_BYTES_MAX)
        self._lent: list[tuple[weakref.ref[Any], int]] = []
        """Evicted buffers that may still be alive, each with its size."""
        self._lent_bytes = 0

    @property
    def size_bytes(self) -> int:
        return self._bytes

    def new_span(self, segment: int, start: int, size: int) -> Span:
        """Return a new buffer for ``size`` bytes of a segment from ``start`` on. Readers find its bytes as soon as they
        are filled in."""
        span = Span(segment, start, self._buffers.take_aligned(size))
        self._add(span)
        return span

    def _add(self, span: Span) -> None:
        with self._lock:
            found = self._segments.setdefault(span.segment, _SegmentBytes())
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
        """Forget the bytes of a segment from ``offset`` on, because they are written over."""
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
            lends = self._can_lend()
        return slice_ if lends else memoryview(bytes(slice_))

    def _can_lend(self) -> bool:
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
