"""How many requests one address, and one role, has served at once (:mod:`replicator.security.client_limits`), how
long a body may take, and when a request's turn is (:mod:`replicator.running.turns`).

What is beyond is answered by 429, with the time after which to try again. Requests that last are connections by another
name, and counted as such: streams of links with the connections of their role, WebSockets by themselves. What is public
is not counted, but for the dashboard's: Kubernetes would end a worker whose answer to a probe is that others ask too
much.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, cast

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from replicator.api.guarding import PUBLIC, ROLE, SOCKETS, canonical, is_dashboard
from replicator.engine.errors import TooBusy
from replicator.running.connecting import address_of
from replicator.running.limited_log import LIMITED
from replicator.running.pacing import CLIENT, MeteredCoroutine, next_slice
from replicator.running.turns import FairScheduler, LoopShare
from replicator.security.client_limits import ClientLimits, HolderCounts

STREAMS: Final = "/replication/v1/append"
OWN_TIMES: Final = (STREAMS, SOCKETS)
"""Resources whose handlers limit the time between two pieces of a body; the whole body may take any time."""
BODY_SECONDS_MAX: Final = 75.0
"""Time limit of a request's body, equal to that of its head. The largest body has some megabytes."""

log = structlog.get_logger(__name__)


def bound_time(turns: FairScheduler) -> Middleware:
    """Return the middleware that counts the event loop's time that requests take, by their connection.

    A request begins when it is its client's turn. In nearly all cases that is at once.
    """

    @web.middleware
    async def bounded(request: web.Request, handler: Handler) -> web.StreamResponse:
        share = turns.client(address_of(request.transport)[1]) or LoopShare(
            request.remote or ""
        )  # where no port of ours counts it
        CLIENT.set(share)
        if not turns.may_begin(share):
            await next_slice(turns, share)
        work = cast("Coroutine[Any, Any, web.StreamResponse]", handler(request))
        return await MeteredCoroutine(work, turns, share)

    return bounded


def bound_addresses(limits: ClientLimits) -> Middleware:
    """Return the middleware that counts requests by address, before authentication."""

    @web.middleware
    async def bounded(request: web.Request, handler: Handler) -> web.StreamResponse:
        route = canonical(request)
        if (route in PUBLIC and not is_dashboard(route)) or route == STREAMS:
            return await handler(request)
        shares = limits.sockets_of_address if route.startswith(SOCKETS) else limits.requests_of_address
        expiry = None if route.startswith(OWN_TIMES) else _cut_slow_body(request)
        try:
            return await _counted(shares, request.remote or "", request, handler)
        finally:
            if expiry is not None:
                expiry.cancel()

    return bounded


def bound_roles(limits: ClientLimits) -> Middleware:
    """Return the middleware that counts requests by role. It runs after authentication, which finds the role."""

    @web.middleware
    async def bounded(request: web.Request, handler: Handler) -> web.StreamResponse:
        route = canonical(request)
        shares = limits.sockets_of_role if route.startswith(SOCKETS) else limits.requests_of_role
        shares = limits.connections_of_role if route == STREAMS else shares
        return await _counted(shares, request.get(ROLE, ""), request, handler)

    return bounded


async def _counted(shares: HolderCounts, holder: str, request: web.Request, handler: Handler) -> web.StreamResponse:
    too_many = shares.take(holder)
    try:
        if too_many is not None:
            raise TooBusy(f"too many requests or WebSockets at once: {too_many}; try again later")
        return await handler(request)
    finally:
        shares.give_back(holder)


def _cut_slow_body(request: web.Request) -> asyncio.TimerHandle | None:
    if request.content.is_eof():
        return None

    def cut() -> None:
        if request.transport is not None and not request.content.is_eof():
            reason = f"no whole body within {BODY_SECONDS_MAX:g} s"
            LIMITED.say(log.info, "client disconnected", request.remote or "", peer=request.remote, reason=reason)
            request.transport.abort()

    return asyncio.get_running_loop().call_later(BODY_SECONDS_MAX, cut)
