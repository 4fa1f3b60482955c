"""Reading one topic's log: blocks for links, entries for subscriptions, and searches for positions.

Nothing is read past the LAC of the log index. Entries are read through the block cache. Blocks for links are not,
because each link reads each block once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator
from itertools import takewhile
from typing import Final

from pyroaring import BitMap

from replicator.engine.errors import BlockCorrupt, InvalidAck, InvalidSeek
from replicator.engine.log.block import BlockKind, BlockView
from replicator.engine.log.block_cache import BlockCache
from replicator.engine.log.log_index import LogIndex
from replicator.engine.log.requests import AppendedBlock
from replicator.engine.log.store import PASS_OVER_BLOCKS_MAX, Store
from replicator.engine.log.store_tables import TopicRecord
from replicator.engine.log.stored_blocks import StoredBlock, StoredHeader
from replicator.engine.types import END_LEDGER, LoggedEntry
from snapshots.position import BEFORE_ALL, Position
from snapshots.position_set import PositionSet

SEARCH_BLOCKS: Final = 1_000
"""Headers that a search by time reads at once, which takes some milliseconds."""

CommittedBlock = tuple[Position, BlockView]
"""A block that was just committed, and its first position."""


class TopicReading:
    """Reads one topic's log. ``find_compacted`` gives the entry of the compacted view at a position, if it has one."""

    __slots__ = ("_cache", "_cluster", "_find_compacted", "_log", "_name", "_store", "_topic_id")

    def __init__(
        self,
        record: TopicRecord,
        log: LogIndex,
        store: Store,
        cache: BlockCache,
        find_compacted: Callable[[Position], LoggedEntry | None],
    ) -> None:
        self._name = record.name
        self._topic_id = record.topic_id
        self._log = log
        self._store = store
        self._cluster = store.cluster
        self._cache = cache
        self._find_compacted = find_compacted

    def blocks(
        self,
        after: Position,
        upto: Position | None = None,
        *,
        bytes_max: int,
        blocks_max: int | None = None,
        origins: Collection[str] | None = None,
        verify: bool = True,
        from_memory: bool = False,
    ) -> tuple[list[StoredBlock], Position]:
        """Read blocks as :meth:`Store.read_blocks` does.

        With ``from_memory``, use blocks of the cache, which are verified already, and do not read them from the disk.
        """
        last = self._log.last
        limit = last if upto is None else min(upto, last)
        if from_memory and (kept := self._kept_blocks(after, limit, bytes_max, blocks_max, origins)) is not None:
            return kept
        return self._store.read_blocks(
            self._topic_id, after, limit, bytes_max=bytes_max, blocks_max=blocks_max, origins=origins, verify=verify
        )

    def _kept_blocks(
        self,
        after: Position,
        limit: Position,
        bytes_max: int,
        blocks_max: int | None,
        origins: Collection[str] | None,
    ) -> tuple[list[StoredBlock], Position] | None:
        """Return a page from the cache alone; None if the cache does not have its first block.

        Also return None below the trimmed end of the log. The index hides those blocks at once, but the store still has
        them until it records that they are trimmed: until then a reader must get them, or would miss them unnoticed.
        """
        if after < self._log.trimmed:
            return None
        found: list[StoredBlock] = []
        taken, passed_over, reached = 0, 0, after
        position = self._log.next_after(after)
        while position is not None and position <= limit and passed_over < PASS_OVER_BLOCKS_MAX:
            cached = self._cache.get(self._topic_id, position)
            if cached is None:
                break
            first, view = cached
            header = view.header
            if origins is None or (header.origin in origins and header.kind is not BlockKind.LOCAL_MARKERS):
                if found and (taken + len(view.block) > bytes_max or len(found) == blocks_max):
                    break
                found.append(StoredBlock(first, header, view.block))
                taken += len(view.block)
            else:
                passed_over += 1
            reached = min(Position(first.ledger, first.entry + header.entries - 1), limit)
            position = self._log.next_after(reached)
        return (found, reached) if reached > after else None

    def pages(
        self,
        after: Position,
        upto: Position,
        *,
        bytes_max: int,
        origins: Collection[str] | None = None,
        verify: bool = True,
        from_memory: bool = False,
        damaged: Callable[[Position, BlockCorrupt], None] | None = None,
    ) -> Iterator[tuple[list[StoredBlock], Position]]:
        """Yield the blocks in (``after``, ``upto``] in pages of about ``bytes_max``. Each page comes with the last
        position that it covers. See :meth:`blocks` for ``from_memory``.

        The pages end before ``upto`` if no entry is left, or if the topic is being deleted. A damaged block raises
        :class:`BlockCorrupt`; but if ``damaged`` is given, it is called with the block's first position and the error,
        and the block is passed over. ``damaged`` and ``origins`` cannot be given together.
        """
        assert damaged is None or origins is None
        size = bytes_max
        while after < upto:
            try:
                blocks, reached = self.blocks(
                    after, upto, bytes_max=size, origins=origins, verify=verify, from_memory=from_memory
                )
            except BlockCorrupt as error:
                if damaged is None:
                    raise
                if size:  # go on block by block, up to the damaged one
                    size = 0
                    continue
                spans = self._store.block_spans(self._topic_id, after, blocks_max=1)
                if not spans:
                    return
                damaged(spans[0].first, error)
                blocks, reached, size = [], min(spans[0].last, upto), bytes_max
            if reached <= after:
                return
            yield blocks, reached
            after = reached

    def headers(
        self, after: Position, *, bytes_max: int, blocks_max: int, origins: Collection[str]
    ) -> tuple[list[StoredHeader], Position]:
        """Return headers as :meth:`Store.read_headers` does."""
        return self._store.read_headers(
            self._topic_id, after, self._log.last, bytes_max=bytes_max, blocks_max=blocks_max, origins=origins
        )

    def entries(self, after: Position, upto: Position | None, entries_max: int, bytes_max: int) -> list[LoggedEntry]:
        """Return entries in (``after``, ``upto``], at least one if there is one."""
        next_after = self._log.next_after
        limit = self._log.last if upto is None else upto
        found: list[LoggedEntry] = []
        taken = 0
        position = next_after(after)
        while position is not None and position <= limit and len(found) < entries_max and taken < bytes_max:
            first, view = self._block_at(position)
            header = view.header
            marker = header.kind is not BlockKind.MESSAGES
            if header.entries == 1:  # a message that was sent alone
                (size,), entry = view.sizes(0, 1), view.entry(0)
                found.append(LoggedEntry(first, size, marker, entry, header.origin, header.origin_first))
                taken += len(entry)
                position = next_after(first)
                continue
            start = position.entry - first.entry
            stop = min(header.entries, start + entries_max - len(found))
            if limit.ledger == first.ledger:
                stop = min(stop, limit.entry - first.entry + 1)
            sizes = view.sizes(start, stop)
            ledger, first_entry = first
            origin, (origin_ledger, origin_entry), moved = (
                header.origin,
                header.origin_first,
                header.origin_first != first,
            )
            for index, (entry, size) in enumerate(zip(view.entries(start, stop), sizes, strict=True), start):
                origin_position = position = Position(ledger, first_entry + index)
                if moved:
                    origin_position = Position(origin_ledger, origin_entry + index)
                found.append(LoggedEntry(position, size, marker, entry, origin, origin_position))
                taken += len(entry)
                if taken >= bytes_max:
                    break
            position = next_after(found[-1].position)
        return found

    def has_position(self, position: Position) -> bool:
        """Return whether an entry at ``position`` can be acknowledged. It is in the log, or was before it was
        trimmed."""
        return position in self._log or BEFORE_ALL < position <= self._log.trimmed

    def batch_size(self, position: Position) -> int:
        """Return the number of messages of the entry at ``position``. Raise :class:`InvalidAck` if there is none."""
        if position not in self._log:
            if (compacted := self._find_compacted(position)) is not None:
                return compacted.batch_size
            raise InvalidAck(
                f"position {position} does not exist in {self._name} (its last entry is {self._log.last}): see that it "
                "is of this topic and this cluster"
            )
        first, view = self._block_at(position)
        index = position.entry - first.entry
        return view.sizes(index, index + 1)[0]

    def absent(self, position: Position) -> BitMap:
        """Return the indexes that a link left out of the batch at ``position``, which must be such a batch."""
        first, view = self._block_at(position)
        return view.absent[position.entry - first.entry]

    def publish_time_ms(self, position: Position) -> int:
        """Return when the entry at ``position``, which is in the log, was stored by the cluster that published it."""
        return self._block_at(position)[1].header.publish_time_ms

    def messages_through(self, position: Position) -> int:
        """Return the number of messages up to and including ``position``, counted from the topic's first."""
        following = self._log.next_after(position)
        return self._log.messages if following is None else self._store.messages_before(self._topic_id, following)

    def messages_stored(self) -> int:
        """Return the number of messages of all origins in the log, without trimmed ones."""
        trimmed = self._log.trimmed
        return self._log.messages - (self.messages_through(trimmed) if trimmed > BEFORE_ALL else 0)

    def messages_in(self, positions: PositionSet) -> int:
        """Return the number of messages in the entries at ``positions``. All of these entries must exist."""
        return self._store.messages_in(self._topic_id, positions)

    def position_before(self, target: Position) -> Position:
        """Return the last position before ``target``. The ledger :data:`END_LEDGER` means the end of the log.

        Raises :class:`InvalidSeek` for another position beyond the end.
        """
        last = self._log.last
        if target > Position(last.ledger, last.entry + 1) and target.ledger < END_LEDGER:
            raise InvalidSeek(f"{self._name} ends at {last}; there is nothing at {target}: give a position up to there")
        return self._log.clamp(Position(target.ledger, target.entry - 1))

    async def position_at_time(self, published_ms: int, *, after: Position) -> Position:
        """Return the position by time, as :meth:`Store.position_at_time` does. Skip old blocks in pages, so that other
        tasks run in between."""
        reached = after
        while page := self._store.block_spans(self._topic_id, reached, blocks_max=SEARCH_BLOCKS):
            older = list(takewhile(lambda block: block.publish_time_ms < published_ms, page))
            if older:
                reached = min(older[-1].last, self._log.last)
            if len(older) < len(page) or reached == self._log.last:
                break
            await asyncio.sleep(0)
        return self._store.position_at_time(self._topic_id, published_ms, after=reached)

    def discard_through(self, position: Position) -> None:
        """Drop cached blocks at or below ``position``, which are gone from the log."""
        self._cache.discard_through(self._topic_id, position)

    def keep(self, appended: AppendedBlock) -> CommittedBlock:
        """Keep a block that was just committed in the cache, for readers of the end of the log, and return it."""
        assert appended.block is not None
        # A copied block is a slice of a frame. Without a copy, the whole frame would stay in memory.
        block = appended.block if appended.header.origin == self._cluster else bytes(appended.block)
        view = BlockView(block, appended.header)
        self._cache.put(self._topic_id, appended.position, view)
        return appended.position, view

    def _block_at(self, position: Position) -> tuple[Position, BlockView]:
        cached = self._cache.get(self._topic_id, position)
        if cached is not None:
            return cached
        stored = self._store.block_of(self._topic_id, position)
        if stored is None:
            raise BlockCorrupt(
                f"{self._name}: the block that holds {position} is missing from the store; `replicator store check` "
                "says what else is missing or damaged"
            )
        # A copy: a slice would keep a buffer of many blocks in memory for as long as this one is in the cache.
        view = BlockView(bytes(stored.block), stored.header)
        self._cache.put(self._topic_id, stored.position, view)
        return stored.position, view
