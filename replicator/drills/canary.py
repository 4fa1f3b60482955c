"""The namespace of a running topology that a drill may use, and its clean-up.

Owns the promise that nothing else is touched: a namespace that holds topics of somebody else is refused in every
cluster before anything is made, and what is removed afterwards are the drill's own topic and what remained of it.

Beside brokers the topic lies at these too. It is made there without partitions, whatever brokers make by themselves;
and removed there first, then at the workers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from replicator.apache.admin import BrokerAdmin
from replicator.apache.errors import AdminFailed, BridgeError
from replicator.drills.errors import DrillError
from replicator.engine.errors import EngineError
from replicator.engine.topic_name import SCHEME, parse_namespace
from replicator.operating.admin_client import AdminClient, topics_path
from replicator.operating.errors import RequestRefused
from replicator.operating.topic_removal import NOT_FOUND
from replicator.topology import Cluster, Topology

TOPIC_PREFIX: Final = "replicator-drill-"
"""The local names of the topics that drills make in a canary namespace."""


def canary_topic(namespace: str, name: str) -> str:
    """Return the full name of the drill's topic; raise :class:`DrillError` if ``namespace`` is not one."""
    try:
        parse_namespace(namespace)
    except EngineError as error:
        raise DrillError(f"--namespace: {error}") from None
    return f"{SCHEME}{namespace}/{TOPIC_PREFIX}{name}"


def foreign_topics(names: Iterable[str]) -> list[str]:
    """Return the names of topics that no drill made."""
    return [name for name in names if not name.rpartition("/")[2].startswith(TOPIC_PREFIX)]


async def check_namespace(topology: Topology, namespace: str) -> None:
    """Raise :class:`DrillError` if a cluster has a topic there that is not a drill's, or cannot be asked."""
    for cluster in topology.clusters:
        names = await _topics(cluster, namespace)
        if foreign := foreign_topics(names):
            raise DrillError(
                f"--namespace {namespace}: {cluster.name} has topics there that are not a drill's, such as "
                f"{foreign[0]}; give a namespace that only drills use"
            )


def check_bridged(topology: Topology, topic: str, subscriptions: Iterable[str]) -> None:
    """Raise :class:`DrillError` if a cluster's worker leaves the drill's topic or one of the subscriptions to its
    brokers alone.
    """
    for cluster in topology.clusters:
        brokers = cluster.apache
        if brokers is None:
            continue
        field = f"{topology.path}: clusters.{cluster.name}.apache"
        if not brokers.bridges(topic):
            raise DrillError(
                f"{field}: the worker does not copy {topic}; include it in `topics`, and take it out of `exclude`"
            )
        for name in subscriptions:
            if not brokers.bridges_subscription(name):
                raise DrillError(f"{field}.subscriptions leaves out {name}, which the drill tests; include it")


async def make_topic(topology: Topology, topic: str) -> None:
    """Make the drill's topic at brokers, where clients do not make it. Raise :class:`DrillError`."""
    for cluster in topology.clusters:
        if cluster.apache is not None:
            try:
                async with BrokerAdmin(cluster.apache) as brokers:
                    await brokers.create_topic(topic)
            except BridgeError as error:
                raise DrillError(
                    f"the drill's topic cannot be made at the brokers of {cluster.name}: {error}"
                ) from None


async def _topics(cluster: Cluster, namespace: str) -> list[str]:
    """Return the namespace's topics in a cluster; at its brokers, if its worker runs beside some."""
    if cluster.apache is not None:
        try:
            async with BrokerAdmin(cluster.apache) as brokers:
                return await brokers.topics(namespace)
        except AdminFailed as error:
            if error.status == NOT_FOUND:
                raise DrillError(
                    f"--namespace {namespace}: the brokers of {cluster.name} have no such namespace; make it there "
                    "first, with some retention"
                ) from None
            raise DrillError(
                f"the topics of --namespace {namespace} cannot be listed at the brokers of {cluster.name}: {error}"
            ) from None
    async with AdminClient(cluster.url) as admin:
        try:
            found: list[str] = await admin.call("GET", topics_path(namespace))
        except RequestRefused as error:
            if error.status == NOT_FOUND:
                return []  # it comes with the drill's topic
            raise
    return found
