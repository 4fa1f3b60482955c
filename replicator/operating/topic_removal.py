"""Removal of a topic from all clusters that links copy it to; for topics that our own commands made.

Links do not copy deletions. A link may bring a topic back with blocks that were on their way when a cluster deleted it.
So the topic is deleted everywhere, again and again, until no cluster has it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from replicator.apache.admin import BrokerAdmin
from replicator.apache.errors import BridgeError
from replicator.operating.admin_client import AdminClient, topic_path
from replicator.operating.errors import AdminError, RequestRefused, WorkerUnavailable
from replicator.running.timeouts import timeout
from replicator.topology import Cluster

NOT_FOUND: Final = 404
REMOVALS: Final = 10
REMOVAL_SECONDS: Final = 0.5
"""Pause between two rounds of removal: blocks that were on their way may make the topic again."""
ANSWER_SECONDS_MAX: Final = 20.0
"""Longest wait for a worker's answer. A worker that takes longer counts as not answering, and is not asked again."""
ANSWER_SECONDS_MIN: Final = 1.0
"""Shortest wait for a worker's answer. A worker gets this time to delete the topic even after the deadline."""


@dataclass(frozen=True, slots=True)
class RemainingTopic:
    """Cluster that has the topic after the removal, or may have it."""

    cluster: str
    reason: str
    unavailable: bool = False
    """Whether the worker did not answer, so that it is not known whether the topic is there."""

    def __str__(self) -> str:
        return f"{self.cluster}: {self.reason}"


async def remove_topic(
    clusters: Sequence[Cluster], topic: str, *, quiet_looks: int = 1, seconds_max: float = math.inf
) -> list[RemainingTopic]:
    """Delete a topic in all ``clusters``, also if clients are connected; return the clusters that may still have it.

    The first of ``clusters`` must be where the topic was made: once it is deleted there, links bring nothing more. The
    topic counts as removed once ``quiet_looks`` rounds in a row have found it nowhere. The first round does not count:
    blocks may be on their way.

    After ``seconds_max`` no further round begins, but there are two at least. No request takes longer than what is left
    of that time, or :data:`ANSWER_SECONDS_MIN`.
    """
    clock = asyncio.get_running_loop().time
    deadline = clock() + seconds_max
    left: list[RemainingTopic] = []
    found: list[str] = []
    quiet = 0
    beside_brokers = any(cluster.apache is not None for cluster in clusters)
    for removals in range(REMOVALS):
        if removals > 1 and clock() >= deadline:
            break
        if removals:
            await asyncio.sleep(REMOVAL_SECONDS)
        silent = {each.cluster for each in left if each.unavailable and not beside_brokers}
        left, found = [each for each in left if each.cluster in silent], []
        for cluster in clusters:
            if cluster.name in silent:
                continue
            seconds = min(ANSWER_SECONDS_MAX, max(ANSWER_SECONDS_MIN, deadline - clock()))
            try:
                async with timeout(seconds):
                    if await _removed(cluster, topic):
                        found.append(cluster.name)
            except (AdminError, BridgeError) as error:
                left.append(RemainingTopic(cluster.name, str(error), isinstance(error, WorkerUnavailable)))
            except TimeoutError:
                left.append(RemainingTopic(cluster.name, f"no answer within {seconds:.1f} s", unavailable=True))
        quiet = quiet + 1 if removals and not found and not (left and beside_brokers) else 0
        if quiet >= quiet_looks:
            return left
    return [*left, *(RemainingTopic(name, "it comes back") for name in found)]


async def _removed(cluster: Cluster, topic: str) -> bool:
    """Delete the topic in one cluster; return whether it existed.

    Raises :class:`AdminError` if the worker does not answer or refuses, and :class:`BridgeError` if its brokers do.
    """
    found = False
    if cluster.apache is not None:
        async with BrokerAdmin(cluster.apache) as brokers:
            found = await brokers.delete_topic(topic)
    async with AdminClient(cluster.url) as admin:
        try:
            await admin.call("DELETE", topic_path(topic), force="true")
        except RequestRefused as error:
            if error.status != NOT_FOUND:
                raise
            return found
    return True
