"""Writes the exact mapping to the index, from the store's extents. Invariants 9 and 11; docs/adr/0022.

1. A copied block only marks its mapping (topic, origin, incarnation) as grown. The runs themselves are in the store,
   durable and merged, and are read from there when it is their turn: nothing is queued, so nothing can overflow.
2. Of the mappings written last, the last segment is kept in memory, and grows by what the store has beyond it.
3. A mapping of which it is not, is first *reconciled*: each of its segments in the database must begin where the
   one before it ended, and end where the store says that entry lies. A position is never used twice (invariant 10),
   so a segment whose end is right was written from this log. From the first that is wrong on they are deleted, and
   written from the store. That is how an index of the past, an emptied one, or one of a store that was itself
   restored, comes right; it costs one look-up a segment.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
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
from snapshots.repository import ExtentKey, SegmentBounds, SnapshotRepository
from snapshots.repository.extents import SEGMENT_RUNS

TABLES_MAX: Final = 1_000
"""Last segments kept in memory: 20 kB each at most."""
KEYS_MAX: Final = 200_000
"""Mappings marked as grown; past it, when the database has been away for long, all are looked at again."""
SEGMENTS_AT_ONCE: Final = 16
"""Written in one statement: 100 kB at most."""
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
        """The caller deletes its rows."""
        self._trims.pop(topic, None)
        for key in [key for key in self._last if key.topic == topic]:
            del self._last[key]
        for key in [key for key in self._grown if key.topic == topic]:
            del self._grown[key]

    def check_all(self) -> None:
        """The database may have lost something, or hold what is wrong: reconcile all."""
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
        """Write what has grown, of all topics or of one; what fails is tried again at the next call."""
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
        for key in [key for key in self._grown if topic in (None, key.topic) and key.topic not in self.held]:
            if self._grown.pop(key, 0) is None:
                try:
                    await self._write_mapping(repository, key)
                except BaseException:
                    self._last.pop(key, None)
                    self._grown[key] = None
                    raise

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

    async def _write_mapping(self, repository: SnapshotRepository, key: ExtentKey) -> None:
        topic = self._engine.find(key.topic)
        if topic is None or topic.deleted is not None:
            return
        last = self._last.get(key)
        try:
            if last is None:
                last = await self._reconciled(repository, key, topic)
            await self._grow(repository, key, topic, last)
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
        while len(self._last) > TABLES_MAX:
            self._last.popitem(last=False)

    async def _grow(self, repository: SnapshotRepository, key: ExtentKey, topic: Topic, last: _LastSegment) -> None:
        """Add to the last segment, and begin new ones, until the database has what the store has."""
        segments: list[tuple[Position, ExtentTable]] = []
        while topic.deleted is None and (extents := self._beyond(key, topic, last)):
            for extent in extents:
                newest = last.table.last
                if newest is None:
                    last.start = extent.origin_first if last.start == BEFORE_ALL else last.start
                elif len(last.table) == SEGMENT_RUNS and not follows(newest, extent):
                    segments.append((last.start, last.table))
                    last.start, last.table = extent.origin_first, ExtentTable()
                append(last.table, extent)
            if len(segments) >= SEGMENTS_AT_ONCE:
                await _write(repository, key, segments)
                segments.clear()
        newest = last.table.last
        if newest is not None and newest.origin_last != last.written_through:
            segments.append((last.start, last.table))
            last.written_through = newest.origin_last
        await _write(repository, key, segments)

    def _beyond(self, key: ExtentKey, topic: Topic, last: _LastSegment) -> list[Extent]:
        """What the store has beyond the last segment's last entry, about a segment's worth of runs at most."""
        newest = last.table.last
        if newest is None:
            return self._stored(key, topic, at=last.start, runs_max=SEGMENT_RUNS)
        extents = self._stored(key, topic, at=newest.origin_last, runs_max=SEGMENT_RUNS + 1)
        return [each for each in (part(extent, after=newest.origin_last) for extent in extents) if each is not None]

    async def _reconciled(self, repository: SnapshotRepository, key: ExtentKey, topic: Topic) -> _LastSegment:
        """Step 3 of the module's docstring: the segment to go on with."""
        async with timeout(WRITE_SECONDS_MAX):
            bounds = await repository.segment_bounds(key)
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
        """How many segments, from the first on, are those of this log."""
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


async def _write(repository: SnapshotRepository, key: ExtentKey, segments: list[tuple[Position, ExtentTable]]) -> None:
    if segments:
        async with timeout(WRITE_SECONDS_MAX):
            await repository.write_segments(key, segments)


def append(table: ExtentTable, extent: Extent) -> None:
    """Append what the store says; raises :class:`ExtentsCorrupt` if it does not follow what is in the table."""
    newest = table.last
    if newest is not None and (
        extent.origin_first <= newest.origin_last or extent.local_first <= newest.local_last or extent.entries < 1
    ):
        raise ExtentsCorrupt(f"{extent} does not follow {newest}")
    table.append(*extent)


def follows(extent: Extent, following: Extent) -> bool:
    """Whether the two are one run on both sides."""
    return following.origin_first == _next(extent.origin_last) and following.local_first == _next(extent.local_last)


def part(extent: Extent, *, after: Position) -> Extent | None:
    """What of an extent is above the origin position ``after``."""
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
    """Where the entry at an origin's position lies here, if it is of this extent."""
    if not extent.origin_first <= position <= extent.origin_last:
        return None
    return Position(extent.local_first.ledger, extent.local_first.entry + position.entry - extent.origin_first.entry)


def _next(position: Position) -> Position:
    return Position(position.ledger, position.entry + 1)
