"""Topics under ``/admin/v2/persistent/{tenant}/{namespace}``: making, growing, deleting, compacting and figures."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from aiohttp import web

from replicator.api.admin.errors import (
    CompactionRunning,
    NotOnPartitioned,
    NotSupported,
    PartitionsOutOfRange,
    Unprocessable,
)
from replicator.api.admin.message_ids import to_json
from replicator.api.admin.requests import (
    ENGINE,
    flag_parameter,
    logs_of,
    namespace_name,
    no_content,
    number_field,
    object_field,
    one_topic,
    read_json,
    topic_name,
)
from replicator.api.admin.sizes import TopicSizes
from replicator.api.admin.subscriptions import TOPIC
from replicator.api.admin.topic_stats import internal_stats, partitioned_stats, topic_stats
from replicator.api.admin.traffic import TrafficMeter
from replicator.engine.errors import InvalidPartitions, TopicExists, TopicNotFound
from replicator.engine.log.last_message import last_message
from replicator.engine.topic import Topic
from replicator.engine.topics.partitions import PARTITIONS_MAX
from snapshots.position import BEFORE_ALL

SIZES: Final = web.AppKey("admin_sizes", TopicSizes)
TRAFFIC: Final = web.AppKey("admin_traffic", TrafficMeter)

NAMESPACE: Final = "/admin/v2/persistent/{tenant}/{namespace}"
STATS_AT_ONCE: Final = 20
"""Topics whose figures are made before others get their turn: some hundred microseconds each."""


def routes() -> list[web.RouteDef]:
    """The routes of topics."""
    return [
        web.get(NAMESPACE, list_topics),
        web.get(f"{NAMESPACE}/partitioned", list_partitioned),
        web.get("/admin/v2/non-persistent/{tenant}/{namespace}", list_none),
        web.get("/admin/v2/non-persistent/{tenant}/{namespace}/partitioned", list_none),
        web.put(TOPIC, create),
        web.delete(TOPIC, delete),
        web.get(f"{TOPIC}/partitions", partitions),
        web.put(f"{TOPIC}/partitions", create_partitioned),
        web.post(f"{TOPIC}/partitions", grow),
        web.delete(f"{TOPIC}/partitions", delete_partitioned),
        web.get(f"{TOPIC}/stats", stats),
        web.get(f"{TOPIC}/internalStats", internal),
        web.get(f"{TOPIC}/partitioned-stats", stats_of_partitions),
        web.get(f"{TOPIC}/lastMessageId", last_message_id),
        web.put(f"{TOPIC}/compaction", compact),
        web.get(f"{TOPIC}/compaction", compaction_status),
        web.post(f"{TOPIC}/terminate", terminate),
    ]


# Names.


async def list_topics(request: web.Request) -> web.Response:
    """Every topic that has a log: those without partitions, and the partitions of the others."""
    return web.json_response(request.app[ENGINE].catalog.visible_topics(namespace_name(request)))


async def list_partitioned(request: web.Request) -> web.Response:
    """The partitioned topics by their own names."""
    return web.json_response(sorted(request.app[ENGINE].catalog.partitioned_topics(namespace_name(request))))


async def list_none(request: web.Request) -> web.Response:
    """Tools that list a namespace ask for these as well; there are none."""
    request.app[ENGINE].catalog.namespace(namespace_name(request))
    return web.json_response([])


async def create(request: web.Request) -> web.Response:
    """Make a topic without partitions."""
    _check_no_properties(await read_json(request))
    await request.app[ENGINE].making.create(str(topic_name(request)))
    return no_content()


async def delete(request: web.Request) -> web.Response:
    """Delete a topic; with ``force=true`` also one that producers and consumers are connected to."""
    force = flag_parameter(request, "force")
    engine, name = request.app[ENGINE], str(topic_name(request))
    if engine.partitioned.count(name):
        raise NotOnPartitioned(f"{name} is partitioned: DELETE …/partitions deletes it with its partitions")
    await engine.deleting.delete(name, force=force)
    return no_content()


# Partitions.


async def partitions(request: web.Request) -> web.Response:
    """How many there are; 0 for a topic without any."""
    engine, name = request.app[ENGINE], str(topic_name(request))
    found = engine.partitioned.count(name)
    if not found:
        await engine.topic(name, create=False)
    return web.json_response({"partitions": found})


async def create_partitioned(request: web.Request) -> web.Response:
    """Make a partitioned topic of as many partitions as the body says."""
    engine, name = request.app[ENGINE], str(topic_name(request))
    wanted = _partitions_of(await read_json(request))
    if existing := engine.partitioned.count(name):
        raise TopicExists(f"{name} has {existing} partitions already")
    await engine.partitioned.create(name, wanted)
    return no_content()


async def grow(request: web.Request) -> web.Response:
    """Give a partitioned topic more partitions, with the subscriptions and policies that its first one has."""
    engine, name = request.app[ENGINE], str(topic_name(request))
    wanted = _partitions_of(await read_json(request))
    before = engine.partitioned.count(name)
    if not before:
        raise TopicNotFound(f"cluster {engine.cluster!r} has no partitioned topic {name!r}")
    try:
        await engine.partitioned.grow(name, wanted)
    except InvalidPartitions as error:
        raise Unprocessable(str(error)) from None
    first, *others = await logs_of(request)
    for topic in others:
        if topic.partition >= before:
            await _equip(topic, first)
    return no_content()


async def _equip(new: Topic, first: Topic) -> None:
    """Give a new partition what requests for the whole topic have given the first one.

    Its subscriptions start before all: what comes before they are there is theirs too.
    """
    if first.policies.own is not None and new.policies.own is None:
        await new.policies.set(first.policies.own)
    for subscription in [each for each in first.subscriptions.values() if each.durable]:
        state = subscription.cursor.state
        await new.subscriptions.create(
            subscription.name,
            BEFORE_ALL,
            replicated=state.replicated,
            properties=dict(state.properties),
            read_compacted=state.read_compacted,
        )


async def delete_partitioned(request: web.Request) -> web.Response:
    """Delete a partitioned topic with its partitions."""
    force = flag_parameter(request, "force")
    engine, name = request.app[ENGINE], str(topic_name(request))
    if not engine.partitioned.count(name):
        raise TopicNotFound(f"cluster {engine.cluster!r} has no partitioned topic {name!r}")
    await engine.partitioned.delete(name, force=force)
    return no_content()


# Figures.


async def stats(request: web.Request) -> web.Response:
    return web.json_response(await _stats(request, await one_topic(request)))


async def internal(request: web.Request) -> web.Response:
    topic = await one_topic(request)
    sizes = await request.app[SIZES].measure(topic)
    return web.json_response(internal_stats(topic, storage_bytes=sizes.size_bytes))


async def stats_of_partitions(request: web.Request) -> web.Response:
    """The sums over all partitions; ``perPartition=false`` leaves out those of each."""
    each = flag_parameter(request, "perPartition", default=True)
    engine, name = request.app[ENGINE], str(topic_name(request))
    if not engine.partitioned.count(name):
        raise TopicNotFound(f"cluster {engine.cluster!r} has no partitioned topic {name!r}")
    found: dict[str, Any] = {}
    for number, topic in enumerate(await logs_of(request)):
        if number % STATS_AT_ONCE == 0:
            await asyncio.sleep(0)
        found[topic.name] = await _stats(request, topic)
    return web.json_response(partitioned_stats(found, partitions=engine.partitioned.count(name), each=each))


async def _stats(request: web.Request, topic: Topic) -> dict[str, Any]:
    measures = request.app[SIZES]
    sizes = await measures.measure(topic)
    return topic_stats(
        topic,
        rate_in=request.app[TRAFFIC].messages_per_second(topic.name),
        storage_bytes=sizes.size_bytes,
        bytes_after=lambda position: measures.bytes_after(topic, sizes, position),
    )


async def last_message_id(request: web.Request) -> web.Response:
    """The id of the last message; -1 and -1 in a topic without any."""
    topic = await one_topic(request)
    return web.json_response(to_json(last_message(topic.log), topic.partition))


# Compaction, and what there is not.


async def compact(request: web.Request) -> web.Response:
    """Start compacting; it goes on when this is answered."""
    topics = await logs_of(request)
    if running := [topic.name for topic in topics if topic.compaction.running]:
        raise CompactionRunning(f"{running[0]} is being compacted")
    for topic in topics:
        topic.compaction.start()
    return no_content()


async def compaction_status(request: web.Request) -> web.Response:
    """``NOT_RUN``, ``RUNNING``, ``SUCCESS`` or ``ERROR``, and the last error."""
    compaction = (await one_topic(request)).compaction
    if compaction.running:
        status = "RUNNING"
    elif compaction.error is not None:
        status = "ERROR"
    else:
        status = "SUCCESS" if compaction.state.generation else "NOT_RUN"
    return web.json_response({"status": status, "lastError": compaction.error or ""})


async def terminate(request: web.Request) -> web.Response:
    await logs_of(request)
    raise NotSupported("topics cannot be terminated in this version; delete the topic when it is consumed")


# Bodies.


def _check_no_properties(body: Any) -> None:
    if body is not None and object_field(body, "properties"):
        raise NotSupported("topics have no properties in this version; send no body")


def _partitions_of(body: Any) -> int:
    """A number, or an object as newer tools send it."""
    if isinstance(body, dict):
        object_field(body, "body", ("partitions", "properties", "deleted"))
        _check_no_properties(body.get("properties"))
        body = body.get("partitions")
    number = number_field(body, "partitions", least=-(2**63))
    if not 1 <= number <= PARTITIONS_MAX:
        raise PartitionsOutOfRange(f"partitions must be 1 to {PARTITIONS_MAX}, not {number}")
    return number
