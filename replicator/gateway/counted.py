"""An HTTP connection at the shared port, counted by the address it comes from while it is open."""

from __future__ import annotations

import asyncio

import structlog

from replicator.security.client_limits import ClientLimits

log = structlog.get_logger(__name__)


class CountedConnection(asyncio.Protocol):
    """Hands everything on to ``protocol``; a connection that is one too many is closed at once."""

    def __init__(self, protocol: asyncio.Protocol, limits: ClientLimits) -> None:
        self._protocol = protocol
        self._shares = limits.connections_of_address
        self._host = ""
        self._refused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._host = host_of(transport)
        too_many = self._shares.take(self._host)
        self._protocol.connection_made(transport)
        if too_many is not None:
            log.info("client disconnected", peer=transport.get_extra_info("peername"), reason=too_many)
            self._refused = True
            transport.close()

    def data_received(self, data: bytes) -> None:
        if not self._refused:
            self._protocol.data_received(data)

    def eof_received(self) -> bool | None:
        return self._protocol.eof_received()

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self._shares.give_back(self._host)
        self._protocol.connection_lost(error)


def host_of(transport: asyncio.BaseTransport) -> str:
    """The address from which it came; empty if it is gone already."""
    return str((transport.get_extra_info("peername") or ("",))[0])
