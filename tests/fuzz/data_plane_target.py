"""Target of fuzzing: everything of the HTTP data plane that reads bytes of a peer or of a task of Spark.

Frames of links, Arrow streams, blocks, staged frames and notes. None of it may raise anything but an error of the
engine, or keep more than its limits.

The first byte of an input chooses the reader. Blocks have checksums, which fuzzing cannot guess. So the checksums of a
block are made right before it is read.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Final

import pyarrow as pa

from replicator.engine.errors import EngineError
from replicator.engine.log import compression, frame_parsing, link_frame
from replicator.engine.log.arrow import decode_append, decode_block_list, read_stream
from replicator.engine.log.block import BlockView, read_header, verify_block
from replicator.engine.log.buffers import Buffers
from replicator.engine.log.checksums import crc32c
from replicator.engine.log.cluster_names import ONLY_LENGTH
from replicator.engine.log.entry import decode_entry, split_batch
from replicator.engine.log.frame_rows import decode_frame
from replicator.engine.log.left_out import decode_note, is_note
from replicator.engine.log.link_frame import unpack_frame
from replicator.engine.schemas.registry import RegisteredSchema
from replicator.engine.schemas.schema import VERSION_BYTES
from replicator.engine.staging.area import decode_frames
from replicator.tracing.notes import decode_notes

BYTES_MAX: Final = 1 << 20
"""Limit of a frame while fuzzing, so that an input is quick."""
ENTRIES_MAX: Final = 100
"""Entries of a block that are looked into."""
_HEAD_BYTES: Final = 56
_ONLY: Final = 0x200


def take(data: bytes) -> None:
    """Pass an input of the fuzzer to the reader that its first byte chooses."""
    if data:
        READERS[data[0] % len(READERS)](data[1:])


def _connection(data: bytes) -> None:
    """Read the bytes of a link's connection, in pieces whose size the first byte says."""
    if not data:
        return
    size, data = 1 + data[0], data[1:]
    parser = frame_parsing.FrameParser(Buffers(BYTES_MAX))
    with contextlib.suppress(EngineError):
        for start in range(0, len(data), size):
            piece = data[start : start + size]
            while piece:
                room = parser.buffer()
                here = min(len(room), len(piece))
                room[:here] = piece[:here]
                piece = piece[here:]
                for header, content in parser.received(here):
                    _frame(bytes(unpack_frame(header, content)))
        parser.end()


def _frame(data: bytes) -> None:
    """Read a frame's content: rows or an Arrow stream."""
    with contextlib.suppress(EngineError):
        topics, notes = decode_frame(data)
        for blocks in topics.values():
            for copied in blocks:
                _block_of_frame(copied.block)
        _notes(notes)


def _block_of_frame(block: bytes | bytearray | memoryview) -> None:
    with contextlib.suppress(EngineError):
        if is_note(block):
            decode_note(block)
        else:
            read_header(block)
            verify_block(block)


def _append(data: bytes) -> None:
    """Read an Arrow stream of blocks, as earlier versions send it."""
    with contextlib.suppress(EngineError):
        decode_append(data)


def _page(data: bytes) -> None:
    """Read a page of a topic, as the worker of another cluster answers it."""
    for read in (read_stream, decode_block_list):
        with contextlib.suppress(ValueError, OSError, pa.ArrowException):
            read(data)


def _block(data: bytes) -> None:
    """Read a block whose checksums are right, and all that is in it."""
    block = with_right_checksums(data)
    with contextlib.suppress(EngineError):
        view = BlockView(block, verify_block(block))
        assert view.header.entries == len(view)
        for entry in list(view.entries())[:ENTRIES_MAX]:
            _entry(bytes(entry))
        assert all(index < len(view) for index in view.absent)
        verify_block(view.slice(len(view) // 2, len(view)))


def _entry(data: bytes) -> None:
    """Read an entry, its payload, and the messages of its batch."""
    with contextlib.suppress(EngineError):
        metadata, payload = decode_entry(data, check=False)
        content = compression.decompress(payload, metadata.compression, metadata.uncompressed_size, bytes_max=BYTES_MAX)
        assert len(content) <= max(BYTES_MAX, len(payload))
        list(split_batch(metadata, memoryview(content)))


def _staged(data: bytes) -> None:
    """Read what a task of Spark stages: a name and a block, again and again."""
    with contextlib.suppress(EngineError):
        list(decode_frames(data))


def _notes(data: bytes) -> None:
    """Read notes of traced messages."""
    with contextlib.suppress(ValueError):
        decode_notes(data)


def _left_out(data: bytes) -> None:
    """Read a note by which a link tells that it left blocks out. Correct the note's checksum first."""
    with contextlib.suppress(EngineError):
        decode_note(data[:4] + crc32c(data[8:]).to_bytes(4, "little") + data[8:])


def _schemas(data: bytes) -> None:
    """Read a schema that another cluster announces. What its handler says of it is told first."""
    try:
        announced = RegisteredSchema.from_json(json.loads(data))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return
    with contextlib.suppress(EngineError):
        announced.schema.check()
        assert len(announced.schema.version) == VERSION_BYTES
        json.dumps(announced.as_json()).encode()


def with_right_checksums(data: bytes) -> bytes:
    """Return a block whose checksums are right for what is in it, wherever that is possible."""
    if len(data) < _HEAD_BYTES:
        return data
    block = bytearray(data)
    flags, origin_bytes = int.from_bytes(block[12:14], "little"), int.from_bytes(block[14:16], "little")
    columns_at = _HEAD_BYTES + origin_bytes
    if flags & _ONLY:
        columns_at += ONLY_LENGTH.size + int.from_bytes(block[columns_at : columns_at + ONLY_LENGTH.size], "little")
    block[8:12] = crc32c(block[columns_at:]).to_bytes(4, "little")
    block[4:8] = crc32c(block[8:columns_at]).to_bytes(4, "little")
    return bytes(block)


READERS: Final[tuple[Callable[[bytes], None], ...]] = (
    _connection,
    _frame,
    _append,
    _page,
    _block,
    _entry,
    _staged,
    _notes,
    _left_out,
    _schemas,
)
"""Readers by the first byte of an input. New ones go to the end, so that the inputs in the repository keep theirs."""


def limit_frames() -> None:
    """Lower the limit of frames in this process: room for a frame is taken before its bytes come."""
    link_frame.FRAME_BYTES_MAX = BYTES_MAX  # type: ignore[misc]
