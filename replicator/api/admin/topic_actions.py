"""Admin routes for actions on a topic: compact, empty and terminate it, and actions that have nothing to do here."""

from __future__ import annotations

import asyncio

from aiohttp import web

from replicator.api.admin.errors import CompactionRunning, NotOnPartitioned, NotSupported
from replicator.api.admin.message_ids import to_json
from replicator.api.admin.requests import (
    ENGINE,
    log_of_one,
    logs_of,
    no_content,
    topic_name,
)
from replicator.api.admin.subscriptions import TOPIC
from replicator.engine.errors import TopicNotFound


def routes() -> list[web.RouteDef]:
    """Return the routes of actions on topics."""
    return [
        web.put(f"{TOPIC}/compaction", compact),
        web.get(f"{TOPIC}/compaction", compaction_status),
        web.put(f"{TOPIC}/unload", leave_as_it_is),
        web.post(f"{TOPIC}/trim", trim),
        web.delete(f"{TOPIC}/truncate", truncate),
        web.post(f"{TOPIC}/createMissedPartitions", make_missing),
        web.post(f"{TOPIC}/terminate", terminate),
        web.post(f"{TOPIC}/terminate/partitions", terminate_partitions),
        web.put(f"{TOPIC}/offload", refuse_offload),
        web.get(f"{TOPIC}/offload", offload_status),
    ]


async def compact(request: web.Request) -> web.Response:
    """Start compacting, one topic after the other; it goes on when this is answered."""
    topics = await logs_of(request)
    if running := [topic.name for topic in topics if topic.compaction.running]:
        raise CompactionRunning(
            f"{running[0]} is being compacted; wait until that is done, and ask again if it is still needed"
        )
    for topic in topics:
        topic.compaction.start()
    return no_content()


async def compaction_status(request: web.Request) -> web.Response:
    """Answer with ``NOT_RUN``, ``RUNNING``, ``SUCCESS`` or ``ERROR``, and the last error."""
    compaction = (await log_of_one(request)).compaction
    if compaction.running:
        status = "RUNNING"
    elif compaction.error is not None:
        status = "ERROR"
    else:
        status = "SUCCESS" if compaction.state.generation else "NOT_RUN"
    return web.json_response({"status": status, "lastError": compaction.error or ""})


async def leave_as_it_is(request: web.Request) -> web.Response:
    """Do nothing: there is no other broker that a topic could move to."""
    await logs_of(request)
    return no_content()


async def trim(request: web.Request) -> web.Response:
    """Delete now what the retention policy does not keep, instead of within a minute."""
    for topic in await logs_of(request):
        await request.app[ENGINE].maintenance.retain_now(topic)
    return no_content()


async def truncate(request: web.Request) -> web.Response:
    """Treat all as consumed in every subscription, and delete it as far as links have it; the last block stays."""
    for topic in await logs_of(request):
        for subscription in list(topic.subscriptions.values()):
            await subscription.moves.clear_backlog()
        await topic.trimming.trim(topic.log.last)
    return no_content()


async def make_missing(request: web.Request) -> web.Response:
    """Make the partitions of a partitioned topic that are not there."""
    engine, name = request.app[ENGINE], str(topic_name(request))
    if not (partitions := engine.partitioned.count(name)):
        raise TopicNotFound(f"cluster {engine.cluster!r} has no partitioned topic {name!r}")
    await engine.partitioned.create(name, partitions)
    return no_content()


async def terminate(request: web.Request) -> web.Response:
    """Take no more messages, for ever, in this cluster; answers the id of the last one."""
    engine, name = request.app[ENGINE], str(topic_name(request))
    if engine.partitioned.count(name):
        raise NotOnPartitioned(f"{name} is partitioned: POST …/terminate/partitions terminates its partitions")
    topic = await log_of_one(request)
    return web.json_response(to_json(await topic.terminate(), topic.partition))


async def terminate_partitions(request: web.Request) -> web.Response:
    """Terminate every partition; answers the id of the last message of each by its number."""
    engine, name = request.app[ENGINE], str(topic_name(request))
    topics = await logs_of(request)
    if not engine.partitioned.count(name):
        raise NotOnPartitioned(f"{name} is not partitioned: POST …/terminate terminates it")
    ends = await asyncio.gather(*(topic.terminate() for topic in topics))
    return web.json_response(
        {str(topic.partition): to_json(end, topic.partition) for topic, end in zip(topics, ends, strict=True)}
    )


async def refuse_offload(request: web.Request) -> web.Response:
    await logs_of(request)
    raise NotSupported("there is no offloading in this version: all messages of a topic stay in the worker's store")


async def offload_status(request: web.Request) -> web.Response:
    await logs_of(request)
    return web.json_response({"status": "NOT_RUN", "lastError": ""})
