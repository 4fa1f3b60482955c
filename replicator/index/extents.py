"""Writes the exact mapping to the index, from the store's extents. Invariants 9 and 11; docs/adr/0022.

1. A copied block only marks its mapping (topic, origin, incarnation) as grown. The runs themselves are in the store,
   durable and merged, and are read from there when it is their turn: nothing is queued, so nothing can overflow.
2. Of the mappings written last, the last segment is kept in memory, and grows by what the store has beyond it.
3. A mapping without its last segment in memory is first *reconciled*: each of its segments in the database must begin
   where the one before it ended, and end where the store says that entry lies. A position is never used twice
   (invariant 10), so a segment whose end is right was written from this log. From the first wrong segment on, they are
   deleted, and written from the store. This corrects an index of the past, an emptied one, or one of a store that was
   itself restored; it costs one look-up a segment.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog

from replicator.engine.engine import Engine
from replicator.engine.log.extent_rows import extent_keys, read_extents
from replicator.engine.topic import Topic
from replicator.running.timeouts import timeout
from snapshots.errors import ExtentsCorrupt
from snapshots.extents import Extent, ExtentTable
from snapshots.position import BEFORE_ALL, Position
from snapshots.repository import ExtentKey, RowsRefused, SegmentBounds, SnapshotRepository
from snapshots.repository.extents import SEGMENT_RUNS, Segment
from snapshots.repository.rows import batches

TABLES_MAX: Final = 1_000
"""Last segments kept in memory: 20 kB each at most."""
KEYS_MAX: Final = 200_000
"""Mappings marked as grown; past it, when the database has been away for long, all are looked at again."""
MAPPINGS_AT_ONCE: Final = 200
"""Looked at together, and written in one statement if they are small."""
RUNS_AT_ONCE: Final = 16 * SEGMENT_RUNS
"""Written in one statement: about 100 kB."""
WRITE_SECONDS_MAX: Final = 60.0
"""For one batch; the database's own limit on a statement is shorter, but a server that vanished keeps to none."""

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _LastSegment:
    """The segment of a mapping that still grows. ``start`` is its key."""

    start: Position = BEFORE_ALL
    table: ExtentTable = field(default_factory=ExtentTable)
    written_through: Position = BEFORE_ALL
    """The last origin position that the database has."""


