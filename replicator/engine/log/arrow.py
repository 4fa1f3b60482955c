"""Blocks as Arrow tables: the schemas of the data plane, and turning blocks into Arrow IPC streams and back.

Blocks travel as opaque bytes in a ``large_binary`` column; no entry is looked at on the way. A stream that
comes from the network is checked here before anything of it is used.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Generator, Iterable, Iterator, Sequence
from functools import cache
from itertools import groupby, pairwise
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from replicator.engine.errors import BlockCorrupt, FrameTooLarge
from replicator.engine.log.block import Buffer
from replicator.engine.log.requests import CopiedBlock
from replicator.engine.log.stored_blocks import StoredBlock
from snapshots.position import Position

_T = TypeVar("_T")

BLOCK_SCHEMA: Final = pa.schema(
    [
        ("ledger", pa.uint64()),
        ("first", pa.uint64()),
        ("entries", pa.uint32()),
        ("block", pa.large_binary()),
    ]
)
"""Reading a topic: a row a block, with the local position of its first entry."""

APPEND_SCHEMA: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("previous_ledger", pa.uint64()),
        ("previous_entry", pa.int64()),
        ("left_out", pa.bool_()),
        ("block", pa.large_binary()),
    ]
)
"""Appending to topics: a row a block, with the origin position that the sender had sent before it, and whether it may
have left messages out between the two."""

BLOCK_LIST_SCHEMA: Final = pa.schema([("block", pa.large_binary())])
"""Blocks that were asked for one by one, in that order; null for one that is not there."""

JOINED_BYTES_MAX: Final = 256 * 1024
"""A stream with no more bytes of blocks is one piece: joining them takes less time than keeping them apart."""
PIECE_BYTES_MIN: Final = 64 * 1024
"""Neighbouring pieces that are smaller are joined."""
STAND_IN_BYTES: Final = 128 * 1024 * 1024
"""More than a frame may have."""

FRAME_ROWS_MAX: Final = 1 << 18
"""Limit of rows in a frame of a link. A frame of the usual 4 MiB, of the smallest blocks, has a sixth of that."""
ROWS_AT_ONCE: Final = 256
"""Rows of a frame that are decoded in one step, in less than a millisecond."""

NOTES_KEY: Final = b"replicator.traces"
"""Key of the notes in the metadata of a stream's schema. Clusters that do not know it ignore it."""

END_OF_STREAM: Final = b"\xff\xff\xff\xff\0\0\0\0"
"""The last bytes of a whole stream. Arrow reads a stream without them as one that has fewer batches."""
_ENCAPSULATED_BYTES: Final = 8
"""Before a message of a stream: a mark, and the length of its metadata."""
_SCHEMA_BYTES_MAX: Final = 1024 * 1024
"""Most bytes of a schema: as many notes as a frame may have, each of another topic with a long name."""
_U16, _U32, _I32 = struct.Struct("<H"), struct.Struct("<I"), struct.Struct("<i")


class StreamCutOff(ValueError):
    """An Arrow stream that ends early: its end mark is missing, or a message is shorter than it says."""


class Outgoing(NamedTuple):
    """A block on its way to a topic of another cluster; see :class:`CopiedBlock`."""

    topic: str
    previous: Position
    block: Buffer
    left_out: bool = False


def encode_read(blocks: Sequence[StoredBlock]) -> pa.Buffer:
    """Return one Arrow IPC stream of :data:`BLOCK_SCHEMA` with ``blocks``."""
    return _stream(
        BLOCK_SCHEMA,
        [
            [stored.position.ledger for stored in blocks],
            [stored.position.entry for stored in blocks],
            [stored.header.entries for stored in blocks],
            [stored.block for stored in blocks],
        ],
    )


def encode_block_list(sizes: Sequence[int | None], content: bytes) -> pa.Buffer:
    """Return one Arrow IPC stream of :data:`BLOCK_LIST_SCHEMA`. Its blocks lie one after another in ``content``."""
    there = np.asarray([size is not None for size in sizes], dtype=bool)
    offsets = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum([size or 0 for size in sizes], out=offsets[1:])
    validity = None if there.all() else pa.py_buffer(np.packbits(there, bitorder="little").tobytes())
    buffers = [validity, pa.py_buffer(offsets.tobytes()), pa.py_buffer(content)]
    return _encode(BLOCK_LIST_SCHEMA, [pa.Array.from_buffers(pa.large_binary(), len(sizes), buffers)])


