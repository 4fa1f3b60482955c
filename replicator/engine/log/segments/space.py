"""Used and free space in segments, and the place of the next body. Pure: it knows no files.

Invariants (DESIGN §3): 1, bytes that a committed row refers to are not given out again; 11, dead bytes are bounded.

1. Bodies are written one after another into the open segment. One that does not fit ends it.
2. A segment that is not open and has no live bodies is free. It is used again once no reader has rows from a time in
   which a body lived there (:class:`Readers`).
3. If a transaction fails, the space that it took is free again (:meth:`SegmentSpace.roll_back`).
4. A pass of compaction takes each segment at most once. The nearer the store is to its limit, the smaller is the dead
   share from which on a segment is compacted (:func:`share_under`).
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from replicator.engine.log.segments.places import Place

SPARSE_SHARE: Final = 0.25
"""A segment is compacted if at most this share of it lives."""
DENSEST_SHARE: Final = 0.9
"""The share when the store is full. Above it, more than nine bytes would have to be moved to gain one."""
PRESSURE_FROM: Final = 0.75
"""Share of the store's limit from which on denser segments are compacted. Below it, keeping a segment that is half
dead is cheaper than moving its bodies: more of them will die."""
RESTLESS_FROM: Final = 0.95
"""Share of the store's limit from which on segments are compacted even if bodies died in them since the last pass."""


def share_under(pressure: float) -> float:
    """Return the share of live bytes up to which a segment is compacted. ``pressure`` is the used share of the
    store's limit."""
    eager = (min(pressure, 1.0) - PRESSURE_FROM) / (1 - PRESSURE_FROM)
    return SPARSE_SHARE + (DENSEST_SHARE - SPARSE_SHARE) * max(0.0, eager)


@dataclass(slots=True)
class Segment:
    """A segment: of ``capacity`` bytes, ``used`` were given out, and the store refers to ``live`` of these.

    ``free_since`` is the time (:class:`Readers`) at which its last body died; None while a body lives or may be
    written.
    """

    number: int
    capacity: int
    used: int = 0
    live: int = 0
    free_since: int | None = None
    damaged_upto: int = -1
    """Offset up to which compaction leaves live bodies where they are, because they are damaged."""
    stuck: bool = False
    """Whether compaction found nothing in the segment that it could move."""
    gone: bool = False
    """Whether its file was deleted while the worker runs."""


