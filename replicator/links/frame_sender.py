"""Transfer by the link's own worker: frames of blocks, sent one after the other over the link's connection.

The embedded engine. Blocks are read into a frame of some megabytes, which goes out while the next one is read; answers
come back in the order of the frames.

A frame costs both ends about as much as ten small blocks. So a small frame may wait for more of them, as
:mod:`replicator.links.frame_pace` decides.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterable
from typing import Any, Final

from replicator.engine.errors import EngineError
from replicator.engine.log.arrow import Outgoing
from replicator.engine.log.left_out import note_of
from replicator.links.copier import Read
from replicator.links.errors import PeerRefused
from replicator.links.frame_pace import SMALL_FRAME_BYTES, FramePace
from replicator.links.transfer import SIGN_OF_LIFE_SECONDS, Transfer
from replicator.links.transport import HttpTransport, Reply
from replicator.tracing.tracing import LinkTraces
from snapshots.position import BEFORE_ALL

FRAME_BLOCKS_MAX: Final = 500
"""Limit of blocks in a frame, so that neither end is busy with it for long."""


class FrameSender:
    """Sends what ``transfer`` has to carry. ``traces`` has the spans of traced blocks."""

    def __init__(self, transfer: Transfer, traces: LinkTraces | None = None) -> None:
        self._transfer = transfer
        self._copier = transfer.copier
        self._work = asyncio.Event()
        self._sent = asyncio.Event()
        self._traces = traces
        self._pace = FramePace()
        self._all_answered = asyncio.Event()
        self._silent = False
        """Whether nothing was sent since :meth:`_keep_alive` looked."""
        self._life_due = False
        self._probing = False
        """Whether the destination took nothing at last, such as when it is full. Then blocks go out one by one."""

    def wake(self) -> None:
        """Wake the sender: there is something to copy or to announce."""
        self._work.set()

    def loops(self, transport: HttpTransport) -> Iterable[Coroutine[Any, Any, None]]:
        self._copier.deal(1)
        if self._traces is not None:
            self._traces.restart()
        return self._send(transport), self._receive(transport), self._notice_end(transport), self._keep_alive()

    async def _send(self, transport: HttpTransport) -> None:
        transfer = self._transfer
        while True:
            await self._gather()
            self._work.clear()
            await transfer.announce(transport)  # before there are blocks of them in a frame
            await self._wait_for_rate(transport)
            frame, size_bytes, searching = self._next_frame()
            if searching and not frame:
                await asyncio.sleep(0)
                continue
            if frame:
                transfer.set_state("copying", "")
                await transfer.announce_first_blocks(
                    (each.topic for each in frame if each.previous == BEFORE_ALL), transport
                )
                notes = b"" if self._traces is None else self._traces.frame()
                self._note_sent(size_bytes)
                has_more = len(frame) >= FRAME_BLOCKS_MAX
                paced_bytes = SMALL_FRAME_BYTES if has_more else size_bytes
                self._pace.sent((each.topic for each in frame), paced_bytes, time.monotonic())
                packed = await transport.pack(transport.encode(frame, notes))
                frame.clear()  # or the blocks would be kept until the next frame is read
                transfer.figures.wire_bytes += packed.size_bytes
                if transfer.bucket is not None:
                    transfer.bucket.take(packed.size_bytes, time.monotonic())
                await transport.send(packed)
                del packed
                if has_more:
                    await asyncio.sleep(0)
                continue
            if not self._copier.in_flight:
                transfer.topics.reached(self._copier.on_idle())
                transfer.set_state("idle", "")
            await self._work.wait()
            if self._life_due:
                await self._send_heartbeat(transport)

    async def _gather(self) -> None:
        """Wait while the next frame should take more blocks. Answers end the wait only where they matter."""
        while self._copier.is_behind():
            in_flight = bool(self._copier.in_flight)
            seconds = self._pace.wait_seconds(now := time.monotonic(), in_flight=in_flight)
            if seconds <= 0:
                return
            if self._pace.has_many(now):
                await asyncio.sleep(seconds)
                continue
            self._all_answered.clear()
            timer = asyncio.get_running_loop().call_later(seconds, self._all_answered.set)
            await self._all_answered.wait()
            timer.cancel()

    async def _keep_alive(self) -> None:
        """Send a sign of life whenever nothing was sent for :data:`SIGN_OF_LIFE_SECONDS`."""
        while True:
            self._silent = True
            await asyncio.sleep(SIGN_OF_LIFE_SECONDS)
            if self._silent:
                self._life_due = True
                self._work.set()

    async def _send_heartbeat(self, transport: HttpTransport) -> None:
        self._note_sent(0)
        await transport.send(await transport.pack(transport.encode(())))

    async def _wait_for_rate(self, transport: HttpTransport) -> None:
        """Wait until the rate limit allows the next frame. A frame may exceed the rate; the next one waits longer."""
        bucket = self._transfer.bucket
        while bucket is not None and (seconds := bucket.wait_seconds(time.monotonic())) > 0:
            await asyncio.sleep(min(seconds, SIGN_OF_LIFE_SECONDS))
            if seconds > SIGN_OF_LIFE_SECONDS:
                await self._send_heartbeat(transport)

    def _note_sent(self, size_bytes: int) -> None:
        self._silent = self._life_due = False
        self._transfer.sent(size_bytes)
        if self._traces is not None:
            self._traces.sent()
        self._sent.set()

    async def _receive(self, transport: HttpTransport) -> None:
        while True:
            while not self._copier.in_flight and not transport.at_end:
                self._sent.clear()
                await self._sent.wait()
            self._note_reply(await transport.receive())

    async def _notice_end(self, transport: HttpTransport) -> None:
        """Wake the receiver when the destination ends the connection, so that an idle link learns of it at once."""
        await transport.ended()
        self._sent.set()

    def _note_reply(self, reply: Reply) -> None:
        transfer = self._transfer
        transfer.failures = transfer.failures if reply.refused else 0
        if self._traces is not None:
            self._traces.answered(reply.refused)
        try:
            transfer.refused(reply.refused)
        except PeerRefused:
            self._probing = True
            raise
        before_bytes = self._copier.in_flight_bytes
        transfer.acknowledged()
        if self._copier.in_flight_bytes < before_bytes:
            self._probing = False
        if not self._copier.in_flight:
            self._all_answered.set()
        self._work.set()

    def _next_frame(self) -> tuple[list[Outgoing], int, bool]:
        """Return the blocks of the next frame, their bytes, and whether to call again.

        The frame has blocks of as many topics as are behind, up to about one frame's size and :data:`FRAME_BLOCKS_MAX`
        blocks. A read that found nothing to copy ends it, so that the event loop gets its turn. While the destination
        is probed, the frame has one block, or none until the frame before it is answered.
        """
        frame: list[Outgoing] = []
        if self._probing and self._copier.in_flight:
            return frame, 0, False
        bytes_max = 1 if self._probing else None
        size_bytes = 0
        searching = False
        while (
            len(frame) < FRAME_BLOCKS_MAX
            and (read := self._copier.next_read(size_bytes, frame_bytes_max=bytes_max)) is not None
        ):
            found = self._read(read, frame)
            size_bytes += found
            if not found:
                searching = True
                break
        self._transfer.figures.bytes += size_bytes
        return frame, size_bytes, searching

    def _read(self, read: Read, frame: list[Outgoing]) -> int:
        """Read a piece of a topic, and put its blocks to send into the frame. Return their bytes."""
        transfer = self._transfer
        topic = transfer.engine.find(read.topic)
        if topic is None:  # it is being deleted
            return 0
        try:
            blocks, reached = topic.reading.blocks(
                read.after,
                bytes_max=read.bytes_max,
                blocks_max=FRAME_BLOCKS_MAX - len(frame),
                origins=read.origins,
                from_memory=True,
            )
        except EngineError as error:
            transfer.topics.halt(read.topic, str(error))
            return 0
        chosen, gap = transfer.choose(topic, [stored.header for stored in blocks])
        size_bytes = 0
        figures = transfer.figures
        for index, send in chosen:
            stored = blocks[index]
            if send.note:
                note = note_of(stored.header)
                frame.append(Outgoing(read.topic, send.previous, note, send.left_out))
                size_bytes += len(note)
                continue
            frame.append(Outgoing(read.topic, send.previous, stored.block, send.left_out))
            size_bytes += len(stored.block)
            if self._traces is not None:
                header = stored.header
                self._traces.block(read.topic, header.origin, header.origin_first, header.origin_last)
            figures.blocks += 1
            figures.entries += stored.header.entries
            figures.messages += stored.header.messages
        if not gap:
            self._copier.on_read(read.topic, reached)
        return size_bytes
