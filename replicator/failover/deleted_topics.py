"""Search for topics that a cluster on the way to the target of a switch deleted. Links bring such a topic again only
with its next message or connection, so a planned switch would wait for it in vain.

Algorithm, in this order, so that a topic that is made meanwhile is not taken for a deleted one:
1. Ask the sources of the links on the way which topics they have.
2. Ask each link which topics it has not copied to their ends. A link that is not connected is left out: perhaps its
   destination lost its store, and the link must copy everything again.
3. Ask the destinations which topics they have. A topic that its link has copied to its end, and that the link's
   destination does not have, was deleted there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import quote

from replicator.engine.topics.partitions import base_name
from replicator.failover import comparing
from replicator.failover.errors import FailoverError
from replicator.failover.obstacles import Obstacle, StoppedLink, Way
from replicator.failover.peers import PATH, WORK_SECONDS_MAX, Peers
from replicator.links.status import BACKLOGS_SHOWN_MAX
from replicator.topology import Link

CONNECTED: Final = frozenset({"idle", "copying"})
"""States of a link that has compared its topics with those of its destination."""
NAMES_MAX: Final = 1_000
"""Most topics that are asked for by name. Beyond it the answer has all topics."""


@dataclass(frozen=True, slots=True)
class Brief:
    """The topics that one cluster has. It does not say how far each of them goes."""

    topics: Mapping[str, Mapping[str, Any]]
    """By name: ``clusters``, which get the topic's messages (None: all), and ``has``, origins of what the topic has."""
    partitioned: Mapping[str, int]
    """Number of partitions by their common name; 0 if there is no such topic."""

    def lets_through(self, topic: str, cluster: str) -> bool:
        """Return whether the topic's policies let messages through to ``cluster``."""
        clusters = self.topics[topic]["clusters"]
        return clusters is None or cluster in clusters


async def with_deleted(peers: Peers, origin: str, way: Way, names: Collection[str] | None) -> Way:
    """Return ``way`` with links added that stand still for a topic, because their destination deleted it.

    ``names`` are the topics to look for. None means all topics with messages or markers of ``origin``, under which the
    source's clients publish. A cluster that does not answer is added to :attr:`Way.silent`.
    """
    leading = {way.target} | {name for name in peers.addresses if way.target in way.topology.reached_from(name)}
    links = [
        link
        for each in way.links().values()
        for link in each
        if link.destination in leading and not {link.source, link.destination} & way.silent
    ]
    named = None if names is None else set(names)
    sources = await _briefs(peers, {link.source for link in links}, named)
    to_bring = await asyncio.gather(*(_left_to_bring(peers, link) for link in links))
    destinations = await _briefs(peers, {link.destination for link in links}, named)
    stopped = dict(way.stopped)
    for link, left in zip(links, to_bring, strict=True):
        here, there = sources[link.source], destinations[link.destination]
        if left is None or here is None or there is None:
            continue
        brought = (
            topic
            for topic in (here.topics.keys() if named is None else named & here.topics.keys()) - there.topics.keys()
            if topic not in left and way.topology.carries(link, topic)
        )
        if deleted := deleted_topics(link, brought, here, there, origin if named is None else None):
            before = stopped.get(link.key, StoppedLink(link, False, {}))
            stopped[link.key] = replace(before, halted={**deleted, **before.halted})
    silent = {cluster for found in (sources, destinations) for cluster, brief in found.items() if brief is None}
    return replace(way, stopped=stopped, silent=way.silent | silent)


def deleted_topics(
    link: Link, brought: Iterable[str], here: Brief, there: Brief, origin: str | None
) -> dict[str, Obstacle]:
    """Return the topics that the link's destination deleted, each with the obstacle.

    ``brought`` are topics of which the link has nothing left to bring. ``here`` and ``there`` are the topics of its
    source and its destination. Only topics that have something of ``origin`` count; None stands for any origin.
    """
    return {
        topic: Obstacle(_text(link, topic, here, there), lasting=False)
        for topic in brought
        if topic not in there.topics
        and here.lets_through(topic, link.destination)
        and (here.topics[topic]["has"] if origin is None else origin in here.topics[topic]["has"])
    }


async def _left_to_bring(peers: Peers, link: Link) -> Collection[str] | None:
    """Return the topics of which a link has something left to bring; None if they are not known."""
    try:
        answer = await peers.call(link.source, "GET", f"/replication/v1/links/{quote(link.key, safe='')}")
        backlogs, state = dict(answer["backlog_by_topic"]), answer["state"]
    except (FailoverError, KeyError, TypeError, ValueError):
        return None
    return None if len(backlogs) >= BACKLOGS_SHOWN_MAX or state not in CONNECTED else backlogs


async def _briefs(peers: Peers, clusters: Collection[str], names: Collection[str] | None) -> dict[str, Brief | None]:
    """Return the :class:`Brief` of each cluster; None for a cluster that gives none."""
    return dict(zip(clusters, await asyncio.gather(*(_brief(peers, each, names) for each in clusters)), strict=True))


async def _brief(peers: Peers, cluster: str, names: Collection[str] | None) -> Brief | None:
    """Return which topics a cluster has, or which of ``names``; None if the cluster does not say so."""
    body: dict[str, Any] = {"brief": True}
    if names is not None and len(names) <= NAMES_MAX:
        body["names"] = list(names)
    try:
        answer = await peers.call(cluster, "POST", f"{PATH}/topics", body, seconds_max=WORK_SECONDS_MAX)
        topics = comparing.by_name(answer)
        if not all("has" in each and "clusters" in each for each in topics.values()):
            return None
        return Brief(topics, answer.get("partitioned") or {})
    except (FailoverError, KeyError, TypeError, AttributeError):
        return None


def _text(link: Link, topic: str, here: Brief, there: Brief) -> str:
    """Return the sentence that tells an operator which topic was deleted, and which command makes it anew."""
    command, name = "create", topic
    base = base_name(topic)
    partitions = here.partitioned.get(base, 0)
    if partitions and not there.partitioned.get(base):
        command, name = f"create-partitioned --partitions {partitions}", base
    return (
        f"{link.destination} has deleted {name}, and link {link.key} brings it back only with its next message or "
        f"connection: `replicator topics {command} -f FILE --cluster {link.destination} {name}` makes it anew, and "
        f"the link brings what {link.source} has of it"
    )