class ExtentWriter:
    """Keeps the extents of ``engine``'s topics written. One :meth:`write` at a time."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._grown: dict[ExtentKey, None] = {}
        self._trims: dict[str, Position] = {}
        self._last: OrderedDict[ExtentKey, _LastSegment] = OrderedDict()
        self._check_all = False
        self.held: set[str] = set()
        """Topics that are being rebuilt: nothing of them is written meanwhile."""
        self.mappings_written = 0
        """Mappings that were looked at because they had grown, since the start."""
        self.corrupt = 0
        """Mappings that could not be written because the store's extents contradict themselves."""

    @property
    def waiting(self) -> bool:
        return bool(self._grown or self._trims or self._check_all)

    def grown(self, key: ExtentKey) -> None:
        self._grown[key] = None
        if len(self._grown) > KEYS_MAX:
            self.check_all()

    def trimmed(self, topic: str, local_through: Position) -> None:
        self._trims[topic] = local_through

    def topic_deleted(self, topic: str) -> None:
        """Forget a deleted topic; the caller deletes its rows."""
        self._trims.pop(topic, None)
        for key in [key for key in self._last if key.topic == topic]:
            del self._last[key]
        for key in [key for key in self._grown if key.topic == topic]:
            del self._grown[key]

    def check_all(self) -> None:
        """Reconcile all mappings: the database may have lost something, or hold something wrong."""
        self._grown.clear()
        self._trims.clear()
        self._last.clear()
        self._check_all = True

    def forget(self, topic: str) -> None:
        """Reconcile a topic before it is written the next time."""
        for key in [key for key in self._last if key.topic == topic]:
            del self._last[key]
        found = self._engine.find(topic)
        if found is not None:
            for origin, incarnation in extent_keys(self._engine.store, found.topic_id):
                self.grown(ExtentKey(topic, origin, incarnation))

    async def write(self, repository: SnapshotRepository, *, topic: str | None = None) -> None:
        """Write growth of all topics or of one; repeat at the next call what fails."""
        if self._check_all and topic is None:
            await self._find_all(repository)
        for name in [name for name in self._trims if topic in (None, name)]:
            through = self._trims.pop(name)
            try:
                async with timeout(WRITE_SECONDS_MAX):
                    await repository.prune_extents(name, through)
            except BaseException:
                self._trims.setdefault(name, through)
                raise
            for key in [key for key in self._last if key.topic == name]:
                self._last[key].table.trim(through)
                if not self._last[key].table:
                    del self._last[key]
        grown = [key for key in self._grown if topic in (None, key.topic) and key.topic not in self.held]
        for keys in batches(grown, MAPPINGS_AT_ONCE):
            await self._write_mappings(repository, [key for key in keys if self._grown.pop(key, 0) is None])

    async def _find_all(self, repository: SnapshotRepository) -> None:
        async with timeout(WRITE_SECONDS_MAX):
            in_database = await repository.extent_keys()
        in_store: set[ExtentKey] = set()
        for topic in self._engine.topics():
            if topic.deleted is None:
                if topic.log.trimmed > BEFORE_ALL:
                    self._trims[topic.name] = topic.log.trimmed
                in_store.update(ExtentKey(topic.name, *key) for key in extent_keys(self._engine.store, topic.topic_id))
            await asyncio.sleep(0)
        for key in in_database:
            if key not in in_store:
                async with timeout(WRITE_SECONDS_MAX):
                    await repository.delete_segments(key)
        self._check_all = False
        for key in sorted(in_store):
            self._last.pop(key, None)
            self._grown[key] = None

    async def _write_mappings(self, repository: SnapshotRepository, keys: Sequence[ExtentKey]) -> None:
        """Write the growth of these mappings, small ones together: a new topic has one for each other cluster."""
        self.mappings_written += len(keys)
        written = _Segments(repository)
        try:
            bounds: Mapping[ExtentKey, Sequence[SegmentBounds]] = {}
            if unknown := [key for key in keys if key not in self._last]:
                async with timeout(WRITE_SECONDS_MAX):
                    bounds = await repository.segment_bounds(unknown)
            for key in keys:
                await self._write_mapping(repository, key, bounds, written)
            await written.flush()
        except BaseException as error:
            for key in keys:
                self._last.pop(key, None)
                self._grown[key] = None
            if not isinstance(error, RowsRefused) or len(keys) == 1:
                raise
            await self._write_one_by_one(repository, keys)
        while len(self._last) > TABLES_MAX:
            self._last.popitem(last=False)

    async def _write_one_by_one(self, repository: SnapshotRepository, keys: Sequence[ExtentKey]) -> None:
        """Write mappings one by one, because the database refuses one of them: the others are written."""
        refused: RowsRefused | None = None
        for key in keys:
            if self._grown.pop(key, 0) is None:
                try:
                    await self._write_mappings(repository, [key])
                except RowsRefused as error:
                    refused = error
        if refused is not None:
            raise refused

    async def _write_mapping(
        self,
        repository: SnapshotRepository,
        key: ExtentKey,
        bounds: Mapping[ExtentKey, Sequence[SegmentBounds]],
        written: _Segments,
    ) -> None:
        topic = self._engine.find(key.topic)
        if topic is None or topic.deleted is not None:
            return
        last = self._last.get(key)
        try:
            if last is None:
                last = await self._reconciled(repository, key, topic, bounds.get(key))
            await self._grow(key, topic, last, written)
        except ExtentsCorrupt as error:
            self.corrupt += 1
            self._last.pop(key, None)
            log.error(  # noqa: TRY400
                "extents in the store contradict themselves; run: replicator mapping rebuild",
                topic=key.topic,
                origin=key.origin,
                reason=str(error),
            )
            return
        self._last[key] = last
        self._last.move_to_end(key)

    async def _grow(self, key: ExtentKey, topic: Topic, last: _LastSegment, written: _Segments) -> None:
        """Add to the last segment, and begin new ones, until the database has everything that the store has."""
        while topic.deleted is None and (extents := self._beyond(key, topic, last)):
            for extent in extents:
                newest = last.table.last
                if newest is None:
                    last.start = extent.origin_first if last.start == BEFORE_ALL else last.start
                elif len(last.table) == SEGMENT_RUNS and not follows(newest, extent):
                    written.add(Segment(key, last.start, last.table))
                    last.start, last.table = extent.origin_first, ExtentTable()
                append(last.table, extent)
            if written.full:
                await written.flush()
        newest = last.table.last
        if newest is not None and newest.origin_last != last.written_through:
            written.add(Segment(key, last.start, last.table))
            last.written_through = newest.origin_last
        if written.full:
            await written.flush()

    def _beyond(self, key: ExtentKey, topic: Topic, last: _LastSegment) -> list[Extent]:
        """Return the store's extents beyond the last segment's last entry, at most about a segment's worth of runs."""
        newest = last.table.last
        if newest is None:
            return self._stored(key, topic, at=last.start, runs_max=SEGMENT_RUNS)
        extents = self._stored(key, topic, at=newest.origin_last, runs_max=SEGMENT_RUNS + 1)
        return [each for each in (part(extent, after=newest.origin_last) for extent in extents) if each is not None]

    async def _reconciled(
        self, repository: SnapshotRepository, key: ExtentKey, topic: Topic, bounds: Sequence[SegmentBounds] | None
    ) -> _LastSegment:
        """Do step 3 of the module's docstring, and return the segment to go on with. ``bounds`` are those in the
        database; None if they were not asked for, because the key was forgotten since.
        """
        if bounds is None:
            async with timeout(WRITE_SECONDS_MAX):
                bounds = (await repository.segment_bounds([key]))[key]
        right = self._count_right(key, topic, bounds)
        if right < len(bounds):
            wrong = len(bounds) - right
            log.info("index has extents that the log has not", topic=key.topic, origin=key.origin, segments=wrong)
            async with timeout(WRITE_SECONDS_MAX):
                await repository.delete_segments(key, start=bounds[right].start)
        if not right:
            return _LastSegment()
        newest = bounds[right - 1]
        return _LastSegment(newest.start, written_through=newest.origin_last)

    def _count_right(self, key: ExtentKey, topic: Topic, bounds: Sequence[SegmentBounds]) -> int:
        """Return how many segments, from the first on, come from this log."""
        through = BEFORE_ALL
        for number, segment in enumerate(bounds):
            if segment.local_last > topic.log.trimmed:  # what is trimmed cannot be compared, and is pruned
                following = self._stored(key, topic, at=_next(through), runs_max=1)
                rest = part(following[0], after=through) if following else None
                end = self._stored(key, topic, at=segment.origin_last, runs_max=1)
                if (
                    rest is None
                    or segment.start > rest.origin_first
                    or not end
                    or at_origin(end[0], segment.origin_last) != segment.local_last
                ):
                    return number
            through = segment.origin_last
        return len(bounds)

    def _stored(self, key: ExtentKey, topic: Topic, *, at: Position, runs_max: int) -> list[Extent]:
        store = self._engine.store
        return read_extents(store, topic.topic_id, key.origin, key.incarnation, at=at, runs_max=runs_max)


