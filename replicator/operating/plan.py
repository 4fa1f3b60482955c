"""The plan: what a topology resolves to, and what about it deserves a second look before workers start.

Owns the warnings. :func:`plan` is pure: it is given what :func:`probe_workers` found, or nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from replicator.failover.errors import FailoverError
from replicator.failover.peers import Peers
from replicator.failover.rules import Rules, differences
from replicator.operating.json_types import PlanAnswer, PlannedCluster
from replicator.operating.rollout import Rollout
from replicator.operating.troubles import native_text
from replicator.running.connecting import read_at_most, why_no_answer, why_not_connected
from replicator.running.timeouts import timeout
from replicator.security.asking import worker_session
from replicator.topology import SPARK, Cluster, Link, Topology, format_size
from replicator.topology.diff import masked
from replicator.topology.fields import flattened

PROBE_TIMEOUT_S: Final = 1.0
"""Time limit of a worker's answer. From the next continent it takes a quarter of a second."""
PROBES_AT_ONCE_MAX: Final = 64
RESPONSE_BYTES_MAX: Final = 1024 * 1024
WARNINGS_SHOWN_MAX: Final = 15
"""Warnings on the screen; JSON has them all. Two clusters can differ in every namespace."""


@dataclass(frozen=True, slots=True)
class Probe:
    """Result of asking one worker whether it answers."""

    reachable: bool
    detail: str
    """Details in words; for an unreachable worker the reason."""
    serves: str | None = None
    """The cluster that the worker says it serves, if it said so."""
    native: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Namespaces that the brokers beside it replicate themselves, and among which clusters."""


@dataclass(frozen=True, slots=True)
class PlanWarning:
    """Something that works but may not be meant. ``kind`` is stable; ``text`` is for people."""

    kind: str
    subject: str
    text: str


@dataclass(frozen=True, slots=True)
class Plan:
    """A resolved topology with its warnings; print ``render()`` with rich, or ``as_json()``."""

    topology: Topology
    probes: Mapping[str, Probe] = field(default_factory=dict)
    warnings: tuple[PlanWarning, ...] = ()
    rollout: Rollout | None = None
    """The topology beside what the workers run; None if they were not asked."""

    def as_json(self) -> PlanAnswer:
        """Plain values for ``json.dumps``; passwords and other secrets are masked."""
        topology = masked(self.topology)
        links: Any = [{"from": link.source, "to": link.destination, **link.as_written()} for link in topology.links]
        return {
            "path": str(topology.path) if topology.path else None,
            "clusters": [self._cluster_json(cluster) for cluster in topology.clusters],
            "links": links,
            "pipeline": topology.pipeline.model_dump(),
            "sync": topology.sync.model_dump(),
            "store": {
                "size_max_bytes": topology.store.size_max,
                "message_size_max_bytes": topology.store.message_size_max,
            },
            "policies": {cluster.name: cluster.policies.changed() for cluster in topology.clusters},
            "rollout": None if self.rollout is None else self.rollout.as_json(),
            "warnings": [
                {"kind": warning.kind, "subject": warning.subject, "text": warning.text} for warning in self.warnings
            ],
        }

    def _cluster_json(self, cluster: Cluster) -> PlannedCluster:
        probe = self.probes.get(cluster.name)
        answer: PlannedCluster = {
            "name": cluster.name,
            "address": cluster.address,
            "data": str(cluster.data),
            "database": cluster.database,
            "pulsar": cluster.pulsar_url,
            "reachable": probe.reachable if probe else None,
            "detail": probe.detail if probe else None,
        }
        if cluster.database_file is not None:
            answer["database_file"] = str(cluster.database_file)
        return answer

    def render(self) -> RenderableType:
        """Clusters, links, settings and warnings, for a rich console."""
        return Group(
            self._clusters_table(),
            self._links_table(),
            self._settings(),
            *self._policies(),
            *self._changes(),
            *self._warning_lines(),
        )

    def _clusters_table(self) -> Table:
        table = Table(title="Clusters", title_justify="left")
        for heading in ("cluster", "address", "data directory", "database"):
            table.add_column(heading, overflow="fold")
        if self.probes:
            table.add_column("worker", overflow="fold")
        for cluster in self.topology.clusters:
            row = [cluster.name, cluster.address, str(cluster.data), cluster.database_shown]
            if self.probes:
                probe = self.probes.get(cluster.name)
                row.append("not asked" if probe is None else probe.detail)
            table.add_row(*map(Text, row))
        return table

    def _links_table(self) -> Table:
        table = Table(title="Links", title_justify="left")
        for heading in ("from", "to", "way", "what and how"):
            table.add_column(heading, overflow="fold")
        links = self.topology.links
        for link in links:
            both = link.reverse in links
            if both and links.index(link.reverse) < links.index(link):
                continue
            way = "both ways" if both or self.topology.links_between(link.destination, link.source) else "one way"
            how = ", ".join(f"{name} {_shown(value)}" for name, value in flattened(link.as_written()))
            table.add_row(link.source, link.destination, way, Text(how or "all topics"))
        return table

    def _settings(self) -> Text:
        sync, store = self.topology.sync, self.topology.store
        return Text(
            f"Sync: a snapshot every {sync.snapshot_interval_ms} ms while a topic moves "
            f"(given up after {sync.snapshot_timeout_ms} ms), updates at most every {sync.update_interval_ms} ms. "
            f"Store: up to {format_size(store.size_max)} a worker, "
            f"messages up to {format_size(store.message_size_max)}. "
            f"{self._engine_of_links()}"
        )

    def _engine_of_links(self) -> str:
        """Return the engine of most links. The table shows the engine only for other links."""
        pipeline = self.topology.pipeline
        if pipeline.engine != SPARK:
            return "Links: copied by the workers themselves."
        where = "the workers start it" if pipeline.driver == "worker" else "you start it: replicator pipeline run"
        return f"Links: copied by Spark on {pipeline.master}; {where}."

    def _policies(self) -> Iterator[Text]:
        """Yield lines with the policies that differ from the defaults; clusters with equal policies share a line."""
        clusters_of: dict[str, list[str]] = {}
        for cluster in self.topology.clusters:
            changed = flattened(cluster.policies.changed())
            text = ", ".join(f"{name} {_shown(value)}" for name, value in changed)
            clusters_of.setdefault(text, []).append(cluster.name)
        for text, names in clusters_of.items():
            if text:
                whose = "all clusters" if len(names) == len(self.topology.clusters) else ", ".join(names)
                yield Text(f"Policies of {whose}: {text}.")

    def _changes(self) -> Iterator[RenderableType]:
        if self.rollout is not None and self.rollout.participants:
            yield self.rollout.render()

    def _warning_lines(self) -> Iterator[Text]:
        for warning in self.warnings[:WARNINGS_SHOWN_MAX]:
            yield Text.assemble(("warning: ", "bold yellow"), f"{warning.subject}: {warning.text}")
        if (more := len(self.warnings) - WARNINGS_SHOWN_MAX) > 0:
            yield Text(f"… and {more:,} more warnings: --output json")


def _shown(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(str, value))}]"
    return ("on" if value else "off") if isinstance(value, bool) else str(value)


def plan(
    topology: Topology,
    probes: Mapping[str, Probe] | None = None,
    rollout: Rollout | None = None,
    rules: Mapping[str, Rules] | None = None,
) -> Plan:
    """The plan of a topology; with ``probes`` (by cluster) it also says which workers do not answer, and with a
    ``rollout`` what would change at those that do; with ``rules`` where clients would be treated otherwise after a
    switch."""
    probes = probes or {}
    warnings = (
        *_link_warnings(topology),
        *_probe_warnings(topology, probes),
        *_switch_warnings(topology, probes, rules),
    )
    return Plan(topology, probes, warnings, rollout)


def _switch_warnings(
    topology: Topology, probes: Mapping[str, Probe], rules: Mapping[str, Rules] | None
) -> Iterator[PlanWarning]:
    """Yield a warning for each difference that clients would meet after a switch from a link's source to its
    destination.

    Differences are those in permissions, policies, schemas and the like. Yield nothing if ``rules`` is None, because no
    worker was asked.
    """
    if rules is None:
        return
    for name in topology.names:
        if name not in rules and (probe := probes.get(name)) is not None and probe.reachable:
            yield PlanWarning(
                "not-compared",
                name,
                "its worker does not report permissions and policies, so they were not compared with those of other "
                "clusters. Give the token of a superuser.",
            )
    pairs = dict.fromkeys((link.source, link.destination) for link in topology.links)
    for source, destination in pairs:
        if source in rules and destination in rules:
            for difference in differences(rules[source], rules[destination]):
                yield PlanWarning("differs", f"{source} → {destination}", difference)


async def ask_rules(topology: Topology) -> dict[str, Rules]:
    """Return the rules (permissions, policies and so on) of each cluster whose worker reports them."""
    found: dict[str, Rules] = {}
    async with Peers({cluster.name: cluster.address for cluster in topology.clusters}) as peers:

        async def ask(name: str) -> None:
            with contextlib.suppress(FailoverError):  # of a worker that does not answer the probe tells
                found[name] = await peers.rules(name)

        await asyncio.gather(*map(ask, topology.names))
    return found


async def probe_workers(topology: Topology, timeout_s: float = PROBE_TIMEOUT_S) -> dict[str, Probe]:
    """Ask every worker at once whether it is alive; takes at most ``timeout_s`` and never raises for a peer."""
    # trust_env stays off: a proxy's answer would say nothing of the worker.
    async with worker_session(at_once_max=PROBES_AT_ONCE_MAX) as session:
        probes = await asyncio.gather(
            *(_probe(session, cluster, timeout_s) for cluster in topology.clusters),
        )
    return {cluster.name: probe for cluster, probe in zip(topology.clusters, probes, strict=True)}


async def _probe(session: aiohttp.ClientSession, cluster: Cluster, timeout_s: float) -> Probe:
    try:
        async with timeout(timeout_s):
            async with session.get(f"{cluster.url}/healthz", allow_redirects=False) as response:
                if response.status != 200 and not await _is_failed(response):
                    return Probe(False, f"/healthz answers {response.status}: is this a worker?")
            return await _identify(session, cluster)
    except TimeoutError:
        return Probe(False, f"no answer within {timeout_s:g} s")
    except aiohttp.ClientConnectorError as error:
        return Probe(False, why_not_connected(error))
    except aiohttp.ClientError as error:
        return Probe(False, f"no HTTP answer: {why_no_answer(error, '')}")


async def _is_failed(response: aiohttp.ClientResponse) -> bool:
    """Return whether a worker answers that its store failed: it can be asked all the same."""
    try:
        answer = json.loads(await read_at_most(response, RESPONSE_BYTES_MAX))
    except ValueError:
        return False
    return response.status == 503 and isinstance(answer, dict) and answer.get("status") == "failed"


async def _identify(session: aiohttp.ClientSession, cluster: Cluster) -> Probe:
    """Ask a cluster who it is. A worker that is alive but still starting may not have a status yet; it is reachable all
    the same.
    """
    serves = None
    native: Mapping[str, Sequence[str]] = {}
    async with session.get(f"{cluster.url}/replication/v1/status", allow_redirects=False) as response:
        if response.status == 200:
            body = bytearray()
            async for piece in response.content.iter_any():
                body += piece
                if len(body) > RESPONSE_BYTES_MAX:
                    break
            try:
                status = json.loads(body)
            except ValueError:
                status = None
            if isinstance(status, dict) and isinstance(status.get("cluster"), str):
                serves = status["cluster"]
                native = (status.get("apache") or {}).get("native_replication") or {}  # older workers do not report it
    if serves in (None, cluster.name):
        return Probe(True, "up", serves, native)
    return Probe(True, f"up, but serves {serves[:80]!r}", serves)


def _link_warnings(topology: Topology) -> Iterator[PlanWarning]:
    for link in topology.links:
        if link.source not in topology.reached_from(link.destination):
            yield PlanWarning(
                "one-way-link",
                str(link),
                f"nothing leads back from {link.destination} to {link.source}. {_one_way(topology, link)} "
                f"What is published and consumed at {link.destination} after a failover does not come back: to fail "
                "back, link the two with `between`.",
            )
    for cluster in topology.clusters:
        if not topology.links_from(cluster.name) and not topology.links_to(cluster.name):
            yield PlanWarning(
                "cluster-without-links",
                cluster.name,
                "no link reaches or leaves this cluster, so nothing of it is replicated. Add one under `links`.",
            )


def _one_way(topology: Topology, link: Link) -> str:
    if topology.sync.mode == "exact":
        return f"Messages are copied, and what is consumed at {link.source} is known at {link.destination}."
    return (
        "Messages are copied; subscriptions are not kept in step over it, because with `sync.mode: mark-delete` that "
        f"takes answers from {link.destination}."
    )


def _probe_warnings(topology: Topology, probes: Mapping[str, Probe]) -> Iterator[PlanWarning]:
    for cluster in topology.clusters:
        probe = probes.get(cluster.name)
        if probe is None:
            continue
        if not probe.reachable:
            yield PlanWarning(
                "unreachable",
                cluster.name,
                f"its worker at {cluster.address} is unreachable: {probe.detail}. "
                "Links to it wait, and resume by themselves once it is up.",
            )
            continue
        for namespace, names in probe.native.items():
            yield PlanWarning("native-replication", cluster.name, native_text(namespace, names))
        if probe.serves not in (None, cluster.name):
            yield PlanWarning(
                "wrong-worker",
                cluster.name,
                f"the worker at {cluster.address} says it serves {str(probe.serves)[:80]!r}. Check the addresses.",
            )
