"""Figures of topics: ``…/stats``, ``…/internalStats``, those of partitions, and where messages lie."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiohttp import web

from replicator.api.addresses import own_address
from replicator.api.admin.internal_stats import internal_stats, ledger_info
from replicator.api.admin.message_ids import read_target, to_json
from replicator.api.admin.requests import (
    ENGINE,
    flag_parameter,
    log_of_one,
    logs_of,
    number_of,
    one_topic,
    read_json,
    topic_name,
)
from replicator.api.admin.sizes import TopicSizes
from replicator.api.admin.subscriptions import TOPIC
from replicator.api.admin.topic_stats import partitioned_stats, topic_stats
from replicator.api.admin.traffic import TrafficMeter
from replicator.api.slices import in_slices
from replicator.engine.errors import TopicNotFound
from replicator.engine.log.delivered import last_delivered
from replicator.engine.topic import Topic
from snapshots.position import BEFORE_ALL, Position

SIZES: Final = web.AppKey("admin_sizes", TopicSizes)
TRAFFIC: Final = web.AppKey("admin_traffic", TrafficMeter)


def routes() -> list[web.RouteDef]:
    """Return the routes of figures."""
    return [
        web.get(f"{TOPIC}/stats", stats),
        web.get(f"{TOPIC}/internalStats", internal),
        web.get(f"{TOPIC}/internal-info", info),
        web.get(f"{TOPIC}/partitioned-stats", stats_of_partitions),
        web.get(f"{TOPIC}/partitioned-internalStats", internal_of_partitions),
        web.get(f"{TOPIC}/lastMessageId", last_message_id),
        web.get(f"{TOPIC}/messageid/{{timestamp}}", message_id_at),
        web.put(f"{TOPIC}/backlogSize", backlog_size),
    ]


async def stats(request: web.Request) -> web.Response:
    return web.json_response(await _stats(request, await log_of_one(request)))


async def internal(request: web.Request) -> web.Response:
    return web.json_response(await _internal(request, await log_of_one(request)))


async def info(request: web.Request) -> web.Response:
    return web.json_response(ledger_info(await log_of_one(request)))


async def stats_of_partitions(request: web.Request) -> web.Response:
    """Answer with the sums over all partitions, and the figures of each unless ``perPartition=false``."""
    each = flag_parameter(request, "perPartition", default=True)
    partitions, found = await _of_partitions(request, _stats)
    return web.json_response(partitioned_stats(found, partitions=partitions, each=each))


async def internal_of_partitions(request: web.Request) -> web.Response:
    partitions, found = await _of_partitions(request, _internal)
    return web.json_response({"metadata": {"partitions": partitions, "deleted": False}, "partitions": found})


async def last_message_id(request: web.Request) -> web.Response:
    """Answer with the id of the last message that clients can receive; ledger and entry are -1 if there is none."""
    topic = await log_of_one(request)
    last = last_delivered(topic)
    return web.json_response(to_json(last.position, topic.partition, last.batch_index))


async def message_id_at(request: web.Request) -> web.Response:
    """Answer with the id of the first message that was published at a time or later; past the end, that of the
    next one.
    """
    published_ms = number_of(request.match_info["timestamp"], "timestamp")
    topic = await one_topic(request)
    log = topic.log
    before = await topic.reading.position_at_time(published_ms, after=log.trimmed)
    return web.json_response(to_json(log.next_message(before) or _following(log.last), topic.partition))


async def backlog_size(request: web.Request) -> web.Response:
    """Answer with the bytes from the message in the body on."""
    target = read_target(await read_json(request))
    topic = await one_topic(request)
    measures = request.app[SIZES]
    sizes = await measures.measure(topic)
    position = target.position if target.excluded or target.anywhere else _preceding(target.position)
    return web.json_response(measures.bytes_after(topic, sizes, position))


async def _of_partitions(
    request: web.Request, figures: Callable[[web.Request, Topic], Awaitable[dict[str, Any]]]
) -> tuple[int, dict[str, Any]]:
    """Return the number of partitions, and the figures of each by name.

    Raises :class:`TopicNotFound` if the path names no partitioned topic.
    """
    engine, name = request.app[ENGINE], str(topic_name(request))
    if not (partitions := engine.partitioned.count(name)):
        raise TopicNotFound(f"cluster {engine.cluster!r} has no partitioned topic {name!r}")
    found: dict[str, Any] = {}
    async for topic in in_slices(engine, await logs_of(request)):
        found[topic.name] = await figures(request, topic)
    return partitions, found


async def _stats(request: web.Request, topic: Topic) -> dict[str, Any]:
    measures = request.app[SIZES]
    sizes = await measures.measure(topic)
    figures = topic_stats(
        topic,
        rate_in=request.app[TRAFFIC].messages_per_second(topic.name),
        storage_bytes=sizes.size_bytes,
        bytes_after=lambda position: measures.bytes_after(topic, sizes, position),
        broker=own_address(request, request.app[ENGINE].cluster).http_url.partition("://")[2],
    )
    if _is_true(request, "excludePublishers"):
        figures["publishers"] = []
    if _is_true(request, "excludeConsumers"):
        for subscription in figures["subscriptions"].values():
            subscription["consumers"] = []
    return figures


def _is_true(request: web.Request, name: str) -> bool:
    """Return whether a parameter is true. Any other text is false, as at brokers: tools send `=` and `=1`."""
    return request.query.get(name, "").lower() == "true"


async def _internal(request: web.Request, topic: Topic) -> dict[str, Any]:
    measures = request.app[SIZES]
    sizes = await measures.measure(topic)
    return internal_stats(
        topic,
        storage_bytes=sizes.size_bytes,
        bytes_after=lambda position: measures.bytes_after(topic, sizes, position),
        started_at_ms=request.app[ENGINE].started_at_ms,
    )


def _following(position: Position) -> Position:
    return position if position == BEFORE_ALL else Position(position.ledger, position.entry + 1)


def _preceding(position: Position) -> Position:
    return Position(position.ledger, position.entry - 1)
