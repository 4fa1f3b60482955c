"""What the shell is offered for names: of clusters and links, from the topology that the command line names.

No worker is asked, and nothing is said where the file cannot be read: the command itself will say it. Names of topics
and subscriptions are known to workers alone, so they are not offered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

if TYPE_CHECKING:
    from replicator.topology import Topology

_FILES: Final = ("file", "topology")
"""The parameters that name a topology."""


def complete_clusters(ctx: typer.Context, incomplete: str) -> list[str]:
    """The clusters whose names begin so."""
    topology = _topology(ctx)
    return [] if topology is None else _beginning(incomplete, [each.name for each in topology.clusters])


def complete_links(ctx: typer.Context, incomplete: str) -> list[str]:
    """The names of links, between two clusters if both stand already."""
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


CLUSTER_OPTIONS: Final = frozenset({"--cluster", "--from", "--to", "--for", "--without"})


def completion_of(options: Iterable[str], metavar: str | None) -> Callable[..., list[str]] | None:
    """What completes a parameter with these names on the command line, if something does."""
    if CLUSTER_OPTIONS.intersection(options) and metavar in ("NAME", "CLUSTER"):
        return complete_clusters
    if "--link" in options or ("--name" in options and metavar == "NAME"):
        return complete_links
    return complete_clusters if metavar == "CLUSTER…" else None


def _topology(ctx: Any) -> Topology | None:
    from replicator.topology import TopologyError, load_topology

    file = next((ctx.params[name] for name in _FILES if ctx.params.get(name)), None)
    if file is None:
        return None
    try:
        return load_topology(Path(file))
    except TopologyError:
        return None


def _beginning(incomplete: str, names: Iterable[str]) -> list[str]:
    return sorted({name for name in names if name.startswith(incomplete)})
