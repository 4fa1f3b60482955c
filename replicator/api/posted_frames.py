"""The frames of a link of protocol 4 or 5, which sends them in the body of its request; goes with those versions.

Invariant (DESIGN §3): 11. Room for a frame is taken after its length was checked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from replicator.api.frame_receiver import SILENCE_SECONDS_MAX, Received, received
from replicator.engine.errors import BlockCorrupt
from replicator.engine.log.link_frame import HEADER_BYTES, pack_answer, read_header
from replicator.engine.unpacking import Unpacking
from replicator.running.timeouts import timeout


class PostedFrames:
    """See :class:`replicator.api.link_streams.FrameStream`."""

    def __init__(self, request: web.Request, unpacking: Unpacking) -> None:
        self._request = request
        self._unpacking = unpacking
        self._response = web.StreamResponse(headers={"Content-Type": "application/octet-stream"})

    async def begin(self) -> web.StreamResponse:
        """Begin to answer."""
        await self._response.prepare(self._request)
        return self._response

    async def next(self) -> Received | None:
        head = await self._read(HEADER_BYTES)
        if not head:
            return None
        header = read_header(head) if len(head) == HEADER_BYTES else None
        body = b"" if header is None else await self._read(header.length_bytes)
        if header is None or len(body) < header.length_bytes:
            raise BlockCorrupt("the body ends inside a frame")
        return await received(self._unpacking, self, header, body, self._cut)

    def _cut(self) -> None:
        if self._request.transport is not None:
            self._request.transport.abort()

    async def _read(self, size: int) -> bytes:
        """Less if the body ends."""
        try:
            async with timeout(SILENCE_SECONDS_MAX):
                return await self._request.content.readexactly(size)
        except asyncio.IncompleteReadError as error:
            return error.partial

    async def answer(self, answer: Mapping[str, Any]) -> None:
        await self._response.write(pack_answer(answer))

    def idle(self) -> None:
        """Nothing is kept."""
