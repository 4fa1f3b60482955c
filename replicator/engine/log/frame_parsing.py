"""Parsing of frames from a connection, whose bytes are received straight into the memory of their frame. Pure.

Invariant (DESIGN §3): 11. Memory for a frame is taken only after its lengths were checked, and is used again later.

1. :meth:`FrameParser.buffer` returns the memory for the next bytes: a small buffer until the header is known, then the
   missing rest of the frame.
2. :meth:`FrameParser.received` takes the number of bytes that came, and yields the frames that they complete. Content
   in the small buffer is copied once more: a little of a large frame, or all of a small one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from replicator.engine.log.buffers import Buffers
from replicator.engine.log.link_frame import HEADER_BYTES, FrameHeader, damaged_frame, read_header

AT_HAND_BYTES: Final = 64 * 1024


class RawFrame(NamedTuple):
    """One frame. ``content`` is as it was received, compressed as the header says."""

    header: FrameHeader
    content: memoryview


class FrameParser:
    """Parser of the frames of one connection. After it raised an error, it cannot be used again."""

    def __init__(self, buffers: Buffers) -> None:
        self._buffers = buffers
        self._at_hand = memoryview(bytearray(AT_HAND_BYTES))
        self._filled = 0
        """Number of bytes in the small buffer ``_at_hand``."""
        self._header: FrameHeader | None = None
        self._content = memoryview(b"")
        self._missing = 0

    @property
    def inside(self) -> bool:
        """Whether a frame has begun, with its header, that is not complete."""
        return self._header is not None

    def buffer(self) -> memoryview:
        """Return the memory to which the next bytes are received."""
        if self._header is None:
            return self._at_hand[self._filled :]
        return self._content[len(self._content) - self._missing :]

    def received(self, size: int) -> Iterator[RawFrame]:
        """Yield the frames that ``size`` more bytes complete. Take all of them before more bytes are received. Raise
        :class:`FrameTooLarge` and :class:`BlockCorrupt`."""
        if self._header is not None:
            self._missing -= size
            if not self._missing:
                yield self._whole(self._header)
            return
        self._filled += size
        at = 0
        while self._filled - at >= HEADER_BYTES:
            header = self._header = read_header(self._at_hand[at : at + HEADER_BYTES])
            at += HEADER_BYTES
            here = min(header.length_bytes, self._filled - at)
            self._content = self._buffers.take(header.length_bytes)
            self._content[:here] = self._at_hand[at : at + here]
            self._missing = header.length_bytes - here
            at += here
            if self._missing:
                break
            yield self._whole(header)
        self._filled -= at
        self._at_hand[: self._filled] = bytes(self._at_hand[at : at + self._filled])

    def end(self) -> None:
        """Note that no more bytes come. Raise :class:`BlockCorrupt` inside a frame."""
        if self._header is not None:
            length = self._header.length_bytes
            raise damaged_frame(
                f"the link's stream ends inside a frame, after {length - self._missing} of its {length} bytes"
            )
        if self._filled:
            raise damaged_frame("the link's stream ends inside a frame's header")

    def _whole(self, header: FrameHeader) -> RawFrame:
        content, self._content, self._header = self._content.toreadonly(), memoryview(b""), None
        return RawFrame(header, content)
