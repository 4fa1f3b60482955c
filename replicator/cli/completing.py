"""Names that the shell offers for completion. Clusters and links come from the topology on the command line;
namespaces, topics and subscriptions from the worker that the command would ask, if it answers at once. If the file
cannot be read or the worker does not answer, nothing is offered: the command itself will report it.

Nothing is said where the file cannot be read or the worker does not answer: the command itself will say it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

if TYPE_CHECKING:
    from replicator.operating.admin_client import AdminClient
    from replicator.topology import Topology

_FILES: Final = ("file", "topology")
"""The parameters that name a topology."""
ANSWER_SECONDS_MAX: Final = 1.0
"""Time limit for a worker's answer: a user who types does not wait longer."""
NAMES_MAX: Final = 200
"""More than that nobody reads; the next letter narrows them."""
_SCHEME: Final = "persistent://"
_DEFAULT_NAMESPACE: Final = "public/default"


def complete_clusters(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the clusters whose names begin with ``incomplete``."""
    topology = _topology(ctx)
    return [] if topology is None else _beginning(incomplete, [each.name for each in topology.clusters])


def complete_links(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names of links; if both clusters stand already, those between them."""
    topology = _topology(ctx)
    if topology is None:
        return []
    ends = (ctx.params.get("source"), ctx.params.get("to") or ctx.params.get("destination"))
    links = [
        link
        for link in topology.links
        if all(given in (None, end) for given, end in zip(ends, (link.source, link.destination), strict=True))
    ]
    return _beginning(incomplete, [link.name for link in links if link.name])


def complete_namespaces(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return ``tenant/namespace`` of the tenants whose names begin so."""

    async def ask(client: AdminClient) -> list[str]:
        return await _namespaces(client, incomplete)

    return _beginning(incomplete, _asked(ctx, ask))


def complete_topics(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the topics whose names begin so, in the form that was begun: full, without ``persistent://``, or of the
    default namespace only. If the namespace is not complete yet, return namespaces.
    """
    scheme = _SCHEME if incomplete.startswith(_SCHEME) else ""
    begun = incomplete.removeprefix(scheme)
    namespace, slash, _ = begun.rpartition("/")

    async def ask(client: AdminClient) -> list[str]:
        if namespace.count("/") == 1:
            return [scheme + name for name in await _topics(client, namespace)]
        if slash or scheme:
            return [f"{scheme}{name}/" for name in await _namespaces(client, begun)]
        return [name.removeprefix(f"{_DEFAULT_NAMESPACE}/") for name in await _topics(client, _DEFAULT_NAMESPACE)]

    return _beginning(incomplete, _asked(ctx, ask))


def complete_targets(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the target of a policy: namespaces or topics, depending on the group of commands."""
    group = "" if ctx.parent is None else ctx.parent.info_name
    return (complete_namespaces if group == "namespaces" else complete_topics)(ctx, incomplete)


def complete_subscriptions(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the subscriptions of the topic earlier on the command line."""
    from replicator.operating.admin_client import topic_path

    async def ask(client: AdminClient) -> list[str]:
        found: list[str] = await client.call("GET", topic_path(str(ctx.params.get("topic")), "subscriptions"))
        return found

    return _beginning(incomplete, _asked(ctx, ask))


CLUSTER_OPTIONS: Final = frozenset({"--cluster", "--from", "--to", "--for", "--without"})


def completion_of(options: Iterable[str], metavar: str | None) -> Callable[..., list[str]] | None:
    """Return the completion function of a parameter with these option names, or None."""
    if CLUSTER_OPTIONS.intersection(options) and metavar in ("NAME", "CLUSTER"):
        return complete_clusters
    if "--link" in options or ("--name" in options and metavar == "NAME"):
        return complete_links
    return _BY_METAVAR.get((metavar or "").strip("[]"))


_BY_METAVAR: Final = {
    "CLUSTER…": complete_clusters,
    "NAMESPACE": complete_namespaces,
    "TOPIC": complete_topics,
    "SUBSCRIPTION": complete_subscriptions,
}


def _topology(ctx: Any) -> Topology | None:
    from replicator.topology import TopologyError, load_topology

    file = next((ctx.params[name] for name in _FILES if ctx.params.get(name)), None)
    if file is None:
        return None
    try:
        return load_topology(Path(file))
    except TopologyError:
        return None


def _asked(ctx: typer.Context, ask: Callable[[AdminClient], Awaitable[list[str]]]) -> list[str]:
    """Return the answer of the command line's worker; empty if it does not answer."""
    from replicator.cli.admin import WorkerOptions
    from replicator.engine.errors import EngineError
    from replicator.operating.errors import AdminError
    from replicator.running.timeouts import timeout
    from replicator.security.errors import SecurityError
    from replicator.topology import TopologyError

    async def work(client: AdminClient) -> list[str]:
        async with timeout(ANSWER_SECONDS_MAX):
            return await ask(client)

    worker = WorkerOptions(*(ctx.params.get(name) for name in ("url", "file", "cluster")))
    try:
        return worker.ask(work)
    except (AdminError, EngineError, SecurityError, TopologyError, TimeoutError):
        return []


async def _namespaces(client: AdminClient, begun: str) -> list[str]:
    tenant, slash, _ = begun.partition("/")
    tenants = [tenant] if slash else [each for each in await client.call("GET", "tenants") if each.startswith(tenant)]
    return [name for each in tenants for name in await client.call("GET", f"namespaces/{each}")]


async def _topics(client: AdminClient, namespace: str) -> list[str]:
    """Return ``tenant/namespace/name`` of each topic; a partitioned one only by its own name."""
    from replicator.engine.topics.partitions import base_name
    from replicator.operating.admin_client import topics_path

    partitioned = await client.call("GET", topics_path(namespace, "partitioned"))
    found = [name for name in await client.call("GET", topics_path(namespace)) if base_name(name) not in partitioned]
    return [name.removeprefix(_SCHEME) for name in (*partitioned, *found)]


def _beginning(incomplete: str, names: Iterable[str]) -> list[str]:
    return sorted({name for name in names if name.startswith(incomplete)})[:NAMES_MAX]
