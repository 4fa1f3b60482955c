"""The destination's end of a link's connection after its HTTP upgrade: frames come in, answers go out.

Invariant (DESIGN §3): 11. While :data:`FRAMES_AHEAD_MAX` frames wait to be taken nothing is read from the connection,
so what the link may have on its way is bounded by its socket. What a compressed frame becomes is claimed of the links'
budget (:mod:`replicator.engine.unpacking`) until all that it brings is durable.

1. :func:`switch_protocols` answers 101 and takes the connection over from aiohttp, which hears only of its end.
2. Bytes are received into the memory of their frames (:mod:`replicator.engine.log.frame_parsing`).
3. What cannot be read ends the stream: :meth:`FrameReceiver.next` gives the frames before it, then raises. What still
   comes is thrown away until the link has read why, for a connection that is closed on unread bytes loses its answer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from aiohttp import hdrs, web

from replicator.api.errors import UpgradeRequired
from replicator.engine.errors import EngineError
from replicator.engine.log.buffers import Buffers
from replicator.engine.log.frame_parsing import AT_HAND_BYTES, FrameParser, RawFrame
from replicator.engine.log.link_frame import RECEIVING, UPGRADE, FrameHeader, pack_answer, unpack_frame
from replicator.engine.unpacking import Unpacking, finished
from replicator.running.timeouts import timeout

SILENCE_SECONDS_MAX: Final = 60.0
"""A link that sends nothing, not even a sign of life, for this long is gone; or takes no answer."""
RECEIVING_TOLD_SECONDS: Final = 5.0
"""Time between two messages that more of a long frame has come."""
LINGER_SECONDS_MAX: Final = 10.0
"""Longest time that a link may take to read why its stream has ended."""
FRAMES_AHEAD_MAX: Final = 2
FRAMES_AT_ONCE: Final = 64
"""Frames that are parsed at once, in a fraction of a millisecond. One read may bring thousands of tiny ones."""
TOLD_LATER_MAX: Final = 10_000
"""Most messages that wait until the link reads again."""
SPARE_BYTES_MAX: Final = 48 * 1024 * 1024
"""Most bytes of a stream's buffers that are kept for reuse. A commit frees all frames that it holds at once."""


@dataclass(frozen=True, slots=True)
class Received:
    """Content of a frame. Whoever takes it must call ``release`` when the content is not needed any more; None where
    it does not count in a budget."""

    content: memoryview
    release: Callable[[], None] | None = None


async def received(
    unpacking: Unpacking, holder: object, header: FrameHeader, content: memoryview | bytes, cut: Callable[[], None]
) -> Received:
    """Return a frame's content, decompressed on a thread within the budget of links. ``holder`` is its stream.

    ``cut`` ends the stream, if it keeps its frames for too long while others wait. Raise :class:`BlockCorrupt`.
    """
    if header.codec == "none":
        return Received(memoryview(content))
    claim = await unpacking.links.take(holder, header.raw_bytes, cut)
    try:
        running = asyncio.get_running_loop().run_in_executor(None, unpack_frame, header, content)
        unpacked = await finished(running)
        return Received(memoryview(unpacked), lambda: unpacking.links.give_back(claim))
    except BaseException:
        unpacking.links.give_back(claim)
        raise


async def switch_protocols(request: web.Request, unpacking: Unpacking) -> tuple[web.StreamResponse, FrameReceiver]:
    """Switch a link's connection from HTTP to frames. Raise :class:`UpgradeRequired` if the request does not ask for
    that."""
    if request.headers.get(hdrs.UPGRADE, "").strip().lower() != UPGRADE:
        raise UpgradeRequired(
            f"a link of this version must ask to upgrade its connection: send the header `Upgrade: {UPGRADE}`, and see "
            "that proxies on the way let it pass"
        )
    transport = request.transport
    if transport is None or transport.is_closing():
        raise ConnectionResetError("the link has gone")
    transport.pause_reading()  # what follows the 101 is not for aiohttp
    response = web.StreamResponse(status=101, headers={hdrs.UPGRADE: UPGRADE, hdrs.CONNECTION: "Upgrade"})
    response.force_close()
    await response.prepare(request)
    return response, FrameReceiver(transport, unpacking, tells_receiving=request.query.get(RECEIVING) == "true")


