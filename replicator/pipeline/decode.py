"""From blocks to rows: one row for each message of a batch, and one for each marker.

Blocks and Arrow record batches go in and out; no network, no Spark.

1. A block's checksum is verified, so what its entries hold is what its origin stored.
2. Entries outside the wanted range are left out: blocks come whole, ranges need not start or end with one.
3. An entry is decompressed, split into its messages, and each becomes a value in each wanted column.
4. A record batch is given out when it has :data:`BATCH_ROWS_MAX` rows or :data:`BATCH_BYTES_MAX` of payload, looked
   at after each entry; so it is at most one entry larger than that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any, Final

import pyarrow as pa

from replicator.engine.errors import EngineError
from replicator.engine.log import compression
from replicator.engine.log.block import BlockKind, BlockView, verify_block
from replicator.engine.log.entry import BATCH_MESSAGES_MAX, decode_entry, split_batch
from replicator.engine.log.metadata_pb2 import NONE, KeyValue, MessageMetadata, SingleMessageMetadata
from replicator.pipeline.data_plane import FetchedBlock
from replicator.pipeline.errors import EntryUnreadable
from snapshots.position import Position

BATCH_ROWS_MAX: Final = 10_000
BATCH_BYTES_MAX: Final = 8 * 1024 * 1024
"""Spark holds a few record batches of each task at once; these keep a task within tens of megabytes."""
_TIME_MS_MAX: Final = 253_402_300_799_999
"""The end of year 9999, where Spark's timestamps end; a later publish time is a broken clock and becomes null."""

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

    def add_entry(self, place: dict[str, Any], entry: memoryview, kind: BlockKind) -> None:
        """The rows of one entry; ``place`` holds the columns that all of them share.

        Raises :class:`EntryCorrupt` or another :class:`EngineError`, with no row added.
        """
        metadata, payload = decode_entry(entry, check=False)  # the block's checksum covers it
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
            "publish_time": metadata.publish_time * 1000 if metadata.publish_time <= _TIME_MS_MAX else None,
            "producer_name": _text(metadata.producer_name),
        }
        values.setdefault("batch_index", range(rows))
        values.setdefault("sequence_id", [_signed(metadata.sequence_id + index) for index in range(rows)])
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


def message_batches(
    blocks: Iterable[FetchedBlock], cluster: str, topic: str, after: Position, upto: Position, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Record batches of the messages and markers with ``after < position <= upto``.

    Raises :class:`~replicator.engine.errors.BlockCorrupt` for a block whose checksum is wrong and
    :class:`EntryUnreadable` for an entry that cannot be taken apart.
    """
    rows = MessageRows(schema)
    for fetched in blocks:
        header = verify_block(fetched.block)
        view = BlockView(fetched.block, header)
        start, stop = _wanted(fetched.first, header.entries, after, upto)
        place = {
            "cluster": cluster,
            "topic": topic,
            "ledger": fetched.first.ledger,
            "kind": KIND_NAMES[header.kind],
            "origin": header.origin,
            "incarnation": _signed(header.incarnation),
            "origin_ledger": header.origin_first.ledger,
        }
        for index, entry in enumerate(view.entries(start, stop), start):
            place["entry"] = fetched.first.entry + index
            place["origin_entry"] = header.origin_first.entry + index
            try:
                rows.add_entry(place, entry, header.kind)
            except EngineError as error:
                position = Position(fetched.first.ledger, fetched.first.entry + index)
                raise EntryUnreadable(f"{cluster} {topic} entry {position}: {error}") from error
            if rows.full:
                yield rows.take()
    if rows:
        yield rows.take()


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
