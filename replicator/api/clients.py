"""Route by which an operator ends the connections of a client that takes too much of the worker's time.

The worker's status names the clients that take the most time (:meth:`replicator.running.turns.FairScheduler.busiest`).
"""

from __future__ import annotations

from typing import Final

from aiohttp import web

from replicator.api.audit import OPERATOR, Audit
from replicator.api.errors import BadRequest
from replicator.engine.engine import Engine
from replicator.engine.errors import EngineError
from replicator.running.connecting import address_of

CLOSE_ROUTE: Final = "/replication/v1/clients/close"
ADDRESS_CHARS_MAX: Final = 200


class ClientNotFound(EngineError):
    """No client is connected from that address."""

    status = 404


def add_clients(app: web.Application, engine: Engine, audit: Audit | None) -> None:
    """Add the route that closes connections of clients. ``audit`` records what an operator closes."""

    async def close(request: web.Request) -> web.Response:
        """Close the connection from ``?address=HOST:PORT``, or all connections from ``?address=HOST``.

        Answer with the number of closed connections. The client may connect again: to keep it away, revoke its
        permissions.
        """
        address = request.query.get("address", "")
        if not address or len(address) > ADDRESS_CHARS_MAX:
            raise BadRequest(
                "parameter address must be HOST:PORT of a connection, or HOST for all connections from there"
            )
        _, own = address_of(request.transport)
        found = [each for each in engine.turns.clients(address) if each.address != own]
        if not found:
            raise ClientNotFound(f"no client of cluster {engine.cluster!r} is connected from {address!r}")
        for each in found:
            if each.end is not None:
                each.end()
        if audit is not None:
            roles = sorted({each.role for each in found if each.role})
            audit(OPERATOR, "close client", address, {"connections": len(found), **({"roles": roles} if roles else {})})
        return web.json_response({"cluster": engine.cluster, "address": address, "closed": len(found)})

    app.router.add_post(CLOSE_ROUTE, close)
