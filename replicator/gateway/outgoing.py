"""Frames on their way to one client: sent together at the end of a turn of the event loop, and held to a limit.

Invariant 11: a client that leaves :data:`UNREAD_BYTES_MAX` lying is flooded: it is not listened to until it takes more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

WRITE_BUFFER_BYTES: Final = 4 * 1024 * 1024
UNREAD_BYTES_MAX: Final = 64 * 1024 * 1024
"""Far above what deliveries leave in the buffer: clients that write before they read must not wait for us, and we for
them. Only answers to what was asked come up to it."""
GATHERED_BYTES_MAX: Final = 64 * 1024
"""Bytes of frames that are sent together at the end of a turn of the event loop. At this size they are sent at once, so
that the transport's buffer tells in time that the socket takes no more."""


class Outgoing:
    """The sending side of one connection. :meth:`begin` comes first."""

    __slots__ = (
        "_became_flooded",
        "_loop",
        "_transport",
        "_unread_bytes",
        "_unsent",
        "_unsent_bytes",
        "flooded",
        "writable",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, became_flooded: Callable[[], None]) -> None:
        """Make the buffer. ``became_flooded`` is called when the client leaves too many bytes unread."""
        self._loop = loop
        self._became_flooded = became_flooded
        self._transport: asyncio.Transport
        self.writable = True
        """Whether the socket takes more."""
        self.flooded = False
        """Whether the client does not read the answers to its requests."""
        self._unread_bytes = 0
        self._unsent: list[bytes] = []
        """Frames of this turn of the event loop."""
        self._unsent_bytes = 0

    def begin(self, transport: asyncio.Transport) -> None:
        """Send by ``transport`` from now on."""
        self._transport = transport
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)

    def write(self, frames: bytes) -> None:
        """Queue frames, and send them with others of the same turn of the event loop.

        Send them at once if enough bytes are queued.
        """
        if not frames:
            return
        if not self._unsent:
            self._loop.call_soon(self.flush)
        self._unsent.append(frames)
        self._unsent_bytes += len(frames)
        if self._unsent_bytes >= GATHERED_BYTES_MAX:
            self.flush()

    def flush(self) -> None:
        """Send at once what is queued."""
        frames, size_bytes = self._unsent, self._unsent_bytes
        self._unsent, self._unsent_bytes = [], 0
        if frames and not self._transport.is_closing():
            if size_bytes < GATHERED_BYTES_MAX:
                self._transport.write(b"".join(frames))
            else:
                self._transport.writelines(frames)  # of large ones a copy costs more than a write
            if not self.writable and not self.flooded:
                self._unread_bytes = self._transport.get_write_buffer_size()
                self.flooded = self._unread_bytes >= UNREAD_BYTES_MAX
                if self.flooded:
                    self._became_flooded()

    def takes_some(self) -> bool:
        """Return whether the client has taken some of the frames that it left lying, since the last call."""
        unread_bytes, self._unread_bytes = self._unread_bytes, self._transport.get_write_buffer_size()
        return self._unread_bytes < unread_bytes
