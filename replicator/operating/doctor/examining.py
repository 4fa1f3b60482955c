"""Everything that the doctor looks at, put together. It starts nothing, changes nothing, and works beside a worker that
runs as well as before it was ever started."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from replicator.operating.doctor.certificates import look_at_certificates
from replicator.operating.doctor.databases import judge_database
from replicator.operating.doctor.findings import Finding, Level
from replicator.operating.doctor.machine import (
    look_at_disk,
    look_at_java,
    look_at_limits,
    look_at_ports,
    look_at_python,
)
from replicator.operating.doctor.peers import clocks_of, judge_clocks, judge_workers
from replicator.operating.plan import probe_workers
from replicator.operating.start_checks import REFUSALS, START_CHECKS, Setup
from replicator.operating.status import fetch_all
from replicator.running.connecting import is_of_this_machine
from replicator.topology import Topology

PROBE_SECONDS_MAX = 5.0


async def examine(topology: Topology, chosen: tuple[str, ...], java_found: Callable[[], str]) -> list[Finding]:
    """Make all checks. ``chosen`` are the clusters whose workers run on this machine; if empty, those whose address is
    this machine's.
    """
    here = tuple(
        cluster
        for cluster in topology.clusters
        if (cluster.name in chosen if chosen else is_of_this_machine(cluster.host))
    )
    names = tuple(cluster.name for cluster in here)
    probes, answers = await asyncio.gather(probe_workers(topology, PROBE_SECONDS_MAX), fetch_all(topology))
    reached = tuple(cluster for cluster in topology.clusters if probes[cluster.name].reachable)
    found = [*look_at_python(), look_at_java(topology, names, java_found), look_at_limits()]
    for cluster in here:
        setup = Setup(topology, cluster, running=probes[cluster.name].serves == cluster.name)
        started = await look_at_start(setup)
        closer = [
            *look_at_ports(cluster, runs=probes[cluster.name].reachable),
            *look_at_disk(cluster),
            *judge_database(setup),
            *look_at_certificates(topology, cluster),
        ]
        found += [*_without_duplicates(started, closer), *closer]
    found += judge_workers(topology, names, probes, answers)
    found += judge_clocks(await clocks_of(reached))
    return found


async def look_at_start(setup: Setup) -> list[Finding]:
    """Run all start checks of a worker, and return a finding for each: an error if the worker would not start."""
    found: list[Finding] = []
    for check in START_CHECKS:
        try:
            await check.run(setup)
        except REFUSALS as error:
            found.append(Finding(check.name, setup.cluster.name, Level.ERROR, str(error), check.remedy))
        else:
            found.append(Finding(check.name, setup.cluster.name, Level.OK, check.passed))
    if not setup.exposed:
        return found
    text = f"`insecure: true` lets anybody who reaches {', '.join(setup.exposed)} read and delete everything"
    meant = Finding("exposure", setup.cluster.name, Level.WARNING, text, "set `auth` in the topology")
    return [meant if each.check == meant.check else each for each in found]


def _without_duplicates(started: list[Finding], closer: list[Finding]) -> list[Finding]:
    """Return the findings of start checks, except those that a more detailed check of the same thing replaces.

    A detailed finding replaces a finding of its name if both have the same level, or if the start check passed.
    """
    return [
        each
        for each in started
        if not any(other.check == each.check and each.level in (other.level, Level.OK) for other in closer)
    ]