class Readers:
    """Tracks which states of the store are being read. A time is a number that grows with each commit that frees a
    body.

    Safe to use from several threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now = 0
        self._reading: Counter[int] = Counter()

    def begin(self) -> int:
        """Note a reader before its transaction begins. Return the time that :meth:`end` needs."""
        with self._lock:
            self._reading[self._now] += 1
            return self._now

    def end(self, began: int) -> None:
        with self._lock:
            self._reading[began] -= 1
            if not self._reading[began]:
                del self._reading[began]

    def next(self) -> int:
        """Begin a new time, after a commit that freed a body. Return it."""
        with self._lock:
            self._now += 1
            return self._now

    def oldest(self) -> int:
        with self._lock:
            return min(self._reading, default=self._now)


class SegmentSpace:
    """Gives out and frees the space in the segments of one store. Only the writer's thread uses it."""

    def __init__(self, alignment: int, readers: Readers) -> None:
        self.alignment = alignment
        self._readers = readers
        self.segments: dict[int, Segment] = {}
        self.open: Segment | None = None
        self._lived: dict[int, int] = {}
        """Live bytes of each segment when the last pass of compaction began."""
        self._quiet: set[int] = set()
        self._share = SPARSE_SHARE
        self._taken: list[Segment] = []
        self._before: tuple[Segment | None, int] = (None, 0)

    def add(self, segment: Segment) -> None:
        """Add a segment whose file exists. Its capacity is aligned. Call :meth:`revive` for the bodies that live in
        it."""
        self.segments[segment.number] = segment
        segment.free_since = self._readers.next()

    def revive(self, places: Iterable[Place]) -> None:
        """Record the live bodies that the store has at its start. The begun segment with the most room at its end
        becomes the open one."""
        ends: dict[int, int] = {}
        for number, offset, size in places:  # there may be a million
            segment = self.segments.get(number)
            if segment is None:
                segment = self.segments[number] = Segment(number, 0)
            segment.live += size
            ends[number] = max(ends.get(number, 0), offset + size)
        for number, end in ends.items():
            segment = self.segments[number]
            segment.used = max(segment.used, self._aligned(end))
            segment.free_since = None
        begun = [each for each in self.segments.values() if each.live and each.used < each.capacity]
        self.open = max(begun, key=lambda each: each.capacity - each.used, default=None)

    def begin(self) -> None:
        """Begin a transaction."""
        self._before = (self.open, self.open.used if self.open else 0)
        self._taken.clear()

    def has_room(self, size: int) -> bool:
        """Return whether the open segment has room for a body of ``size`` bytes."""
        return self.open is not None and self.open.used + size <= self.open.capacity

    def take(self, size: int) -> Place:
        """Take space for a body in the open segment, which must have room for it."""
        assert self.open is not None
        place = Place(self.open.number, self.open.used, size)
        self.open.used += size
        assert self.open.used <= self.open.capacity
        return place

    def align(self) -> None:
        """Move the end of the open segment to the next offset where a write may begin."""
        if self.open is not None:
            self.open.used = self._aligned(self.open.used)

    def reuse(self, size: int) -> Segment | None:
        """Return a free segment with room for ``size`` bytes that no reader uses any more, or None."""
        return next((each for each in self._unread() if each.capacity >= size), None)

    def takes(self, size: int) -> bool:
        """Return whether a body of ``size`` bytes fits into the open segment or a free one, without making a new
        segment."""
        return self.has_room(size) or self.reuse(size) is not None

    def _unread(self) -> Iterator[Segment]:
        """Yield the free segments that no reader uses any more."""
        oldest = self._readers.oldest()
        for each in self.segments.values():
            if each.free_since is not None and each.free_since <= oldest:
                yield each

    def open_next(self, segment: Segment) -> None:
        """Give out space from ``segment``, which is empty, from now on."""
        segment.used, segment.free_since, segment.stuck, segment.damaged_upto = 0, None, False, -1
        self.segments[segment.number] = segment
        self._quiet.discard(segment.number)  # what comes there now was perhaps moved by this pass
        self.open = segment
        self._taken.append(segment)

    def commit(self, written: Iterable[Place], freed: Iterable[Place]) -> None:
        """Record that the transaction is durable, which wrote and freed these bodies."""
        for place in written:
            self.segments[place.segment].live += place.size
        ended = [each for each in (self._before[0], *self._taken) if each is not None and each is not self.open]
        for place in freed:
            segment = self.segments.get(place.segment)
            if segment is not None:
                segment.live -= place.size
                ended.append(segment)
        empty = [each for each in ended if not each.live and each is not self.open and each.free_since is None]
        if empty:
            now = self._readers.next()
            for each in empty:
                each.free_since = now
        self.begin()

    def roll_back(self) -> None:
        """Free the space that the failed transaction took."""
        segment, used = self._before
        now = self._readers.next()
        for each in self._taken:
            each.free_since = now
        self.open = segment
        if segment is not None:
            segment.used = used
        self.begin()

    def surplus(self, kept: int) -> list[Segment]:
        """Return free segments that may be deleted: all but the ``kept`` largest, and those whose files are gone."""
        unread = sorted(self._unread(), key=lambda each: -each.capacity)
        return [each for each in unread if each.capacity][kept:] + [each for each in unread if not each.capacity]

    def forget(self, segment: Segment) -> None:
        """Forget a segment whose file is deleted."""
        del self.segments[segment.number]

    def note_gone(self, segment: Segment) -> None:
        """Note that the file of a segment was deleted while it was in use. Nothing more is written there; its bodies
        move first."""
        segment.capacity, segment.gone, segment.stuck, segment.damaged_upto = 0, True, False, -1

    def begin_pass(self, *, quiet_only: bool, pressure: float = 0.0) -> None:
        """Begin a pass of compaction. ``pressure`` is the used share of the store's limit.

        With ``quiet_only``, segments that changed since the last pass are left alone, because trimming empties them
        anyway.
        """
        self._share = share_under(pressure)
        quiet_only = quiet_only and pressure < RESTLESS_FROM
        lived = {each.number: each.live for each in self.segments.values()}
        self._quiet = {number for number, live in lived.items() if not quiet_only or self._lived.get(number) == live}
        self._lived = lived

    def sparse(self) -> Segment | None:
        """Return the segment to compact next in this pass, the one with the least live bytes, or None."""
        quiet = (each for each in self._sparse() if each.gone or each.number in self._quiet)
        return min(quiet, key=lambda each: each.live / each.capacity if each.capacity else 0, default=None)

    def _sparse(self) -> Iterator[Segment]:
        for each in list(self.segments.values()):
            sparse = each.gone or each.live <= SPARSE_SHARE * each.capacity
            if self._share > SPARSE_SHARE:  # the end that was never given out is no gain: bodies did not fit there
                sparse = sparse or each.live <= self._share * each.used
            if sparse and each.live and each is not self.open and not each.stuck:
                yield each

    def live_bytes(self) -> int:
        return sum(each.live for each in list(self.segments.values()))

    def taken_bytes(self) -> int:
        """Return the bytes of all segments that are not free, whether live or dead."""
        return sum(
            each.used if each is self.open else max(each.capacity, each.live)
            for each in list(self.segments.values())
            if each.free_since is None
        )

    def _aligned(self, offset: int) -> int:
        return -(-offset // self.alignment) * self.alignment
