"""``replicator drill`` and ``replicator drills list | show | compare``. Thin: arguments in, report out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from replicator.cli.admin import opened_topology
from replicator.cli.commands import Commands
from replicator.cli.output import Shown, side_console
from replicator.drills.json_types import DrillReport, DrillRuns
from replicator.index.json_types import ComparedFigure, DrillsCompared, KeptDrill

if TYPE_CHECKING:
    from snapshots.repository import SnapshotRepository

app = Commands(help="Results of drills, kept in Postgres.", no_args_is_help=True)

T = TypeVar("T")

Store = Annotated[
    str | None,
    typer.Option(
        metavar="DIR|URL",
        help="Place where drills are kept: a directory with its own database, or the URL of a "
        "database. Default: the database of the topology's first cluster, or the directory "
        "drill-report.",
    ),
]
StoredTopology = Annotated[
    Path | None,
    typer.Option(
        "--topology",
        "-f",
        metavar="FILE",
        help="Topology whose first cluster's database has the drills; instead of --store.",
    ),
]
RunId = Annotated[
    str, typer.Argument(metavar="ID", help="Id of the run as `drills list` shows it, its beginning, or `latest`.")
]


def register(program: Commands) -> None:
    """Add the commands to the program."""
    program.command("drill")(drill)
    program.add_typer(app, name="drills")


def drill(
    messages: Annotated[
        int, typer.Option(min=100, help="Number of messages to publish. With --input, at most as many as the file has.")
    ] = 100_000,
    system: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="System to drill: replicator; pulsar-geo, two Apache Pulsar clusters with Pulsar's own "
            "geo-replication; or mirrormaker2, two Kafka clusters with MirrorMaker 2. See "
            "docs/compared.md.",
        ),
    ] = "replicator",
    input_file: Annotated[
        Path | None,
        typer.Option(
            "--input", metavar="FILE.jsonl", help="File of your own messages, one JSON object in each line; with --key."
        ),
    ] = None,
    key: Annotated[
        str | None, typer.Option(metavar="FIELD", help="Field of the objects in --input that is the message key.")
    ] = None,
    topology: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Topology of clusters whose workers the drill starts. Default: clusters of the drill's own.",
        ),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Drill on the running workers of this topology; start, stop and kill none of them."
        ),
    ] = None,
    namespace: Annotated[
        str,
        typer.Option(
            metavar="TENANT/NAMESPACE", help="With --against: namespace for the drill's topics, used by nobody else."
        ),
    ] = "public/canary",
    all_clients: Annotated[
        bool,
        typer.Option(
            "--all-clients",
            help="With --against: allow the scenarios planned and failback, which move all clients of a "
            "cluster and not only those of the drill.",
        ),
    ] = False,
    scenario: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Scenario to run: kill-primary (default), kill-each, partition, one-way-partition, flap, planned, "
            "failback, mesh-lose-one, slow-link, postgres-down, official-clients, move (default with --against), or "
            "all; see docs/drills.md.",
        ),
    ] = None,
    subscriptions: Annotated[
        str,
        typer.Option(
            metavar="KINDS",
            help="Kinds of subscriptions that consume in the drill: all, or some of "
            "exclusive,shared,key-shared,failover,batch-index, with commas.",
        ),
    ] = "all",
    links: Annotated[
        str,
        typer.Option(
            metavar="both-ways|one-way", help="Links of the drill's own clusters; one-way: from the first cluster only."
        ),
    ] = "both-ways",
    sync: Annotated[
        str | None,
        typer.Option(
            metavar="exact|mark-delete|both",
            help="What is sent of a subscription's state to other clusters: exact, every acknowledged message; "
            "mark-delete, only the position before which all are acknowledged; both, a run with each. Default: the "
            "setting of the topology, or exact.",
        ),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            metavar="spark|embedded",
            help="Engine that copies messages over the links. Default: the setting of the topology, or spark. The "
            "drill's own clusters use embedded if Spark is not installed.",
        ),
    ] = None,
    client: Annotated[
        str | None,
        typer.Option(
            metavar="own|pulsar",
            help="The drill's producers and consumers: this project's client, or Pulsar's official one (package "
            "pulsar-client). Default: own, except in the scenario official-clients.",
        ),
    ] = None,
    secure: Annotated[
        bool,
        typer.Option(
            "--secure",
            help="Run the drill's own clusters with authentication, and with TLS on every connection; their tokens "
            "expire and their certificates are replaced all the time.",
        ),
    ] = False,
    kind: Annotated[
        str,
        typer.Option(
            metavar="embedded|pulsar|mixed",
            help="Kind of the drill's own clusters: embedded; pulsar, where each has a worker beside a "
            "real Apache Pulsar broker; or mixed, with the second one embedded.",
        ),
    ] = "embedded",
    topics: Annotated[
        int,
        typer.Option(
            min=1, metavar="N", help="Number of topics, each with its producer and subscriptions; they share the rate."
        ),
    ] = 1,
    rate: Annotated[int, typer.Option(min=100, help="Messages to publish per second.")] = 6_000,
    seed: Annotated[
        int, typer.Option(help="Seed of all random choices of the drill; the same seed makes the same choices again.")
    ] = 1,
    out_dir: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Directory for report.json, report.html and the workers' logs.")
    ] = Path("drill-report"),
    json_path: Annotated[
        Path | None, typer.Option("--json", metavar="PATH", help="Also write report.json to this file.")
    ] = None,
    store: Store = None,
    keep_data: Annotated[
        bool,
        typer.Option(
            "--keep-data", help="Keep the clusters' data, in `data` in the directory of --out. Default: remove it."
        ),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print no progress bars and no table.")] = False,
) -> Shown[DrillReport | DrillRuns]:
    """Run a failover drill on real processes, and report what was lost, repeated and late.

    Publishes messages at one cluster, does to clusters, links or databases what the scenario says, moves producers
    and consumers, and verifies the clusters message by message. Exit status 0 only if nothing was lost, out of order or
    repeated that must not be, and verify is clean.
    """
    from replicator.drills.drill import run_drill
    from replicator.drills.jobs import DrillOptions

    report, shown = run_drill(
        DrillOptions(
            messages=messages,
            system=system,
            input_file=input_file,
            key=key,
            topology_file=topology,
            against_file=against,
            namespace=namespace,
            all_clients=all_clients,
            scenario=scenario,
            subscriptions=subscriptions,
            links=links,
            sync=sync,
            engine=engine,
            client=client,
            secure=secure,
            kind=kind,
            topics=topics,
            rate=rate,
            seed=seed,
            out_dir=out_dir,
            json_path=json_path,
            store=store,
            keep_data=keep_data,
            quiet=quiet,
        ),
        side_console(),
    )
    found: Any = report
    return Shown(found, "" if quiet else shown, status=0 if report["passed"] else 1)


@app.command("list", watched=True)
def list_runs(
    store: Store = None,
    topology: StoredTopology = None,
    scenario: Annotated[str | None, typer.Option(metavar="NAME", help="Show only runs of this scenario.")] = None,
    newest: Annotated[int, typer.Option(min=1, max=1000, help="Number of runs to show at most, the newest ones.")] = 50,
) -> Shown[list[KeptDrill]]:
    """List the drills that are kept, the newest first."""
    runs = _ask(store, topology, lambda repository: repository.drill_runs(scenario=scenario, newest=newest))
    from replicator.drills.compare import render_kept
    from replicator.index.drill_reports import kept_as_json

    return Shown([kept_as_json(run) for run in runs], render_kept(runs))


@app.command()
def show(wanted: RunId, store: Store = None, topology: StoredTopology = None) -> Shown[DrillReport]:
    """Show the report of one drill."""
    report = _report(_ask(store, topology, _finder(wanted)))
    from replicator.drills.report import render_table

    return Shown(report, render_table(report))


@app.command()
def compare(
    first: RunId,
    second: RunId,
    store: Store = None,
    topology: StoredTopology = None,
) -> Shown[DrillsCompared]:
    """Put the figures of two drills side by side."""

    async def find_both(repository: SnapshotRepository) -> tuple[Any, Any]:
        return await _finder(first)(repository), await _finder(second)(repository)

    runs = _ask(store, topology, find_both)
    reports = _report(runs[0]), _report(runs[1])
    from replicator.drills.compare import render_comparison
    from replicator.index.drill_reports import comparison

    rows = comparison(reports)
    names = runs[0].id, runs[1].id
    as_json: dict[str, ComparedFigure] = {figure: {"first": one, "second": other} for figure, one, other in rows}
    body: DrillsCompared = {"first": names[0], "second": names[1], "figures": as_json}
    return Shown(body, render_comparison(reports, names))


def _finder(wanted: str) -> Callable[[SnapshotRepository], Awaitable[Any]]:
    from replicator.drills.run_store import find_run

    return lambda repository: find_run(repository, wanted)


def _report(run: Any) -> DrillReport:
    from replicator.drills.errors import DrillError

    if run.report is None:
        raise DrillError(
            f"drill {run.id} has no report, because it still runs or was cut off: `replicator drills list` shows others"
        )
    report: DrillReport = run.report
    return report


def _ask(store: str | None, topology_file: Path | None, question: Callable[[SnapshotRepository], Awaitable[T]]) -> T:
    from replicator.drills.run_store import find_place, opened_store

    topology = None if topology_file is None else opened_topology(topology_file)

    async def ask() -> T:
        async with opened_store(find_place(store, Path("drill-report"), topology)) as repository:
            return await question(repository)

    return asyncio.run(ask())
