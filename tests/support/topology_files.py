"""Topologies of clusters on this machine, each with a port of its own, and the files that they are written to."""

from __future__ import annotations

from pathlib import Path

from replicator.drills.ports import free_ports
from replicator.topology import Cluster, Link, PipelineSettings, Topology, dump, load_topology
from replicator.topology.scalars import EMBEDDED


def topology_of(root: Path, *names: str, database: str = "embedded") -> Topology:
    clusters = tuple(
        Cluster.model_validate(
            {
                "name": name,
                "address": f"127.0.0.1:{free_ports(1)[0]}",
                "data": str(root / "data" / name),
                "database": database,
            }
        )
        for name in names
    )
    links = tuple(Link(one, other) for one in names for other in names if one != other)
    return Topology(clusters, links, PipelineSettings(engine=EMBEDDED))


def write(topology: Topology, file: Path) -> Topology:
    file.parent.mkdir(exist_ok=True)
    file.write_text(dump(topology))
    return load_topology(file)
