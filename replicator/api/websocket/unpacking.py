"""Decompression of entries for one WebSocket, on threads. The content counts in the budget of the worker's clients.

1. The consumer asks for an entry's content when its turn has come, and waits for it.
2. The content counts as the socket's until nobody holds it: a single message until it is sent, a batch until its last
   message was taken.
3. A socket that keeps content for too long while others wait is cut off
   (:mod:`replicator.running.byte_budget`). Its client comes back, and gets its messages again.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable

from replicator.client.message import Message, Unpacked
from replicator.engine.errors import EngineError
from replicator.engine.unpacking import Unpacking
from replicator.metadata.metadata_pb2 import CompressionType
from replicator.running.byte_budget import Claim
from replicator.running.short_tasks import in_background


class SocketUnpacking:
    """Decompresses the entries of one WebSocket. It is the holder of the socket's claims on the budget of bytes."""

    def __init__(self, unpacking: Unpacking, cut: Callable[[], None]) -> None:
        self._unpacking = unpacking
        self._cut = cut

    def unpack(
        self, payload: memoryview, codec: CompressionType, size_bytes: int, ready: Callable[[], None]
    ) -> Unpacked:
        """Begin to decompress ``payload``; see :data:`replicator.client.message.Unpack`."""
        content = _Content(self._unpacking)
        content.task = in_background(
            self._unpack(content, payload, codec, size_bytes, ready), "decompressing for a websocket"
        )
        return content

    async def _unpack(
        self,
        content: _Content,
        payload: memoryview,
        codec: CompressionType,
        size_bytes: int,
        ready: Callable[[], None],
    ) -> None:
        try:
            found, claim = await self._unpacking.decompressed(self, payload, codec, size_bytes, self._cut)
            content.arrived(found, claim)
        except EngineError as error:
            content.failed(error)
        ready()


class _Content:
    """The content of one entry; see :class:`replicator.client.message.Unpacked`."""

    def __init__(self, unpacking: Unpacking) -> None:
        self._unpacking = unpacking
        self._found: bytes | None = None
        self._claim: Claim | None = None
        self._error: EngineError | None = None
        self._of_message = False
        self._closed = False
        self.task: asyncio.Task[None] | None = None
        """The task that decompresses the entry."""

    def arrived(self, found: bytes, claim: Claim) -> None:
        """Keep the decompressed content, or give its claim back if nobody wants it any more."""
        self._claim = claim
        if self._closed:
            self._give_back()
        else:
            self._found = found

    def failed(self, error: EngineError) -> None:
        """Note the error that prevented the decompression."""
        self._error = error

    def content(self) -> bytes | None:
        if self._error is not None:
            raise self._error
        return self._found

    def belongs_to(self, message: Message) -> None:
        self._of_message = True
        weakref.finalize(message, self._give_back).atexit = False

    def close(self) -> None:
        self._closed, self._found = True, None
        if self._claim is None and self.task is not None:
            self.task.cancel()  # it may stand in the line
        if not self._of_message:
            self._give_back()

    def _give_back(self) -> None:
        if self._claim is not None:
            self._unpacking.clients.give_back(self._claim)
