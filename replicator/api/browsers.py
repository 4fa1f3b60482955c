"""Requests that somebody's browser was tricked into: they are refused, whatever they ask for.

A page of anybody runs in the browsers of those who reach a worker, behind their firewalls and on their own machines:

1. It can point a name of its own at the worker's address (DNS rebinding); requests then bear that name in ``Host``. So
   a name must be one of the topology's, or one that it allows. Numeric addresses and ``localhost`` belong to nobody.
2. It can send requests and open WebSockets across sites; these bear the page's ``Origin``. So where there is one, it
   must be that of the worker itself, as ``Host`` has it, or one that the topology allows.

Programs that are no browsers bear no ``Origin``, or their target's.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from replicator.engine.errors import EngineError

_PORTS: Final = {"http": "80", "https": "443"}


class UnknownHost(EngineError):
    """The request calls the worker by a name that it does not have."""

    status = 421


class ForeignOrigin(EngineError):
    """A page of another site sends this request."""

    status = 403


@dataclass(frozen=True, slots=True)
class Allowed:
    """Hosts and origins that the topology allows, in lower case."""

    hosts: frozenset[str] = frozenset()
    """Names by which the worker is called."""
    origins: frozenset[str] = frozenset()
    """``https://name:port`` of pages that may use it; the port is left out where it is the scheme's."""


def refuse_cross_site(allowed: Callable[[], Allowed]) -> Middleware:
    """Return the middleware that refuses such requests. It calls ``allowed`` for each request, because the topology may
    change.
    """

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise web.HTTPUnsupportedMediaType(reason="bodies are not compressed here")
        host = request.headers.get("Host", "").lower()
        if host:
            check_host(host, allowed())
        for origin in request.headers.getall("Origin", ()):
            check_origin(origin.lower(), host, allowed())
        return await handler(request)

    return check


def check_host(host: str, allowed: Allowed) -> None:
    """Raise :class:`UnknownHost` if ``host``, as ``NAME`` or ``NAME:PORT``, is not allowed."""
    name = _name_of(host)
    if name in allowed.hosts or name == "localhost" or name.endswith(".localhost") or _is_address(name):
        return
    raise UnknownHost(
        f"Host: {host[:200]!r} is no name of this worker: use its address, or add the name to clusters.NAME.hosts in "
        "the topology"
    )


def check_origin(origin: str, host: str, allowed: Allowed) -> None:
    """Raise :class:`ForeignOrigin` unless ``origin`` is that of ``host``, or allowed."""
    scheme, _, place = origin.partition("://")
    if scheme in _PORTS and place:
        default = f":{_PORTS[scheme]}"
        if place.removesuffix(default) == host.removesuffix(default) or origin.removesuffix(default) in allowed.origins:
            return
    raise ForeignOrigin(
        f"Origin: {origin[:200]!r} is not this worker: to let pages of that site use it, add their origin to "
        "clusters.NAME.origins in the topology"
    )


def _name_of(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].rstrip(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return True
