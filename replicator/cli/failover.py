"""``replicator failover | failover-status | failback | promote``: which cluster serves the clients of which.

Thin: they read their arguments, run a :class:`replicator.failover.switch.Switch`, and print its report. Exit status: 0
done, 1 refused by a check, 2 wrong usage, 3 a cluster that is needed does not answer.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from replicator.cli.admin import OUTPUT_COLUMNS, OutputFormat, TopologyFile, check_output, opened_topology

if TYPE_CHECKING:
    from replicator.failover.report import StatusReport, SwitchReport
    from replicator.failover.switch import Switch

DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the report, and change nothing.")]
Timeout = Annotated[
    float,
    typer.Option(
        "--timeout", metavar="SECONDS", min=0.1, help="How long a planned switch may take; then it is undone."
    ),
]
KeepConsumers = Annotated[
    bool,
    typer.Option("--keep-consumers", help="Consumers stay where they are; only producers are moved."),
]
Home = Annotated[str, typer.Option("--to", metavar="CLUSTER", help="The cluster that is to serve its clients again.")]
Target = Annotated[str, typer.Option("--to", metavar="CLUSTER", help="The cluster that is to serve them.")]


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    app.command("failover")(failover)
    app.command("failover-status")(failover_status)
    app.command("failback")(failback)
    app.command("promote")(promote)


def failover(
    file: TopologyFile,
    source: Annotated[str, typer.Option("--from", metavar="CLUSTER", help="The cluster that serves them now.")],
    target: Target,
    planned: Annotated[
        bool,
        typer.Option(
            "--planned/--unplanned",
            help="--planned: fence, drain and compare first; nothing is lost or repeated. --unplanned: at once.",
        ),
    ] = True,
    keep_consumers: KeepConsumers = False,
    dry_run: DryRun = False,
    timeout: Timeout = 60.0,
    output: OutputFormat = "table",
) -> None:
    """Move the clients of one cluster to another, and report what was not received and what may be repeated."""
    _run(
        file,
        output,
        lambda switch: switch.failover(
            source,
            target,
            planned=planned,
            keep_consumers=keep_consumers,
            dry_run=dry_run,
            timeout_seconds=timeout,
        ),
    )


def failback(
    file: TopologyFile,
    target: Home,
    dry_run: DryRun = False,
    timeout: Timeout = 60.0,
    output: OutputFormat = "table",
) -> None:
    """Give a cluster its own clients back, planned, from the one that serves them."""
    _run(file, output, lambda switch: switch.failback(target, dry_run=dry_run, timeout_seconds=timeout))


def promote(
    file: TopologyFile,
    target: Target,
    home: Annotated[
        str | None, typer.Option("--for", metavar="CLUSTER", help="Whose clients; needed where several could be meant.")
    ] = None,
    dry_run: DryRun = False,
    output: OutputFormat = "table",
) -> None:
    """Let a cluster serve the clients of another at once, without asking the one that serves them."""
    _run(file, output, lambda switch: switch.promote(target, home, dry_run=dry_run))


def failover_status(file: TopologyFile, output: OutputFormat = "table") -> None:
    """Show who serves whom, and what came of the newest switch. Exit status 3 if a cluster does not answer."""
    report = _run(file, output, lambda switch: switch.status())
    if any("error" in state for state in report.states.values()):
        raise typer.Exit(3)


def _run(file: Path, output: str, work: Callable[[Switch], Awaitable[Any]]) -> Any:
    from rich.console import Console

    from replicator.failover.peers import Peers
    from replicator.failover.report import SwitchReport
    from replicator.failover.switch import Switch

    check_output(output)
    topology = opened_topology(file)
    progress = Console(stderr=True, highlight=False, emoji=False)
    shown = ""

    def show_progress(text: str) -> None:
        nonlocal shown
        if text != shown:
            shown = text
            progress.print(text, style="dim", markup=False)

    async def run() -> SwitchReport | StatusReport:
        async with Peers({cluster.name: cluster.address for cluster in topology.clusters}) as peers:
            done: SwitchReport | StatusReport = await work(Switch(topology, peers, progress=show_progress))
            return done

    report = asyncio.run(run())
    if output == "json":
        print(json.dumps(report.as_json(), indent=2, ensure_ascii=False))
    else:
        width = None if sys.stdout.isatty() else OUTPUT_COLUMNS
        Console(width=width, highlight=False).print(report.render())
    if isinstance(report, SwitchReport) and report.outcome == "refused":
        raise typer.Exit(1)
    return report
