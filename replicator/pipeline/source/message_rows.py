"""Rows of entries, made one message after another through protobuf.

It is used for entries that :mod:`messages <replicator.pipeline.source.messages>` does not read. It knows every case,
and names the fault of an entry that cannot be read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import repeat
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from replicator.engine.log import compression
from replicator.engine.log.block import BlockKind
from replicator.engine.log.entry import BATCH_MESSAGES_MAX, decode_entry, split_batch
from replicator.metadata.metadata_pb2 import NONE, KeyValue, MessageMetadata, SingleMessageMetadata
from replicator.pipeline.source.schema import TIME_MS_MAX, signed

BATCH_ROWS_MAX: Final = 10_000
BATCH_BYTES_MAX: Final = 8 * 1024 * 1024
"""Size of a record batch. Spark holds a few record batches of each task at once; this keeps a task within tens of
megabytes."""


class EntryFilter(Protocol):
    """Interface of a filter of the entries in a range."""

    def wants_block(self, shared: Mapping[str, Any]) -> bool:
        """Return whether entries with these shared values (topic, ledger, kind, origin and so on) are wanted."""

    def wants_entries(
        self, entry: npt.NDArray[np.int64], origin_entry: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.bool_] | None:
        """Return, for each entry of a block, whether it is wanted; None if all are."""

    def wants_times(self, publish_time_ms: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_] | None:
        """Return, for each entry, whether it is wanted by its publish time; None if all are."""


class MessageRows:
    """Collector of rows, column by column, until they are taken as a record batch.

    ``schema`` is a selection of :data:`~replicator.pipeline.source.schema.COLUMNS`, in the order that the record
    batches are to have.
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
        """Add the rows of one entry.

        ``place`` has the columns that all of them share, ``absent`` the indexes of messages that a link left out of it.
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
        values.setdefault("sequence_id", [signed(metadata.sequence_id + index) for index in range(rows)])
        if absent:
            present = [index for index in range(rows) if index not in absent]
            values = {name: [column[index] for index in present] for name, column in values.items()}
            rows = len(present)
        for name, column in self._columns.items():
            column.extend(values[name] if name in values else repeat(place.get(name), rows))
        self._rows += rows
        self._payload_bytes += len(payload)

    def take(self) -> pa.RecordBatch:
        """Return the rows collected so far."""
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
                signed(single.sequence_id if single.HasField("sequence_id") else metadata.sequence_id + index)
            )
        return {"key": keys, "properties": properties, "payload": payloads, "sequence_id": sequence_ids}


def decompress(metadata: MessageMetadata, payload: memoryview) -> memoryview:
    """Return the payload as its producer made it. Raises :class:`EntryCorrupt`, :class:`MessageTooLarge`."""
    if metadata.compression == NONE:
        return payload
    return memoryview(compression.decompress(payload, metadata.compression, metadata.uncompressed_size))


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
    """Return a text. protobuf gives strings that are not UTF-8 as bytes."""
    return value if isinstance(value, str) else value.decode(errors="backslashreplace")


assert BATCH_MESSAGES_MAX < 2**31, "batch_index is an int"