class _Segments:
    """Segments that one statement writes."""

    def __init__(self, repository: SnapshotRepository) -> None:
        self._repository = repository
        self._waiting: list[Segment] = []
        self._runs = 0

    @property
    def full(self) -> bool:
        return self._runs >= RUNS_AT_ONCE

    def add(self, segment: Segment) -> None:
        self._waiting.append(segment)
        self._runs += len(segment.table)

    async def flush(self) -> None:
        if self._waiting:
            async with timeout(WRITE_SECONDS_MAX):
                await self._repository.write_segments(self._waiting)
        self._waiting, self._runs = [], 0


def append(table: ExtentTable, extent: Extent) -> None:
    """Append an extent of the store; raise :class:`ExtentsCorrupt` if it does not follow the table's last one."""
    newest = table.last
    if newest is not None and (
        extent.origin_first <= newest.origin_last or extent.local_first <= newest.local_last or extent.entries < 1
    ):
        raise ExtentsCorrupt(
            f"the map of a topic's positions is out of order, because {extent} does not follow {newest}, the run of "
            "entries before it: run `replicator mapping rebuild`; if that says the same, `replicator store check`"
        )
    table.append(*extent)


def follows(extent: Extent, following: Extent) -> bool:
    """Return whether the two are one run on both sides."""
    return following.origin_first == _next(extent.origin_last) and following.local_first == _next(extent.local_last)


def part(extent: Extent, *, after: Position) -> Extent | None:
    """Return the part of an extent above the origin position ``after``; None if there is none."""
    first = extent.origin_first
    if after < first:
        return extent
    if after >= extent.origin_last:
        return None
    passed = after.entry - first.entry + 1
    return Extent(
        Position(first.ledger, first.entry + passed),
        Position(extent.local_first.ledger, extent.local_first.entry + passed),
        extent.entries - passed,
    )


def at_origin(extent: Extent, position: Position) -> Position | None:
    """Return the local position of the entry at an origin's position; None if it is not in this extent."""
    if not extent.origin_first <= position <= extent.origin_last:
        return None
    return Position(extent.local_first.ledger, extent.local_first.entry + position.entry - extent.origin_first.entry)


def _next(position: Position) -> Position:
    return Position(position.ledger, position.entry + 1)