class FrameReceiver(asyncio.BufferedProtocol):
    """Receives the frames of a link, and answers it. It takes over ``transport``, whose reading is paused.

    With ``tells_receiving`` the link is told now and then that more of a long frame has come.
    """

    def __init__(self, transport: asyncio.Transport, unpacking: Unpacking, *, tells_receiving: bool = False) -> None:
        self._transport = transport
        self._tells_receiving = tells_receiving
        self._unpacking = unpacking
        self._before = transport.get_protocol()
        self._buffers = Buffers(SPARE_BYTES_MAX)
        self._parser = FrameParser(self._buffers)
        self._frames: deque[RawFrame] = deque()
        self._parsing: Iterator[RawFrame] | None = None
        """Frames of the bytes that came last that are not parsed yet; None if all are."""
        self._changed = asyncio.Event()
        """A frame has begun, or is whole, or none comes any more."""
        self._bytes_came = False
        """Whether anything came since :meth:`_wait_for_change` looked."""
        self._error: EngineError | None = None
        self._thrown_away: memoryview | None = None
        """Buffer for bytes that are read and ignored; None while bytes are used."""
        self._at_end = asyncio.Event()
        """The link sends nothing more."""
        self._paused = False
        self._writable = asyncio.Event()
        self._writable.set()
        self._told_later: list[bytes] = []
        """Packed messages of :meth:`queue_answer` that wait until the connection takes more."""
        transport.set_protocol(self)
        transport.resume_reading()  # not before: how bytes are handed over is decided when reading begins

    async def next(self) -> Received | None:
        """Return the next frame, decompressed; None at the end of the stream.

        Raises :class:`BlockCorrupt` if the stream ends inside a frame, :class:`FrameTooLarge`, :class:`TimeoutError`.
        """
        while not self._frames:
            if self._parsing is not None:
                self._parse(FRAMES_AT_ONCE)
                self._read_on_if_due()
                continue
            if self._error is not None:
                raise self._error
            if self._at_end.is_set():
                return None
            self._changed.clear()
            await self._wait_for_change()
        header, content = self._frames.popleft()
        self._read_on_if_due()
        return await received(self._unpacking, self, header, content, self.abort)

    async def _wait_for_change(self) -> None:
        """Wait until a frame has begun, or is whole, or none comes any more, however slowly its bytes come.

        Raises :class:`TimeoutError` if nothing comes for :data:`SILENCE_SECONDS_MAX`.
        """
        loop = asyncio.get_running_loop()
        heard_s = loop.time()
        while not self._changed.is_set():
            self._bytes_came = False
            with suppress(TimeoutError):
                async with timeout(min(RECEIVING_TOLD_SECONDS, SILENCE_SECONDS_MAX)):
                    await self._changed.wait()
                    return
            if self._bytes_came:
                heard_s = loop.time()
                if self._tells_receiving:
                    self.tell({RECEIVING: True})
            elif loop.time() - heard_s >= SILENCE_SECONDS_MAX:
                raise TimeoutError(f"nothing came for {SILENCE_SECONDS_MAX:g} s")

    async def answer(self, packed: bytes) -> None:
        """Send a packed answer to the link, after the messages of :meth:`queue_answer` that still wait.

        Raises :class:`ConnectionError` if the link has gone, and :class:`TimeoutError` if it reads nothing.
        """
        if not self._transport.is_closing():
            later, self._told_later = self._told_later, []
            self._transport.write(b"".join([*later, packed]))
            if not self._writable.is_set():
                async with timeout(SILENCE_SECONDS_MAX):
                    await self._writable.wait()
        if self._transport.is_closing():
            raise ConnectionResetError("the link has gone")

    def queue_answer(self, answer: Mapping[str, Any]) -> None:
        """Send ``answer``, which answers no frame, also if the link reads nothing now: it waits then.

        If too many wait, cut the connection. A link that connects again asks about everything.
        """
        if self._transport.is_closing():
            return
        if self._writable.is_set():
            self._transport.write(pack_answer(answer))
        elif len(self._told_later) < TOLD_LATER_MAX:
            self._told_later.append(pack_answer(answer))
        else:
            self._transport.abort()

    def tell(self, answer: Mapping[str, Any]) -> None:
        """Send ``answer``, which answers no frame. It is lost if the link has disconnected, or reads nothing now."""
        if not self._transport.is_closing() and self._writable.is_set():
            self._transport.write(pack_answer(answer))

    async def close(self) -> None:
        """End the connection once the link has read the answers, or after a while."""
        if self._transport.is_closing():
            return
        self._told_later.clear()  # nothing can be written after the end
        if self._transport.can_write_eof():
            with suppress(OSError):  # the link has gone
                self._transport.write_eof()
        if not self._at_end.is_set():
            self._ignore_rest()
            self._read_on()
            with suppress(TimeoutError):
                async with timeout(LINGER_SECONDS_MAX):
                    await self._at_end.wait()
        self._transport.close()

    def abort(self) -> None:
        """Cut the connection."""
        self._transport.abort()

    def idle(self) -> None:
        """Free spare buffers: no frame has anything to append for now."""
        self._buffers.clear()

    # The transport.

    def get_buffer(self, sizehint: int) -> memoryview:
        self._parse()  # nothing is left to parse, unless bytes come while reading is paused
        return self._parser.buffer() if self._thrown_away is None else self._thrown_away

    def buffer_updated(self, nbytes: int) -> None:
        if self._thrown_away is not None:
            return
        self._bytes_came = True
        inside = self._parser.inside
        self._parsing = self._parser.received(nbytes)
        self._parse(FRAMES_AT_ONCE)
        if self._frames or self._parser.inside != inside:
            self._changed.set()
        if len(self._frames) >= FRAMES_AHEAD_MAX and not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def _parse(self, frames_max: int | None = None) -> None:
        """Parse at most ``frames_max`` frames of the bytes that were received, or all of them if it is None."""
        if self._parsing is None:
            return
        found = len(self._frames)
        try:
            self._frames.extend(islice(self._parsing, frames_max))
        except EngineError as error:
            self._end(error)
        if frames_max is None or len(self._frames) - found < frames_max:
            self._parsing = None

    def eof_received(self) -> bool:
        """Note the end of the stream. Return whether answers can still be sent, which is impossible inside TLS."""
        self._parse()
        if self._error is None:
            try:
                self._parser.end()
            except EngineError as error:
                self._end(error)
        self._at_end.set()
        self._changed.set()
        return self._transport.get_extra_info("sslcontext") is None

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()
        later, self._told_later = self._told_later, []
        if later and not self._transport.is_closing():
            self._transport.write(b"".join(later))

    def connection_lost(self, exc: Exception | None) -> None:
        self._frames.clear()
        self._parsing = None
        self._unpacking.links.gone(self)
        for event in (self._at_end, self._changed, self._writable):
            event.set()
        self._before.connection_lost(exc)

    def _end(self, error: EngineError) -> None:
        self._error = error
        self._ignore_rest()
        self._changed.set()

    def _ignore_rest(self) -> None:
        """Ignore all bytes that still come, and those that are not parsed yet."""
        self._parsing = None
        self._thrown_away = memoryview(bytearray(AT_HAND_BYTES))

    def _read_on_if_due(self) -> None:
        if self._parsing is None and len(self._frames) < FRAMES_AHEAD_MAX:
            self._read_on()

    def _read_on(self) -> None:
        if self._paused and not self._transport.is_closing():
            self._paused = False
            self._transport.resume_reading()
