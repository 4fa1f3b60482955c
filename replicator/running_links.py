"""The links that leave one cluster, as they run: started, replaced and taken away as the topology says.

A link is replaced when anything about it differs that is decided when it is made: its own fields, the links of the same
two clusters that are asked before it, the origins that it brings, its destination's address. The new one asks the
destination what it has and goes on from there (invariant 2), and between the two nothing is trimmed: the old one's hold
on the logs ends in the same turn of the event loop in which the new one's begins.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

from replicator.api.linked_sources import IncomingLink
from replicator.engine.engine import Engine
from replicator.links.link import Link
from replicator.topology import Link as LinkSpec
from replicator.topology import Topology


@dataclass(frozen=True, slots=True)
class LinkPlace:
    """A link with all of the topology that it depends on."""

    link: LinkSpec
    address: str
    """Of the destination's worker."""
    origins: frozenset[str]
    """The clusters whose messages it brings."""
    asked_before: tuple[LinkSpec, ...]
    """The links of the same two clusters that carry a topic rather than this one."""


def places(topology: Topology, cluster: str) -> dict[str, LinkPlace]:
    """The links that leave a cluster, by key, in the order of the file."""
    found: dict[str, LinkPlace] = {}
    for link in topology.links_from(cluster):
        between = topology.links_between(link.source, link.destination)
        found[link.key] = LinkPlace(
            link,
            topology.cluster(link.destination).address,
            topology.origins_over(link),
            between[: between.index(link)],
        )
    return found


def incoming(topology: Topology, cluster: str) -> list[IncomingLink]:
    """The links that lead to a cluster, with what each may bring."""
    return [IncomingLink(link.source, link.name, topology.origins_over(link)) for link in topology.links_to(cluster)]


class RunningLinks:
    """The links that leave ``engine``'s cluster."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._running: dict[str, tuple[LinkPlace, Link]] = {}

    def __iter__(self) -> Iterator[Link]:
        return iter([link for _, link in self._running.values()])

    async def change(self, topology: Topology) -> None:
        """From now on the links of ``topology``: what is the same in it goes on undisturbed."""
        wanted = places(topology, self._engine.cluster)
        ending = {key: link for key, (place, link) in self._running.items() if wanted.get(key) != place}
        await asyncio.gather(*(link.stop() for link in ending.values()))
        for key, link in ending.items():  # no await from here on: see above
            link.let_go()
            del self._running[key]
        before = self._running
        self._running = {}
        for key, place in wanted.items():
            self._running[key] = before.get(key) or (place, self._start(place))

    async def stop(self) -> None:
        """Stop them all. What they hold back stays held back: they go on when the worker is back."""
        await asyncio.gather(*(link.stop() for link in self))

    def opened(self, source: str) -> None:
        """That cluster's link to us has opened a stream: ours to it need not wait to try again."""
        for link in self:
            if link.to == source:
                link.nudge()

    def _start(self, place: LinkPlace) -> Link:
        link = Link(self._engine, place.link.destination, place.address)
        link.start()
        return link
