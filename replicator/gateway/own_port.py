"""The worker's port for the binary protocol alone, which is open while the cluster takes clients.

Clients that choose among clusters by themselves (``AutoClusterFailover``) only try whether they can connect. So a
cluster that another one serves, or that does not know yet whether one does, must not be reachable there. Connections
that are open stay: their clients hear from the protocol that they are to go elsewhere, and get their last answers.

While the port is closed, a socket that is bound and does not listen keeps it for the worker.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Final

import structlog

from replicator.gateway.mixed_port import MixedPort
from replicator.gateway.server_tls import ServerTls
from replicator.running.supervisor import Supervisor
from replicator.security.client_limits import ClientLimits

BIND_AGAIN_SECONDS: Final = 0.05
TELL_SECONDS: Final = 1.0
"""A port that cannot be bound for so long is told of once; until then a socket of ours may be closing."""

log = structlog.get_logger(__name__)


class OwnPort:
    """Opens and closes the port where ``bound`` is bound, as it is told. Closed at first."""

    def __init__(
        self,
        bound: socket.socket,
        accepted: Callable[[], asyncio.Protocol],
        supervisor: Supervisor,
        *,
        backlog: int,
        limits: ClientLimits,
        tls: ServerTls | None = None,
    ) -> None:
        """Make the port. ``accepted`` makes the protocol of a connection; with ``tls``, after its handshake."""
        self._bound: socket.socket | None = bound
        self._family = bound.family
        self._place = bound.getsockname()
        self._accepted = accepted
        self._backlog = backlog
        self._tls = tls
        self._limits = limits
        self._server: asyncio.Server | MixedPort | None = None
        self._wanted = False
        self._task = supervisor.task("gateway", "the port of the binary protocol", self._change, until_done=True)

    def set_open(self, is_open: bool) -> None:
        """Open or close the port soon; :meth:`settled` waits for that."""
        self._wanted = is_open
        if self._wanted is not (self._server is not None):
            self._task.start()

    async def settled(self) -> None:
        await self._task.done()

    async def stop(self) -> None:
        await self._task.stop()
        self._close()
        if self._bound is not None:
            self._bound.close()
            self._bound = None

    async def _change(self) -> None:
        while self._wanted is not (self._server is not None):
            if not self._wanted:
                self._close()
            bound = await self._bind()
            if self._wanted:
                self._bound = None  # it is the server's now
                if self._tls is not None:
                    self._server = MixedPort(
                        bound, self._backlog, self._tls, self._accepted, self._limits, tls_alone=True
                    )
                else:
                    loop = asyncio.get_running_loop()
                    self._server = await loop.create_server(self._accepted, sock=bound, backlog=self._backlog)
            log.info("the port of the binary protocol is " + ("open" if self._wanted else "closed"), at=self._place)

    def _close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _bind(self) -> socket.socket:
        """Bind and return the socket that keeps the port. A closed one frees the port only a turn of the event loop
        later.
        """
        loop = asyncio.get_running_loop()
        tell_at: float | None = loop.time() + TELL_SECONDS
        while self._bound is None:
            bound = socket.socket(self._family, socket.SOCK_STREAM)
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                bound.bind(self._place)
            except OSError as error:
                bound.close()
                if tell_at is not None and loop.time() > tell_at:
                    log.warning("the port of the binary protocol cannot be used", at=self._place, reason=error.strerror)
                    tell_at = None
                await asyncio.sleep(BIND_AGAIN_SECONDS)
            else:
                self._bound = bound
        return self._bound
