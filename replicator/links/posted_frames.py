"""Frames in the body of a request, for a destination that speaks protocol 4 or 5; goes with those versions."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp

from replicator.engine.log.link_frame import ANSWER_BYTES_MAX, ANSWER_HEADER_BYTES, PackedFrame
from replicator.links.errors import PeerRefused, PeerUnavailable
from replicator.running.json_by_steps import loads_aside


class PostedStream:
    """:class:`~replicator.links.frame_streams.FrameStream` in the body of a POST request. It also raises aiohttp's
    errors."""

    def __init__(self) -> None:
        self._outgoing: asyncio.Queue[PackedFrame] = asyncio.Queue(maxsize=1)
        self._response: aiohttp.ClientResponse

    async def begin(
        self, session: aiohttp.ClientSession, url: str, params: Mapping[str, str], first: PackedFrame
    ) -> None:
        """Wait until the destination has accepted the stream and its first frame."""
        await self.send(first)
        self._response = response = await session.post(url, params=params, data=self._body())
        if response.status != 200:
            try:
                # Not response.json(): that waits for the request's own body, which has no end, by a task that aiohttp
                # cancels; so the refusal would pass for a cancellation of the link.
                answer = await loads_aside(await response.content.read())
            except ValueError as error:
                raise PeerUnavailable(
                    f"{url} answered {response.status}, not in JSON: {error}; see that this is the address of a "
                    "worker, and not of a proxy that answers by itself"
                ) from None
            finally:
                response.close()
            raise PeerRefused(str(answer.get("error", response.status)), str(answer.get("message", "")))

    async def send(self, packed: PackedFrame) -> None:
        await self._outgoing.put(packed)

    async def receive(self) -> Any:
        content = self._response.content
        length = int.from_bytes(await content.readexactly(ANSWER_HEADER_BYTES), "big")
        if length > ANSWER_BYTES_MAX:
            raise ConnectionError(
                f"the destination's answer says that it has {length} bytes, over the limit of {ANSWER_BYTES_MAX}: see "
                "that both ends run the same version, and that no proxy between them changes what they send"
            )
        return await loads_aside(await content.readexactly(length))

    async def question(self) -> str:
        await asyncio.Event().wait()  # a destination of an earlier version asks no questions
        raise AssertionError

    async def made(self) -> str:
        return await self.question()  # nor does it say what it makes

    async def ended(self) -> None:
        with contextlib.suppress(aiohttp.ClientError, OSError):  # for receive() to report
            await self._response.content.wait_eof()

    def close(self) -> None:
        self._response.close()

    async def _body(self) -> AsyncIterator[Any]:
        while True:
            for piece in (await self._outgoing.get()).pieces:
                if piece:
                    yield piece
