"""Permissions of namespaces and topics. Nobody has any in this version: every client is let in.

Reading them shows none. Granting and revoking are refused: whoever does it counts on it.
"""

from __future__ import annotations

from typing import Final

from aiohttp import web

from replicator.api.admin.errors import NotSupported
from replicator.api.admin.policies import OF_NAMESPACE, OF_TOPIC
from replicator.api.admin.requests import ENGINE, logs_of, namespace_name

WHY: Final = "there are no permissions in this version: every client is let in"


def routes() -> list[web.RouteDef]:
    """The routes of permissions."""
    return [
        web.get(f"{OF_NAMESPACE}/permissions", of_namespace),
        web.get(f"{OF_NAMESPACE}/permissions/subscription", of_namespace),
        web.get(f"{OF_TOPIC}/permissions", of_topic),
        web.post(f"{OF_NAMESPACE}/permissions/{{role}}", refuse),
        web.delete(f"{OF_NAMESPACE}/permissions/{{role}}", refuse),
        web.post(f"{OF_NAMESPACE}/permissions/subscription/{{role}}", refuse),
        web.delete(f"{OF_NAMESPACE}/permissions/{{subscription}}/{{role}}", refuse),
        web.post(f"{OF_TOPIC}/permissions/{{role}}", refuse),
        web.delete(f"{OF_TOPIC}/permissions/{{role}}", refuse),
    ]


async def of_namespace(request: web.Request) -> web.Response:
    request.app[ENGINE].catalog.namespace(namespace_name(request))
    return web.json_response({})


async def of_topic(request: web.Request) -> web.Response:
    await logs_of(request)
    return web.json_response({})


async def refuse(request: web.Request) -> web.Response:
    raise NotSupported(WHY)
