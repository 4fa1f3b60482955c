"""Compacting a topic: runs the passes, and reads the compacted view and the log as one.

Invariants: the view changes in one step, at the end of a pass; a pass that fails leaves the old view and deletes its
own rows; an interrupted pass leaves the old view, and the next pass deletes its rows; the log above the horizon is held
back from trimming while the topic is compacted, so that no key is lost between the log and the view.

:mod:`replicator.engine.compaction.compactor` decides which message is the newest of its key. Reading and deciding are
done on threads, in steps of a bounded size. The writer writes the rows in steps of the same size. A pass keeps each key
in memory, in about 200 bytes. So an engine compacts one topic at a time, and other passes wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final, ParamSpec, Protocol, TypeVar

import structlog

from replicator.engine.compaction.compacted_view import VIEW_TABLE, CompactedView, ViewState
from replicator.engine.compaction.compactor import Compactor, publish_time_ms
from replicator.engine.errors import EngineError
from replicator.engine.layered_policies import LayeredPolicies
from replicator.engine.log.block import BlockKind, BlockView
from replicator.engine.log.log_index import LogIndex, ViewIndex
from replicator.engine.log.store import Store
from replicator.engine.log.topic_reading import TopicReading
from replicator.engine.log.writer import Writer
from replicator.engine.types import LoggedEntry
from replicator.engine.upkeep.holds import Holds
from replicator.running.short_tasks import awaited
from snapshots.position import BEFORE_ALL, Position
from snapshots.position_set import PositionSet

STEP_BYTES: Final = 4 * 1024 * 1024
"""Bytes that one step reads and writes."""
STEP_ENTRIES: Final = 5_000
DELETE_KEYS: Final = 400
"""Rows that are deleted at once. They are so few that the reserve of a full disk has room for it."""
COUNT_BLOCKS: Final = 1_000
SEARCH_ENTRIES: Final = 500
"""Entries that a search reads on the event loop at once, in a millisecond or two."""
HOLDER: Final = "compaction"
"""Name of compaction among the holders of the topic's log."""

_P = ParamSpec("_P")
_R = TypeVar("_R")
_Steps = Callable[[Position], AsyncIterator[list[LoggedEntry]]]
"""Yields the entries up to a position, in order, in steps of a bounded size."""

log = structlog.get_logger(__name__)


class CompactedTopic(Protocol):
    """Interface of a topic that is compacted."""

    name: str
    topic_id: int
    log: LogIndex
    writer: Writer
    policies: LayeredPolicies
    holds: Holds
    reading: TopicReading

    def compacted(self) -> None:
        """Note that there is another compacted view."""


