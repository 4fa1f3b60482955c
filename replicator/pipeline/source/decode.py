"""Decoding of blocks into rows: one row for each message of a batch, and one for each marker.

Blocks and Arrow record batches go in and out; no network, no Spark.

1. A block's checksum is verified, so its entries are those that its origin stored.
2. Entries outside the wanted range, or that a filter rules out, are left out: blocks come whole.
3. Entries are gathered, of one topic after another, until they have :data:`BATCH_ROWS_MAX` messages or
   :data:`BATCH_BYTES_MAX` bytes; then they become record batches together (:mod:`messages
   <replicator.pipeline.source.messages>`, :mod:`columns <replicator.pipeline.source.columns>`).
4. Entries that these modules cannot read, or that are too few, go message by message through protobuf
   (:class:`MessageRows`): it knows every case, and names the faults of the others.
5. At most :data:`UNPACKED_BYTES_MAX` of decompressed payloads are held at once, or one entry.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from replicator.engine.errors import EngineError
from replicator.engine.log.block import BlockHeader, BlockKind, BlockView, verify_block
from replicator.pipeline.data_plane import FetchedBlock
from replicator.pipeline.errors import EntryUnreadable
from replicator.pipeline.source.columns import Places, entry_batch, record_batch
from replicator.pipeline.source.message_rows import (
    BATCH_BYTES_MAX,
    BATCH_ROWS_MAX,
    EntryFilter,
    MessageRows,
)
from replicator.pipeline.source.messages import (
    PUBLISH_TIME,
    ProtobufRequired,
    joined,
    read_metadata,
    split_messages,
    uncompressed_bytes,
    unpack_entries,
)
from replicator.pipeline.source.schema import block_columns
from snapshots.position import Position

UNPACKED_BYTES_MAX: Final = 32 * 1024 * 1024
"""Limit of decompressed payloads that are held together; a larger entry comes alone."""
_WORTH_MESSAGES: Final = 50
"""Number of messages below which they are read one by one: NumPy's calls take as long for one message as for a
hundred."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """Entries of one block, by their indexes in it."""

    shared: dict[str, Any]
    fetched: FetchedBlock
    header: BlockHeader
    view: BlockView
    indexes: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    """End of each entry in the block."""


@dataclass(frozen=True, slots=True)
class _EntryColumns:
    """Entries of several blocks, put together; one value for each."""

    pieces: Sequence[_Piece]
    content: npt.NDArray[np.uint8]
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    piece: npt.NDArray[np.int64]
    index: npt.NDArray[np.int64]

    def chosen(self, which: npt.NDArray[Any]) -> _EntryColumns:
        return _EntryColumns(
            self.pieces, self.content, self.starts[which], self.ends[which], self.piece[which], self.index[which]
        )

    def __len__(self) -> int:
        return len(self.starts)


class Decoder:
    """Decoder that makes record batches of blocks, in order; :meth:`finish` gives the rest.

    Raises :class:`~replicator.engine.errors.BlockCorrupt` for a block whose checksum is wrong and
    :class:`EntryUnreadable` for an entry that cannot be taken apart.
    """

    def __init__(self, schema: pa.Schema, entry_filter: EntryFilter | None = None, *, raw: bool = False) -> None:
        """Keep the settings. ``raw`` makes rows of entries instead of messages, in the columns of
        ``schema.ENTRY_COLUMNS``."""
        self._schema = schema
        self._raw = raw
        self._filter = entry_filter
        self._pieces: list[_Piece] = []
        self._messages = self._bytes = 0

    def add(
        self, fetched: FetchedBlock, cluster: str, topic: str, after: Position, upto: Position
    ) -> Iterator[pa.RecordBatch]:
        """Add the entries of a block with ``after < position <= upto``; yield the record batches that are full."""
        header = verify_block(fetched.block)
        start, stop = _wanted(fetched.first, header.entries, after, upto)
        shared = block_columns(cluster, topic, fetched.first, header)
        shared["written_ms"] = header.publish_time_ms
        indexes = np.arange(start, stop)
        if self._filter is not None and start < stop:
            if not self._filter.wants_block(shared):
                return
            kept = self._filter.wants_entries(fetched.first.entry + indexes, header.origin_first.entry + indexes)
            indexes = indexes if kept is None else indexes[kept]
        if not len(indexes):
            return
        yield from self._gather(fetched, header, shared, indexes)

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Yield the record batches of the remaining entries."""
        if self._pieces:
            pieces, self._pieces = self._pieces, []
            self._messages = self._bytes = 0
            yield from self._decode(_gathered(pieces))

    def _gather(
        self, fetched: FetchedBlock, header: BlockHeader, shared: dict[str, Any], indexes: npt.NDArray[np.int64]
    ) -> Iterator[pa.RecordBatch]:
        """Add entries to the gathered ones, and decode them once there are enough for a record batch."""
        view = BlockView(fetched.block, header)
        columns_at = header.columns_at + 8 * header.entries
        bounds = np.zeros(header.entries + 1, np.int64)
        bounds[1:] = np.frombuffer(fetched.block, "<u4", header.entries, header.columns_at)
        bounds += columns_at
        rows = np.ones(len(indexes), np.int64) if self._raw else view.batch_sizes[indexes].astype(np.int64)
        messages = np.cumsum(np.maximum(rows, 1))
        sizes = np.cumsum(bounds[indexes + 1] - bounds[indexes])
        first = 0
        while first < len(indexes):
            before_messages, before_bytes = (0, 0) if not first else (int(messages[first - 1]), int(sizes[first - 1]))
            # Entries up to the one that makes the batch full, as many as it takes.
            by_messages = np.searchsorted(messages, before_messages + BATCH_ROWS_MAX - self._messages)
            by_bytes = np.searchsorted(sizes, before_bytes + BATCH_BYTES_MAX - self._bytes)
            last = min(int(min(by_messages, by_bytes)), len(indexes) - 1)
            some = indexes[first : last + 1]
            self._pieces.append(_Piece(shared, fetched, header, view, some, bounds[some], bounds[some + 1]))
            self._messages += int(messages[last]) - before_messages
            self._bytes += int(sizes[last]) - before_bytes
            if self._messages >= BATCH_ROWS_MAX or self._bytes >= BATCH_BYTES_MAX:
                yield from self.finish()
            first = last + 1

    def _decode(self, entries: _EntryColumns) -> Iterator[pa.RecordBatch]:
        if self._raw:
            yield entry_batch(self._schema, _places(entries), entries.content, entries.starts, entries.ends)
            return
        parts = any(piece.header.parts_bytes for piece in entries.pieces)
        messages = sum(int(piece.view.batch_sizes[piece.indexes].sum()) for piece in entries.pieces)
        if parts or messages < _WORTH_MESSAGES:
            yield from self._one_by_one(entries)
            return
        try:
            metadata, _ = read_metadata(entries.content, entries.starts, entries.ends)
        except ProtobufRequired:
            yield from self._one_by_one(entries)
            return
        if self._filter is not None:
            kept = self._filter.wants_times(metadata.numbers[PUBLISH_TIME].values)
            if kept is not None and not kept.all():
                if kept.any():
                    yield from self._unpacked(entries.chosen(kept))
                return
        unpacked = np.cumsum(uncompressed_bytes(metadata, entries.ends - entries.starts))
        if int(unpacked[-1]) <= UNPACKED_BYTES_MAX:
            yield from self._unpacked(entries)
            return
        first = 0
        while first < len(entries):
            before = int(unpacked[first - 1]) if first else 0
            stop = max(int(np.searchsorted(unpacked, before + UNPACKED_BYTES_MAX, side="right")), first + 1)
            yield from self._unpacked(entries.chosen(slice(first, stop)))  # type: ignore[arg-type]
            first = stop

    def _unpacked(self, entries: _EntryColumns) -> Iterator[pa.RecordBatch]:
        """Yield the rows of entries whose payloads all have room in memory at once."""
        places = _places(entries)
        try:
            metadata, payload_starts = read_metadata(entries.content, entries.starts, entries.ends)
            unpacked = unpack_entries(entries.content, metadata, payload_starts, entries.ends, places.marker)
            batch = record_batch(self._schema, places, unpacked, split_messages(unpacked))
        except ProtobufRequired:
            yield from self._one_by_one(entries)
        else:
            yield batch

    def _one_by_one(self, entries: _EntryColumns) -> Iterator[pa.RecordBatch]:
        rows = MessageRows(self._schema)
        content = entries.content.data
        columns = (entries.piece, entries.index, entries.starts, entries.ends)
        for number, index, start, end in zip(*(column.tolist() for column in columns), strict=True):
            piece = entries.pieces[number]
            position = Position(piece.fetched.first.ledger, piece.fetched.first.entry + index)
            origin_entry = piece.header.origin_first.entry + index
            place = piece.shared | {"entry": position.entry, "origin_entry": origin_entry}
            absent = piece.view.absent.get(index, ())
            try:
                rows.add_entry(place, content[start:end], piece.header.kind, absent, self._filter)
            except EngineError as error:
                raise EntryUnreadable(
                    f"entry {position} of {place['topic']} in cluster {place['cluster']} cannot be read: {error}"
                ) from error
            if rows.full:
                yield rows.take()
        if rows:
            yield rows.take()


