"""Ids and contents of a topic's stored blocks, for deduplication across origins.

Blocks are read on the writer's thread. At most :data:`BLOCKS_PARSED_MAX` of a topic stay in memory, and as many whole
blocks of a transaction.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import lmdb
from google.protobuf.message import DecodeError

from replicator.engine.errors import BlockCorrupt
from replicator.engine.log.block import BlockView, Buffer
from replicator.engine.log.store_tables import BLOCK_KEY
from replicator.engine.producing.contents import Contents
from replicator.engine.producing.deduplication import SEQUENCE_ID_MAX, SequencedEntry
from replicator.metadata.metadata_pb2 import MessageMetadata
from snapshots.position import Position

BLOCKS_PARSED_MAX: Final = 4
"""Blocks kept for the next look-up, up to 3 MB each. A producer that sends again sends neighbouring entries."""

ReadBlock = Callable[[Buffer, int, Position], BlockView]
"""Function that returns a stored block, verified, for its row, topic id and position. It raises :class:`BlockCorrupt`
for a damaged block, and reports the block for repair."""

_FRAME = struct.Struct(">HII")


class Identity(NamedTuple):
    """Ids and size of an entry. Two entries must share them to hold the same messages."""

    numbered: SequencedEntry
    batch_size: int


@dataclass(frozen=True, slots=True)
class Parsed:
    """The entries of a block, by producer and first id, and by producer, in the order of the block."""

    by_id: dict[tuple[str, int], list[tuple[Identity, int]]] = field(default_factory=dict)
    by_producer: dict[str, _Entries] = field(default_factory=dict)


@dataclass(slots=True)
class _Entries:
    """The entries of one producer in a block, in the order of the block."""

    numbered: list[tuple[SequencedEntry, int]] = field(default_factory=list)
    firsts: list[int] = field(default_factory=list)
    lasts: list[int] = field(default_factory=list)
    ordered: bool = True
    """Whether sequence ids ascend, which is usual."""

    def add(self, numbered: SequencedEntry, index: int) -> None:
        if self.firsts and (numbered.first < self.firsts[-1] or numbered.last < self.lasts[-1]):
            self.ordered = False
        self.numbered.append((numbered, index))
        self.firsts.append(numbered.first)
        self.lasts.append(numbered.last)

    def overlapping(self, first: int, last: int) -> list[tuple[SequencedEntry, int]]:
        """Return the entries with an id from ``first`` to ``last``, both inclusive, with their indexes in the block."""
        if self.ordered:
            return self.numbered[bisect_left(self.lasts, first) : bisect_right(self.firsts, last)]
        return [each for each in self.numbered if each[0].last >= first and each[0].first <= last]


class Place(NamedTuple):
    """Place of an entry: the position of its block, and its index in the block."""

    block: Position
    offset: int

    @property
    def position(self) -> Position:
        return Position(self.block.ledger, self.block.entry + self.offset)


@dataclass(slots=True)
class ContentComparison:
    """State that all comparisons of one transaction share: the decompressed entries, and the blocks that were read."""

    contents: Contents
    views: dict[tuple[int, Position], BlockView] = field(default_factory=dict)
    other_content: dict[tuple[int, str, str], int] = field(default_factory=dict)
    """Messages that reuse sequence ids of other messages with other content, counted by topic id, producer, and
    origin of the other messages."""

    damaged: dict[tuple[int, Position], str] = field(default_factory=dict)
    """Damaged blocks, by topic id and position, with what is wrong. A transaction reads each of them once."""

    def note_other_content(self, topic_id: int, producer: str, origin: str, messages: int) -> None:
        """Count messages that have sequence ids of messages from ``origin``, but other content."""
        key = topic_id, producer, origin
        self.other_content[key] = self.other_content.get(key, 0) + messages

    @property
    def wants(self) -> bool:
        """Return whether entries must be decompressed first. Then the transaction is rolled back, and its decisions
        are void."""
        return bool(self.contents.wanted)


def numbered_of(entry: Buffer) -> SequencedEntry | None:
    """Return the part of a stored entry that deduplication looks at, or None if the entry has no usable ids."""
    try:
        _, _, size = _FRAME.unpack_from(entry)
        metadata = MessageMetadata.FromString(bytes(entry[_FRAME.size : _FRAME.size + size]))
    except (struct.error, DecodeError):
        return None
    first, last, name = metadata.sequence_id, metadata.highest_sequence_id, metadata.producer_name
    if not name or "\0" in name or first > SEQUENCE_ID_MAX or last > SEQUENCE_ID_MAX:
        return None
    chunks = metadata.num_chunks_from_msg
    if chunks > 1:
        return SequencedEntry(name, first, first, metadata.chunk_id, chunks, metadata.uuid)
    return SequencedEntry(name, first, max(first, last))


class NumberedBlocks:
    """The stored blocks of one topic. Only the writer's thread uses it, within a transaction."""

    __slots__ = ("_parsed", "_read", "_topic_id")

    def __init__(self, topic_id: int, read: ReadBlock) -> None:
        self._read = read
        self._topic_id = topic_id
        self._parsed: OrderedDict[Position, Parsed] = OrderedDict()

    def parse(
        self, txn: lmdb.Transaction, tables: dict[str, Any], first: Position, comparing: ContentComparison
    ) -> Parsed | None:
        """Return the ids of the block that begins at ``first``, or None if it is trimmed.

        Raises :class:`BlockCorrupt`.
        """
        parsed = self._parsed.get(first)
        if parsed is not None:
            self._parsed.move_to_end(first)
            return parsed
        view = self._view(txn, tables, first, comparing)
        if view is None:
            return None
        parsed = Parsed()
        for index, (entry, batch_size) in enumerate(zip(view.entries(), view.batch_sizes.tolist(), strict=True)):
            numbered = numbered_of(entry)
            if numbered is not None:
                identity = Identity(numbered, batch_size)
                parsed.by_id.setdefault((numbered.producer, numbered.first), []).append((identity, index))
                parsed.by_producer.setdefault(numbered.producer, _Entries()).add(numbered, index)
        self._parsed[first] = parsed
        if len(self._parsed) > BLOCKS_PARSED_MAX:
            self._parsed.popitem(last=False)
        return parsed

    def _view(
        self, txn: lmdb.Transaction, tables: dict[str, Any], first: Position, comparing: ContentComparison
    ) -> BlockView | None:
        """Return the stored block that begins at ``first``, or None if it is trimmed. Raises :class:`BlockCorrupt`."""
        views, key = comparing.views, (self._topic_id, first)
        view = views.get(key)
        if view is not None:
            return view
        if (reason := comparing.damaged.get(key)) is not None:
            raise BlockCorrupt(reason)
        stored = txn.get(BLOCK_KEY.pack(self._topic_id, *first), db=tables["blocks"])
        if stored is None:
            return None
        try:
            view = self._read(stored, self._topic_id, first)  # ids that are not what they were would lose a message
        except BlockCorrupt as error:
            comparing.damaged[key] = str(error)
            raise
        views[key] = view
        if len(views) > BLOCKS_PARSED_MAX:
            del views[next(iter(views))]
        return view

    def entry(
        self, txn: lmdb.Transaction, tables: dict[str, Any], place: Place, comparing: ContentComparison
    ) -> Buffer:
        """Return the bytes of an entry whose block was just parsed. Raises :class:`BlockCorrupt`."""
        view = self._view(txn, tables, place.block, comparing)
        assert view is not None, "its block was just parsed"
        return view.entry(place.offset)
