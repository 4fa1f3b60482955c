"""Which bytes of the segments live, and where the next ones go. Pure: it knows no files.

Invariants (DESIGN §3): 1, bytes that a committed row refers to are not given out again; 11, what is dead is bounded.

1. Bodies are written one after another into the open segment. One that does not fit ends it.
2. A segment that is not open and in which nothing lives any more is free. It is given out again once nobody reads by
   rows of a time in which something lived there (:class:`Readers`).
3. What one transaction took is given back when it fails (:meth:`SegmentSpace.roll_back`).
4. A pass of compaction takes each segment once at most. The nearer the store is to its limit, the less has to be dead
   in a segment that it takes (:func:`share_under`).
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from replicator.engine.log.segments.places import Place

SPARSE_SHARE: Final = 0.25
"""A segment in which no more than that lives is compacted."""
DENSEST_SHARE: Final = 0.9
"""At the limit, of what was given out of a segment. To gain a byte beyond it, more than nine would have to be moved."""
PRESSURE_FROM: Final = 0.75
"""Of what the store may take. Below it a segment that is half dead is cheaper kept than moved: it goes on dying."""
RESTLESS_FROM: Final = 0.95
"""From there segments are taken too in which something was trimmed since the last pass."""


def share_under(pressure: float) -> float:
    """Of which share that lives a segment is compacted, where that much is taken of what may be: 1 is all of it."""
    eager = (min(pressure, 1.0) - PRESSURE_FROM) / (1 - PRESSURE_FROM)
    return SPARSE_SHARE + (DENSEST_SHARE - SPARSE_SHARE) * max(0.0, eager)


@dataclass(slots=True)
class Segment:
    """``used`` bytes of ``capacity`` were given out, of which ``live`` are referred to. ``free_since`` is the time
    (:class:`Readers`) at which nothing lived there any more, None while something does, or may be written there."""

    number: int
    capacity: int
    used: int = 0
    live: int = 0
    free_since: int | None = None
    damaged_upto: int = -1
    """Compaction leaves what lives up to that offset: it is damaged."""
    stuck: bool = False
    """It holds nothing that could be moved."""
    gone: bool = False
    """Its file was deleted while the worker runs."""


class Readers:
    """Who reads by which state of the store, as a count of times. A time ends with each commit that frees something.

    Safe to use from several threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now = 0
        self._reading: Counter[int] = Counter()

    def begin(self) -> int:
        """Before the transaction begins by which is read; returns what :meth:`end` wants."""
        with self._lock:
            self._reading[self._now] += 1
            return self._now

    def end(self, began: int) -> None:
        with self._lock:
            self._reading[began] -= 1
            if not self._reading[began]:
                del self._reading[began]

    def next(self) -> int:
        """A new time, after a commit that freed something."""
        with self._lock:
            self._now += 1
            return self._now

    def oldest(self) -> int:
        with self._lock:
            return min(self._reading, default=self._now)


