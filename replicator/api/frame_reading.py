"""Reading the frames of a link's stream, each into memory of its own that its blocks are then views of.

Invariant (DESIGN §3): 11. Room for a frame is taken after its length was checked, and becomes memory as it fills.

A frame's bytes come from the socket in pieces, and each piece is copied once, to where it belongs. What aiohttp's own
calls return is joined from many pieces, in memory that is new each time: that took a third of the time of a copy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import numpy as np
from aiohttp import StreamReader

from replicator.engine.errors import BlockCorrupt
from replicator.engine.log.link_frame import HEADER_BYTES, read_header, unpack_frame
from replicator.running.timeouts import timeout

SILENCE_SECONDS_MAX: Final = 60.0
"""A link that sends nothing, not even a sign of life, for this long is gone."""
PIECE_BYTES_MAX: Final = 256 * 1024
"""Of a piece that was waited for."""


def _piece(content: StreamReader) -> bytes:
    """What is there already: the first piece as it came, for which aiohttp has no public call."""
    take: Callable[[int], bytes] = getattr(content, "_read_nowait_chunk", content.read_nowait)
    return take(-1)


class FrameReader:
    """Of the body of one request."""

    def __init__(self, content: StreamReader) -> None:
        self._content = content
        self._taken_bytes = 0
        """What was taken out of ``content``, of all that came in; nobody else takes anything."""
        self._rest = memoryview(b"")
        """What came with the end of the last frame."""

    async def next(self) -> memoryview | None:
        """The next frame, as it was before compression; None at the end of the body.

        Raises :class:`BlockCorrupt` where the body ends inside a frame, :class:`FrameTooLarge`, :class:`TimeoutError`.
        """
        head = memoryview(bytearray(HEADER_BYTES))
        got = await self._fill(head)
        if not got:
            return None
        if got < HEADER_BYTES:
            raise BlockCorrupt("the body ends inside a frame's header")
        header = read_header(bytes(head))
        content = np.empty(header.length_bytes, np.uint8).data  # by huge pages, if it has megabytes
        got = await self._fill(content)
        if got < header.length_bytes:
            raise BlockCorrupt(f"the body ends inside a frame: {got} of {header.length_bytes} bytes")
        if header.codec == "none":
            return content.toreadonly()
        return memoryview(await asyncio.to_thread(unpack_frame, header, content))

    async def _fill(self, memory: memoryview) -> int:
        """Returns how many bytes came: fewer than there is room for if the body ends."""
        filled = 0
        async with timeout(SILENCE_SECONDS_MAX):
            while filled < len(memory):
                if not self._rest:
                    self._rest = memoryview(await self._next_piece())
                    if not self._rest:
                        break
                taken = self._rest[: len(memory) - filled]
                memory[filled : filled + len(taken)] = taken
                filled += len(taken)
                self._rest = self._rest[len(taken) :]
        return filled

    async def _next_piece(self) -> bytes:
        """Empty at the end of the body."""
        content = self._content
        if content.total_bytes > self._taken_bytes:
            piece = _piece(content)
        else:
            piece = await content.read(PIECE_BYTES_MAX)
        self._taken_bytes += len(piece)
        return piece
