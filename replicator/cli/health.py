"""``replicator health`` and ``replicator roundtrip``: whether a worker is well, and whether clusters work together."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from replicator.cli.admin import TopologyFile, opened_topology
from replicator.cli.commands import Commands
from replicator.cli.json_types import HealthAnswer, RoundtripAnswer
from replicator.cli.output import Shown

Cluster = Annotated[
    str, typer.Option("--cluster", "-c", metavar="NAME", envvar="REPLICATOR_CLUSTER", help="Whose worker is asked.")
]


def register(program: Commands) -> None:
    """Add the commands to the program."""
    program.command("health", watched=True)(health)
    program.command("roundtrip")(roundtrip)


def health(
    file: Annotated[
        Path,
        typer.Option("--file", "-f", metavar="FILE", envvar="REPLICATOR_TOPOLOGY", help="The topology of the worker."),
    ],
    cluster: Cluster,
    ready: Annotated[
        bool, typer.Option("--ready", help="Ask whether it serves clients, and not only whether it is alive.")
    ] = False,
) -> Shown[HealthAnswer]:
    """Ask the worker of this host, where it listens, whether it is alive. Exit status 0 if so, else 3.

    For probes that cannot ask by HTTP themselves, as where clients must show a certificate: it shows the worker's own.
    """
    from replicator.operating.health import ask_health
    from replicator.topology import load_topology

    topology = load_topology(file)
    answer = asyncio.run(ask_health(topology, topology.cluster(cluster), ready=ready))
    return Shown({"cluster": cluster, "answer": answer}, answer)


def roundtrip(
    file: TopologyFile,
    cluster: Cluster,
    namespace: Annotated[
        str, typer.Option(metavar="TENANT/NAMESPACE", help="Where the topic is made, for this run alone.")
    ] = "public/roundtrip",
    messages: Annotated[int, typer.Option(min=1, max=10_000, help="How many to publish.")] = 20,
    links: Annotated[
        bool, typer.Option("--links/--no-links", help="Whether to see the messages arrive over the cluster's links.")
    ] = True,
    seconds: Annotated[
        float, typer.Option("--timeout", min=1, max=3600, metavar="SECONDS", help="How long it may take at most.")
    ] = 120,
) -> Shown[RoundtripAnswer]:
    """Publish messages at a cluster, consume them there and where its links lead, and remove them again.

    Exit status 0 if every message came, 1 if not in time, 3 if a worker does not answer. No other topic is touched.
    """
    from replicator.operating.roundtrip import run_roundtrip

    lines = asyncio.run(
        run_roundtrip(
            opened_topology(file),
            cluster,
            namespace=namespace,
            messages=messages,
            with_links=links,
            seconds_max=seconds,
        )
    )
    return Shown({"cluster": cluster, "messages": messages, "seen": lines}, "\n".join(lines))
