"""The source's end of a link's connection after its HTTP upgrade: frames go out, answers come in.

The request is written, and what it is answered with read, here: then nothing stands between the frames and the socket.
Frames are written in their pieces. What the socket does not take at once waits, about one frame, and the sender waits
with the next one.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Mapping
from http.client import HTTPException, HTTPMessage, parse_headers
from typing import Any, Final, NoReturn, Protocol
from urllib.parse import urlencode, urlsplit

from replicator.engine.log.link_frame import ANSWER_BYTES_MAX, ANSWER_HEADER_BYTES, UPGRADE, PackedFrame
from replicator.links.errors import PeerRefused, PeerUnavailable
from replicator.peering.lives import MADE
from replicator.peering.runs import QUESTION
from replicator.running.json_by_steps import loads_aside
from replicator.running.short_tasks import awaited
from replicator.running.timeouts import timeout
from replicator.security.access import access

WRITE_BUFFER_BYTES: Final = 4 * 1024 * 1024
SWITCHING_PROTOCOLS: Final = 101
ANSWERS_AHEAD_MAX: Final = 256
"""Most answers that were read and not taken yet; there is one answer for each frame on its way."""
QUESTIONS_AHEAD_MAX: Final = 4
"""Most questions that were read and not answered yet; the destination asks a question every few seconds."""
MADE_AHEAD_MAX: Final = 10_000
"""Most names of topics that were read and not taken yet. Beyond them the link connects again, and asks about all
topics."""


class FrameStream(Protocol):
    """Stream over which a link sends frames. Its errors are those of :mod:`asyncio` and :class:`OSError`."""

    async def send(self, packed: PackedFrame) -> None:
        """Send a frame. Wait while the frame before it is still on its way out."""

    async def receive(self) -> Any:
        """Wait for the oldest answer that was not taken yet, and return it, parsed from JSON."""

    async def question(self) -> str:
        """Wait for a question that the destination asks over the stream, and return it."""

    async def made(self) -> str:
        """Wait until the destination says that it made a topic, and return the topic's name."""

    async def ended(self) -> None:
        """Return when nothing more can arrive. What arrived before can still be received."""

    def close(self) -> None:
        """Cut the connection."""


