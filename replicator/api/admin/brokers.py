"""Brokers: ``/admin/v2/brokers``. A cluster has one: its worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from aiohttp import web

from replicator import __version__
from replicator.api.addresses import own_address
from replicator.api.admin.errors import NotReady, NotSupported
from replicator.api.admin.requests import ENGINE, no_content

READY: Final[web.AppKey[Callable[[], str | None]]] = web.AppKey("admin_ready")
"""Returns None while the worker serves clients, else the reason why it does not."""
BROKERS: Final = "/admin/v2/brokers"


def routes() -> list[web.RouteDef]:
    """Return the routes of brokers. That of a cluster's brokers comes last, because it takes any name."""
    return [
        web.get(BROKERS, list_brokers),
        web.get(f"{BROKERS}/health", health),
        web.get(f"{BROKERS}/ready", health),
        web.get(f"{BROKERS}/version", version),
        web.get(f"{BROKERS}/leaderBroker", leader),
        web.get(f"{BROKERS}/configuration", no_settings),
        web.get(f"{BROKERS}/configuration/values", no_values),
        web.get(f"{BROKERS}/configuration/runtime", no_values),
        web.get(f"{BROKERS}/internal-configuration", refuse_internal_configuration),
        web.get(f"{BROKERS}/backlog-quota-check", check_quotas),
        web.get(f"{BROKERS}/{{cluster}}", list_brokers),
    ]


async def list_brokers(request: web.Request) -> web.Response:
    """This worker, whichever cluster is asked for: as a Pulsar broker, it knows its own cluster's only."""
    return web.json_response([_broker_id(request)])


async def health(request: web.Request) -> web.Response:
    """Answer with ``ok``, or 503 and the reason."""
    if (reason := request.app[READY]()) is not None:
        raise NotReady(reason)
    return web.Response(text="ok")


async def version(request: web.Request) -> web.Response:
    return web.Response(text=f"replicator {__version__}")


async def leader(request: web.Request) -> web.Response:
    url = own_address(request, request.app[ENGINE].cluster).http_url
    return web.json_response({"serviceUrl": url, "brokerId": _broker_id(request)})


async def no_settings(request: web.Request) -> web.Response:
    """Settings are in the topology file, none of them under Pulsar's names."""
    return web.json_response([])


async def no_values(request: web.Request) -> web.Response:
    return web.json_response({})


async def refuse_internal_configuration(request: web.Request) -> web.Response:
    raise NotSupported("a worker has its store in itself; there are no metadata stores and no bookies")


async def check_quotas(request: web.Request) -> web.Response:
    """Maintenance looks at the quotas all the time."""
    return no_content()


def _broker_id(request: web.Request) -> str:
    return own_address(request, request.app[ENGINE].cluster).http_url.partition("://")[2]
