"""The frame that links send: its header, and its compression. Pure.

``length u32 | codec u8 | raw length u32``, big-endian, and ``length`` bytes: an Arrow IPC stream of
:data:`replicator.engine.log.arrow.APPEND_SCHEMA`, compressed whole. The raw length is what it has before compression.

Invariant (DESIGN §3): 11. Both lengths are a peer's claims: each is checked against :data:`FRAME_BYTES_MAX` before
anything is allocated for it, and a frame that does not decompress to exactly its raw length is corrupt.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from replicator.engine.errors import BlockCorrupt, EntryCorrupt, FrameTooLarge
from replicator.engine.log.compression import compress, decompress
from replicator.metadata.metadata_pb2 import LZ4, ZSTD

PROTOCOL_VERSION: Final = 5
"""Of the stream of frames and of what goes with it; both ends of a link must speak the same."""
FRAME_BYTES_MAX: Final = 80 * 1024 * 1024
"""A block of the largest size with room for the stream around it."""
CODECS: Final = ("none", "lz4", "zstd")
"""By their number in the header."""
COMPRESSED_FROM_BYTES: Final = 256
"""Smaller frames, such as signs of life, are sent as they are."""

_HEADER: Final = struct.Struct(">IBI")
HEADER_BYTES: Final = _HEADER.size
_TYPES: Final = {"lz4": LZ4, "zstd": ZSTD}


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """What stands before a frame: ``length_bytes`` follow, compressed with ``codec`` from ``raw_bytes``."""

    length_bytes: int
    codec: str
    raw_bytes: int


def pack_frame(stream: pa.Buffer, codec: str) -> tuple[bytes, pa.Buffer]:
    """Header and content. What does not become smaller is sent as it is."""
    content, used = stream, "none"
    if codec != "none" and stream.size >= COMPRESSED_FROM_BYTES:
        compressed = compress(memoryview(stream), _TYPES[codec])
        if len(compressed) < stream.size:
            content, used = pa.py_buffer(compressed), codec
    return _HEADER.pack(content.size, CODECS.index(used), stream.size), content


def read_header(header: bytes) -> FrameHeader:
    """Raises :class:`FrameTooLarge`, and :class:`BlockCorrupt` for a codec that is not known."""
    length_bytes, codec, raw_bytes = _HEADER.unpack(header)
    for size_bytes in (length_bytes, raw_bytes):
        if size_bytes > FRAME_BYTES_MAX:
            raise FrameTooLarge(f"a frame of {size_bytes} bytes is over the limit of {FRAME_BYTES_MAX}")
    if codec >= len(CODECS):
        raise BlockCorrupt(f"a frame has compression {codec}, which is not known; known are 0 to {len(CODECS) - 1}")
    if codec == 0 and length_bytes != raw_bytes:
        raise BlockCorrupt(f"a frame that is not compressed has {length_bytes} bytes and says {raw_bytes}")
    return FrameHeader(length_bytes, CODECS[codec], raw_bytes)


def unpack_frame(header: FrameHeader, content: bytes) -> bytes:
    """The stream as it was before compression. Raises :class:`BlockCorrupt`."""
    if header.codec == "none":
        return content
    try:
        return decompress(content, _TYPES[header.codec], header.raw_bytes, bytes_max=FRAME_BYTES_MAX)
    except EntryCorrupt:
        raise BlockCorrupt(
            f"a frame of {header.length_bytes} bytes is not {header.raw_bytes} bytes in {header.codec}"
        ) from None
