"""The namespace of a running topology that a drill may use, and its clean-up.

Owns the promise that nothing else is touched: a namespace that holds topics of somebody else is refused in every
cluster before anything is made, and what is removed afterwards are the drill's own topic and what remained of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from replicator.drills.errors import DrillError
from replicator.engine.errors import EngineError
from replicator.engine.topic_name import SCHEME, parse_namespace
from replicator.operating.admin_client import AdminClient, AdminError, RequestRefused, topic_path, topics_path
from replicator.topology import Topology

TOPIC_PREFIX: Final = "replicator-drill-"
"""The local names of the topics that drills make in a canary namespace."""
NOT_FOUND: Final = 404


def canary_topic(namespace: str, name: str) -> str:
    """The full name of the drill's topic; raises :class:`DrillError` for what is no namespace."""
    try:
        parse_namespace(namespace)
    except EngineError as error:
        raise DrillError(f"--namespace: {error}") from None
    return f"{SCHEME}{namespace}/{TOPIC_PREFIX}{name}"


def foreign_topics(names: Iterable[str]) -> list[str]:
    """Those that no drill made."""
    return [name for name in names if not name.rpartition("/")[2].startswith(TOPIC_PREFIX)]


async def check_namespace(topology: Topology, namespace: str) -> None:
    """Raises :class:`DrillError` if some cluster has a topic there that is not a drill's."""
    for cluster in topology.clusters:
        async with AdminClient(cluster.url) as admin:
            try:
                names = await admin.call("GET", topics_path(namespace))
            except RequestRefused as error:
                if error.status == NOT_FOUND:
                    continue  # it comes with the drill's topic
                raise
        if foreign := foreign_topics(names):
            raise DrillError(
                f"--namespace {namespace}: {cluster.name} has topics there that are not a drill's, such as "
                f"{foreign[0]}; drills want a namespace of their own"
            )


async def remove_topic(topology: Topology, topic: str) -> list[str]:
    """Remove the drill's topic from every cluster; returns what could not be removed, in words."""
    left: list[str] = []
    for cluster in topology.clusters:
        async with AdminClient(cluster.url) as admin:
            try:
                await admin.call("DELETE", topic_path(topic), force="true")
            except AdminError as error:
                if not (isinstance(error, RequestRefused) and error.status == NOT_FOUND):
                    left.append(f"{cluster.name}: {error}")
    return left
