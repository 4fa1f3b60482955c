"""How a link talks to its destination: one long-lived HTTP request that streams frames both ways.

Request body: frames of ``length u32 big-endian | Arrow IPC stream`` (:data:`APPEND_SCHEMA`). Response body: for each
frame, in order, ``length u32 | JSON``: ``{"extents": n, "refused": {topic: {"code", "message"}}}``, or
``{"error": code, "message": text}`` after which the destination ends the connection. One request, because it keeps
the order of the frames without a handshake for each, and lets the window cover the round trip. Both sides
answer each other within :data:`SILENCE_SECONDS_MAX`, or the connection counts as lost (half-open peers).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final

import aiohttp
import pyarrow as pa

from replicator.links.errors import PeerRefused, PeerUnavailable, WrongPeer
from snapshots.position import Position

PROTOCOL_VERSION: Final = 2
CONNECT_SECONDS_MAX: Final = 5.0
SILENCE_SECONDS_MAX: Final = 30.0
REPLY_BYTES_MAX: Final = 16 * 1024 * 1024
READ_BUFFER_BYTES: Final = 4 * 1024 * 1024

_LENGTH_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class RemoteHighWater:
    """The highest origin position that the destination has of a topic, and of which incarnation."""

    incarnation: int
    position: Position


@dataclass(frozen=True, slots=True)
class Reply:
    """The destination's answer to one frame. ``refused`` gives code and message by topic."""

    extents: int
    refused: dict[str, tuple[str, str]]


@dataclass(frozen=True, slots=True)
class PartitionsReply:
    """How many partitions the destination has of each topic that it was told of; ``refused`` as in :class:`Reply`."""

    partitions: dict[str, int]
    refused: dict[str, tuple[str, str]]


class HttpTransport:
    """One connection to a destination. Use as an async context manager; after an error make a new one.

    Raises :class:`PeerUnavailable`, :class:`WrongPeer`, :class:`PeerRefused`.
    """

    def __init__(self, source: str, destination: str, address: str) -> None:
        self._source = source
        self._destination = destination
        self._base = f"http://{address}/replication/v1"
        self._session: aiohttp.ClientSession | None = None
        self._outgoing: asyncio.Queue[pa.Buffer | None] = asyncio.Queue(maxsize=1)
        self._response: aiohttp.ClientResponse | None = None
        self.at_end = False
        """Whether the destination has ended the connection, or it broke; :meth:`receive` then says why."""

    async def __aenter__(self) -> HttpTransport:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS_MAX)
        self._session = aiohttp.ClientSession(timeout=timeout, read_bufsize=READ_BUFFER_BYTES)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._response is not None:
            self._response.close()
        if self._session is not None:
            await self._session.close()

    async def high_water(self, topics: Sequence[str] = ()) -> dict[str, RemoteHighWater]:
        """What the destination has of this source, by topic: of all its topics, or of those named."""
        assert self._session is not None
        asked = [("origin", self._source), *(("topic", topic) for topic in topics)]
        try:
            async with (
                asyncio.timeout(SILENCE_SECONDS_MAX),
                self._session.get(f"{self._base}/high-water", params=asked) as response,
            ):
                answer = await self._json(response)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise PeerUnavailable(f"{self._base}: {error or 'no answer'}") from None
        if answer.get("cluster") != self._destination:
            raise WrongPeer(
                f"{self._base} is cluster {answer.get('cluster')!r}, the topology says {self._destination!r}"
            )
        return {
            topic: RemoteHighWater(row["incarnation"], Position.parse(row["position"]))
            for topic, row in answer["topics"].items()
        }

    async def tell_partitions(self, topics: dict[str, int]) -> PartitionsReply:
        """Tell the destination how many partitions topics have here; returns how many they have there then."""
        assert self._session is not None
        try:
            async with (
                asyncio.timeout(SILENCE_SECONDS_MAX),
                self._session.post(
                    f"{self._base}/partitions", params={"from": self._source}, json={"topics": topics}
                ) as response,
            ):
                answer = await self._json(response)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise PeerUnavailable(f"{self._base}: {error or 'no answer'}") from None
        refused = {topic: (row["code"], row["message"]) for topic, row in answer["refused"].items()}
        return PartitionsReply(answer["topics"], refused)

    async def open(self, first_frame: pa.Buffer) -> None:
        """Start the stream of frames; returns when the destination has accepted it."""
        assert self._session is not None
        await self._outgoing.put(first_frame)
        try:
            async with asyncio.timeout(SILENCE_SECONDS_MAX):
                self._response = await self._session.post(
                    f"{self._base}/append",
                    params={"from": self._source, "protocol": str(PROTOCOL_VERSION)},
                    data=self._body(),
                )
                if self._response.status != 200:
                    await self._json(self._response)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise PeerUnavailable(f"{self._base}: {error or 'no answer'}") from None

    async def send(self, frame: pa.Buffer) -> None:
        """Hand a frame to the connection; waits while the one before it is still on its way out."""
        await self._outgoing.put(frame)

    async def receive(self) -> Reply:
        """The answer to the oldest frame that was not answered yet."""
        assert self._response is not None
        content = self._response.content
        try:
            async with asyncio.timeout(SILENCE_SECONDS_MAX):
                length = int.from_bytes(await content.readexactly(_LENGTH_BYTES), "big")
                if length > REPLY_BYTES_MAX:
                    raise PeerUnavailable(f"{self._base}: an answer of {length} bytes is over the limit")
                answer = json.loads(await content.readexactly(length))
        except (aiohttp.ClientError, asyncio.IncompleteReadError, OSError, TimeoutError, ValueError) as error:
            raise PeerUnavailable(f"{self._base}: the connection broke: {error or 'no answer'}") from None
        if "error" in answer:
            raise PeerRefused(answer["error"], answer["message"])
        refused = {topic: (row["code"], row["message"]) for topic, row in answer["refused"].items()}
        return Reply(answer["extents"], refused)

    async def ended(self) -> None:
        """Returns when no more can be received than what is here already; :attr:`at_end` is set then."""
        assert self._response is not None
        with contextlib.suppress(aiohttp.ClientError, OSError):  # for receive() to report
            await self._response.content.wait_eof()
        self.at_end = True

    async def _body(self) -> AsyncIterator[bytes | memoryview]:
        while (frame := await self._outgoing.get()) is not None:
            yield frame.size.to_bytes(_LENGTH_BYTES, "big")
            if frame.size:
                yield memoryview(frame)

    async def _json(self, response: aiohttp.ClientResponse) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = await response.json()
        except (aiohttp.ClientError, ValueError) as error:
            raise PeerUnavailable(f"{self._base} answered {response.status}, not in JSON: {error}") from None
        if response.status != 200:
            raise PeerRefused(str(answer.get("error", response.status)), str(answer.get("message", "")))
        return answer