def decode_block_list(answer: bytes) -> pa.Array:
    """Return the column of blocks of a stream of :data:`BLOCK_LIST_SCHEMA`, without copying them.

    Raises :class:`ValueError` and pyarrow's errors.
    """
    stream = read_stream(answer)
    if not stream.schema.equals(BLOCK_LIST_SCHEMA):
        raise ValueError(
            f"the Arrow stream of blocks has columns {stream.schema.names}, not {BLOCK_LIST_SCHEMA.names}: run the "
            "same version at both ends"
        )
    if len(stream.batches) != 1:
        raise ValueError(
            f"the Arrow stream of blocks has {len(stream.batches)} record batches, not 1: run the same version at both "
            "ends"
        )
    return stream.batches[0].column(0)


class ReadStream(NamedTuple):
    """A whole Arrow stream, as it was read. Its batches are validated, and are views into what was read."""

    schema: pa.Schema
    batches: list[pa.RecordBatch]


def read_stream(body: bytes | memoryview) -> ReadStream:
    """Read a whole Arrow IPC stream, without copying it.

    Raises :class:`StreamCutOff` for a stream that ends early, and pyarrow's errors for anything else that is no stream.
    """
    try:
        with pa.ipc.open_stream(pa.py_buffer(_without_end(body))) as stream:
            batches = list(stream)
            schema = stream.schema
    except OSError as error:  # pyarrow's, for a message that is shorter than it says
        raise StreamCutOff(
            f"the Arrow stream ends early, because it was cut off on the way: {str(error)[:200]}"
        ) from None
    for batch in batches:
        batch.validate(full=True)
    return ReadStream(schema, batches)


def _without_end(body: bytes | memoryview) -> memoryview:
    """Return a stream without its end mark. Bytes of a block may look like the mark: then what is left is too short."""
    content = memoryview(body)
    if bytes(content[-len(END_OF_STREAM) :]) != END_OF_STREAM:
        raise StreamCutOff(
            f"the Arrow stream ends early, after {len(content)} bytes without its end mark: it was cut off on the way"
        )
    return content[: -len(END_OF_STREAM)]


def encode_append_columns(
    topics: Sequence[str],
    previous_ledgers: Sequence[int],
    previous_entries: Sequence[int],
    left_out: Sequence[bool],
    blocks: pa.Array,
) -> list[Buffer]:
    """Return a stream as :func:`encode_append` does, of blocks in an Arrow array. They are copied once."""
    columns = (topics, previous_ledgers, previous_entries, left_out)
    arrays = [_array(values, field.type) for values, field in zip(columns, APPEND_SCHEMA, strict=False)]
    return [memoryview(_encode(APPEND_SCHEMA, [*arrays, blocks]))]


def encode_append(blocks: Sequence[Outgoing], notes: bytes = b"") -> list[Buffer]:
    """Return one Arrow IPC stream of :data:`APPEND_SCHEMA`, in pieces: large blocks are not copied.

    A stream without blocks is a sign of life. ``notes`` say which messages are traced
    (:mod:`replicator.tracing.notes`).
    """
    schema = APPEND_SCHEMA.with_metadata({NOTES_KEY: notes}) if notes else APPEND_SCHEMA
    columns: tuple[Sequence[Any], ...] = (
        [outgoing.topic for outgoing in blocks],
        [outgoing.previous.ledger for outgoing in blocks],
        [outgoing.previous.entry for outgoing in blocks],
        [outgoing.left_out for outgoing in blocks],
    )
    values = [outgoing.block for outgoing in blocks]
    size_bytes = sum(map(len, values))
    if JOINED_BYTES_MAX < size_bytes <= STAND_IN_BYTES:
        arrays = [_array(column, field.type) for column, field in zip(columns, schema, strict=False)]
        return list(large_pieces(_encode_around(schema, arrays, values, size_bytes)))
    return [memoryview(_stream(schema, [*columns, values]))]


def notes_of(body: bytes | memoryview) -> bytes:
    """Return the notes that :func:`encode_append` put into a stream; empty if it has none or is incomplete."""
    schema_bytes = _ENCAPSULATED_BYTES + int.from_bytes(body[4:_ENCAPSULATED_BYTES], "little")
    if schema_bytes > _SCHEMA_BYTES_MAX or NOTES_KEY not in bytes(body[:schema_bytes]):
        return b""
    try:
        metadata = pa.ipc.open_stream(pa.py_buffer(body)).schema.metadata
    except (pa.ArrowException, OSError):
        return b""  # decode_append says what is wrong with it
    return bytes((metadata or {}).get(NOTES_KEY, b""))


