"""All admin paths together, and what the application has to hold for them."""

from __future__ import annotations

import asyncio
import time

from aiohttp import web

from replicator.api.admin import namespaces, peeking, policies, subscriptions, tenants, topics
from replicator.api.admin.requests import ENGINE
from replicator.api.admin.sizes import TopicSizes
from replicator.api.admin.traffic import TrafficMeter
from replicator.engine.engine import Engine


def add_admin(app: web.Application, engine: Engine) -> None:
    """Serve ``/admin/v2`` for ``engine``; on its event loop. Policies come last: their paths hold what is left."""
    app[ENGINE] = engine
    app[policies.CHANGES] = asyncio.Lock()
    app[topics.SIZES] = TopicSizes(engine.store)
    app[topics.TRAFFIC] = meter = TrafficMeter(time.monotonic)
    engine.add_listener(meter)
    for resource in (tenants, namespaces, subscriptions, peeking, topics, policies):
        app.add_routes(resource.routes())
