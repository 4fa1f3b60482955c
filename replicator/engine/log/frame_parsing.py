"""Finding the frames in the bytes of a connection, which are received straight into the memory of their frame. Pure.

Invariant (DESIGN §3): 11. Room for a frame is taken after its lengths were checked, and is memory used before.

1. :meth:`FrameParser.buffer` says where the next bytes go: while no header is known, to a small space at hand; then to
   what is missing of the frame.
2. :meth:`FrameParser.received` says how many came, and gives the frames that are whole by them. What came to the space
   at hand behind a header is copied once more: little of a large frame, and a small one is whole there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from replicator.engine.errors import BlockCorrupt
from replicator.engine.log.buffers import Buffers
from replicator.engine.log.link_frame import HEADER_BYTES, FrameHeader, read_header

AT_HAND_BYTES: Final = 64 * 1024


class RawFrame(NamedTuple):
    """``content`` is as it came, compressed as the header says."""

    header: FrameHeader
    content: memoryview


class FrameParser:
    """Of one connection. It is of no use any more after it raised something."""

    def __init__(self, buffers: Buffers) -> None:
        self._buffers = buffers
        self._at_hand = memoryview(bytearray(AT_HAND_BYTES))
        self._filled = 0
        """Of the space at hand."""
        self._header: FrameHeader | None = None
        self._content = memoryview(b"")
        self._missing = 0

    @property
    def inside(self) -> bool:
        """Whether the header of a frame is known that is not whole."""
        return self._header is not None

    def buffer(self) -> memoryview:
        """Where the next bytes go."""
        if self._header is None:
            return self._at_hand[self._filled :]
        return self._content[len(self._content) - self._missing :]

    def received(self, size: int) -> Iterator[RawFrame]:
        """The frames that are whole by ``size`` more bytes; all of them are to be taken before more comes. Raises
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
        """No more bytes come. Raises :class:`BlockCorrupt` inside a frame."""
        if self._header is not None:
            length = self._header.length_bytes
            raise BlockCorrupt(f"the stream ends inside a frame: {length - self._missing} of {length} bytes")
        if self._filled:
            raise BlockCorrupt("the stream ends inside a frame's header")

    def _whole(self, header: FrameHeader) -> RawFrame:
        content, self._content, self._header = self._content.toreadonly(), memoryview(b""), None
        return RawFrame(header, content)
