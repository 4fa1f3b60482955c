"""Reading the frames of a link's stream, each into memory of its own that its blocks are then views of.

Invariant (DESIGN §3): 11. Room for a frame is taken after its length was checked, and becomes memory as it fills.

A frame's bytes come from the socket in pieces, and each piece is copied once, to where it belongs. aiohttp's
``readexactly`` joins them twice, in memory that is new each time, and that took a third of what a copy takes.
"""

from __future__ import annotations

import asyncio
from typing import Final

import numpy as np
from aiohttp import StreamReader

from replicator.engine.errors import BlockCorrupt
from replicator.engine.log.link_frame import HEADER_BYTES, read_header, unpack_frame
from replicator.running.timeouts import timeout

SILENCE_SECONDS_MAX: Final = 60.0
"""A link that sends nothing, not even a sign of life, for this long is gone."""


class FrameReader:
    """Of the body of one request."""

    def __init__(self, content: StreamReader) -> None:
        self._content = content
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
                    piece, ends_chunk = await self._content.readchunk()
                    if not piece and not ends_chunk:
                        break
                    self._rest = memoryview(piece)
                taken = self._rest[: len(memory) - filled]
                memory[filled : filled + len(taken)] = taken
                filled += len(taken)
                self._rest = self._rest[len(taken) :]
        return filled
