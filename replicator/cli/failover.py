"""Commands ``replicator failover | failover-status | failback | promote``, which move clients between clusters.

Thin: they read their arguments, run a :class:`replicator.failover.switch.Switch`, and print its report. Exit status: 0
done, 1 refused by a check, 2 wrong usage, 3 a cluster that is needed does not answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from replicator.cli.admin import TopologyFile, opened_topology
from replicator.cli.commands import Commands
from replicator.cli.output import Shown, tell
from replicator.failover.json_types import FailoverStatus, SwitchAnswer

if TYPE_CHECKING:
    from replicator.failover.report import StatusReport, SwitchReport
    from replicator.failover.switch import Switch

DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the report, and change nothing.")]
Details = Annotated[
    bool,
    typer.Option("--details", help="Print every topic, with positions and the digests of its subscriptions."),
]
Timeout = Annotated[
    float,
    typer.Option(
        "--timeout",
        metavar="SECONDS",
        min=0.1,
        help="Time limit of a planned switch. If it is exceeded, the switch is undone.",
    ),
]
KeepConsumers = Annotated[
    bool,
    typer.Option("--keep-consumers", help="Move only producers; consumers stay where they are."),
]
Home = Annotated[str, typer.Option("--to", metavar="CLUSTER", help="Cluster that should serve its clients again.")]
Target = Annotated[str, typer.Option("--to", metavar="CLUSTER", help="Cluster that should serve the clients.")]


def register(app: Commands) -> None:
    """Add the commands to the program."""
    app.command("failover")(failover)
    app.command("failover-status", watched=True)(failover_status)
    app.command("failback")(failback)
    app.command("promote")(promote)


def failover(
    file: TopologyFile,
    source: Annotated[str, typer.Option("--from", metavar="CLUSTER", help="Cluster that serves the clients now.")],
    target: Target,
    planned: Annotated[
        bool,
        typer.Option(
            "--planned/--unplanned",
            help="--planned: first let the old cluster take no clients, copy what is left, and compare; nothing is "
            "lost or repeated. --unplanned: switch at once, and report what may be lost or repeated.",
        ),
    ] = True,
    keep_consumers: KeepConsumers = False,
    dry_run: DryRun = False,
    timeout: Timeout = 60.0,
    details: Details = False,
) -> Shown[SwitchAnswer]:
    """Move the clients of one cluster to another, and report what was not received and what may be repeated."""
    return _switched(
        file,
        lambda switch: switch.failover(
            source,
            target,
            planned=planned,
            keep_consumers=keep_consumers,
            dry_run=dry_run,
            timeout_seconds=timeout,
        ),
        details=details,
    )


def failback(
    file: TopologyFile,
    target: Home,
    dry_run: DryRun = False,
    timeout: Timeout = 60.0,
    details: Details = False,
) -> Shown[SwitchAnswer]:
    """Give a cluster its own clients back, planned, from the one that serves them."""
    return _switched(
        file, lambda switch: switch.failback(target, dry_run=dry_run, timeout_seconds=timeout), details=details
    )


def promote(
    file: TopologyFile,
    target: Target,
    home: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar="CLUSTER",
            help="Cluster whose clients are moved. Needed if several clusters' clients could be.",
        ),
    ] = None,
    dry_run: DryRun = False,
    details: Details = False,
) -> Shown[SwitchAnswer]:
    """Let a cluster serve the clients of another at once, without asking the one that serves them."""
    return _switched(file, lambda switch: switch.promote(target, home, dry_run=dry_run), details=details)


def failover_status(file: TopologyFile, details: Details = False) -> Shown[FailoverStatus]:
    """Show which cluster serves each cluster's clients, and the outcome of the newest switch. Exit status 3 if a
    cluster does not answer.
    """
    from replicator.failover.showing import shown_status

    report: StatusReport = _run(file, lambda switch: switch.status())
    away = any("error" in state for state in report.states.values())
    return Shown(report.as_json(), shown_status(report, details=details), status=3 if away else 0)


def _switched(file: Path, work: Callable[[Switch], Awaitable[SwitchReport]], *, details: bool) -> Shown[SwitchAnswer]:
    from replicator.failover.showing import shown_switch

    report: SwitchReport = _run(file, work)
    return Shown(
        report.as_json(), shown_switch(report, details=details), status=1 if report.outcome == "refused" else 0
    )


def _run(file: Path, work: Callable[[Switch], Awaitable[Any]]) -> Any:
    from replicator.failover.peers import Peers
    from replicator.failover.switch import Switch

    topology = opened_topology(file)
    shown = ""

    def show_progress(text: str) -> None:
        nonlocal shown
        if text != shown:
            shown = text
            tell(text, style="dim")

    async def run() -> Any:
        async with Peers({cluster.name: cluster.address for cluster in topology.clusters}) as peers:
            return await work(Switch(topology, peers, progress=show_progress))

    return asyncio.run(run())