class SegmentSpace:
    """The segments of one store. Used by the writer's thread alone."""

    def __init__(self, alignment: int, readers: Readers) -> None:
        self.alignment = alignment
        self._readers = readers
        self.segments: dict[int, Segment] = {}
        self.open: Segment | None = None
        self._lived: dict[int, int] = {}
        """What lived in each segment when the last pass of compaction began."""
        self._quiet: set[int] = set()
        self._share = SPARSE_SHARE
        self._taken: list[Segment] = []
        self._before: tuple[Segment | None, int] = (None, 0)

    def add(self, segment: Segment) -> None:
        """A segment whose file is there. Its capacity is aligned. What lives in it is told by :meth:`revive`."""
        self.segments[segment.number] = segment
        segment.free_since = self._readers.next()

    def revive(self, places: Iterable[Place]) -> None:
        """What the store says at its start that lives. The segment with the most room at its end is gone on with."""
        for place in places:
            segment = self.segments.setdefault(place.segment, Segment(place.segment, 0))
            segment.live += place.size
            segment.used = max(segment.used, self._aligned(place.offset + place.size))
            segment.free_since = None
        begun = [each for each in self.segments.values() if each.live and each.used < each.capacity]
        self.open = max(begun, key=lambda each: each.capacity - each.used, default=None)

    def begin(self) -> None:
        """A transaction begins."""
        self._before = (self.open, self.open.used if self.open else 0)
        self._taken.clear()

    def has_room(self, size: int) -> bool:
        """Whether the open segment has room for a body of that size."""
        return self.open is not None and self.open.used + size <= self.open.capacity

    def take(self, size: int) -> Place:
        """Room for a body in the open segment, which must have it."""
        assert self.open is not None
        place = Place(self.open.number, self.open.used, size)
        self.open.used += size
        assert self.open.used <= self.open.capacity
        return place

    def align(self) -> None:
        """What comes next begins where a write may begin."""
        if self.open is not None:
            self.open.used = self._aligned(self.open.used)

    def reuse(self, size: int) -> Segment | None:
        """A free segment that may be written over and has room for a body of that size, if there is one."""
        return next((each for each in self._unread() if each.capacity >= size), None)

    def takes(self, size: int) -> bool:
        """Return whether a body of ``size`` bytes fits into the open segment or a free one, without making a new
        segment."""
        return self.has_room(size) or self.reuse(size) is not None

    def _unread(self) -> Iterator[Segment]:
        """Free segments by which nobody reads any more."""
        oldest = self._readers.oldest()
        for each in self.segments.values():
            if each.free_since is not None and each.free_since <= oldest:
                yield each

    def open_next(self, segment: Segment) -> None:
        """Bodies go to that one now; it is empty."""
        segment.used, segment.free_since, segment.stuck, segment.damaged_upto = 0, None, False, -1
        self.segments[segment.number] = segment
        self._quiet.discard(segment.number)  # what comes there now was perhaps moved by this pass
        self.open = segment
        self._taken.append(segment)

    def commit(self, written: Iterable[Place], freed: Iterable[Place]) -> None:
        """The transaction is durable."""
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
        """The transaction failed: what it took is free, as it was."""
        segment, used = self._before
        now = self._readers.next()
        for each in self._taken:
            each.free_since = now
        self.open = segment
        if segment is not None:
            segment.used = used
        self.begin()

    def superfluous(self, kept: int) -> list[Segment]:
        """Free segments beyond so many, which are the largest, and those whose files are gone."""
        unread = sorted(self._unread(), key=lambda each: -each.capacity)
        return [each for each in unread if each.capacity][kept:] + [each for each in unread if not each.capacity]

    def forget(self, segment: Segment) -> None:
        """Its file is gone."""
        del self.segments[segment.number]

    def note_gone(self, segment: Segment) -> None:
        """Its file was deleted under it: nothing is written there any more, and what lives there is moved first."""
        segment.capacity, segment.gone, segment.stuck, segment.damaged_upto = 0, True, False, -1

    def begin_pass(self, *, quiet_only: bool, pressure: float = 0.0) -> None:
        """Compact what has not changed since the last pass: of what is being trimmed there is less by itself.
        ``pressure`` is how much of what the store may take it has taken."""
        self._share = share_under(pressure)
        quiet_only = quiet_only and pressure < RESTLESS_FROM
        lived = {each.number: each.live for each in self.segments.values()}
        self._quiet = {number for number, live in lived.items() if not quiet_only or self._lived.get(number) == live}
        self._lived = lived

    def sparse(self) -> Segment | None:
        """The segment that is to be compacted next in this pass, if one is: that with the least that lives."""
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
        """What of the segments holds something, alive or dead; those that are free are room."""
        return sum(
            each.used if each is self.open else max(each.capacity, each.live)
            for each in list(self.segments.values())
            if each.free_since is None
        )

    def _aligned(self, offset: int) -> int:
        return -(-offset // self.alignment) * self.alignment