class UpgradedStream:
    """:class:`FrameStream` over an upgraded HTTP connection. :meth:`connect` makes it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, ended: asyncio.Event) -> None:
        self._reader = reader
        self._writer = writer
        self._ended = ended
        self._answers: asyncio.Queue[Any] = asyncio.Queue(ANSWERS_AHEAD_MAX)
        self._questions: asyncio.Queue[str] = asyncio.Queue(QUESTIONS_AHEAD_MAX)
        self._made: asyncio.Queue[str] = asyncio.Queue(MADE_AHEAD_MAX)
        self._reading: asyncio.Task[None] | None = None

    @classmethod
    async def connect(cls, url: str, params: Mapping[str, str], connect_seconds_max: float) -> UpgradedStream:
        """Ask the worker for a stream, with the credentials of :mod:`replicator.security.access`.

        Raises :class:`PeerRefused`, :class:`PeerUnavailable`, :class:`OSError`, :class:`TimeoutError`.
        """
        uses, place = access(), urlsplit(url)
        authorization = uses.authorization()
        context = (uses.ssl_context() or uses.make_ssl_context()) if place.scheme == "https" else None
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(loop=loop)
        protocol = _EndDetector(reader)
        async with timeout(connect_seconds_max):
            transport, _ = await loop.create_connection(
                lambda: protocol, place.hostname or "", place.port or 0, ssl=context
            )
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        stream = cls(reader, asyncio.StreamWriter(transport, protocol, reader, loop), protocol.ended)
        head = [f"POST {place.path}?{urlencode(params)} HTTP/1.1", f"Host: {place.netloc}"]
        head += ["Connection: Upgrade", f"Upgrade: {UPGRADE}", "Content-Length: 0"]
        head += [] if authorization is None else [f"Authorization: {authorization}"]
        try:
            stream._writer.write("".join(f"{line}\r\n" for line in [*head, ""]).encode("ascii"))
            status, headers = await stream._read_head(url)
            if status != SWITCHING_PROTOCOLS:
                await stream._refused(url, status, headers)
            stream._reading = awaited(stream._read_answers(), name="answers of a link")
        except BaseException:
            stream.close()
            raise
        return stream

    async def send(self, packed: PackedFrame) -> None:
        if self._writer.transport.is_closing():  # uvloop raises no OSError then
            raise ConnectionResetError("the destination closed the connection of the link")
        self._writer.writelines(packed.pieces)
        await self._writer.drain()

    async def receive(self) -> Any:
        answer = await self._answers.get()
        if isinstance(answer, Exception):
            self._answers.put_nowait(answer)  # the next caller gets it, too
            raise answer
        return answer

    async def question(self) -> str:
        return await self._questions.get()

    async def made(self) -> str:
        return await self._made.get()

    async def ended(self) -> None:
        await self._ended.wait()

    def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
        self._writer.transport.abort()

    async def _read_answers(self) -> None:
        """Read all answers and questions, also while no frame is on its way: a question may come at any time."""
        try:
            while True:
                answer = await self._read_answer()
                if isinstance(answer, dict) and MADE in answer:
                    if self._made.full():
                        raise ConnectionError(
                            "the destination makes topics faster than the link can ask about them: the link connects "
                            "again, and asks about all topics"
                        )
                    self._made.put_nowait(str(answer[MADE]))
                elif not isinstance(answer, dict) or QUESTION not in answer:
                    await self._answers.put(answer)
                elif not self._questions.full():  # else enough questions wait for an answer
                    self._questions.put_nowait(str(answer[QUESTION]))
        except (asyncio.IncompleteReadError, OSError, ValueError, RecursionError) as error:
            await self._answers.put(error)

    async def _read_answer(self) -> Any:
        length = int.from_bytes(await self._reader.readexactly(ANSWER_HEADER_BYTES), "big")
        if length > ANSWER_BYTES_MAX:
            raise ConnectionError(
                f"the destination's answer says that it has {length} bytes, over the limit of {ANSWER_BYTES_MAX}: see "
                "that both ends run the same version, and that no proxy between them changes what they send"
            )
        return await loads_aside(await self._reader.readexactly(length))

    async def _read_head(self, url: str) -> tuple[int, HTTPMessage]:
        try:
            line, _, rest = (await self._reader.readuntil(b"\r\n\r\n")).partition(b"\r\n")
            return int(line.split(b" ", 2)[1]), parse_headers(io.BytesIO(rest))
        except (asyncio.LimitOverrunError, IndexError, ValueError, HTTPException):
            raise PeerUnavailable(
                f"{url}: what answers there does not speak HTTP: see that the address is that of a worker, with "
                "https:// if it uses TLS"
            ) from None

    async def _refused(self, url: str, status: int, headers: HTTPMessage) -> NoReturn:
        try:
            length = min(int(headers.get("Content-Length", "")), ANSWER_BYTES_MAX)
            answer = await loads_aside(await self._reader.readexactly(length))
            refused = PeerRefused(str(answer["error"]), str(answer["message"]))
        except (KeyError, TypeError, ValueError, RecursionError):
            raise PeerUnavailable(
                f"{url} answered {status}, and not as a worker does: see that a proxy between them lets `Upgrade: "
                f"{UPGRADE}` pass"
            ) from None
        raise refused


class _EndDetector(asyncio.StreamReaderProtocol):
    """Stream reader that sets :attr:`ended` when nothing more comes."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        super().__init__(reader)
        self.ended = asyncio.Event()

    def eof_received(self) -> bool | None:
        self.ended.set()
        return super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set()
        super().connection_lost(exc)