class Compaction:
    """Compaction of one topic. Runs on the event loop."""

    def __init__(self, topic: CompactedTopic, store: Store, view: CompactedView, turn: asyncio.Lock) -> None:
        """``turn`` is the lock of the engine that a pass holds."""
        self._turn = turn
        self._topic = topic
        self._store = store
        self._view = view
        self._pass: asyncio.Task[ViewState] | None = None
        self.error: str | None = None
        """Error of this process's last pass; None if it succeeded, or if there was none."""
        self._counted = self._view.state.horizon
        self._uncompacted_bytes = 0
        topic.log.view = ViewIndex(self.state.horizon, self._view.positions())
        self.hold_back()

    @property
    def state(self) -> ViewState:
        """State of the view in use: its horizon and its size."""
        return self._view.state

    @property
    def running(self) -> bool:
        """Whether a pass runs, or waits until the pass of another topic has ended."""
        return self._pass is not None

    def hold_back(self) -> None:
        """Keep the log above the horizon from being trimmed, if the topic is or is to be compacted."""
        wanted = self._topic.policies.effective.compaction_threshold_bytes is not None
        if wanted or self.running or self.state.generation:
            self._topic.holds.positions[HOLDER] = self.state.horizon
        else:
            self._topic.holds.positions.pop(HOLDER, None)

    async def is_due(self) -> bool:
        """Return whether the log above the horizon exceeds the policy's threshold, and no pass is running. Each block's
        header is read once for that, in pages, between which other tasks run."""
        threshold = self._topic.policies.effective.compaction_threshold_bytes
        if threshold is None or self.running:
            return False
        while self._uncompacted_bytes < max(threshold, 1) and self._counted < self._topic.log.last:
            spans = self._store.block_spans(self._topic.topic_id, self._counted, blocks_max=COUNT_BLOCKS)
            if not spans:
                return False
            self._uncompacted_bytes += sum(span.size_bytes for span in spans)
            self._counted = spans[-1].last
            await asyncio.sleep(0)
        return not self.running and self._uncompacted_bytes >= max(threshold, 1)

    async def run(self) -> ViewState:
        """Compact up to the LAC, or wait for the pass that is running. Return the state of the view in use then.

        Raises :class:`NotAllowedError` for a topic with too many keys, :class:`BlockCorrupt`, and the store's errors;
        then the old view stays.
        """
        return await asyncio.shield(self.start())

    def start(self) -> asyncio.Task[ViewState]:
        """Return the running pass. Start one if there is none."""
        if self._pass is None:
            self._pass = awaited(self._run(), name=f"compaction of {self._topic.name}")
            self._pass.add_done_callback(self._passed)
            self.hold_back()
        return self._pass

    async def rebuild_view(self) -> ViewState:
        """Make the view from itself and the whole log, after messages were put back below its horizon.

        A message that was put back is the newest of its key unless the view or the log has a newer one, or a tombstone.
        Tombstones that were trimmed are not known any more, so their keys can come back. Call this before anybody is
        served: subscriptions are not told. Raises the same errors as :meth:`run`; the old view stays then.
        """
        await self._delete_other_generations()
        state = await self._replace(max(self._topic.log.last, self.state.horizon), self._all_steps)
        await self._delete_other_generations()
        return state

    async def stop(self) -> None:
        """Interrupt the running pass, and wait until it does not use the store any more."""
        running = self._pass
        if running is not None:
            running.cancel()
            await asyncio.wait([running])

    def read(self, after: Position, upto: Position | None, entries_max: int, bytes_max: int) -> list[LoggedEntry]:
        """Return the view's entries in (``after``, ``upto``], then the log's; at least one if there is one."""
        found = self._view.read(after, entries_max, bytes_max)
        if upto is not None:
            found = [entry for entry in found if entry.position <= upto]
        room = bytes_max - sum(len(entry.entry) for entry in found)
        reached = max(after, self.state.horizon)
        if len(found) >= entries_max or room <= 0 or (upto is not None and upto <= reached):
            return found
        return found + self._topic.reading.entries(reached, upto, entries_max - len(found), room)

    def find(self, position: Position) -> LoggedEntry | None:
        """Return the view's entry at ``position``, even if it is trimmed from the log, or None."""
        return self._view.find(position)

    async def position_before(self, target: Position | int) -> Position:
        """Return the last position before ``target``, a position or a time, for a subscription that reads compacted.
        The view is searched, then the log. Raise :class:`InvalidSeek`."""
        if not isinstance(target, Position):
            return await self.position_at_time(target)
        position = self._topic.reading.position_before(target)
        before = Position(target.ledger, target.entry - 1)
        log_index = self._topic.log
        return log_index.view.clamp(before) if before < log_index.trimmed else position

    async def position_at_time(self, published_ms: int) -> Position:
        """Return the last position before the first message of the view and then the log that was published at
        ``published_ms`` or later. Both are read in pages, between which other tasks run."""
        reached = BEFORE_ALL
        while page := self._view.read(reached, SEARCH_ENTRIES, STEP_BYTES):
            for entry in page:
                if publish_time_ms(entry) >= published_ms:
                    return reached
                reached = entry.position
            await asyncio.sleep(0)
        return await self._topic.reading.position_at_time(published_ms, after=self.state.horizon)

    # A pass.

    def _passed(self, done: asyncio.Task[ViewState]) -> None:
        self._pass = None
        self.error = None
        self.hold_back()
        if not done.cancelled() and (error := done.exception()) is not None:  # nobody has to wait for it
            self.error = str(error)
            log.warning("compaction failed", topic=self._topic.name, error=str(error))
            # A pass that failed would fail again at once. So it is due again only after as much was published again.
            self._counted, self._uncompacted_bytes = self._topic.log.last, 0

    async def _run(self) -> ViewState:
        async with self._turn:
            end = self._topic.log.last
            before = self.state
            await self._delete_other_generations()
            if end <= before.horizon:
                return before
            state = await self._replace(end, partial(self._steps, before.horizon))
            self._topic.compacted()
            await self._delete_other_generations()
            return state

    async def _replace(self, end: Position, steps: _Steps) -> ViewState:
        """Write the next view from the entries up to ``end`` that ``steps`` yields, and put it into use.

        If the store refuses it, delete the rows that were written: a full disk needs their room.
        """
        try:
            return await self._write_next(end, steps)
        except EngineError:
            with suppress(EngineError):  # then the next pass deletes them
                await self._delete_other_generations()
            raise

    async def _write_next(self, end: Position, steps: _Steps) -> ViewState:
        before = self.state
        compactor = Compactor()
        async for entries in steps(end):
            await _on_thread(_note_all, compactor, entries)
        horizon = max(compactor.horizon(end, self._topic.writer.wall_clock_ms()), before.horizon)
        state = replace(before, generation=before.generation + 1, horizon=horizon, entries=0, size_bytes=0, messages=0)
        positions = PositionSet()
        async for entries in steps(horizon):
            rows, messages = await _on_thread(self._retained_rows, compactor, entries, state.generation, positions)
            if rows:
                await self._topic.writer.put_view(rows)
            state = replace(
                state,
                entries=state.entries + len(rows),
                size_bytes=state.size_bytes + sum(len(value) for _, _, value in rows),
                messages=state.messages + messages,
            )
        await self._topic.writer.put_view(
            [self._view.state_row(state), self._view.positions_row(state.generation, positions)]
        )
        self._view.state = state
        self._topic.log.view = ViewIndex(horizon, positions)
        self._counted, self._uncompacted_bytes = horizon, 0
        return state

    async def _steps(self, horizon: Position, end: Position) -> AsyncIterator[list[LoggedEntry]]:
        """Yield the entries of the view, then those of the log in (``horizon``, ``end``]."""
        at = BEFORE_ALL
        while entries := await _on_thread(self._view.read, at, STEP_ENTRIES, STEP_BYTES):
            yield entries
            at = entries[-1].position
        at = horizon
        while at < end:
            entries, at = await _on_thread(self._read_log, at, end)
            if entries:
                yield entries

    async def _all_steps(self, end: Position) -> AsyncIterator[list[LoggedEntry]]:
        """Yield the entries of the log up to ``end``, and those that only the view has, in the order of their
        positions."""
        at = BEFORE_ALL
        while at < end:
            entries, at = await _on_thread(self._read_both, at, end)
            if entries:
                yield entries

    def _read_both(self, after: Position, end: Position) -> tuple[list[LoggedEntry], Position]:
        kept = self._view.read(after, STEP_ENTRIES, STEP_BYTES)
        upto = min(kept[-1].position, end) if kept else end
        logged, reached = self._read_log(after, upto)
        found = {each.position: each for each in kept if each.position <= reached}
        found |= {each.position: each for each in logged}  # the view may have only a part of a batch
        return [found[position] for position in sorted(found)], reached

    def _read_log(self, after: Position, end: Position) -> tuple[list[LoggedEntry], Position]:
        """Return the next messages of the log, and the position that they reach. This runs on a thread, so it does not
        use the event loop's cache."""
        blocks, reached = self._store.read_blocks(self._topic.topic_id, after, end, bytes_max=STEP_BYTES)
        found: list[LoggedEntry] = []
        # The first entry of a message with duplicates counts: newer messages of its key may follow that one.
        duplicates = self._topic.log.duplicates
        for stored in blocks:
            header = stored.header
            if header.kind is not BlockKind.MESSAGES:
                continue
            view = BlockView(stored.block, header)
            for index, (entry, size) in enumerate(zip(view.entries(), view.batch_sizes.tolist(), strict=True)):
                position = Position(stored.position.ledger, stored.position.entry + index)
                if after < position <= end and (duplicates is None or position not in duplicates.hidden):
                    origin_position = Position(header.origin_first.ledger, header.origin_first.entry + index)
                    found.append(LoggedEntry(position, size, False, entry, header.origin, origin_position))
        return found, reached if blocks else end

    def _retained_rows(
        self, compactor: Compactor, entries: Sequence[LoggedEntry], generation: int, positions: PositionSet
    ) -> tuple[list[tuple[str, bytes, bytes]], int]:
        """Return the rows to write, and the number of their messages. Add their positions to ``positions``."""
        rows: list[tuple[str, bytes, bytes]] = []
        messages = 0
        for entry in entries:
            kept = compactor.retained(entry)
            if kept is not None:
                rows.append(self._view.row(generation, entry, kept))
                positions.add(entry.position)
                messages += entry.batch_size - len(kept.compacted_out or ())
        return rows, messages

    async def _delete_other_generations(self) -> None:
        while keys := await _on_thread(self._view.other_keys, DELETE_KEYS):
            await self._topic.writer.put_many([(VIEW_TABLE, key, None) for key in keys])


def _note_all(compactor: Compactor, entries: Sequence[LoggedEntry]) -> None:
    for entry in entries:
        compactor.note(entry)


async def _on_thread(work: Callable[_P, _R], *arguments: _P.args, **named: _P.kwargs) -> _R:
    """Run ``work`` on a thread. When cancelled, return only when it has ended, because it reads from the store."""
    running = awaited(asyncio.to_thread(work, *arguments, **named))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise
