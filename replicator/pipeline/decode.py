"""From blocks to rows: one row for each message of a batch, and one for each marker.

Blocks and Arrow record batches go in and out; no network, no Spark.

1. A block's checksum is verified, so what its entries hold is what its origin stored.
2. Entries outside the wanted range, or that a filter rules out, are left out: blocks come whole.
3. Entries are gathered, of one topic after another, until they have :data:`BATCH_ROWS_MAX` messages or
   :data:`BATCH_BYTES_MAX` bytes; then they become record batches together (:mod:`messages
   <replicator.pipeline.messages>`, :mod:`columns <replicator.pipeline.columns>`).
4. What those cannot read, and what is too little to be worth it, goes message by message through protobuf
   (:class:`MessageRows`): it knows every case, and what is wrong with the others.
5. Of what is decompressed, at most :data:`UNPACKED_BYTES_MAX` are held at once, or one entry.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from replicator.engine.errors import EngineError
from replicator.engine.log import compression
from replicator.engine.log.block import BlockHeader, BlockKind, BlockView, verify_block
from replicator.engine.log.entry import BATCH_MESSAGES_MAX, decode_entry, split_batch
from replicator.engine.log.metadata_pb2 import NONE, KeyValue, MessageMetadata, SingleMessageMetadata
from replicator.pipeline.columns import TIME_MS_MAX, Places, entry_batch, record_batch
from replicator.pipeline.data_plane import FetchedBlock
from replicator.pipeline.errors import EntryUnreadable
from replicator.pipeline.messages import (
    PUBLISH_TIME,
    Irregular,
    joined,
    read_metadata,
    split_messages,
    uncompressed_bytes,
    unpack_entries,
)
from snapshots.position import Position

BATCH_ROWS_MAX: Final = 10_000
BATCH_BYTES_MAX: Final = 8 * 1024 * 1024
"""Spark holds a few record batches of each task at once; these keep a task within tens of megabytes."""
UNPACKED_BYTES_MAX: Final = 32 * 1024 * 1024
"""What payloads may take together once they are decompressed; an entry that is larger comes alone."""
_WORTH_MESSAGES: Final = 50
"""Fewer are read sooner one by one: NumPy's calls take as long for one message as for a hundred."""

COLUMNS: Final = pa.schema(
    [
        ("cluster", pa.string()),
        ("topic", pa.string()),
        ("ledger", pa.int64()),
        ("entry", pa.int64()),
        ("batch_index", pa.int32()),
        ("batch_size", pa.int32()),
        ("kind", pa.string()),
        ("origin", pa.string()),
        ("incarnation", pa.int64()),
        ("origin_ledger", pa.int64()),
        ("origin_entry", pa.int64()),
        ("marker_type", pa.int32()),
        ("key", pa.string()),
        ("properties", pa.map_(pa.string(), pa.string())),
        ("publish_time", pa.timestamp("us", tz="UTC")),
        ("producer_name", pa.string()),
        ("sequence_id", pa.int64()),
        ("payload", pa.binary()),
    ]
)
"""``ledger:entry`` is where the entry lies in ``cluster``; ``origin_ledger:origin_entry`` where it was first published.

``kind`` is ``message``, ``marker`` or ``local_marker``. A marker has ``batch_size`` 0 and its message as ``payload``.
A message outside a batch has ``batch_index`` 0 and ``batch_size`` 1. ``payload`` is null for a tombstone. An encrypted
batch cannot be split: its first row has the whole sealed payload, the others none.
"""

ENTRY_COLUMNS: Final = pa.schema(
    [
        ("cluster", pa.string()),
        ("topic", pa.string()),
        ("ledger", pa.int64()),
        ("entry", pa.int64()),
        ("batch_size", pa.int32()),
        ("kind", pa.string()),
        ("origin", pa.string()),
        ("incarnation", pa.int64()),
        ("origin_ledger", pa.int64()),
        ("origin_entry", pa.int64()),
        ("written_time", pa.timestamp("us", tz="UTC")),
        ("content", pa.binary()),
    ]
)
"""With ``mode`` set to ``entries``: a row for each entry, as its producer sent it; nothing of it is looked at.

``written_time`` is when the origin committed its block.
"""

KIND_NAMES: Final = {
    BlockKind.MESSAGES: "message",
    BlockKind.MARKERS: "marker",
    BlockKind.LOCAL_MARKERS: "local_marker",
}


