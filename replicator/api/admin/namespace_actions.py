"""Admin API: actions on all topics of a namespace, and the namespace's only bundle."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from aiohttp import web

from replicator.api.admin.absent_policies import ABSENT_POLICIES
from replicator.api.admin.errors import NotSupported
from replicator.api.admin.policies import OF_NAMESPACE
from replicator.api.admin.requests import ENGINE, namespace_name, no_content, subscription_name
from replicator.api.slices import in_slices
from replicator.engine.subscriptions.deleting import delete_together
from replicator.engine.subscriptions.subscription import Subscription
from replicator.engine.topic_name import EPOCHS_TOPIC

BUNDLES: Final = {"boundaries": ["0x00000000", "0xffffffff"], "numBundles": 1}
"""A namespace is not spread over brokers: a cluster is one worker."""


def routes() -> list[web.RouteDef]:
    """Return the routes of actions on namespaces; an action on a bundle is done to the whole namespace."""
    found = [
        web.get(f"{OF_NAMESPACE}/bundles", bundles),
        web.put(f"{OF_NAMESPACE}/unload", unload),
        web.get(f"{OF_NAMESPACE}/persistence/bookieAffinity", no_affinity),
        web.delete(f"{OF_NAMESPACE}/persistence/bookieAffinity", no_affinity),
    ]
    for at in (OF_NAMESPACE, f"{OF_NAMESPACE}/{{bundle:0x[0-9a-f]+_0x[0-9a-f]+}}"):
        found += [
            web.post(f"{at}/clearBacklog", clear_backlog),
            web.post(f"{at}/clearBacklog/{{subscription}}", clear_backlog),
            web.post(f"{at}/unsubscribe/{{subscription}}", unsubscribe),
        ]
    found += [
        web.route("*", f"{OF_NAMESPACE}/property/{{key}}", refuse_property),
        web.route("*", f"{OF_NAMESPACE}/property/{{key}}/{{value}}", refuse_property),
    ]
    return [*found, web.put(f"{OF_NAMESPACE}/{{bundle:0x[0-9a-f]+_0x[0-9a-f]+}}/unload", unload)]


async def bundles(request: web.Request) -> web.Response:
    request.app[ENGINE].catalog.namespace(namespace_name(request))
    return web.json_response(BUNDLES)


async def no_affinity(request: web.Request) -> web.Response:
    """Accept the removal of an affinity: none can be set, because a worker has its store in itself."""
    request.app[ENGINE].catalog.namespace(namespace_name(request))
    return no_content()


async def unload(request: web.Request) -> web.Response:
    """Accept an unload, and do nothing: there is no other broker to move to, and clients stay."""
    request.app[ENGINE].catalog.namespace(namespace_name(request))
    return no_content()


async def refuse_property(request: web.Request) -> web.Response:
    raise NotSupported(ABSENT_POLICIES["properties"].why)


async def clear_backlog(request: web.Request) -> web.Response:
    """Treat everything as consumed: of one subscription, or of all."""
    async for subscription in _subscriptions(request):
        await subscription.moves.clear_backlog()
    return no_content()


async def unsubscribe(request: web.Request) -> web.Response:
    """Delete a subscription in every topic of a namespace. If consumers of any cluster use it on one of the topics,
    delete nothing and answer with an error."""
    await delete_together([subscription async for subscription in _subscriptions(request)])
    return no_content()


async def _subscriptions(request: web.Request) -> AsyncIterator[Subscription]:
    """Yield the subscriptions with the path's name in all topics of the namespace; without a name, all subscriptions.

    The event loop runs other tasks between topics.
    """
    name = subscription_name(request) if "subscription" in request.match_info else None
    engine = request.app[ENGINE]
    async for topic_name in in_slices(engine, engine.catalog.topics(namespace_name(request))):
        topic = engine.find(topic_name)
        if topic is None or topic_name == EPOCHS_TOPIC:
            continue
        for subscription in list(topic.subscriptions.values()):
            if name is None or subscription.name == name:
                yield subscription
