"""Fuzz target: everything of the HTTP data plane that reads bytes of a peer or of a task of Spark.

It reads frames of links, Arrow streams, blocks, staged frames and notes. None of the readers may raise anything but its
expected errors, most often :class:`EngineError`, or keep more than its limits.

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
"""Limit of the entries of a block that are decoded."""
_HEAD_BYTES: Final = 56
_ONLY: Final = 0x200


def take(data: bytes) -> None:
    """Pass an input of the fuzzer to the reader that its first byte chooses."""
    if data:
        READERS[data[0] % len(READERS)](data[1:])


def _connection(data: bytes) -> None:
    """Fuzz target: read ``data`` as the bytes of a link's connection, in pieces of a size that its first byte gives.

    Only :class:`EngineError` may be raised.
    """
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
    """Fuzz target: decode ``data`` as a frame of a link: rows, or an Arrow stream. Only EngineError may be raised."""
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
    """Fuzz target: decode ``data`` as an Arrow stream of blocks of earlier versions. Only EngineError may be raised."""
    with contextlib.suppress(EngineError):
        decode_append(data)


def _page(data: bytes) -> None:
    """Fuzz target: decode ``data`` as a page of a topic, from another cluster's worker, in both forms of such pages.

    Only ValueError, OSError and Arrow's errors may be raised.
    """
    for read in (read_stream, decode_block_list):
        with contextlib.suppress(ValueError, OSError, pa.ArrowException):
            read(data)


def _block(data: bytes) -> None:
    """Fuzz target: decode ``data``, with right checksums, as a block with entries. Only EngineError may be raised."""
    block = with_right_checksums(data)
    with contextlib.suppress(EngineError):
        view = BlockView(block, verify_block(block))
        assert view.header.entries == len(view)
        for entry in list(view.entries())[:ENTRIES_MAX]:
            _entry(bytes(entry))
        assert all(index < len(view) for index in view.absent)
        verify_block(view.slice(len(view) // 2, len(view)))


def _entry(data: bytes) -> None:
    """Fuzz target: decode ``data`` as an entry, its payload and its batch. Only EngineError may be raised."""
    with contextlib.suppress(EngineError):
        metadata, payload = decode_entry(data, check=False)
        content = compression.decompress(payload, metadata.compression, metadata.uncompressed_size, bytes_max=BYTES_MAX)
        assert len(content) <= max(BYTES_MAX, len(payload))
        list(split_batch(metadata, memoryview(content)))


def _staged(data: bytes) -> None:
    """Fuzz target: decode ``data`` as what a Spark task stages, names and blocks. Only EngineError may be raised."""
    with contextlib.suppress(EngineError):
        list(decode_frames(data))


def _notes(data: bytes) -> None:
    """Fuzz target: decode ``data`` as notes of traced messages. Only ValueError may be raised."""
    with contextlib.suppress(ValueError):
        decode_notes(data)


def _left_out(data: bytes) -> None:
    """Fuzz target: decode ``data``, with a corrected checksum, as a link's note of blocks that it left out.

    Only EngineError may be raised.
    """
    with contextlib.suppress(EngineError):
        decode_note(data[:4] + crc32c(data[8:]).to_bytes(4, "little") + data[8:])


def _schemas(data: bytes) -> None:
    """Fuzz target: read ``data`` as a schema that another cluster announces, and check it.

    Return at errors that the HTTP handler answers as a bad request. Beside these only EngineError may be raised.
    """
    try:
        announced = RegisteredSchema.from_json(json.loads(data))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return
    with contextlib.suppress(EngineError):
        announced.schema.check()
        assert len(announced.schema.version) == VERSION_BYTES
        json.dumps(announced.as_json()).encode()


def with_right_checksums(data: bytes) -> bytes:
    """Return block ``data`` with checksums that match its bytes; ``data`` itself if it is shorter than a header."""
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
"""Fuzz targets; an input's first byte chooses one. New ones go to the end, so that stored inputs keep theirs."""


def limit_frames() -> None:
    """Lower this process's limit of frames to :data:`BYTES_MAX`: memory for a frame is taken before its bytes come."""
    link_frame.FRAME_BYTES_MAX = BYTES_MAX  # type: ignore[misc]
