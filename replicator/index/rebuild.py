"""``mapping rebuild``: rows of the index made again from the log, and the store's extents checked by it (invariant 9).

For each topic, while traffic flows:

1. The headers of its blocks up to the LAC are read in slices, between which others have their turn. They tell
   the origin and place of each entry: the extents, without a look at the table of extents.
2. As a segment of them is full, it is compared with what that table says of the same stretch. Where it differs, the
   log is right: the rows are replaced, and that is said loudly.
3. Segments are written over those that begin where they do. The mappings that sync keeps, which it knows from the
   log's local snapshots, and the states of the cursors and tombstones are written again as well.
4. What the index had of the topic before, and was not written now, is deleted. So nobody finds it empty meanwhile.
5. From the LAC of step 1 on the index writer goes on as usual.

Doing it again changes nothing. Raises what the repository raises; then it can be started again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from replicator.engine.engine import Engine
from replicator.engine.log.extent_rows import extent_keys, extent_row, read_extent_rows, read_headers
from replicator.engine.topic import Topic
from replicator.index.extents import append, follows, part
from replicator.index.writer import IndexWriter
from replicator.running.short_tasks import in_background
from snapshots.extents import Extent, ExtentTable
from snapshots.mapping import SnapshotMapping
from snapshots.position import BEFORE_ALL, Position
from snapshots.repository import ExtentKey, SubscriptionState
from snapshots.repository.extents import SEGMENT_RUNS, Segment

HEADERS_AT_ONCE: Final = 500
"""Some milliseconds."""
MAPPINGS_AT_ONCE: Final = 1_000

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class RebuildProgress:
    """Progress of a rebuild. ``state`` is ``idle``, ``running``, ``done`` or ``failed``; then ``detail`` says why."""

    state: str = "idle"
    detail: str = ""
    topics: int = 0
    topics_done: int = 0
    blocks: int = 0
    segments: int = 0
    mappings: int = 0
    states: int = 0
    store_rows_repaired: int = 0

    def as_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(slots=True)
class _ExtentRange:
    """The extents of one mapping as the headers tell them, one segment at a time."""

    table: ExtentTable = field(default_factory=ExtentTable)
    compared_through: Position = BEFORE_ALL


class IndexRebuild:
    """Rebuilds the index of one worker. One run at a time."""

    def __init__(
        self, engine: Engine, writer: IndexWriter, *, mappings: Callable[[str], Iterable[SnapshotMapping]]
    ) -> None:
        """Prepare a rebuild of the index. ``mappings`` returns the snapshot mappings that the sync keeps of a topic."""
        self._engine = engine
        self._writer = writer
        self._mappings = mappings
        self.progress = RebuildProgress()
        self._task: asyncio.Task[None] | None = None

    def start(self, topic: str | None = None) -> bool:
        """Begin, for one topic or all; return False if it runs already."""
        if self.progress.state == "running":
            return False
        self.progress = RebuildProgress("running")
        self._task = in_background(self._run(topic), "mapping rebuild")
        return True

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self, only: str | None) -> None:
        progress = self.progress
        try:
            await self.rebuild(only)
            progress.state = "done"
        except asyncio.CancelledError:
            progress.state, progress.detail = "failed", "the worker stopped"
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, who asked must be told
            progress.state, progress.detail = "failed", str(error) or type(error).__name__
            log.warning("mapping rebuild failed", cluster=self._engine.cluster, reason=progress.detail)
        else:
            log.info("mapping rebuild done", cluster=self._engine.cluster, **progress.as_json())

    async def rebuild(self, only: str | None = None) -> None:
        """Rebuild the rows of all topics, or of one. Raise :class:`RepositoryUnavailable`, :class:`RowsRefused` or
        :class:`BlockCorrupt`.
        """
        names = [topic.name for topic in self._engine.topics() if only in (None, topic.name)]
        self.progress.topics = len(names)
        for name in names:
            topic = self._engine.find(name)
            if topic is not None and topic.deleted is None:
                await self._topic(topic)
            self.progress.topics_done += 1
        if only is None:
            async with self._writer.writing:
                repository = self._writer.repository()
                gone = [name for name in await repository.topics() if self._engine.find(name) is None]
                await repository.delete_topics(gone)

    async def _topic(self, topic: Topic) -> None:
        extents = self._writer.extents
        assert extents is not None
        repository = self._writer.repository()
        async with self._writer.writing:
            extents.held.add(topic.name)
            began = await repository.now()
        try:
            await self._scan(topic)
            if topic.deleted is not None:  # its rows must not come among those of a topic made anew under its name
                return
            mappings = list(self._mappings(topic.name))
            self.progress.mappings += len(mappings)
            for first in range(0, len(mappings), MAPPINGS_AT_ONCE):
                await repository.record_mappings([(topic.name, each) for each in mappings[first:][:MAPPINGS_AT_ONCE]])
            async with self._writer.writing:  # no newer state is written between reading the cursors and writing them
                if topic.deleted is None:
                    subscriptions = topic.subscriptions
                    states = [self._writer.states.exact(topic, each) for each in subscriptions.values()]
                    buried = subscriptions.tombstones.items()
                    states += [SubscriptionState.buried(topic.name, name, generation) for name, generation in buried]
                    await repository.save_subscription_states(states)
                    self.progress.states += len(states)
                    await repository.prune_not_written_since(began, topic=topic.name)
                    await repository.prune_extents_not_written_since(topic.name, began)
        finally:
            extents.held.discard(topic.name)
            extents.forget(topic.name)

    # Steps 1 and 2.

    async def _scan(self, topic: Topic) -> None:
        """Read the headers of all blocks of a topic, and write the rows of its extents."""
        stretches: dict[ExtentKey, _ExtentRange] = {}
        for origin in list(topic.tail.open_extents):  # so that the writer lengthens none that is being looked at
            topic.tail.open_extents.pop(origin, None)
        after, upto = topic.log.trimmed, topic.log.last
        while headers := read_headers(self._engine.store, topic.topic_id, after, upto, blocks_max=HEADERS_AT_ONCE):
            for local_first, header in headers:
                if header.origin != self._engine.cluster:
                    key = ExtentKey(topic.name, header.origin, header.incarnation)
                    stretch = stretches.setdefault(key, _ExtentRange())
                    await self._add(topic, key, stretch, Extent(header.origin_first, local_first, header.entries))
            self.progress.blocks += len(headers)
            local_first, header = headers[-1]
            after = Position(local_first.ledger, local_first.entry + header.entries - 1)
            await asyncio.sleep(0)
        for key, stretch in stretches.items():
            await self._finish(topic, key, stretch)
        for origin, incarnation in extent_keys(self._engine.store, topic.topic_id):
            key = ExtentKey(topic.name, origin, incarnation)
            if key not in stretches:
                await self._compare(topic, key, _ExtentRange(), through=None)

    async def _add(self, topic: Topic, key: ExtentKey, stretch: _ExtentRange, extent: Extent) -> None:
        newest = stretch.table.last
        if newest is not None and len(stretch.table) == SEGMENT_RUNS and not follows(newest, extent):
            await self._finish(topic, key, stretch)
            stretch.table = ExtentTable()
        append(stretch.table, extent)

    async def _finish(self, topic: Topic, key: ExtentKey, stretch: _ExtentRange) -> None:
        first, last = stretch.table.first, stretch.table.last
        assert first is not None
        assert last is not None
        await self._compare(topic, key, stretch, through=last.origin_last)
        stretch.compared_through = last.origin_last
        await self._writer.repository().write_segments([Segment(key, first.origin_first, stretch.table)])
        self.progress.segments += 1

    async def _compare(self, topic: Topic, key: ExtentKey, stretch: _ExtentRange, *, through: Position | None) -> None:
        """Correct the store's rows from the last compared position to ``through``, so that they agree with the
        stretch's table. ``through`` is None for a mapping without entries in the log: rows of trimmed entries may
        still be there.
        """
        rows = self._rows(topic, key, after=stretch.compared_through, through=through)
        told = ExtentTable()
        for _, extent in rows:
            cut = _within(extent, stretch, topic)
            if cut is None:
                continue
            newest = told.last
            if newest is not None and (cut.origin_first <= newest.origin_last or cut.local_first <= newest.local_last):
                break  # they contradict themselves
            told.append(*cut)
        else:
            if list(told) == list(stretch.table):
                return
        upto = topic.log.last  # a row that reaches above it has entries that were not looked at
        gone = [row for row, extent in rows if extent.local_last <= upto]
        reaching = {row for row, extent in rows if extent.local_last > upto}
        right = [extent_row(topic.topic_id, key.origin, key.incarnation, extent) for extent in stretch.table]
        right = [(row, value) for row, value in right if row not in reaching]
        log.error(
            "the store's extents are not what its log says; they are repaired",
            topic=key.topic,
            origin=key.origin,
            rows_before=len(rows),
            rows_after=len(right),
        )
        self.progress.store_rows_repaired += len(right) or len(gone)
        writes: list[tuple[str, bytes, bytes | None]] = [
            *(("extents", row, None) for row in gone),
            *(("extents", row, value) for row, value in right),
        ]
        await self._engine.writer.put_many(writes)

    def _rows(
        self, topic: Topic, key: ExtentKey, *, after: Position, through: Position | None
    ) -> list[tuple[bytes, Extent]]:
        """Return the store's rows of a mapping that reach above ``after`` and begin at or below ``through``."""
        at = Position(after.ledger, after.entry + 1)
        found: list[tuple[bytes, Extent]] = []
        while True:
            page = read_extent_rows(
                self._engine.store, topic.topic_id, key.origin, key.incarnation, at=at, runs_max=SEGMENT_RUNS
            )
            for row, extent in page:
                if through is not None and extent.origin_first > through:
                    return found
                found.append((row, extent))
            if len(page) < SEGMENT_RUNS:
                return found
            at = Position(page[-1][1].origin_last.ledger, page[-1][1].origin_last.entry + 1)


def _within(extent: Extent, stretch: _ExtentRange, topic: Topic) -> Extent | None:
    """Return the part of a row of the store to compare with the stretch: neither trimmed, nor in the segments beside
    it.
    """
    rest = part(extent, after=stretch.compared_through)
    if rest is None or rest.local_last <= topic.log.trimmed:
        return None
    first, last = stretch.table.first, stretch.table.last
    if first is not None and rest.origin_first < first.origin_first and rest.local_first <= topic.log.trimmed:
        rest = part(rest, after=Position(first.origin_first.ledger, first.origin_first.entry - 1))
    if rest is not None and last is not None and rest.origin_last > last.origin_last:
        beyond = part(rest, after=last.origin_last)
        rest = Extent(rest.origin_first, rest.local_first, rest.entries - (beyond.entries if beyond else 0))
    return rest
