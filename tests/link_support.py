"""Engines of several clusters with real links between them, as a topology says."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from engine_support import TOPIC, DataPlaneServer, entries_of, message, opened

from replicator.api.linked_sources import LinkedSources
from replicator.engine.engine import Engine, EngineSettings
from replicator.links.link import Link
from replicator.links.route import Route
from replicator.running_links import incoming
from replicator.topology import Link as LinkSpec
from replicator.topology import Topology


@dataclass
class Web:
    """The engines by cluster, the servers, and the links by key."""

    topology: Topology
    engines: dict[str, Engine] = field(default_factory=dict)
    servers: dict[str, DataPlaneServer] = field(default_factory=dict)
    links: dict[str, Link] = field(default_factory=dict)

    async def publish(self, cluster: str, first: int, count: int, topic: str = TOPIC) -> list[bytes]:
        """Publish messages that tell where they come from, some at once; returns their entries."""
        entries = [message(b"%s %d" % (cluster.encode(), number)) for number in range(first, first + count)]
        published = await self.engines[cluster].topic(topic)
        for start in range(0, count, 3):
            await published.publish(entries[start : start + 3])
        return entries

    def entries(self, cluster: str, origin: str, topic: str = TOPIC) -> list[bytes]:
        found = self.engines[cluster].find(topic)
        return [] if found is None else entries_of(found, origin)

    def everywhere(self, published: Mapping[str, Sequence[bytes]], topic: str = TOPIC) -> bool:
        """Whether every cluster has each origin's messages that reach it: once, in order, and no others."""
        for cluster in self.engines:
            reaching = self.topology.reaching(cluster, topic) | {cluster}
            for origin, entries in published.items():
                if self.entries(cluster, origin, topic) != (list(entries) if origin in reaching else []):
                    return False
        return True

    def sent(self) -> Counter[str]:
        """Entries sent by link."""
        return Counter({key: link.figures.entries for key, link in self.links.items()})


@asynccontextmanager
async def web(
    path: Path, specs: Sequence[LinkSpec], *, settings: EngineSettings | None = None, started: bool = True
) -> AsyncIterator[Web]:
    """A cluster for every name in the links, and the links."""
    made = Web(Topology((), tuple(specs)))
    names = sorted({name for spec in specs for name in (spec.source, spec.destination)})
    async with AsyncExitStack() as stack:
        for name in names:
            made.engines[name] = await stack.enter_async_context(opened(path / name, name, settings))
            server = made.servers[name] = DataPlaneServer(made.engines[name])
            server._linked_sources = LinkedSources(incoming(made.topology, name))
            await server.start()
            stack.push_async_callback(server.stop)
        for spec in specs:
            link = made.links[spec.key] = link_of(made, spec)
            stack.push_async_callback(link.stop)
            if started:
                link.start()
        yield made


def link_of(made: Web, spec: LinkSpec) -> Link:
    """A link that is not started yet."""
    address = made.servers[spec.destination].address
    return Link(made.engines[spec.source], spec.destination, address, route=Route.of(made.topology, spec))
