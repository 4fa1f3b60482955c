"""``replicator health`` and ``replicator roundtrip``: whether a worker is well, and whether clusters work together."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Annotated

import typer

from replicator.cli.admin import TopologyFile, opened_topology
from replicator.cli.commands import Commands
from replicator.cli.json_types import HealthAnswer, RoundtripAnswer
from replicator.cli.output import Shown, side_console

Cluster = Annotated[
    str,
    typer.Option(
        "--cluster",
        "-c",
        metavar="NAME",
        envvar="REPLICATOR_CLUSTER",
        help="Cluster at whose worker the messages are published.",
    ),
]


def register(program: Commands) -> None:
    """Add the commands to the program."""
    program.command("health", watched=True)(health)
    program.command("roundtrip")(roundtrip)


def health(
    file: Annotated[
        Path,
        typer.Option(
            "--file",
            "-f",
            metavar="FILE",
            envvar="REPLICATOR_TOPOLOGY",
            help="Topology file, which has the worker's address.",
        ),
    ],
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            "-c",
            metavar="NAME",
            envvar="REPLICATOR_CLUSTER",
            help="Cluster whose worker is asked. Default: the worker that answers at an address of this host.",
        ),
    ] = None,
    ready: Annotated[
        bool, typer.Option("--ready", help="Ask whether the worker serves clients, and not only whether it is alive.")
    ] = False,
) -> Shown[HealthAnswer]:
    """Ask the worker of this host, where it listens, whether it is alive. Exit status 0 if so, else 3.

    For probes that cannot ask by HTTP themselves, as where clients must show a certificate: it shows the worker's own.
    """
    from replicator.operating.health import ask_any, ask_health
    from replicator.topology import load_topology

    topology = load_topology(file)
    if cluster is None:
        cluster, answer = asyncio.run(ask_any(topology, ready=ready))
    else:
        answer = asyncio.run(ask_health(topology, topology.cluster(cluster), ready=ready))
    return Shown({"cluster": cluster, "answer": answer}, answer)


def roundtrip(
    file: TopologyFile,
    cluster: Cluster,
    namespace: Annotated[
        str,
        typer.Option(
            metavar="TENANT/NAMESPACE", help="Namespace in which the run makes its topic, which it removes afterwards."
        ),
    ] = "public/roundtrip",
    messages: Annotated[int, typer.Option(min=1, max=10_000, help="Number of messages to publish.")] = 20,
    links: Annotated[
        bool,
        typer.Option("--links/--no-links", help="Whether to wait until the messages arrive over the cluster's links."),
    ] = True,
    seconds: Annotated[
        float,
        typer.Option(
            "--timeout",
            min=1,
            max=3600,
            metavar="SECONDS",
            help="Time limit of the run. A quarter of it, at most 10 s, is for the removal of the topic.",
        ),
    ] = 120,
    remove_left: Annotated[
        bool,
        typer.Option(
            "--remove-left",
            help="Publish nothing, and only remove the topics that earlier runs left in the namespace, in all "
            "clusters. Runs that are going on then fail.",
        ),
    ] = False,
) -> Shown[RoundtripAnswer]:
    """Publish messages at a cluster, consume them there and where its links lead, and remove them again.

    No other topic is touched. Exit status 0 if every message came, 1 if a message did not come in time or a topic could
    not be removed, 3 if a worker does not answer. If the command is killed, the next roundtrip in the namespace removes
    its topic, or --remove-left does.
    """
    from replicator.operating.roundtrip import remove_left as remove_topics
    from replicator.operating.roundtrip import run_roundtrip

    topology = opened_topology(file)
    if remove_left:
        seen = [f"removed: {topic}" for topic in asyncio.run(remove_topics(topology, namespace, used_too=True))]
        return Shown({"cluster": cluster, "messages": 0, "seen": seen}, "\n".join(seen) or "nothing was left")

    async def run() -> list[str]:
        task = asyncio.current_task()
        assert task is not None
        # Like Ctrl-C: the topic is removed before the process ends.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await run_roundtrip(
            topology,
            cluster,
            namespace=namespace,
            messages=messages,
            with_links=links,
            seconds_max=seconds,
            tell=lambda text: side_console().print(text, soft_wrap=True),
        )

    try:
        lines = asyncio.run(run())
    except asyncio.CancelledError:
        raise typer.Exit(128 + signal.SIGTERM) from None
    return Shown({"cluster": cluster, "messages": messages, "seen": lines}, "\n".join(lines))
