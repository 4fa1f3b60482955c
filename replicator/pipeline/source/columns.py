"""Columns of a record batch, made from places of messages in a buffer, without an object for each value. Pure.

Arrow's arrays of bytes lie end to end, messages do not: between two payloads there is metadata. So an array is laid
over the whole buffer whose elements are, in turn, a value and the bytes between it and the next. Taking every other
element is then one copy in Arrow of just the values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from replicator.pipeline.source.messages import (
    MARKER_TYPE,
    PRODUCER_NAME,
    PUBLISH_TIME,
    Entries,
    Messages,
    Properties,
    ProtobufRequired,
)
from replicator.pipeline.source.schema import BLOCK_NUMBERS, BLOCK_TEXTS, TIME_MS_MAX
from replicator.pipeline.source.wire_fields import Bools, Bytes, Int64s, Spans


@dataclass(frozen=True, slots=True)
class Places:
    """Places of entries, one value for each. ``blocks`` has the index in ``shared`` of the values that its block's
    entries share."""

    blocks: Int64s
    entry: Int64s
    origin_entry: Int64s
    marker: Bools
    batch_size: npt.NDArray[np.int32]
    """Number of messages by the block, which is all that is known of unread entries; 0 for markers."""
    shared: Sequence[dict[str, Any]]


def record_batch(schema: pa.Schema, places: Places, entries: Entries, messages: Messages) -> pa.RecordBatch:
    """Return the rows in the columns of ``schema``. Raises :class:`ProtobufRequired` for text that is not UTF-8."""
    try:
        arrays = [_column(field, places, entries, messages) for field in schema]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)
    except (pa.ArrowInvalid, UnicodeDecodeError):
        raise ProtobufRequired from None


def entry_batch(schema: pa.Schema, places: Places, content: Bytes, starts: Int64s, ends: Int64s) -> pa.RecordBatch:
    """Return a row for each entry, in the columns of ``schema``. The entries are not read."""
    every = np.arange(len(starts))
    arrays = []
    for field in schema:
        match field.name:
            case "batch_size":
                arrays.append(pa.array(places.batch_size))
            case "written_time":
                written = np.array([min(shared["written_ms"], TIME_MS_MAX) for shared in places.shared], np.int64)
                arrays.append(pa.array(written[places.blocks] * 1000).cast(field.type))
            case "content":
                arrays.append(gather(content, Spans(starts, ends - starts, np.ones(len(starts), np.bool_))))
            case _:
                arrays.append(_place(field.name, places, every))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _place(name: str, places: Places, entry: Int64s) -> pa.Array:
    """Return a column of places of entries, with the value of each row's entry."""
    if name in BLOCK_TEXTS:
        return _repeated_text([shared[name] for shared in places.shared], places.blocks[entry])
    if name in BLOCK_NUMBERS:
        values = np.array([shared[name] for shared in places.shared], dtype=np.int64)
        return pa.array(values[places.blocks[entry]])
    return pa.array({"entry": places.entry, "origin_entry": places.origin_entry}[name][entry])


def _column(field: pa.Field, places: Places, entries: Entries, messages: Messages) -> pa.Array:
    entry = messages.entry
    match field.name:
        case "batch_index":
            return pa.array(messages.batch_index.astype(np.int32))
        case "batch_size":
            return pa.array(np.where(places.marker, 0, entries.sizes)[entry].astype(np.int32))
        case "marker_type":
            types = entries.metadata.numbers[MARKER_TYPE].values.astype(np.uint32).view(np.int32)
            return pa.array(types[entry], mask=~places.marker[entry])
        case "publish_time":
            times = entries.metadata.numbers[PUBLISH_TIME].values
            late = times > np.uint64(TIME_MS_MAX)
            micros = np.where(late, np.uint64(0), times).astype(np.int64) * 1000
            return pa.array(micros[entry], mask=late[entry] if late.any() else None).cast(field.type)
        case "producer_name":
            names = text(gather(entries.content, entries.metadata.spans[PRODUCER_NAME])).dictionary_encode()
            return names.take(pa.array(entry)).cast(pa.string())
        case "sequence_id":
            return pa.array(messages.sequence_id.view(np.int64))
        case "key":
            return text(gather(entries.content, messages.key))
        case "payload":
            return gather(entries.content, messages.payload)
        case "properties":
            return _maps(field.type, entries.content, messages.properties, len(entry))
    return _place(field.name, places, entry)


def gather(content: Bytes, spans: Spans) -> pa.Array:
    """Return the bytes of each span in one copy; null for missing spans."""
    present = np.flatnonzero(spans.present)
    starts, lengths = spans.starts[present], spans.lengths[present]
    if not len(present):
        return pa.nulls(len(spans.present), pa.binary())
    rank: Int64s | None = None
    if (starts[1:] < starts[:-1]).any():  # what was decompressed lies behind the rest
        order = np.argsort(starts, kind="stable")
        starts, lengths = starts[order], lengths[order]
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
    bounds = np.empty(2 * len(starts), np.int32)
    bounds[0::2], bounds[1::2] = starts, starts + lengths
    whole = pa.Array.from_buffers(
        pa.binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(np.ascontiguousarray(content))]
    )
    numbers = 2 * (np.arange(len(starts)) if rank is None else rank)
    if len(present) == len(spans.present):
        return whole.take(pa.array(numbers))
    indices = np.zeros(len(spans.present), np.int64)
    indices[present] = numbers
    return whole.take(pa.array(indices, mask=~spans.present))


def text(values: pa.Array) -> pa.Array:
    """Return bytes as strings. Raises ``pa.ArrowInvalid`` for bytes that are not UTF-8."""
    return values.cast(pa.string())


def _repeated_text(values: Sequence[str], which: Int64s) -> pa.Array:
    if len(set(values)) == 1:
        return pa.repeat(pa.scalar(values[0], pa.string()), len(which))
    return pa.DictionaryArray.from_arrays(pa.array(which.astype(np.int32)), pa.array(values, pa.string())).cast(
        pa.string()
    )


def _maps(data_type: pa.MapType, content: Bytes, properties: Properties, count: int) -> pa.Array:
    keys, items = text(gather(content, properties.keys)), text(gather(content, properties.values))
    owners = properties.owners
    if len(owners) and (owners[1:] == owners[:-1]).any():
        codes = keys.dictionary_encode().indices.to_numpy().astype(np.int64)
        pairs = owners * (int(codes.max()) + 1) + codes
        if len(np.unique(pairs)) < len(pairs):
            raise ProtobufRequired  # a repeated key has its last value, as for every reader that makes a map of them
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(np.bincount(owners, minlength=count), out=offsets[1:])
    return pa.MapArray.from_arrays(pa.array(offsets), keys, items).cast(data_type)
