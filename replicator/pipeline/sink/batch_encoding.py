"""Encoding of rows into the payloads of producer batches, whole columns at a time. Pure: Arrow arrays in, bytes out.

A message of a batch is ``size u32 | SingleMessageMetadata | payload`` (see :mod:`replicator.engine.log.entry`). The
metadata is protobuf. Its fields are put together here as columns of bytes, in the order of their numbers, so that a
message has the bytes that ``SerializeToString`` gives:

1. Each field becomes a column: its tag and the length or number as a varint (:func:`varints`), then its content.
2. Arrow joins the columns row by row; the result's data buffer is all messages one after another.
3. A producer batch is a run of rows: a slice of that buffer, without a step for each message.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

ROWS_BYTES_MAX: Final = 256 * 1024 * 1024
"""Limit of bytes that are encoded at once: Arrow's offsets end at 2 GiB, and columns are held twice."""

_PROPERTIES, _KEY, _PAYLOAD_SIZE, _EVENT_TIME = 0x0A, 0x12, 0x18, 0x28
_NULL_VALUE: Final = b"\x48\x01"
_ENTRY_KEY, _ENTRY_VALUE = 0x0A, 0x12

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class EncodedMessages:
    """Messages one after another; message i lies from ``ends[i]`` to ``ends[i + 1]`` of ``content``."""

    content: memoryview
    ends: Int64s

    def __len__(self) -> int:
        return len(self.ends) - 1

    def batches(self, start: int, stop: int, *, messages_max: int, bytes_max: int) -> Iterator[tuple[int, int]]:
        """Cut messages ``start`` to ``stop`` into batches with at most these messages and bytes, or one message."""
        while start < stop:
            within = int(np.searchsorted(self.ends, self.ends[start] + bytes_max, side="right")) - 1
            end = min(stop, start + messages_max, max(within, start + 1))
            yield start, end
            start = end

    def payload(self, start: int, stop: int) -> memoryview:
        return self.content[int(self.ends[start]) : int(self.ends[stop])]


def encode_messages(
    payload: pa.Array, *, key: pa.Array | None, properties: pa.MapArray | None, event_time_ms: pa.Array | None
) -> EncodedMessages:
    """Encode the messages of rows. A null payload is a tombstone; a null in another column leaves that field out.

    ``payload`` and ``key`` are binary or string columns, ``event_time_ms`` int64. Together the columns must not exceed
    :data:`ROWS_BYTES_MAX`.
    """
    rows = len(payload)
    columns: list[pa.Array] = []
    if properties is not None:
        columns.append(_properties(properties))
    if key is not None:
        columns += _delimited(_KEY, key)
    content = payload.cast(pa.binary())
    valid = _valid(content)
    sizes = _lengths(content)
    columns.append(varints(_PAYLOAD_SIZE, sizes))
    if event_time_ms is not None:
        columns.append(varints(_EVENT_TIME, _numbers(event_time_ms), _valid(event_time_ms)))
    if content.null_count:
        columns.append(_binary(np.where(valid, 0, len(_NULL_VALUE)), _NULL_VALUE * int((~valid).sum())))
    metadata_bytes = np.sum([_lengths(column) for column in columns], axis=0, dtype=np.int64)
    head = _binary(np.full(rows, 4), metadata_bytes.astype(">u4").tobytes())
    joined = _join([head, *columns, content])
    ends = np.frombuffer(joined.buffers()[1], np.int32)[joined.offset : joined.offset + rows + 1].astype(np.int64)
    return EncodedMessages(memoryview(joined.buffers()[2] or b""), ends)


def varints(tag: int, numbers: Int64s, valid: Bools | None = None) -> pa.BinaryArray:
    """Return a column of protobuf fields: the tag's byte, and the number as a varint; empty for invalid rows.

    Numbers must not be negative.
    """
    rows = len(numbers)
    values = numbers.astype(np.uint64)
    widest = max(-(-int(values.max()).bit_length() // 7), 1) if rows else 1
    cells = np.empty((rows, 1 + widest), np.uint8)
    cells[:, 0] = tag
    lengths = np.full(rows, 2, np.int64)
    for index in range(widest):
        rest = values >> np.uint64(7 * (index + 1))
        more = rest > 0
        cells[:, 1 + index] = ((values >> np.uint64(7 * index)) & np.uint64(0x7F)).astype(np.uint8) | (
            more.astype(np.uint8) << 7
        )
        lengths += more
    if valid is not None:
        lengths[~valid] = 0
    if rows and int(lengths.min()) == int(lengths.max()) == 1 + widest:
        return _binary(lengths, cells.tobytes())
    return _binary(lengths, cells[np.arange(1 + widest) < lengths[:, None]].tobytes())


def _properties(properties: pa.MapArray) -> pa.BinaryArray:
    """Return each row's properties as ``KeyValue`` fields."""
    offsets = np.frombuffer(properties.buffers()[1], np.int32)
    offsets = offsets[properties.offset : properties.offset + len(properties) + 1]
    first, last = int(offsets[0]), int(offsets[-1])
    keys, values = properties.keys.slice(first, last - first), properties.items.slice(first, last - first)
    pair = _join([*_delimited(_ENTRY_KEY, keys), *_delimited(_ENTRY_VALUE, values.fill_null(""))])
    fields = _join([varints(_PROPERTIES, _lengths(pair)), pair])
    ends = np.concatenate([[0], np.cumsum(_lengths(fields))])
    starts = ends[offsets[:-1] - first]
    lengths = ends[offsets[1:] - first] - starts
    valid = _valid(properties)
    if not valid.all() and lengths[~valid].any():  # a null row may have entries behind it that do not count
        return _properties(pc.if_else(pa.array(valid), properties, pa.scalar([], properties.type)))
    return _binary(lengths, _content(fields))


def _delimited(tag: int, content: pa.Array) -> list[pa.Array]:
    """Return a field of bytes as two columns: tag with length, and the content."""
    column = content.cast(pa.binary())
    return [varints(tag, _lengths(column), _valid(column)), column]


def _join(columns: list[pa.Array]) -> pa.BinaryArray:
    joined = pc.binary_join_element_wise(*columns, b"", null_handling="replace", null_replacement="")
    assert isinstance(joined, pa.BinaryArray)
    return joined


def _binary(lengths: npt.NDArray[np.integer], content: bytes) -> pa.BinaryArray:
    ends = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=ends[1:])
    return pa.Array.from_buffers(pa.binary(), len(lengths), [None, pa.py_buffer(ends), pa.py_buffer(content)])


def _content(column: pa.BinaryArray) -> bytes:
    ends = np.frombuffer(column.buffers()[1], np.int32)
    first, last = int(ends[column.offset]), int(ends[column.offset + len(column)])
    data = column.buffers()[2]
    return b"" if data is None else bytes(memoryview(data)[first:last])


def _lengths(column: pa.Array) -> Int64s:
    return np.asarray(pc.fill_null(pc.binary_length(column), 0).to_numpy(zero_copy_only=False), np.int64)


def _numbers(column: pa.Array) -> Int64s:
    return np.asarray(column.fill_null(0).to_numpy(zero_copy_only=False), np.int64)


def _valid(column: pa.Array) -> Bools:
    return np.asarray(column.is_valid().to_numpy(zero_copy_only=False), np.bool_)
