"""All admin paths together, and what the application has to hold for them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from aiohttp import web

from replicator.api import lookup
from replicator.api.addresses import ADDRESSES, Addresses
from replicator.api.admin import (
    absent_paths,
    brokers,
    clusters,
    figures,
    namespace_actions,
    namespaces,
    peeking,
    permissions,
    policies,
    schemas,
    subscriptions,
    tenants,
    topic_actions,
    topics,
)
from replicator.api.admin.requests import ENGINE
from replicator.api.admin.sizes import TopicSizes
from replicator.api.admin.traffic import TrafficMeter
from replicator.engine.engine import Engine


def add_admin(
    app: web.Application, engine: Engine, ready: Callable[[], str | None], addresses: Addresses | None = None
) -> None:
    """Serve ``/admin/v2`` and ``/lookup/v2`` for ``engine``; on its event loop. Policies come last: their paths hold
    what is left. ``ready`` says why clients are not served; ``addresses`` are those of the topology, if there is one.
    """
    app[ENGINE] = engine
    app[ADDRESSES] = addresses or dict
    app[brokers.READY] = ready
    app[policies.CHANGES] = asyncio.Lock()
    app[figures.SIZES] = TopicSizes(engine.store)
    app[figures.TRAFFIC] = meter = TrafficMeter(time.monotonic)
    engine.add_listener(meter)
    for resource in (
        lookup,
        clusters,
        brokers,
        tenants,
        permissions,
        namespace_actions,
        namespaces,
        subscriptions,
        peeking,
        figures,
        topic_actions,
        topics,
        schemas,
        absent_paths,
        policies,
    ):
        app.add_routes(resource.routes())
