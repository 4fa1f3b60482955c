"""``GET /metrics``: gathers what the worker knows, between slices of topics, and renders it on a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest

from replicator.api import data_plane
from replicator.api.metrics.bounded import BoundedFigures, Bounds, SubscriptionFigures, TopicFigures
from replicator.api.metrics.collector import Scraped, StatusCollector
from replicator.api.slices import topics_in_slices
from replicator.engine.engine import Engine
from replicator.engine.topic import Topic
from replicator.topology import MetricsSettings


class Metrics:
    """Metrics of one worker. ``scraped`` gives the status without its topics; ``settings`` are asked for at each
    scrape.
    """

    def __init__(self, scraped: Callable[[], Scraped], settings: Callable[[], MetricsSettings]) -> None:
        self._scraped = scraped
        self._settings = settings
        self._bounds = Bounds()

    async def text(self, engine: Engine) -> bytes:
        """Return the page of metrics. A thread renders it: with thousands of topics that takes a while, in which the
        worker goes on.
        """
        settings = self._settings()
        figures = await self._figures(engine, settings)
        registry = CollectorRegistry()
        registry.register(StatusCollector(engine.cluster, self._scraped(), figures, old_names=settings.old_names))
        ProcessCollector(registry=registry)
        return await asyncio.to_thread(generate_latest, registry)

    async def _figures(self, engine: Engine, settings: MetricsSettings) -> BoundedFigures:
        topics = [topic_figures(topic) async for topic in topics_in_slices(engine)]
        return self._bounds.bound(topics, topics_max=settings.topics, subscriptions_max=settings.subscriptions)


METRICS: Final[web.AppKey[Metrics]] = web.AppKey("metrics", Metrics)


def topic_figures(topic: Topic) -> TopicFigures:
    """Return only the figures of a topic that are exported: its full status costs ten times as much."""
    log = topic.log
    return TopicFigures(
        topic.name,
        topic.incarnation,
        log.entries,
        log.messages,
        len(log.markers),
        tuple(
            SubscriptionFigures(
                each.name,
                each.cursor.backlog_entries(),
                each.backlog_messages(),
                len(each.cursor.state.individually_deleted),
            )
            for each in topic.subscriptions.values()
        ),
    )


async def answer(request: web.Request) -> web.Response:
    """Answer with the Prometheus metrics of this worker."""
    body = await request.app[METRICS].text(request.app[data_plane.ENGINE])
    return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})
