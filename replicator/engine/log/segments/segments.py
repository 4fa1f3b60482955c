"""The segments of one store: bodies are put into them in a transaction of the writer, and read by their places.

Invariants (DESIGN §3): 1, :meth:`Segments.flush` comes before the commit of the transaction that refers to the bodies;
11, the memory for writing is bounded.

1. A body is copied once, into an aligned buffer that mirrors a range of a segment (:mod:`.recent`).
2. A thread of its own writes gathered bodies while more are gathered, with at most three writes under way. At the end
   of a group the rest is written, and everything is synced.
3. If the transaction commits, the bodies are live. If it fails, their space is used again.
4. A thread makes segments before they are needed: when half of the segment before is used, or at once if one
   transaction fills a segment and goes on in the next. The first segment is made for the first body. The same thread
   deletes unused segments.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import structlog

from replicator.engine.errors import BlockCorrupt
from replicator.engine.log.block import Buffer
from replicator.engine.log.buffers import Buffers
from replicator.engine.log.disk_room import DiskRoom, is_full
from replicator.engine.log.segments import files
from replicator.engine.log.segments.open_files import OpenFiles
from replicator.engine.log.segments.places import Place
from replicator.engine.log.segments.recent import RecentBytes, Span
from replicator.engine.log.segments.settings import FIRST_BYTES, SegmentSettings
from replicator.engine.log.segments.space import Readers, Segment, SegmentSpace

BUFFER_BYTES: Final = 8 * 1024 * 1024
WRITE_BYTES: Final = 2 * 1024 * 1024
"""Bytes that are handed to the disk at once, while more are gathered."""
ON_THEIR_WAY_MAX: Final = 3
ASIDE_BYTES_MIN: Final = 1024 * 1024
"""Fewer bytes than this are written by the writer's thread itself, because waking another thread takes longer."""
READ_SPARE_BYTES_MAX: Final = 16 * 1024 * 1024
"""Memory for blocks that were read which waits to be used again: a link has three frames of them on their way."""

log = structlog.get_logger(__name__)


class NoRoom(Exception):
    """The disk has no room. The caller tries the whole transaction again with fewer requests."""


@dataclass(frozen=True, slots=True)
class SpaceShortage:
    """The last body that could not be stored, because the disk had no room to make a segment or to write into one."""

    size: int
    capacity: int
    """Bytes of the segment that was to be made; 0 if a write into an existing segment failed."""
    denied: bool
    """Whether the disk refused although it reports enough room: a quota is used up, or other processes took the room
    first."""


