"""A port on which some connections begin with TLS: the first byte tells, and it is not taken from the connection.

So TLS is that of the event loop, as on any other port:

1. What is accepted waits until it has a first byte, which is looked at and left where it is (``MSG_PEEK``).
2. A TLS handshake (0x16) and everything else are then handed to the event loop as connections that were just accepted.
   Inside TLS the first byte tells the protocols apart as it does without (:mod:`replicator.gateway.server`).

Bounded (invariant 11): :data:`WAITING_MAX` connections wait for :data:`HANDSHAKE_SECONDS_MAX` at most. They are counted
by their address until they have shaken hands; what they become then is counted with all connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Final

import structlog

from replicator.gateway.server_tls import ServerTls
from replicator.protocol.server import HANDSHAKE_SECONDS_MAX
from replicator.running.limited_log import LIMITED
from replicator.running.short_tasks import in_background
from replicator.security.client_limits import ClientLimits

TLS_FIRST_BYTE: Final = 0x16
ACCEPTED_AT_ONCE: Final = 100
WAITING_MAX: Final = 10_000
PAUSE_SECONDS: Final = 1.0
"""After an error that others must heal first, such as too many open files."""

log = structlog.get_logger(__name__)


class MixedPort:
    """Serves a bound socket; ``made`` makes the protocol of a connection, with TLS or without."""

    def __init__(
        self,
        bound: socket.socket,
        backlog: int,
        tls: ServerTls,
        made: Callable[[], asyncio.Protocol],
        limits: ClientLimits,
        *,
        tls_alone: bool = False,
    ) -> None:
        """Serve the port. With ``tls_alone``, connections without TLS are closed."""
        self._bound = bound
        self._tls = tls
        self._tls_alone = tls_alone
        self._made = made
        self._shares = limits.handshakes_of_address
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[socket.socket, tuple[asyncio.TimerHandle, str]] = {}
        """Each with the end of its time, and its address."""
        self._pause: asyncio.TimerHandle | None = None
        bound.setblocking(False)
        bound.listen(backlog)
        self._loop.add_reader(bound, self._accept)

    def close(self) -> None:
        """Accept nobody any more; connections that were handed over go on."""
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._bound)
        self._bound.close()
        for connection in list(self._waiting):
            self._give_up(connection)

    def _accept(self) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                connection, peer = self._bound.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                log.warning("no connection can be accepted", reason=str(error))
                self._loop.remove_reader(self._bound)
                self._pause = self._loop.call_later(PAUSE_SECONDS, self._loop.add_reader, self._bound, self._accept)
                return
            connection.setblocking(False)
            host = str(peer[0])
            too_many = self._shares.take(host)
            if too_many is not None or len(self._waiting) >= WAITING_MAX:
                self._shares.give_back(host)
                connection.close()
                continue
            timer = self._loop.call_later(HANDSHAKE_SECONDS_MAX, self._give_up, connection)
            self._waiting[connection] = timer, host
            self._loop.add_reader(connection, self._look, connection)

    def _look(self, connection: socket.socket) -> None:
        try:
            first = connection.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            first = b""
        if not first:
            self._give_up(connection)
            return
        tls = first[0] == TLS_FIRST_BYTE
        if self._tls_alone and not tls:
            self._give_up(connection)
            return
        host = self._stop_waiting(connection)
        in_background(self._hand_over(connection, host, tls=tls), "handing a connection over")

    async def _hand_over(self, connection: socket.socket, host: str, *, tls: bool) -> None:
        try:
            if tls:
                await self._loop.connect_accepted_socket(
                    self._made, connection, ssl=self._tls.context, ssl_handshake_timeout=HANDSHAKE_SECONDS_MAX
                )
            else:
                await self._loop.connect_accepted_socket(self._made, connection)
        except OSError as error:  # among them those of TLS, and a handshake that takes too long
            LIMITED.say(log.info, "a connection could not be begun", host, peer=host, reason=str(error))
            connection.close()
        finally:
            self._shares.give_back(host)

    def _stop_waiting(self, connection: socket.socket) -> str:
        """Stop waiting for a connection; return its address, by which it is still counted."""
        timer, host = self._waiting.pop(connection)
        timer.cancel()
        self._loop.remove_reader(connection)
        return host

    def _give_up(self, connection: socket.socket) -> None:
        self._shares.give_back(self._stop_waiting(connection))
        with contextlib.suppress(OSError):
            connection.close()
