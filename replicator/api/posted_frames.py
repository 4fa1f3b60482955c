"""The frames of a link of protocol 4 or 5, which sends them in the body of its request.

This module is to be removed once no such versions are supported. Invariant (DESIGN §3): 11. Room for a frame is taken
after its length was checked. A link that has disconnected no longer waits for room.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from aiohttp import web

from replicator.api.frame_receiver import SILENCE_SECONDS_MAX, Received, received
from replicator.engine.log.link_frame import HEADER_BYTES, damaged_frame, read_header
from replicator.engine.unpacking import Unpacking
from replicator.running.short_tasks import awaited
from replicator.running.timeouts import timeout


class PostedFrames:
    """See :class:`replicator.api.link_streams.FrameStream`."""

    def __init__(self, request: web.Request, unpacking: Unpacking) -> None:
        self._request = request
        self._unpacking = unpacking
        self._response = web.StreamResponse(headers={"Content-Type": "application/octet-stream"})
        self._watching: asyncio.Task[None] | None = None
        """Task that ended when the last frame was decompressed, or soon will."""

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
            raise damaged_frame("the body of the link's request ends inside a frame")
        if header.codec == "none":
            return Received(memoryview(body))
        if self._watching is not None:
            await asyncio.wait([self._watching])
        self._watching = watching = awaited(self._watch())
        try:
            return await received(self._unpacking, self, header, body, self._cut)
        finally:
            watching.cancel()

    def _cut(self) -> None:
        if self._request.transport is not None:
            self._request.transport.abort()

    async def _watch(self) -> None:
        """Watch the body: if the link disconnects before its end, stop waiting for room in the memory budget for its
        frames."""
        content = self._request.content
        with suppress(Exception):  # it raises what ended the connection
            if content.exception() is None:
                await content.wait_eof()
        if content.exception() is not None:
            self._unpacking.links.gone(self)

    async def _read(self, size: int) -> bytes:
        """Less if the body ends."""
        try:
            async with timeout(SILENCE_SECONDS_MAX):
                return await self._request.content.readexactly(size)
        except asyncio.IncompleteReadError as error:
            return error.partial

    async def answer(self, packed: bytes) -> None:
        await self._response.write(packed)

    def idle(self) -> None:
        """Do nothing: a posted frame keeps no state."""