class Segments:
    """Segments of one store. ``directory`` need not exist. Only the writer's thread may use it, except for reads and
    figures."""

    def __init__(self, directory: Path, settings: SegmentSettings, placed: Iterable[Place]) -> None:
        """Take over the existing segments. ``placed`` are the places that the store refers to."""
        self._directory = directory
        self.settings = settings
        self.readers = Readers()
        self.recent = RecentBytes(settings.recent_bytes_max)
        self.medium = files.WriteMethod(True, files.PAGE_BYTES)
        self._probed = False
        self._files = OpenFiles(directory)
        self._buffers = Buffers(READ_SPARE_BYTES_MAX)
        self._touching = ExitStack()
        """Keeps the written files open until they are synced."""
        self._written: list[Place] = []
        self._touched: dict[int, files.SegmentFile] = {}
        self._span: Span | None = None
        self._aside: ThreadPoolExecutor | None = None
        self._on_their_way: deque[Future[None]] = deque()
        self._making: Future[Segment] | None = None
        self._maker: ThreadPoolExecutor | None = None
        self._deleted: Future[None] | None = None
        """Deletion of the most recently deleted file. Deletions run in order, so all earlier ones end before it."""
        self._lacking: SpaceShortage | None = None
        """The last body for which the disk had no room. None once a body of that size was stored, or would fit."""
        if directory.is_dir():
            self._probe()
        self.space = SegmentSpace(self.medium.alignment, self.readers)
        for number, size in sorted(files.listed(directory)) if self._probed else ():
            files.check_access(directory, number)
            self.space.add(Segment(number, size - size % self.medium.alignment))
        self.space.revive(placed)
        self._last_number = max(self.space.segments, default=0)
        self.space.begin()

    def close(self) -> None:
        for executor in (self._aside, self._maker):
            if executor is not None:
                executor.shutdown()
        self._files.close()

    # Writing.

    def put(self, body: Buffer) -> Place:
        """Take a body, and return where it will lie. Raises :class:`NoRoom` if no segment can be made, and
        :class:`OSError`."""
        size = len(body)
        span = self._span
        if span is None or span.room < size:
            self._hand_over()
            span = self._next_span(size)
        place = self.space.take(size)
        span.memory[span.filled : span.filled + size] = memoryview(body).cast("B")
        span.filled += size
        self._written.append(place)
        if span.filled - span.pending >= WRITE_BYTES:
            self._hand_over(whole=False)
        return place

    def _next_span(self, size: int) -> Span:
        """Return the buffer for the next bodies, for the rest of the open segment. If that has no room, open another
        segment."""
        space = self.space
        space.align()
        if not space.has_room(size):
            segment = space.reuse(size) or self._made(size)
            self.recent.forget(segment.number)
            space.open_next(segment)
            if self._written:  # one transaction fills more than a segment: it will not be the last
                self._preallocate_next(used_from=0)
        now = space.open
        assert now is not None
        whole = max(BUFFER_BYTES, -(-size // space.alignment) * space.alignment)
        self._span = self.recent.new_span(now.number, now.used, min(whole, now.capacity - now.used))
        return self._span

    def flush(self) -> None:
        """Make all bodies durable that were put. Raise :class:`NoRoom` or :class:`OSError`. After :class:`OSError`,
        nobody knows which bytes reached the disk."""
        if not self._written:
            return
        self._hand_over(last=True)
        while self._on_their_way:
            self._wait_for_one()
        for file in self._touched.values():
            file.sync()
        self._stop_touching()
        self.space.align()
        assert self._span is not None
        self._span.filled = self._span.pending

    def commit(self, freed: Sequence[Place]) -> None:
        """Record that the transaction is durable: the bodies that were put are live, and the ``freed`` ones are
        dead."""
        self.space.commit(self._written, freed)
        if self._lacking is not None:
            taken = max((place.size for place in self._written), default=-1)
            if taken >= self._lacking.size or self.space.takes(self._lacking.size):
                self._lacking = None
        self._written.clear()
        for segment in self.space.surplus(self.settings.free_kept):
            self._delete(segment)
        self._preallocate_next()

    def roll_back(self) -> None:
        """Forget the bodies of the transaction, which failed."""
        while self._on_their_way:
            self._on_their_way.popleft().exception()
        self._stop_touching()
        first: dict[int, int] = {}
        for place in self._written:
            first.setdefault(place.segment, place.offset)
        self._written.clear()
        self.space.roll_back()
        for segment, offset in first.items():
            self.recent.forget(segment, offset)
        self._span = None

    def _hand_over(self, *, last: bool = False, whole: bool = True) -> None:
        """Begin to write the gathered bytes; if not ``whole``, without the last page if it is not full. With ``last``,
        write a small rest immediately, on this thread."""
        span = self._span
        if span is None or span.filled <= span.pending:
            return
        alignment = self.space.alignment
        begin, pages = span.pending, (span.filled + (alignment - 1 if whole else 0)) // alignment
        span.pending = pages * alignment
        if (unused := span.pending - span.filled) > 0:
            span.memory[span.filled : span.pending] = bytes(unused)  # and not what the buffer was used for before
        file = self._touched.get(span.segment)
        if file is None:
            file = self._touching.enter_context(self._files.using(span.segment, direct=self.medium.direct))
            self._touched[span.segment] = file
        write = partial(file.write, span.start + begin, span.memory[begin : span.pending])
        if last and not self._on_their_way and span.pending - begin < ASIDE_BYTES_MIN:
            with self._no_room(span.filled):
                write()
            return
        if self._aside is None:
            self._aside = ThreadPoolExecutor(1, thread_name_prefix="segments")
        if len(self._on_their_way) >= ON_THEIR_WAY_MAX:
            self._wait_for_one()
        self._on_their_way.append(self._aside.submit(write))

    def _wait_for_one(self) -> None:
        with self._no_room(max((place.size for place in self._written), default=0)):
            self._on_their_way.popleft().result()

    @contextmanager
    def _no_room(self, size: int, capacity: int = 0) -> Iterator[None]:
        """Turn an ``OSError`` of a full disk into :class:`NoRoom`, and note it for :meth:`full`. Other errors pass
        unchanged.

        ``size`` is that of the body, and ``capacity`` that of the segment that was to be made, or 0.
        """
        try:
            yield
        except OSError as error:
            if not is_full(error):
                raise
            self._lacking = SpaceShortage(size, capacity, denied=self._disk().takes_segment(capacity))
            raise NoRoom(self._full(self._lacking)) from None

    def full(self) -> str | None:
        """Return why the disk has no room for large bodies, or None once the body that last failed would fit."""
        lacking = self._lacking
        if lacking is None or not (lacking.denied or not self._disk().takes_segment(lacking.capacity)):
            return None
        return self._full(lacking)

    def _full(self, lacking: SpaceShortage) -> str:
        disk = self._disk()
        return (
            f"the disk below {self._directory} is full for large messages: one of {lacking.size} bytes was refused "
            f"({disk.free} of {disk.total} bytes are free): make room on it, or trim topics"
        )

    def _disk(self) -> DiskRoom:
        place = self._directory if self._directory.is_dir() else self._directory.parent
        return DiskRoom.of(os.statvfs(place))

    # Files.

    def _stop_touching(self) -> None:
        self._touched.clear()
        self._touching.close()

    def _probe(self) -> None:
        self.medium = files.probe(self._directory)
        self._probed = True
        if not self.medium.direct:
            log.info(
                "segments are written through the page cache", directory=str(self._directory), reason=self.medium.reason
            )

    def _made(self, size: int) -> Segment:
        making, self._making = self._making, None
        if making is not None and making.exception() is None and (made := making.result()).capacity >= size:
            return made
        wanted = self._next_capacity(size)
        with self._no_room(size, self._aligned(wanted)):  # there may be room now where there was none then
            return self._make(wanted)

    def _next_capacity(self, size: int) -> int:
        """Return the capacity of the next segment: as much as all segments have together, within limits. So a store
        with a few large messages takes little of the disk."""
        there = sum(each.capacity for each in self.space.segments.values())
        return min(max(FIRST_BYTES, there, size), self.settings.segment_bytes)

    def _make(self, wanted: int) -> Segment:
        if not self._probed:
            self._directory.mkdir(mode=0o700, exist_ok=True)
            files.sync_directory(self._directory.parent)
            self._probe()
            self.space.alignment = self.medium.alignment
        self._last_number += 1
        capacity = self._aligned(wanted)
        files.preallocate(self._directory, self._last_number, capacity)
        return Segment(self._last_number, capacity)

    def _aligned(self, wanted: int) -> int:
        return -(-wanted // self.medium.alignment) * self.medium.alignment

    def _preallocate_next(self, used_from: float = 0.5) -> None:
        """Begin to make the next segment once the share ``used_from`` of the open one is used, unless a free segment is
        there."""
        now = self.space.open
        if now is None or now.used < used_from * now.capacity or self._making is not None:
            return
        if self.space.reuse(now.capacity // 2) is not None:
            return
        with suppress(RuntimeError):  # no thread can be started: then it is made when it is needed
            self._making = self._background().submit(self._make, self._next_capacity(0))

    def _delete(self, segment: Segment) -> None:
        self.space.forget(segment)
        self.recent.forget(segment.number)
        self._files.forget(segment.number)
        path = self._directory / files.segment_name(segment.number)
        try:
            self._deleted = self._background().submit(files.delete, path)
        except RuntimeError:  # no thread can be started
            files.delete(path)

    def wait_for_deleted(self) -> None:
        """Wait until the files of all unused segments are deleted."""
        if self._deleted is not None:
            self._deleted.result()

    def _background(self) -> ThreadPoolExecutor:
        """Return the thread that makes and deletes files, one after another. For a large file the file system may take
        a quarter of a second."""
        if self._maker is None:
            self._maker = ThreadPoolExecutor(1, thread_name_prefix="segment maker")
        return self._maker

    def look_for_gone(self) -> None:
        """Find segments whose files were deleted or replaced since they were made. Their live blocks must be moved
        while the open file can still be read. The segment that is written is not checked here, but by its syncs."""
        for segment in list(self.space.segments.values()):
            if segment is self.space.open or not segment.capacity or not self._files.gone(segment.number):
                continue
            path = self._directory / files.segment_name(segment.number)
            log.error("a segment's file was deleted or replaced", file=str(path), live_bytes=segment.live)
            self.space.note_gone(segment)

    # Reading.

    def read(self, place: Place, head: memoryview, *, ahead: bool = True) -> memoryview:
        """Return the block at ``place``, which begins with ``head``. Raise :class:`BlockCorrupt`."""
        block = self.read_unchecked(place, ahead=ahead)
        if block[: len(head)] != head:
            raise BlockCorrupt(
                f"the segment {self._directory / files.segment_name(place.segment)} is damaged: at byte {place.offset} "
                "it has other bytes than the store wrote there"
            )
        return block

    def read_unchecked(self, place: Place, *, ahead: bool = True) -> memoryview:
        """Return the bytes at ``place`` without a check. With ``ahead``, ask the kernel to read what follows. Raise
        :class:`BlockCorrupt` if the disk cannot read them."""
        if (found := self.recent.find(place)) is not None:
            return found
        try:
            with self._files.using(place.segment, direct=self.medium.direct) as file:
                block = self._buffers.take(place.size)
                file.read(place.offset, block, ahead=ahead)
                return block.toreadonly()
        except OSError as error:
            path = self._directory / files.segment_name(place.segment)
            raise BlockCorrupt(
                f"the segment {path}, which holds messages, cannot be read: {error.strerror}; see that the file is "
                "there, that the worker's user may read it, and that the disk is sound"
            ) from None

    def read_for_writer(self, place: Place, head: memoryview) -> memoryview:
        """Return the block at ``place`` on the writer's thread, even if the running transaction has put it there. Read
        nothing ahead, because the bytes between such blocks are mostly dead."""
        if self.recent.find(place) is None:
            while self._on_their_way:
                self._wait_for_one()
        return self.read(place, head, ahead=False)

    def status(self) -> dict[str, Any]:
        """Return the bytes that the segments hold, by kind."""
        segments = list(self.space.segments.values())
        total = sum(each.capacity for each in segments)
        live = sum(each.live for each in segments)
        free = sum(each.capacity for each in segments if each.free_since is not None)
        unused = self.space.open.capacity - self.space.open.used if self.space.open is not None else 0
        return {
            "segments": len(segments),
            "bytes": total,
            "live_bytes": live,
            "free_bytes": free + unused,
            "dead_bytes": max(0, total - live - free - unused),
            "memory_bytes": self.recent.size_bytes,
            "direct": self.medium.direct,
            "reason": self.medium.reason,
        }
