"""A topology in memory: the clusters, the directed links between them, and what follows from them.

Owns the values, and their form as YAML. Reading and checking a file is in :mod:`replicator.topology.reader`; which
messages reach which cluster, in :mod:`replicator.topology.paths`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import yaml

from replicator.topology import paths as topology_paths
from replicator.topology.auth import AuthSettings, TlsPolicy
from replicator.topology.fields import (
    Cluster,
    MetricsSettings,
    PipelineSettings,
    StoreSettings,
    SyncSettings,
    WatchdogSettings,
)
from replicator.topology.links import Link, written_links
from replicator.topology.traces import TracesSettings

PROBLEMS_SHOWN_MAX: Final = 20


class TopologyError(Exception):
    """A topology that cannot be used; one line a problem, each also in ``problems``."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        shown = list(self.problems[:PROBLEMS_SHOWN_MAX])
        if len(self.problems) > len(shown):
            shown.append(f"… and {len(self.problems) - len(shown)} more problems")
        super().__init__("\n".join(shown))


@dataclass(frozen=True, slots=True)
class Topology:
    """Checked clusters and directed links, in the order of the file."""

    clusters: tuple[Cluster, ...]
    links: tuple[Link, ...]
    pipeline: PipelineSettings = field(default_factory=PipelineSettings)
    sync: SyncSettings = field(default_factory=SyncSettings)
    store: StoreSettings = field(default_factory=StoreSettings)
    path: Path | None = field(default=None, compare=False)
    """The file that it was read from."""
    auth: AuthSettings = field(default_factory=AuthSettings)
    tls: TlsPolicy = field(default_factory=TlsPolicy)
    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    traces: TracesSettings = field(default_factory=TracesSettings)
    watchdog: WatchdogSettings = field(default_factory=WatchdogSettings)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(cluster.name for cluster in self.clusters)

    def cluster(self, name: str) -> Cluster:
        """Return the cluster of that name; raise :class:`TopologyError`, which lists the names."""
        for cluster in self.clusters:
            if cluster.name == name:
                return cluster
        where = f"{self.path}: " if self.path else ""
        raise TopologyError([f"{where}there is no cluster {name[:80]!r}; there are: {', '.join(self.names)}"])

    def links_from(self, name: str) -> tuple[Link, ...]:
        return tuple(link for link in self.links if link.source == name)

    def links_to(self, name: str) -> tuple[Link, ...]:
        return tuple(link for link in self.links if link.destination == name)

    def links_between(self, source: str, destination: str) -> tuple[Link, ...]:
        """Return the links from one cluster to the other; the first one whose patterns let a topic through carries
        it.
        """
        return tuple(link for link in self.links if (link.source, link.destination) == (source, destination))

    def link_carrying(self, source: str, destination: str, topic: str) -> Link | None:
        """Return the link between them that carries a topic of that full name; None if none does."""
        between = self.links_between(source, destination)
        return next((link for link in between if link.carries(topic)), None)

    def carries(self, link: Link, topic: str) -> bool:
        """Return whether this link carries a topic of that full name, and no earlier link of the same two clusters
        does.
        """
        return link.carries(topic) and self.link_carrying(link.source, link.destination, topic) == link

    def engine_of(self, link: Link) -> str:
        """Return the engine that copies over the link: ``spark`` or ``embedded``."""
        return link.engine or self.pipeline.engine

    def origins_over(self, link: Link, topic: str | None = None) -> frozenset[str]:
        """Return the clusters whose messages ``link`` carries: its source, and if it forwards, those whose messages
        reach its source on a way that does not lead through its destination. With ``topic``, over links that carry
        it. Where one of them runs beside Apache Pulsar, the origin of its brokers' messages is among them.
        """
        return self.with_brokers(topology_paths.origins_over(link, self._links_with(topic)))

    def with_brokers(self, clusters: frozenset[str]) -> frozenset[str]:
        """Return these clusters, and the origins of messages that are published at the brokers beside their workers."""
        origins = (each.broker_origin for each in self.clusters if each.name in clusters)
        return clusters.union(origin for origin in origins if origin is not None)

    def origin_of_clients(self, cluster: str) -> str:
        """Return the origin of messages that clients publish at a cluster: that of its brokers, if its worker has some
        beside it.
        """
        return self.cluster(cluster).broker_origin or cluster

    def may_have_replicated(self, cluster: str, replicated_from: Cluster, topic: str) -> frozenset[str]:
        """Return the clusters to which links of ``cluster`` copy messages that Pulsar's own geo-replication brought.

        These messages came to the brokers of ``cluster`` from those of ``replicated_from``. Clusters that get them from
        there by a link of their own are left out, and so is ``replicated_from``.
        """
        source, origin = replicated_from, replicated_from.broker_origin
        with_it = {source.name}
        if source.apache is not None and source.apache.bridges(topic) and origin is not None:
            with_it |= {
                link.destination
                for link in self.links
                if self.carries(link, topic) and not link.where and origin in self.origins_over(link, topic)
            }
        return frozenset(self.names) - with_it | {cluster}

    def reached_from(self, origin: str, topic: str | None = None) -> frozenset[str]:
        """Return the other clusters that get messages of ``origin``, directly or forwarded."""
        return topology_paths.reached_from(origin, self._links_with(topic))

    def held_up_at(self, origin: str, target: str, topic: str, stopped: Collection[str]) -> list[Link]:
        """Return the links that keep a topic's messages of ``origin`` from ``target``; empty if another way is open.

        ``stopped`` are the keys of links that do not carry the topic for the moment.
        """
        links = self._links_with(topic)
        return topology_paths.held_up_at(origin, target, links, [each for each in links if each.key in stopped])

    def reaching(self, cluster: str, topic: str | None = None) -> frozenset[str]:
        """Return the other clusters whose messages reach ``cluster``, directly or forwarded."""
        return topology_paths.reaching(cluster, self._links_with(topic))

    def _links_with(self, topic: str | None) -> tuple[Link, ...]:
        return self.links if topic is None else tuple(link for link in self.links if self.carries(link, topic))


def default_topology(data_root: Path, ports: Sequence[int]) -> Topology:
    """Return two clusters on this machine, ``us-east`` and ``eu-west``, linked both ways; ``ports`` has one for
    each.
    """
    names = ("us-east", "eu-west")
    clusters = tuple(
        Cluster.model_validate({"name": name, "address": f"127.0.0.1:{port}", "data": str(data_root / name)})
        for name, port in zip(names, ports, strict=True)
    )
    return Topology(clusters, (Link("us-east", "eu-west"), Link("eu-west", "us-east")))


def dump(topology: Topology) -> str:
    """Return the topology as YAML that :func:`load_topology` reads back as an equal value. Paths are absolute, and the
    text holds the databases' passwords: it is for a file that only its owner reads.
    """
    document = {
        "clusters": {
            cluster.name: {
                "address": cluster.address,
                "data": str(cluster.data),
                **({"database": cluster.database} if cluster.database_file is None else {}),
                **cluster.places(),
                **({"policies": changed} if (changed := cluster.policies.changed()) else {}),
            }
            for cluster in topology.clusters
        },
        "links": written_links(topology.links),
        "pipeline": topology.pipeline.model_dump(),
        "sync": topology.sync.written(),
        "store": topology.store.written(),
        **{
            name: written
            for name in ("auth", "tls", "metrics", "traces", "watchdog")
            if (written := getattr(topology, name).written())
        },
    }
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
