"""Checks of the workers of a topology: whether they answer, their versions, their clocks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from email.utils import parsedate_to_datetime
from typing import Any, Final

import aiohttp

from replicator import __version__
from replicator.operating.doctor.clocks import Offset
from replicator.operating.doctor.findings import Finding, Level
from replicator.operating.plan import Probe
from replicator.operating.troubles import native_text
from replicator.running.timeouts import timeout
from replicator.security.asking import worker_session
from replicator.topology import Cluster, Topology

CLOCK_SECONDS_MAX: Final = 5.0
"""Time limit for reading a worker's clock; a second has to begin meanwhile."""
CLOCK_BOUND_SECONDS: Final = 0.05
"""A clock that is known so well is not asked for any more."""
ASK_EVERY_SECONDS: Final = 0.02
APART_SECONDS: Final = 0.5
"""Clock difference that users notice: in expiry, delayed delivery, and seeks by time."""
FAR_APART_SECONDS: Final = 30.0
"""Tokens and certificates that are new do not count yet, and messages expire on arrival."""


async def clocks_of(clusters: tuple[Cluster, ...]) -> dict[str, Offset]:
    """Return how far the clocks of those workers that answer are from ours; never raise for a worker."""
    async with worker_session(timeout=aiohttp.ClientTimeout(total=CLOCK_SECONDS_MAX)) as session:
        found = await asyncio.gather(*(_clock(session, cluster) for cluster in clusters))
    return {cluster.name: each for cluster, each in zip(clusters, found, strict=True) if each is not None}


async def _clock(session: aiohttp.ClientSession, cluster: Cluster) -> Offset | None:
    offset: Offset | None = None
    try:
        async with timeout(CLOCK_SECONDS_MAX):
            while offset is None or offset.bound > CLOCK_BOUND_SECONDS:
                sent = time.time()
                async with session.get(f"{cluster.url}/healthz", allow_redirects=False) as response:
                    received = time.time()
                    second = parsedate_to_datetime(response.headers["Date"]).timestamp()
                offset = (offset or Offset()).narrowed(sent, received, second)
                await asyncio.sleep(ASK_EVERY_SECONDS)
    except (aiohttp.ClientError, OSError, TimeoutError, KeyError, ValueError):
        return offset
    return offset


def judge_workers(
    topology: Topology, here: tuple[str, ...], probes: Mapping[str, Probe], answers: Mapping[str, Mapping[str, Any]]
) -> Iterator[Finding]:
    """Judge which workers answer, as which cluster, and in which version."""
    for cluster in topology.clusters:
        probe, answer = probes[cluster.name], answers[cluster.name]
        if not probe.reachable:
            if cluster.name in here:
                yield Finding("worker", cluster.name, Level.OK, f"no worker runs at {cluster.address}: {probe.detail}")
            else:
                remedy = f"start that worker, or let this machine reach {cluster.address} (firewall, DNS)"
                yield Finding(
                    "worker",
                    cluster.name,
                    Level.WARNING,
                    f"the worker at {cluster.address} cannot be reached: {probe.detail}",
                    remedy,
                )
        elif probe.serves not in (None, cluster.name):
            remedy = "correct the addresses in the topology"
            yield Finding(
                "worker", cluster.name, Level.ERROR, f"at {cluster.address} is another worker: {probe.detail}", remedy
            )
        elif "error" in answer:
            remedy = "give --token-file with a token that may read the status (docs/security.md)"
            yield Finding("worker", cluster.name, Level.WARNING, str(answer["error"]), remedy)
        else:
            yield _version(cluster.name, str(answer.get("version", "unknown")))
            native = (answer.get("apache") or {}).get("native_replication") or {}  # older workers do not report it
            for namespace, clusters in native.items():
                remedy = (
                    "let one of the two copy: exclude the namespace (`apache.exclude`), or set its replication "
                    "clusters at the brokers to their own cluster alone (docs/apache-pulsar.md)"
                )
                text = native_text(namespace, clusters)
                yield Finding("native-replication", cluster.name, Level.WARNING, text, remedy)


def _version(name: str, version: str) -> Finding:
    if version == __version__:
        return Finding("worker", name, Level.OK, f"the worker answers; its version is {version}")
    remedy = "bring all workers to one version, one at a time (docs/upgrade.md)"
    return Finding(
        "worker", name, Level.WARNING, f"the worker has version {version}, and this command {__version__}", remedy
    )


def judge_clocks(offsets: Mapping[str, Offset]) -> Iterator[Finding]:
    """Compare each clock with that of this machine."""
    for name, offset in offsets.items():
        text = f"its clock is {offset.middle:+.3f} s (± {offset.bound:.3f} s) from this machine's"
        remedy = "run chrony or systemd-timesyncd on both machines; `timedatectl` shows whether they work"
        if offset.min_offset >= FAR_APART_SECONDS:
            yield Finding("clock", name, Level.ERROR, text, remedy)
        elif offset.min_offset >= APART_SECONDS:
            yield Finding("clock", name, Level.WARNING, text, remedy)
        else:
            yield Finding("clock", name, Level.OK, text)
