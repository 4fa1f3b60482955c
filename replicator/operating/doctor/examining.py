"""Everything that the doctor looks at, put together. It starts nothing, changes nothing, and works beside a worker that
runs as well as before it was ever started."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from replicator.operating.doctor.certificates import look_at_certificates
from replicator.operating.doctor.databases import look_at_database
from replicator.operating.doctor.findings import Finding
from replicator.operating.doctor.machine import (
    look_at_disk,
    look_at_java,
    look_at_limits,
    look_at_ports,
    look_at_python,
)
from replicator.operating.doctor.peers import clocks_of, judge_clocks, judge_workers
from replicator.operating.plan import probe_workers
from replicator.operating.status import fetch_all
from replicator.running.connecting import is_of_this_machine
from replicator.topology import Topology

PROBE_SECONDS_MAX = 5.0


async def examine(topology: Topology, chosen: tuple[str, ...], java_found: Callable[[], str]) -> list[Finding]:
    """``chosen`` are the clusters whose workers are to run on this machine; without any, those whose address is its."""
    here = tuple(
        cluster
        for cluster in topology.clusters
        if (cluster.name in chosen if chosen else is_of_this_machine(cluster.host))
    )
    names = tuple(cluster.name for cluster in here)
    probes, answers = await asyncio.gather(probe_workers(topology, PROBE_SECONDS_MAX), fetch_all(topology))
    reached = tuple(cluster for cluster in topology.clusters if probes[cluster.name].reachable)
    found = [*look_at_python(topology, names), look_at_java(topology, names, java_found), look_at_limits()]
    for cluster in here:
        found += look_at_ports(cluster, runs=probes[cluster.name].reachable)
        found += look_at_disk(cluster)
        found += await look_at_database(cluster)
        found += look_at_certificates(topology, cluster)
    found += judge_workers(topology, names, probes, answers)
    found += judge_clocks(await clocks_of(reached))
    return found
