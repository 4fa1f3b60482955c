"""Frames that links send: their header, and their compression. Pure.

A frame is ``length u32 | codec u8 | raw length u32``, big-endian, and ``length`` bytes, compressed whole: rows
(:mod:`replicator.engine.log.frame_rows`), or an Arrow IPC stream of :data:`replicator.engine.log.arrow.APPEND_SCHEMA`.
The raw length is the length before compression. The destination answers each frame with :func:`pack_answer`.

Invariant (DESIGN §3): 11. Both lengths are a peer's claims: each is checked against :data:`FRAME_BYTES_MAX` before
anything is allocated for it, and a frame that does not decompress to exactly its raw length is corrupt.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from replicator.engine.errors import BlockCorrupt, EntryCorrupt, FrameTooLarge
from replicator.engine.log.compression import Buffer, compress, decompress
from replicator.metadata.metadata_pb2 import LZ4, ZSTD

RECLAIMING_HEADER: Final = "X-Replicator-Reclaiming"
"""Header with the name of a cluster that takes back its messages. Each request with it holds back retention at the
receiver for a while."""
PROTOCOL_VERSION: Final = 7
"""Newest version that this end speaks, of the stream of frames and of all that belongs to it, markers included. It
rises with each change that an end of the version before would misread. The source sends it when it asks for high-water
marks, the destination answers with the version that both speak (:func:`agreed_version`), and the source appends in that
version."""
PROTOCOL_OLDEST: Final = 4
"""Oldest version that this end still speaks: that of the release before, so that ends can be upgraded one by one. An
end of version 4 refuses topics with blocks for some clusters only, which came with 5, until it is upgraded."""
UPGRADED_FROM: Final = 6
"""First version whose frames follow an HTTP upgrade to :data:`UPGRADE`. In earlier versions they are the request's
body."""
ROWS_FROM: Final = 7
"""First version that reads frames of rows. In earlier versions all frames are Arrow streams."""
UPGRADE: Final = "replicator-frames"
FRAME_BYTES_MAX: Final = 80 * 1024 * 1024
"""Limit of a frame's size: a block of the largest size, and the stream around it."""
CODECS: Final = ("none", "lz4", "zstd")
"""Names of the codecs, in the order of their numbers in the header."""
COMPRESSED_FROM_BYTES: Final = 256
"""Smaller frames, such as signs of life, are sent as they are."""
ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024
ANSWER_HEADER_BYTES: Final = 4
RECEIVING: Final = "receiving"
"""Parameter of a stream, and only field of a message. With ``receiving=true`` the destination sends ``{"receiving":
true}`` now and then while a frame takes long to come in, so that the link does not take a slow network for silence. The
message answers no frame."""

_HEADER: Final = struct.Struct(">IBI")
HEADER_BYTES: Final = _HEADER.size
_TYPES: Final = {"lz4": LZ4, "zstd": ZSTD}


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """Header of a frame: ``length_bytes`` follow, compressed with ``codec`` from ``raw_bytes``."""

    length_bytes: int
    codec: str
    raw_bytes: int


def agreed_version(theirs: int) -> int | None:
    """Return the version to speak with an end that speaks up to ``theirs``; None if it is too old for this end."""
    version = min(theirs, PROTOCOL_VERSION)
    return version if version >= PROTOCOL_OLDEST else None


def version_refused(theirs: int, *, here: str, there: str) -> str:
    """Return the reason why the ends of a link cannot speak, and what to do. ``here`` and ``there`` are their
    clusters."""
    older = here if theirs > PROTOCOL_VERSION else there
    return (
        f"{there} speaks version {theirs} of the links' protocol, {here} {PROTOCOL_OLDEST} to {PROTOCOL_VERSION}: "
        f"upgrade the worker of {older} (docs/upgrade.md)"
    )


@dataclass(frozen=True, slots=True)
class PackedFrame:
    """A frame ready to send, in pieces, the header first. Large pieces are not joined."""

    pieces: Sequence[Buffer]
    size_bytes: int


def pack_frame(stream: Sequence[Buffer], codec: str) -> PackedFrame:
    """Return a frame with the pieces of ``stream``. It is not compressed if that would not make it smaller."""
    raw_bytes = sum(map(len, stream))
    content, used, size_bytes = stream, "none", raw_bytes
    if codec != "none" and raw_bytes >= COMPRESSED_FROM_BYTES:
        compressed = compress(b"".join(stream), _TYPES[codec])
        if len(compressed) < raw_bytes:
            content, used, size_bytes = (compressed,), codec, len(compressed)
    header = _HEADER.pack(size_bytes, CODECS.index(used), raw_bytes)
    return PackedFrame((header, *content), HEADER_BYTES + size_bytes)


def damaged_frame(what: str) -> BlockCorrupt:
    """Return the error for a frame of a link that cannot be read."""
    return BlockCorrupt(
        f"what a link sent is damaged: {what}. It is sent again; if this goes on, run the same version at both ends, "
        "and look at the network and the proxies between them"
    )


def read_header(header: Buffer) -> FrameHeader:
    """Return the decoded header. Raise :class:`FrameTooLarge`, and :class:`BlockCorrupt` for an unknown codec."""
    length_bytes, codec, raw_bytes = _HEADER.unpack(header)
    for size_bytes in (length_bytes, raw_bytes):
        if size_bytes > FRAME_BYTES_MAX:
            raise FrameTooLarge(
                f"a link's frame of {size_bytes} bytes is over the limit of {FRAME_BYTES_MAX}: it was damaged on the "
                "way, or its sender is of another version"
            )
    if codec >= len(CODECS):
        raise damaged_frame(
            f"the link's frame has compression {codec}, which this version does not know; it knows 0 to "
            f"{len(CODECS) - 1}"
        )
    if codec == 0 and length_bytes != raw_bytes:
        raise damaged_frame(
            f"the link's frame is not compressed and has {length_bytes} bytes, but says that it has {raw_bytes}"
        )
    return FrameHeader(length_bytes, CODECS[codec], raw_bytes)


def unpack_frame(header: FrameHeader, content: Buffer) -> Buffer:
    """Return the decompressed stream of a frame. Raise :class:`BlockCorrupt` if it is damaged."""
    if header.codec == "none":
        return content
    try:
        return decompress(content, _TYPES[header.codec], header.raw_bytes, bytes_max=FRAME_BYTES_MAX)
    except EntryCorrupt:
        raise damaged_frame(
            f"the link's frame of {header.length_bytes} bytes cannot be uncompressed by {header.codec} to the "
            f"{header.raw_bytes} bytes that it says"
        ) from None


def pack_answer(answer: Mapping[str, Any]) -> bytes:
    """Return an answer encoded as ``length u32 | JSON``."""
    return pack_answer_text(json.dumps(answer))


def pack_answer_text(text: str) -> bytes:
    """Return an answer whose JSON is ``text``, in the encoding of :func:`pack_answer`."""
    body = text.encode()
    return len(body).to_bytes(ANSWER_HEADER_BYTES, "big") + body