class MessageRows:
    """Collects rows, column by column, until they are taken as a record batch.

    ``schema`` is a selection of :data:`COLUMNS`, in the order that the record batches are to have.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._columns: dict[str, list[Any]] = {name: [] for name in schema.names}
        self._rows = self._payload_bytes = 0

    @property
    def full(self) -> bool:
        return self._rows >= BATCH_ROWS_MAX or self._payload_bytes >= BATCH_BYTES_MAX

    def __len__(self) -> int:
        return self._rows

    def add_entry(
        self,
        place: dict[str, Any],
        entry: memoryview,
        kind: BlockKind,
        absent: Collection[int] = (),
        entry_filter: EntryFilter | None = None,
    ) -> None:
        """The rows of one entry; ``place`` holds the columns that all of them share, ``absent`` the indexes of the
        messages that a link left out of it.

        Raises :class:`EntryCorrupt` or another :class:`EngineError`, with no row added.
        """
        metadata, payload = decode_entry(entry, check=False)  # the block's checksum covers it
        if entry_filter is not None:
            kept = entry_filter.wants_times(np.array([metadata.publish_time], dtype=np.uint64))
            if kept is not None and not kept.all():
                return
        values: dict[str, Sequence[Any]]
        if kind is not BlockKind.MESSAGES:
            rows, values = 1, self._single(metadata, payload)
            place = place | {"batch_size": 0, "marker_type": metadata.marker_type}
        elif metadata.encryption_keys:
            rows = metadata.num_messages_in_batch
            values = {
                "key": [None] * rows,
                "properties": [()] * rows,
                "payload": [bytes(payload)] + [None] * (rows - 1),
            }
            place = place | {"batch_size": rows}
        elif metadata.HasField("num_messages_in_batch"):
            rows = metadata.num_messages_in_batch
            values = self._batch(metadata, decompress(metadata, payload))
            place = place | {"batch_size": rows}
        else:
            rows, values = 1, self._single(metadata, decompress(metadata, payload))
            place = place | {"batch_size": 1}
        place |= {
            "publish_time": metadata.publish_time * 1000 if metadata.publish_time <= TIME_MS_MAX else None,
            "producer_name": _text(metadata.producer_name),
        }
        values.setdefault("batch_index", range(rows))
        values.setdefault("sequence_id", [_signed(metadata.sequence_id + index) for index in range(rows)])
        if absent:
            present = [index for index in range(rows) if index not in absent]
            values = {name: [column[index] for index in present] for name, column in values.items()}
            rows = len(present)
        for name, column in self._columns.items():
            column.extend(values[name] if name in values else repeat(place.get(name), rows))
        self._rows += rows
        self._payload_bytes += len(payload)

    def take(self) -> pa.RecordBatch:
        """The rows collected so far."""
        arrays = [pa.array(self._columns[field.name], field.type) for field in self._schema]
        self._columns = {name: [] for name in self._schema.names}
        self._rows = self._payload_bytes = 0
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    @staticmethod
    def _single(metadata: MessageMetadata, payload: memoryview) -> dict[str, Sequence[Any]]:
        return {
            "key": [_key(metadata)],
            "properties": [_properties(metadata.properties)],
            "payload": [None if metadata.null_value else bytes(payload)],
        }

    @staticmethod
    def _batch(metadata: MessageMetadata, payload: memoryview) -> dict[str, Sequence[Any]]:
        keys, properties, payloads, sequence_ids = [], [], [], []
        for index, (single, content) in enumerate(split_batch(metadata, payload)):
            keys.append(_key(single))
            properties.append(_properties(single.properties))
            payloads.append(None if single.null_value else bytes(content))
            sequence_ids.append(
                _signed(single.sequence_id if single.HasField("sequence_id") else metadata.sequence_id + index)
            )
        return {"key": keys, "properties": properties, "payload": payloads, "sequence_id": sequence_ids}


class EntryFilter(Protocol):
    """Which entries are wanted, of those in a range."""

    def wants_block(self, shared: Mapping[str, Any]) -> bool:
        """Whether entries are wanted that have these values in common: topic, ledger, kind, origin and so on."""

    def wants_entries(
        self, entry: npt.NDArray[np.int64], origin_entry: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.bool_] | None:
        """For each entry of a block whether it is wanted; None for all."""

    def wants_times(self, publish_time_ms: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_] | None:
        """For each entry whether it is wanted, by its publish time; None for all."""


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
    """Where each lies in the block."""


@dataclass(frozen=True, slots=True)
class _Gathered:
    """Entries of several blocks, put together; one value for each."""

    pieces: Sequence[_Piece]
    content: npt.NDArray[np.uint8]
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    piece: npt.NDArray[np.int64]
    index: npt.NDArray[np.int64]

    def chosen(self, which: npt.NDArray[Any]) -> _Gathered:
        return _Gathered(
            self.pieces, self.content, self.starts[which], self.ends[which], self.piece[which], self.index[which]
        )

    def __len__(self) -> int:
        return len(self.starts)


class Decoder:
    """Makes record batches of what it is given, in order; ask for the rest with :meth:`finish`.

    Raises :class:`~replicator.engine.errors.BlockCorrupt` for a block whose checksum is wrong and
    :class:`EntryUnreadable` for an entry that cannot be taken apart.
    """

    def __init__(self, schema: pa.Schema, entry_filter: EntryFilter | None = None, *, raw: bool = False) -> None:
        """``raw`` makes rows of entries, in columns of :data:`ENTRY_COLUMNS`, instead of messages."""
        self._schema = schema
        self._raw = raw
        self._filter = entry_filter
        self._pieces: list[_Piece] = []
        self._messages = self._bytes = 0

    def add(
        self, fetched: FetchedBlock, cluster: str, topic: str, after: Position, upto: Position
    ) -> Iterator[pa.RecordBatch]:
        """The entries of a block with ``after < position <= upto``."""
        header = verify_block(fetched.block)
        start, stop = _wanted(fetched.first, header.entries, after, upto)
        shared = {
            "cluster": cluster,
            "topic": topic,
            "ledger": fetched.first.ledger,
            "kind": KIND_NAMES[header.kind],
            "origin": header.origin,
            "incarnation": _signed(header.incarnation),
            "origin_ledger": header.origin_first.ledger,
            "written_ms": header.publish_time_ms,
        }
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
        """What is left."""
        if self._pieces:
            pieces, self._pieces = self._pieces, []
            self._messages = self._bytes = 0
            yield from self._decode(_gathered(pieces))

    def _gather(
        self, fetched: FetchedBlock, header: BlockHeader, shared: dict[str, Any], indexes: npt.NDArray[np.int64]
    ) -> Iterator[pa.RecordBatch]:
        """Put entries to the others, and decode what is enough for a record batch."""
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

    def _decode(self, entries: _Gathered) -> Iterator[pa.RecordBatch]:
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
        except Irregular:
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

    def _unpacked(self, entries: _Gathered) -> Iterator[pa.RecordBatch]:
        """Entries whose payloads have room in memory all at once."""
        places = _places(entries)
        try:
            metadata, payload_starts = read_metadata(entries.content, entries.starts, entries.ends)
            unpacked = unpack_entries(entries.content, metadata, payload_starts, entries.ends, places.marker)
            batch = record_batch(self._schema, places, unpacked, split_messages(unpacked))
        except Irregular:
            yield from self._one_by_one(entries)
        else:
            yield batch

    def _one_by_one(self, entries: _Gathered) -> Iterator[pa.RecordBatch]:
        rows = MessageRows(self._schema)
        content = memoryview(entries.content)  # type: ignore[arg-type]  # an array is a buffer
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
                raise EntryUnreadable(f"{place['cluster']} {place['topic']} entry {position}: {error}") from error
            if rows.full:
                yield rows.take()
        if rows:
            yield rows.take()


def message_batches(
    blocks: Iterable[FetchedBlock], cluster: str, topic: str, after: Position, upto: Position, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Record batches of the messages and markers with ``after < position <= upto``. Raises as :class:`Decoder`."""
    decoder = Decoder(schema)
    for fetched in blocks:
        yield from decoder.add(fetched, cluster, topic, after, upto)
    yield from decoder.finish()


