"""One port for two protocols: the first byte of a connection tells HTTP (a letter) from the binary protocol (a size).

A size whose first byte is a letter would be over a gigabyte, which no frame may be, so nothing is mistaken. What was
read goes to the protocol that the connection is handed to; from then on the transport is that protocol's alone, so
sharing the port costs nothing but the first read.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Final, cast

from replicator.engine.engine import Engine
from replicator.engine.topics.topic_watchers import TopicWatchers
from replicator.gateway.connection import Addresses, Connection, Served
from replicator.gateway.counted import CountedConnection
from replicator.gateway.handlers import HANDLERS
from replicator.gateway.mixed_port import TLS_FIRST_BYTE, MixedPort
from replicator.gateway.own_port import OwnPort
from replicator.gateway.server_tls import ServerTls
from replicator.protocol.authentication import AllowAll, Authenticator
from replicator.protocol.server import HANDSHAKE_SECONDS_MAX
from replicator.running.connecting import address_of
from replicator.security.client_limits import ClientLimits
from replicator.security.guard import EVERYBODY, Guard
from replicator.security.identifying import ShownCertificate

BACKLOG: Final = 1024


class Gateway:
    """The connections of the binary protocol of one worker."""

    def __init__(
        self,
        engine: Engine,
        addresses: Addresses,
        *,
        authenticator: Callable[[ShownCertificate], Authenticator] = lambda certificate: AllowAll(),
        guard: Guard = EVERYBODY,
        broker_metadata: bool = False,
        limits: ClientLimits | None = None,
    ) -> None:
        self._engine = engine
        self._limits = limits or ClientLimits()
        self._watchers = TopicWatchers(engine.catalog, engine.supervisor)
        engine.add_listener(self._watchers)
        self._served = Served(
            engine,
            addresses,
            self._watchers,
            engine.schemas,
            HANDLERS,
            authenticator,
            guard,
            broker_metadata,
            self._limits,
        )
        self._connections: set[Connection] = set()
        self.accepted = 0
        """Connections of clients since it began."""
        self._stopped = False
        self._servers: list[asyncio.Server | MixedPort] = []
        self._ports: list[OwnPort] = []

    def connection(self) -> Connection:
        """Return a protocol for a socket that was just accepted."""
        return Connection(self._served, self._made, self._connections.discard)

    def _made(self, connection: Connection) -> None:
        self._connections.add(connection)
        self.accepted += 1
        if self._stopped:  # accepted just before
            connection.close()

    async def listen(self, bound: socket.socket, *, backlog: int = BACKLOG) -> None:
        """Serve only the binary protocol on a bound socket."""
        port = self.own_port(bound, backlog=backlog)
        port.set_open(True)
        await port.settled()

    def own_port(self, bound: socket.socket, *, backlog: int = BACKLOG, tls: ServerTls | None = None) -> OwnPort:
        """Return a port for only the binary protocol, with TLS if given. It can be opened and closed, and is closed at
        first.
        """
        accepted = self.connection if tls is None else self._accepted_with_tls
        port = OwnPort(bound, accepted, self._engine.supervisor, backlog=backlog, tls=tls, limits=self._limits)
        self._ports.append(port)
        return port

    def _accepted_with_tls(self) -> asyncio.Protocol:
        """Return a protocol that makes a connection when the TLS handshake is over."""
        return FirstByte(self.connection, self.connection, self._limits)

    async def share(
        self,
        bound: socket.socket,
        http: Callable[[], asyncio.Protocol],
        *,
        backlog: int = BACKLOG,
        tls: ServerTls | None = None,
        tls_alone: bool = False,
    ) -> None:
        """Serve both protocols on a bound socket; with ``tls`` also clients that use TLS, with ``tls_alone`` nobody
        else. ``http`` makes the protocol of an HTTP connection.
        """

        turns = self._engine.turns

        def made() -> FirstByte:
            return FirstByte(lambda: CountedConnection(http(), self._limits, turns), self.connection, self._limits)

        if tls is not None:
            self._servers.append(MixedPort(bound, backlog, tls, made, self._limits, tls_alone=tls_alone))
            return
        loop = asyncio.get_running_loop()
        self._servers.append(await loop.create_server(made, sock=bound, backlog=backlog))

    @property
    def connections(self) -> int:
        """Return the number of open connections of clients."""
        return len(self._connections)

    async def stop(self) -> None:
        """Accept no new connection, and close all connections."""
        self._stopped = True
        for server in self._servers:
            server.close()
        await asyncio.gather(*(port.stop() for port in self._ports))
        for connection in list(self._connections):
            connection.close()
        self._engine.remove_listener(self._watchers)


class FirstByte(asyncio.Protocol):
    """Connection whose protocol is not known yet. It is counted by its address, as the connection that it becomes
    is.
    """

    def __init__(
        self, http: Callable[[], asyncio.Protocol], binary: Callable[[], asyncio.Protocol], limits: ClientLimits
    ) -> None:
        self._http = http
        self._binary = binary
        self._shares = limits.connections_of_address
        self._host = ""
        self._transport: asyncio.Transport
        self._deadline: asyncio.TimerHandle

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._deadline = asyncio.get_running_loop().call_later(HANDSHAKE_SECONDS_MAX, self._transport.close)
        self._host, _ = address_of(transport)
        if self._shares.take(self._host) is not None:
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        self._deadline.cancel()
        if data[0] == TLS_FIRST_BYTE:
            self._transport.close()
            return
        protocol = self._http() if bytes(data[:1]).isalpha() else self._binary()
        self._transport.set_protocol(protocol)
        self._shares.give_back(self._host)
        protocol.connection_made(self._transport)
        protocol.data_received(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._deadline.cancel()
        self._shares.give_back(self._host)
