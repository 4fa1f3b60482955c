"""Engines of several clusters with real links between them, as a topology says."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web as aiohttp_web
from carrier_support import StandIn
from engine_support import TOPIC, DataPlaneServer, entries_of, message, opened

from replicator.api import block_lists
from replicator.api.linked_sources import LinkedSources
from replicator.api.pipeline import add_pipeline
from replicator.engine.engine import Engine, EngineSettings
from replicator.links.link import Link
from replicator.links.route import Route
from replicator.pipeline.live.carrying import LinkWork
from replicator.topology import EMBEDDED, SPARK, Cluster, PipelineSettings, Topology
from replicator.topology import Link as LinkSpec
from replicator.worker.running_links import incoming

ENGINES = (EMBEDDED, SPARK)


@dataclass
class Web:
    """The engines by cluster, the servers, and the links by key."""

    topology: Topology
    engines: dict[str, Engine] = field(default_factory=dict)
    servers: dict[str, DataPlaneServer] = field(default_factory=dict)
    links: dict[str, Link] = field(default_factory=dict)
    carriers: dict[str, StandIn] = field(default_factory=dict)
    """Stand-ins for Spark, by the links that they carry; they ask and do what Spark would."""

    async def publish(self, cluster: str, first: int, count: int, topic: str = TOPIC) -> list[bytes]:
        """Publish messages that name their origin, some at once; return their entries."""
        entries = [message(b"%s %d" % (cluster.encode(), number)) for number in range(first, first + count)]
        published = await self.engines[cluster].topic(topic)
        for start in range(0, count, 3):
            await published.publish(entries[start : start + 3])
        return entries

    def clusters(self, path: Path) -> tuple[Cluster, ...]:
        """Return the clusters as in a topology; their data is in ``path``."""
        return tuple(
            Cluster(name=name, address=server.address, data=path / name) for name, server in self.servers.items()
        )

    def entries(self, cluster: str, origin: str, topic: str = TOPIC) -> list[bytes]:
        found = self.engines[cluster].find(topic)
        return [] if found is None else entries_of(found, origin)

    def everywhere(self, published: Mapping[str, Sequence[bytes]], topic: str = TOPIC) -> bool:
        """Return whether every cluster has exactly the messages that reach it, once and in the order of each origin."""
        for cluster in self.engines:
            reaching = self.topology.reaching(cluster, topic) | {cluster}
            for origin, entries in published.items():
                if self.entries(cluster, origin, topic) != (list(entries) if origin in reaching else []):
                    return False
        return True

    def sent(self) -> Counter[str]:
        """Return the number of sent entries, by link."""
        return Counter({key: link.figures.entries for key, link in self.links.items()})


@asynccontextmanager
async def web(
    path: Path,
    specs: Sequence[LinkSpec],
    *,
    settings: EngineSettings | None = None,
    started: bool = True,
    engine: str = EMBEDDED,
) -> AsyncIterator[Web]:
    """Yield a cluster for every name in the links, and the links, which ``engine`` carries."""
    made = Web(Topology((), tuple(specs), PipelineSettings(engine=engine)))
    names = sorted({name for spec in specs for name in (spec.source, spec.destination)})
    async with AsyncExitStack() as stack:
        for name in names:
            made.engines[name] = await stack.enter_async_context(opened(path / name, name, settings))
            server = made.servers[name] = DataPlaneServer(made.engines[name])
            server._linked_sources = LinkedSources(incoming(made.topology, name))
            server.also = Plans(made, name).add_to
            await server.start()
            stack.push_async_callback(server.stop)
        for spec in specs:
            link = made.links[spec.key] = link_of(made, spec)
            stack.push_async_callback(link.stop)
            if made.topology.engine_of(spec) == SPARK:
                carrier = made.carriers[spec.key] = carrier_of(made, spec)
                carrier.start()
                stack.push_async_callback(carrier.stop)
            if started:
                link.start()
        yield made


def link_of(made: Web, spec: LinkSpec) -> Link:
    """Return a link that is not started yet."""
    address = made.servers[spec.destination].address
    return Link(made.engines[spec.source], spec.destination, address, route=Route.of(made.topology, spec))


def carrier_of(made: Web, spec: LinkSpec, address: str = "", name: str = "stand-in") -> StandIn:
    """Return a carrier that is not started yet."""
    base = f"http://{made.servers[spec.source].address}"
    address = address or made.servers[spec.destination].address
    work = LinkWork(base, spec.key, spec.source, spec.destination, address, spec.name, spec.compression)
    return StandIn(base, work, name=name)


class Plans:
    """The plans of the links that leave ``cluster``, for its server."""

    def __init__(self, made: Web, cluster: str) -> None:
        self._made, self._cluster = made, cluster

    def add_to(self, app: aiohttp_web.Application) -> None:
        app.add_routes(block_lists.routes())
        add_pipeline(app, self)

    def pipeline(self) -> dict[str, object]:
        runs = [link.run.id for link in self.links() if link.run is not None]
        return {"links": [link.planned() for link in self.links()], **({"run": runs[0]} if runs else {})}

    def links(self) -> list[Link]:
        return [link for link in self._made.links.values() if link.spec.source == self._cluster]
