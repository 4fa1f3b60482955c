"""Lookup of topics over HTTP: ``/lookup/v2``, for clients whose service URL is ``http://host:port``.

One worker serves all topics of its cluster, so every topic has the same answer. Nothing is made here: clients ask for
the number of partitions beside this (``…/partitions?checkAllowAutoCreation=true``), and that makes what policies make.
"""

from __future__ import annotations

from typing import Final

from aiohttp import web

from replicator.api.addresses import own_address
from replicator.api.admin.errors import NotSupported
from replicator.api.admin.requests import ENGINE, topic_name
from replicator.engine.errors import ClusterFenced, EngineError, InvalidTopicName

BUNDLE: Final = "0x00000000_0xffffffff"
"""A namespace is not spread over brokers."""
_TOPIC: Final = "{domain}/{tenant}/{namespace}/{topic}"


def routes() -> list[web.RouteDef]:
    """Return the routes of lookups; the second form is that of older clients."""
    return [
        web.get(f"/lookup/v2/topic/{_TOPIC}", lookup),
        web.get(f"/lookup/v2/destination/{_TOPIC}", lookup),
        web.get(f"/lookup/v2/topic/{_TOPIC}/bundle", bundle),
    ]


async def lookup(request: web.Request) -> web.Response:
    """Answer with the address at which clients reach the topic."""
    _check_topic(request)
    if request.query.get("listenerName"):
        raise NotSupported(
            "parameter listenerName is not supported: a cluster has one address, clusters.NAME.advertised in the "
            "topology; leave the parameter out"
        )
    engine = request.app[ENGINE]
    fence = engine.admission.consumers
    if fence is not None:
        return _elsewhere(fence)
    address = own_address(request, engine.cluster)
    return web.json_response(
        {
            "brokerUrl": address.pulsar_url,
            "httpUrl": address.http_url,
            "nativeUrl": address.pulsar_url,
            "brokerUrlSsl": address.pulsar_tls_url or "",
            **({} if address.pulsar_tls_url is None else {"brokerUrlTls": address.pulsar_tls_url}),
        }
    )


def _elsewhere(fence: EngineError) -> web.Response:
    """Answer with the cluster that now serves this one's clients; raise ``fence`` while that is undecided."""
    moved_to = fence.moved_to if isinstance(fence, ClusterFenced) else None
    if moved_to is None:
        raise fence.with_traceback(None)
    tls_url = moved_to.tls_url
    return web.json_response(
        {
            "brokerUrl": moved_to.url,
            "httpUrl": "",
            "nativeUrl": moved_to.url,
            "brokerUrlSsl": tls_url or "",
            **({} if tls_url is None else {"brokerUrlTls": tls_url}),
        }
    )


async def bundle(request: web.Request) -> web.Response:
    """Answer with the namespace's only bundle, which holds all topics."""
    _check_topic(request)
    return web.Response(text=BUNDLE)


def _check_topic(request: web.Request) -> None:
    if (domain := request.match_info["domain"]) != "persistent":
        raise InvalidTopicName(f"there are no {domain[:40]}:// topics here: use a name that begins with persistent://")
    topic_name(request)
