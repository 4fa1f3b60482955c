"""Figures of topics, a page at a time: what the dashboard of each worker asks the others for.

Names are in order, so that whoever asks several clusters for the same page has all rows of the union's first page: the
topics that a cluster has of it are among the first of that cluster's own.
"""

from __future__ import annotations

import heapq
import json
from typing import Any, Final

from aiohttp import web

from replicator.api.data_plane import ENGINE, number
from replicator.api.errors import BadRequest
from replicator.api.link_routes import LINKS
from replicator.api.slices import in_slices, json_list, topics_in_slices
from replicator.engine.engine import Engine
from replicator.engine.topic import Topic
from replicator.peering.topic_summary import LIMIT, LIMIT_MAX, SUMMARY_ROUTE, Backlog, TopicSummary

PAGE_TOPICS: Final = 50
PAGE_TOPICS_MAX: Final = 1_000
SEARCH_CHARS_MAX: Final = 300
SUBSCRIPTIONS_SHOWN_MAX: Final = 100
"""Limit of subscriptions shown for one topic; ``subscription_count`` tells how many there are."""


def add_topic_figures(app: web.Application) -> None:
    app.router.add_get("/replication/v1/topic-figures", topic_figures)
    app.router.add_get(SUMMARY_ROUTE, topic_summary)


async def topic_summary(request: web.Request) -> web.Response:
    """Answer with sums over all topics, the largest backlogs of subscriptions, and the topics that links lag with."""
    engine = request.app[ENGINE]
    limit = number(request, "limit", LIMIT, LIMIT_MAX)
    topics = messages = subscriptions = 0
    largest: list[tuple[int, str, str]] = []
    async for topic in topics_in_slices(engine):
        topics, messages, subscriptions = (
            topics + 1,
            messages + topic.log.messages,
            subscriptions + len(topic.subscriptions),
        )
        for name, subscription in topic.subscriptions.items():
            row = subscription.backlog_messages(), topic.name, name
            if len(largest) < limit:
                heapq.heappush(largest, row)
            elif row[0] > largest[0][0]:
                heapq.heapreplace(largest, row)
    backlogs = []
    for backlog, topic_name, name in sorted(largest, key=lambda row: (-row[0], row[1:])):
        found = engine.find(topic_name)
        if backlog and found is not None and name in found.subscriptions:
            shown = {"name": topic_name, "messages": found.log.messages, "lac": str(found.log.last)}
            backlogs.append(Backlog.of_status(shown, found.subscriptions[name].status()))
    behind = [each for link in request.app[LINKS].links() for each in await link.behind(limit)]
    return web.json_response(TopicSummary(engine.cluster, topics, messages, subscriptions, backlogs, behind).as_json())


async def topic_figures(request: web.Request) -> web.Response:
    """Answer with a page of topics (``?search=&after=&before=&limit=``), or the named topics (``?topic=``).

    A page has the first topics after ``after``, or the last ones before ``before``, in which ``search`` is part of the
    name or of a subscription's name. ``matching`` counts all such topics.
    """
    engine = request.app[ENGINE]
    named = request.query.getall("topic", [])
    if len(named) > PAGE_TOPICS_MAX:
        raise BadRequest(f"at most {PAGE_TOPICS_MAX} topics can be named: ask in several requests")
    if named:
        rows = await _figures_of(engine, named)
        return json_list({"cluster": engine.cluster, "matching": len(rows)}, "topics", rows)
    limit = number(request, "limit", PAGE_TOPICS, PAGE_TOPICS_MAX)
    search = request.query.get("search", "")
    if len(search) > SEARCH_CHARS_MAX:
        raise BadRequest(f"parameter search has more than {SEARCH_CHARS_MAX} characters: shorten it")
    matching = [topic.name async for topic in topics_in_slices(engine) if _matches(topic, search.lower())]
    after, before = request.query.get("after", ""), request.query.get("before", "")
    if before:
        names = heapq.nlargest(limit, (name for name in matching if name < before))[::-1]
    else:
        names = heapq.nsmallest(limit, (name for name in matching if name > after))
    rows = await _figures_of(engine, names)
    return json_list({"cluster": engine.cluster, "matching": len(matching)}, "topics", rows)


async def _figures_of(engine: Engine, names: list[str]) -> list[str]:
    """Return the figures of those named topics that exist here, each as JSON text."""
    return [
        json.dumps(_figures(topic))
        async for name in in_slices(engine, names)
        if (topic := engine.find(name)) is not None and topic.deleted is None
    ]


def _matches(topic: Topic, search: str) -> bool:
    if not search or search in topic.name.lower():
        return True
    return any(search in name.lower() for name in topic.subscriptions)


def _figures(topic: Topic) -> dict[str, Any]:
    subscriptions = [
        {
            "name": each.name,
            "replicated": each.replicated,
            "generation": each.cursor.generation,
            "backlog_messages": each.backlog_messages(),
            "consumers": len(each.consumers),
        }
        for _, each in zip(range(SUBSCRIPTIONS_SHOWN_MAX), topic.subscriptions.values(), strict=False)
    ]
    return {
        "name": topic.name,
        "messages": topic.log.messages,
        "last": str(topic.log.last),
        "subscription_count": len(topic.subscriptions),
        "subscriptions": subscriptions,
    }
