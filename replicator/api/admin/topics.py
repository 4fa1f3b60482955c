"""Topics under ``/admin/v2/persistent/{tenant}/{namespace}``: listing, making, growing and deleting them."""

from __future__ import annotations

from typing import Any, Final

from aiohttp import web

from replicator.api.admin.errors import (
    IsPartitioned,
    NotPartitioned,
    NotSupported,
    PartitionsOutOfRange,
    Unprocessable,
)
from replicator.api.admin.requests import (
    ENGINE,
    flag_parameter,
    namespace_name,
    no_content,
    number_field,
    object_field,
    read_json,
    topic_name,
)
from replicator.api.admin.subscriptions import TOPIC
from replicator.engine.errors import InvalidPartitions, TopicExists, TopicNotFound
from replicator.engine.topics.partitions import PARTITIONS_MAX

NAMESPACE: Final = "/admin/v2/persistent/{tenant}/{namespace}"


def routes() -> list[web.RouteDef]:
    """Return the routes of topics."""
    return [
        web.get(NAMESPACE, list_topics),
        web.get(f"{NAMESPACE}/partitioned", list_partitioned),
        web.get("/admin/v2/non-persistent/{tenant}/{namespace}", list_none),
        web.get("/admin/v2/non-persistent/{tenant}/{namespace}/partitioned", list_none),
        web.route("*", "/admin/v2/non-persistent/{tenant}/{namespace}/{rest:.+}", refuse_non_persistent),
        web.put(TOPIC, create),
        web.delete(TOPIC, delete),
        web.get(f"{TOPIC}/partitions", partitions),
        web.put(f"{TOPIC}/partitions", create_partitioned),
        web.post(f"{TOPIC}/partitions", grow),
        web.delete(f"{TOPIC}/partitions", delete_partitioned),
    ]


# Names.


async def list_topics(request: web.Request) -> web.Response:
    """Answer with every topic that has a log: topics without partitions, and the partitions of the others."""
    return web.json_response(request.app[ENGINE].catalog.visible_topics(namespace_name(request)))


async def list_partitioned(request: web.Request) -> web.Response:
    """Answer with the partitioned topics by their own names."""
    return web.json_response(sorted(request.app[ENGINE].catalog.partitioned_topics(namespace_name(request))))


async def list_none(request: web.Request) -> web.Response:
    """Tools that list a namespace ask for these as well; there are none."""
    request.app[ENGINE].catalog.namespace(namespace_name(request))
    return web.json_response([])


async def refuse_non_persistent(request: web.Request) -> web.Response:
    raise NotSupported("this version has no non-persistent topics: use a name that begins with persistent://")


async def create(request: web.Request) -> web.Response:
    """Make a topic without partitions."""
    _check_no_properties(await read_json(request))
    engine, name = request.app[ENGINE], topic_name(request)
    engine.by_use.check_namespace(name.full_namespace)
    await engine.making.create(str(name))
    return no_content()


async def delete(request: web.Request) -> web.Response:
    """Delete a topic; with ``force=true`` also one that producers and consumers are connected to."""
    force = flag_parameter(request, "force")
    engine, name = request.app[ENGINE], str(topic_name(request))
    if engine.partitioned.count(name):
        raise IsPartitioned(f"{name} is partitioned: DELETE …/partitions deletes it with its partitions")
    await engine.deleting.delete(name, force=force)
    return no_content()


# Partitions.


async def partitions(request: web.Request) -> web.Response:
    """Answer with the number of partitions; 0 for a topic without any. A client that is about to use the topic sends
    ``checkAllowAutoCreation``: then the topic may also be one that its use makes.
    """
    engine, name = request.app[ENGINE], str(topic_name(request))
    if flag_parameter(request, "checkAllowAutoCreation"):
        found = await engine.by_use.partitions(name)
        if not found and not engine.catalog.policies_of(namespace_name(request)).auto_topic_creation:
            await engine.topic(name, create=False)
    elif not (found := engine.partitioned.count(name)):
        await engine.topic(name, create=False)
    return web.json_response({"partitions": found, "deleted": False})


async def create_partitioned(request: web.Request) -> web.Response:
    """Make a partitioned topic of as many partitions as the body says."""
    engine, name = request.app[ENGINE], str(topic_name(request))
    wanted = _partitions_of(await read_json(request))
    if existing := engine.partitioned.count(name):
        raise TopicExists(f"topic {name} exists already, with {existing} partitions: POST …/partitions gives it more")
    engine.by_use.check_namespace(namespace_name(request))
    await engine.partitioned.create(name, wanted)
    return no_content()


async def grow(request: web.Request) -> web.Response:
    """Give a partitioned topic more partitions, with the subscriptions and policies that its first one has."""
    engine, name = request.app[ENGINE], str(topic_name(request))
    wanted = _partitions_of(await read_json(request))
    if not engine.partitioned.count(name):
        raise NotPartitioned(f"cluster {engine.cluster!r} has no partitioned topic {name!r}")
    try:
        await engine.partitioned.grow(name, wanted)
    except InvalidPartitions as error:
        raise Unprocessable(str(error)) from None
    return no_content()


async def delete_partitioned(request: web.Request) -> web.Response:
    """Delete a partitioned topic with its partitions."""
    force = flag_parameter(request, "force")
    engine, name = request.app[ENGINE], str(topic_name(request))
    if not engine.partitioned.count(name):
        raise TopicNotFound(f"cluster {engine.cluster!r} has no partitioned topic {name!r}")
    await engine.partitioned.delete(name, force=force)
    return no_content()


# Bodies.


def _check_no_properties(body: Any) -> None:
    if body is not None and object_field(body, "properties"):
        raise NotSupported("topics have no properties in this version: send none")


def _partitions_of(body: Any) -> int:
    """Return the number of partitions in a body: a number, or an object as newer tools send it."""
    if isinstance(body, dict):
        _check_no_properties(body.get("properties"))
        body = body.get("partitions")
    number = number_field(body, "partitions", least=-(2**63))
    if not 1 <= number <= PARTITIONS_MAX:
        raise PartitionsOutOfRange(f"partitions must be 1 to {PARTITIONS_MAX}, not {number}")
    return number
