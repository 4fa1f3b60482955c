"""An HTTP connection at the shared port: counted by the address it comes from, and held to its share of time.

What comes is handed on in pieces of :data:`PIECE_BYTES`, in slices of the event loop's time
(:mod:`replicator.running.turns`). While some of it waits, nothing more is read.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections import deque
from collections.abc import Iterator
from typing import Final, cast

import structlog

from replicator.running.connecting import address_of
from replicator.running.limited_log import LIMITED
from replicator.running.turns import SLICE_SECONDS, FairScheduler, LoopShare
from replicator.security.client_limits import ClientLimits

READ_BYTES: Final = 256 * 1024
UNREAD_BYTES_MAX: Final = 32 * 1024 * 1024
"""Limit of the bytes that are read from a failed connection. Linux keeps 6 to 32 MiB for a socket."""
PIECE_BYTES: Final = 16 * 1024
"""A few thousand of the smallest frames of a WebSocket, or some hundred requests: milliseconds."""

log = structlog.get_logger(__name__)


class CountedConnection(asyncio.Protocol):
    """HTTP connection that hands on to ``protocol`` what comes, piece by piece in its turn.

    If its address has too many connections, it is closed at once and its bytes are dropped.
    """

    def __init__(self, protocol: asyncio.Protocol, limits: ClientLimits, turns: FairScheduler) -> None:
        self._protocol = protocol
        self._shares = limits.connections_of_address
        self._turns = turns
        self._share = LoopShare("", self._end)
        self._transport: asyncio.Transport
        self._host = ""
        self._refused = False
        self._waiting: deque[memoryview] = deque()
        """Bytes that came and are not handed on yet."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._host, self._share.address = address_of(transport)
        self._turns.opened(self._share)
        too_many = self._shares.take(self._host)
        self._protocol.connection_made(transport)
        if too_many is not None:
            LIMITED.say(log.info, "client disconnected", self._host, peer=self._host, reason=too_many)
            self._refused = True
            transport.close()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        waits = bool(self._waiting)
        if not waits and len(data) <= PIECE_BYTES and self._turns.may_begin(self._share):
            self._hand_on(data)
            return
        self._waiting.append(memoryview(data))
        begins = not waits and self._turns.may_begin(self._share)
        if waits or (begins and not self._work()):
            return
        self._transport.pause_reading()
        self._turns.wait(self._share, self._work, left_over=begins)

    def _work(self) -> bool:
        """Hand on what waits, for a slice at most. Return whether something is left."""
        until = self._turns.clock() + SLICE_SECONDS
        while self._waiting:
            piece = self._waiting.popleft()
            if len(piece) > PIECE_BYTES:
                self._waiting.appendleft(piece[PIECE_BYTES:])
            self._hand_on(bytes(piece[:PIECE_BYTES]))
            if self._turns.clock() >= until and self._waiting:
                return True
        if not self._transport.is_closing() and not self._is_paused():
            self._transport.resume_reading()
        return False

    def _hand_on(self, data: bytes) -> None:
        began = self._turns.clock()
        self._protocol.data_received(data)
        now = self._turns.clock()
        self._turns.spend(self._share, now - began, now)

    def _is_paused(self) -> bool:
        """Return whether aiohttp has stopped reading for reasons of its own. It does not stop again if it has."""
        return any(getattr(self._protocol, name, False) for name in ("_reading_paused", "_buffer_paused"))

    def _end(self) -> None:
        log.info("client disconnected", peer=self._share.address, reason="an operator closed the connection")
        self._transport.abort()

    def eof_received(self) -> bool | None:
        return self._protocol.eof_received()

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        while self._waiting:  # one read at most
            self._protocol.data_received(bytes(self._waiting.popleft()))
        self._turns.closed(self._share)
        self._shares.give_back(self._host)
        self._protocol.connection_lost(error)


def unread(transport: asyncio.BaseTransport) -> Iterator[bytes]:
    """Return an iterator over the bytes that a client's socket still holds, after reading or writing failed.

    A client that sends much and closes at once may reset the connection before everything is read. The kernel keeps
    what came before, some megabytes. No more than :data:`UNREAD_BYTES_MAX` is read, because the client may be there and
    go on to send. For TLS it yields nothing, because the keys are gone with the transport. The socket closes when the
    iterator ends, or when nobody refers to the iterator any more.
    """
    opened = transport.get_extra_info("socket")
    if opened is None or transport.get_extra_info("sslcontext") is not None:
        return iter(())
    try:
        pieces = _pieces(socket.socket(fileno=os.dup(opened.fileno())))
    except OSError:
        return iter(())
    next(pieces)  # from here on it closes the socket
    return pieces


def _pieces(opened: socket.socket) -> Iterator[bytes]:
    """Yield ``b""`` first, and then the bytes of a socket, up to the limit. Close the socket.

    Once the first value was taken, the socket is closed also if no other one is.
    """
    with opened, contextlib.suppress(OSError):
        yield b""
        opened.setblocking(False)
        left = UNREAD_BYTES_MAX
        while left > 0 and (data := opened.recv(READ_BYTES)):
            yield data
            left -= len(data)