def decode_append(body: bytes | memoryview) -> dict[str, list[CopiedBlock]]:
    """Return the blocks of a stream by topic, in order, as views into ``body``.

    Raises :class:`BlockCorrupt` if ``body`` is not a whole stream of :data:`APPEND_SCHEMA`, and :class:`FrameTooLarge`
    if it has too many rows.
    """
    return at_once(decode_append_by_steps(body))


def at_once(steps: Generator[None, None, _T]) -> _T:
    """Run the generator ``steps`` to its end without a pause, and return its result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: _T = end.value
            return result


def decode_append_by_steps(body: bytes | memoryview) -> Generator[None, None, dict[str, list[CopiedBlock]]]:
    """Do the work of :func:`decode_append`. Yield after every :data:`ROWS_AT_ONCE` rows: there the caller may pause."""
    topics: dict[str, list[CopiedBlock]] = {}
    for rows in _rows(body):
        for topic, ledger, entry, left_out, block in rows:
            if topic is None or ledger is None or entry is None or left_out is None or block is None:
                raise BlockCorrupt(
                    f"the Arrow stream that a link sent has a row of topic {topic!r:.80} with a missing value: its "
                    "sender must fill all columns"
                )
            topics.setdefault(topic, []).append(CopiedBlock(Position(ledger, entry), block, left_out))
        yield
    return topics


def check_rows(rows: int) -> None:
    """Raise :class:`FrameTooLarge` if a frame of a link has more than :data:`FRAME_ROWS_MAX` rows."""
    if rows > FRAME_ROWS_MAX:
        raise FrameTooLarge(
            f"a link's frame of {rows} blocks is over the limit of {FRAME_ROWS_MAX}: it was damaged on the way, or its "
            "sender is of another version"
        )


_Row = tuple[str | None, int | None, int | None, bool | None, memoryview | None]


def _rows(body: bytes | memoryview) -> Iterator[Iterable[_Row]]:
    """Yield the rows of a stream, at most :data:`ROWS_AT_ONCE` each time."""
    try:
        messages = iter(pa.ipc.MessageReader.open_stream(pa.py_buffer(_without_end(body))))
        first = next(messages, None)
        if first is None or first.type != "schema" or first.metadata.size > _SCHEMA_BYTES_MAX:
            raise BlockCorrupt(
                "what a link sent is not a whole Arrow IPC stream: it does not begin with a schema. Run the same "
                "version at both ends"
            )
        schema = pa.ipc.read_schema(first)
        if not schema.equals(APPEND_SCHEMA):
            raise BlockCorrupt(
                f"the Arrow stream that a link sent has columns {schema.names}, not {APPEND_SCHEMA.names}: run the "
                "same version at both ends"
            )
        count = 0
        for message in messages:
            if message.type != "record batch" or _is_compressed(message.metadata):
                raise BlockCorrupt(
                    "the Arrow stream that a link sent is compressed or holds more than record batches: send record "
                    "batches only, uncompressed"
                )
            batch = pa.ipc.read_record_batch(message, schema)
            count += batch.num_rows
            check_rows(count)
            for at in range(0, max(batch.num_rows, 1), ROWS_AT_ONCE):
                rows = batch.slice(at, ROWS_AT_ONCE)
                rows.validate(full=True)
                yield zip(
                    rows.column("topic").to_pylist(),
                    rows.column("previous_ledger").to_pylist(),
                    rows.column("previous_entry").to_pylist(),
                    rows.column("left_out").to_pylist(),
                    _views(rows.column("block")),
                    strict=True,
                )
    except (pa.ArrowException, OSError, StreamCutOff, UnicodeDecodeError) as error:
        raise BlockCorrupt(
            f"what a link sent is not a whole Arrow IPC stream, or was cut off: {str(error)[:200]}; send it again"
        ) from None


def _views(blocks: pa.Array) -> list[memoryview | None]:
    """Return the values of a column of large binaries, without copying. Arrow scalars would copy them."""
    if not len(blocks):
        return []
    _, offsets, content = blocks.buffers()
    bounds = np.frombuffer(offsets, np.int64, count=blocks.offset + len(blocks) + 1)[blocks.offset :].tolist()
    bytes_ = memoryview(content if content is not None else b"")
    views: list[memoryview | None] = [bytes_[start:end] for start, end in pairwise(bounds)]
    if blocks.null_count:
        views = [None if null else view for view, null in zip(views, blocks.is_null().to_pylist(), strict=True)]
    return views


def _is_compressed(metadata: pa.Buffer) -> bool:
    """Return whether the message of a record batch says that its buffers are compressed.

    pyarrow can neither refuse such a batch nor limit its unpacked size. So this function reads that field from the
    flatbuffer, which pyarrow has verified. In Arrow's format (Message.fbs) Message.header is field 2, and
    RecordBatch.compression is field 3.
    """
    content = memoryview(metadata)

    def field_at(table: int, number: int) -> int:
        vtable = table - _I32.unpack_from(content, table)[0]
        size = _U16.unpack_from(content, vtable)[0]
        slot = 4 + 2 * number
        offset = _U16.unpack_from(content, vtable + slot)[0] if slot < size else 0
        return table + offset if offset else 0

    header = field_at(_U32.unpack_from(content, 0)[0], 2)
    return bool(header) and field_at(header + _U32.unpack_from(content, header)[0], 3) != 0


def _stream(schema: pa.Schema, columns: Sequence[Sequence[Any]]) -> pa.Buffer:
    return _encode(schema, [_array(values, field.type) for values, field in zip(columns, schema, strict=True)])


def _encode(schema: pa.Schema, arrays: Sequence[pa.Array]) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
    return sink.getvalue()


class _PiecesSink:
    """File to which Arrow writes a stream, kept in pieces. It replaces the buffer ``stand_in`` by ``values``."""

    closed = False

    def __init__(self, stand_in: pa.Buffer, values: Sequence[Buffer]) -> None:
        self._placeholder = stand_in
        self._values = values
        self.pieces: list[Buffer] = []

    def write(self, piece: bytes | pa.Buffer) -> None:
        if not isinstance(piece, pa.Buffer):
            self.pieces.append(piece)
        elif piece.address == self._placeholder.address:
            self.pieces += self._values
        else:
            self.pieces.append(piece.to_pybytes())

    def flush(self) -> None:
        """Do nothing: there is nothing to flush."""


def _encode_around(
    schema: pa.Schema, arrays: Sequence[pa.Array], values: Sequence[Buffer], size_bytes: int
) -> list[Buffer]:
    """Return a stream of ``arrays`` and, as the last column, ``values``, without copying the values.

    Arrow gets a stand-in for their bytes, and passes it on untouched.
    """
    stand_in = _placeholder().slice(0, size_bytes)
    offsets = np.zeros(len(values) + 1, dtype=np.int64)
    np.cumsum([len(value) for value in values], out=offsets[1:])
    column = pa.Array.from_buffers(schema[-1].type, len(values), [None, pa.py_buffer(offsets.tobytes()), stand_in])
    sink = _PiecesSink(stand_in, values)
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays([*arrays, column], schema=schema))
    return sink.pieces


@cache
def _placeholder() -> pa.Buffer:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    return pa.py_buffer(mmap.mmap(-1, STAND_IN_BYTES, flags=flags, prot=mmap.PROT_READ))


def large_pieces(pieces: Sequence[Buffer]) -> Iterator[Buffer]:
    """Yield the same bytes, with small neighbours joined."""
    for small, run in groupby(pieces, lambda piece: len(piece) < PIECE_BYTES_MIN):
        if small:
            yield b"".join(run)
        else:
            yield from run


def _array(values: Sequence[Any], data_type: pa.DataType) -> pa.Array:
    """Return an array without nulls, made from its buffers.

    ``pa.array`` would import pandas if it is installed. That takes half a second, in which a new worker copies nothing.
    """
    if pa.types.is_boolean(data_type):
        bits = np.packbits(np.asarray(values, dtype=bool), bitorder="little")
        return pa.Array.from_buffers(data_type, len(values), [None, pa.py_buffer(bits.tobytes())])
    if pa.types.is_integer(data_type):
        numbers = np.asarray(values, dtype=data_type.to_pandas_dtype())
        return pa.Array.from_buffers(data_type, len(values), [None, pa.py_buffer(numbers.tobytes())])
    pieces = [value.encode() if isinstance(value, str) else value for value in values]
    offsets = np.zeros(len(pieces) + 1, dtype=np.int64 if pa.types.is_large_binary(data_type) else np.int32)
    np.cumsum([len(piece) for piece in pieces], out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(b"".join(pieces))]
    return pa.Array.from_buffers(data_type, len(pieces), buffers)
