"""Watches how acknowledgements arrive in a cluster whose own clients gave none."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any, Final

import aiohttp

from replicator.drills.traffic.ack_news import AckNews
from replicator.drills.traffic.active import POLL_SECONDS, Drill
from replicator.security.asking import worker_session

ANSWER_SECONDS_MAX: Final = 5.0
WATCHED_TOPICS_MAX: Final = 4
"""Limit of topics whose acknowledgements are watched, so that watching many topics is not a load of its own."""


class AckWatcher:
    """Asks one cluster again and again for its acknowledgements, while clients are elsewhere."""

    def __init__(self, drill: Drill, cluster: str, url: str, running: asyncio.Event) -> None:
        """Make the watcher. ``running`` is set while the cluster's worker should answer."""
        self._drill = drill
        self._cluster = cluster
        self._url = url
        self._running = running
        step = max(1, -(-len(drill.topics) // WATCHED_TOPICS_MAX))
        self._topics = range(0, len(drill.topics), step)
        self._news = {
            (topic, subscription.name): AckNews()
            for topic in self._topics
            for subscription in drill.observations.subscriptions
        }

    async def run(self) -> None:
        """Watch until nothing more is measured; end without being told."""
        async with worker_session(timeout=aiohttp.ClientTimeout(total=ANSWER_SECONDS_MAX)) as session:
            while self._drill.watching_sync and not self._drill.finished.is_set():
                await self._running.wait()
                if self._drill.active.name != self._cluster:
                    for topic in self._topics:
                        states = await self._ask(session, self._drill.topics[topic])
                        now = time.monotonic()
                        for state in states:
                            self._record(topic, state, now)
                await asyncio.sleep(POLL_SECONDS)

    def _record(self, topic: int, state: Mapping[str, Any], now: float) -> None:
        news = self._news.get((topic, state["name"]))
        if news is not None:
            for first, last in news.news(state):
                self._drill.observations.covered(state["name"], self._cluster, first, last, now, topic)

    async def _ask(self, session: aiohttp.ClientSession, topic: str) -> list[dict[str, Any]]:
        url = f"{self._url}/replication/v1/subscriptions"
        try:
            async with session.get(url, params={"topic": topic}) as response:
                answer = await response.json()
        except (aiohttp.ClientError, OSError, TimeoutError):
            return []
        found: list[dict[str, Any]] = answer.get("subscriptions", [])
        return found