def _places(entries: _Gathered) -> Places:
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


def _gathered(pieces: Sequence[_Piece]) -> _Gathered:
    """The entries of pieces in one buffer."""
    lows = np.array([piece.starts[0] for piece in pieces], dtype=np.int64)
    highs = np.array([piece.ends[-1] for piece in pieces], dtype=np.int64)
    bases = np.cumsum(highs - lows) - (highs - lows) - lows
    content = joined(
        [memoryview(piece.fetched.block)[low:high] for piece, low, high in zip(pieces, lows, highs, strict=True)]
    )
    counts = np.array([len(piece.indexes) for piece in pieces])
    which = np.repeat(np.arange(len(pieces)), counts)
    return _Gathered(
        pieces,
        content,
        np.concatenate([piece.starts for piece in pieces]) + bases[which],
        np.concatenate([piece.ends for piece in pieces]) + bases[which],
        which,
        np.concatenate([piece.indexes for piece in pieces]),
    )


def decompress(metadata: MessageMetadata, payload: memoryview) -> memoryview:
    """The payload as its producer made it; raises :class:`EntryCorrupt`, :class:`MessageTooLarge`."""
    if metadata.compression == NONE:
        return payload
    return memoryview(compression.decompress(payload, metadata.compression, metadata.uncompressed_size))


def _wanted(at: Position, entries: int, after: Position, upto: Position) -> tuple[int, int]:
    """The index range of a block's entries with ``after < position <= upto``."""
    ledger, first = at
    start = max(after.entry + 1 - first, 0) if ledger == after.ledger else 0
    stop = min(upto.entry + 1 - first, entries) if ledger == upto.ledger else entries
    return (start, stop) if after.ledger <= ledger <= upto.ledger and start < stop else (0, 0)


def _key(metadata: MessageMetadata | SingleMessageMetadata) -> str | None:
    if not metadata.HasField("partition_key") or metadata.null_partition_key:
        return None
    return _text(metadata.partition_key)


def _properties(properties: Sequence[KeyValue]) -> Sequence[tuple[str, str]]:
    if not properties:
        return ()
    # A key that comes twice has its last value, as for every reader that makes a map of them.
    return list({_text(pair.key): _text(pair.value) for pair in properties}.items())


def _text(value: str | bytes) -> str:
    """protobuf hands over strings that are not UTF-8 as bytes."""
    return value if isinstance(value, str) else value.decode(errors="backslashreplace")


def _signed(value: int) -> int:
    """An unsigned 64-bit number as Spark's bigint, bit for bit."""
    value &= 2**64 - 1
    return value - 2**64 if value >= 2**63 else value


assert BATCH_MESSAGES_MAX < 2**31, "batch_index is an int"