def message_batches(
    blocks: Iterable[FetchedBlock], cluster: str, topic: str, after: Position, upto: Position, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield record batches of the messages and markers with ``after < position <= upto``. Raises the errors of
    :class:`Decoder`."""
    decoder = Decoder(schema)
    for fetched in blocks:
        yield from decoder.add(fetched, cluster, topic, after, upto)
    yield from decoder.finish()


def _places(entries: _EntryColumns) -> Places:
    firsts = np.array([piece.fetched.first.entry for piece in entries.pieces], dtype=np.int64)
    origin_firsts = np.array([piece.header.origin_first.entry for piece in entries.pieces], dtype=np.int64)
    markers = np.array([piece.header.kind is not BlockKind.MESSAGES for piece in entries.pieces])
    return Places(
        blocks=entries.piece,
        entry=firsts[entries.piece] + entries.index,
        origin_entry=origin_firsts[entries.piece] + entries.index,
        marker=markers[entries.piece],
        batch_size=np.concatenate([piece.view.batch_sizes[piece.indexes] for piece in entries.pieces]).astype(np.int32),
        shared=[piece.shared for piece in entries.pieces],
    )


def _gathered(pieces: Sequence[_Piece]) -> _EntryColumns:
    """Return the entries of pieces in one buffer."""
    lows = np.array([piece.starts[0] for piece in pieces], dtype=np.int64)
    highs = np.array([piece.ends[-1] for piece in pieces], dtype=np.int64)
    bases = np.cumsum(highs - lows) - (highs - lows) - lows
    content = joined(
        [memoryview(piece.fetched.block)[low:high] for piece, low, high in zip(pieces, lows, highs, strict=True)]
    )
    counts = np.array([len(piece.indexes) for piece in pieces])
    which = np.repeat(np.arange(len(pieces)), counts)
    return _EntryColumns(
        pieces,
        content,
        np.concatenate([piece.starts for piece in pieces]) + bases[which],
        np.concatenate([piece.ends for piece in pieces]) + bases[which],
        which,
        np.concatenate([piece.indexes for piece in pieces]),
    )


def _wanted(at: Position, entries: int, after: Position, upto: Position) -> tuple[int, int]:
    """Return the index range of a block's entries with ``after < position <= upto``."""
    ledger, first = at
    start = max(after.entry + 1 - first, 0) if ledger == after.ledger else 0
    stop = min(upto.entry + 1 - first, entries) if ledger == upto.ledger else entries
    return (start, stop) if after.ledger <= ledger <= upto.ledger and start < stop else (0, 0)
