"""The command ``replicator``. Exit status: 0 fine, 1 a check failed, 2 bad usage or configuration, 3 a peer or service
is unavailable, 70 the worker's event loop stood still."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Annotated, Any

import structlog
import typer

from replicator import __version__
from replicator.cli import (
    apply,
    audit,
    backfill,
    backup,
    bridge,
    clients,
    database,
    doctor,
    drills,
    failover,
    health,
    init,
    links,
    mapping,
    namespaces,
    pipeline,
    report,
    store,
    subscriptions,
    tokens,
    topics,
    verify,
)
from replicator.cli.admin import TokenFile, TopologyFile, opened_topology, use_token_file
from replicator.cli.commands import Commands
from replicator.cli.json_types import Done, Unanswered
from replicator.cli.output import DONE, WANTED, Format, Shown, side_console
from replicator.cli.program import Program
from replicator.operating.json_types import PlanAnswer
from replicator.peering.topic_summary import LIMIT_MAX
from replicator.running.collector import made_to_stay
from replicator.running.log_stream import standard_error
from replicator.worker.json_types import WorkerStatus

app = Commands(
    name="replicator",
    cls=Program,
    help="Geo-replication and subscription sync between clusters, with failover drills.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(database.app, name="db")
app.add_typer(topics.app, name="topics")
app.add_typer(subscriptions.app, name="subscriptions")
app.add_typer(mapping.app, name="mapping")
app.add_typer(links.app, name="links")
app.add_typer(bridge.app, name="bridge")
app.add_typer(clients.app, name="clients")
app.add_typer(pipeline.app, name="pipeline")
app.add_typer(audit.app, name="audit")
app.add_typer(backup.app, name="backup")
app.add_typer(store.app, name="store")
app.add_typer(tokens.app, name="tokens")
app.command("translate")(mapping.translate)
app.add_typer(namespaces.app, name="namespaces")
app.add_typer(namespaces.tenants, name="tenants")
failover.register(app)
health.register(app)
app.command()(init.init)
app.command(watched=True)(doctor.doctor)
drills.register(app)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"replicator {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
    token_file: TokenFile = None,
) -> None:
    """See `replicator COMMAND --help`."""
    use_token_file(token_file)


@app.command()
def worker(
    file: TopologyFile,
    cluster: Annotated[str, typer.Option("--cluster", "-c", metavar="NAME", help="Cluster whose worker is started.")],
    reload_on_change: Annotated[
        bool,
        typer.Option(
            "--reload-on-change",
            help="Read the topology file again, as on SIGHUP, whenever it or a certificate or key that it names has "
            "changed.",
        ),
    ] = False,
    end_when_stuck: Annotated[
        str | None,
        typer.Option(
            "--end-when-stuck",
            metavar="DURATION",
            help="End the worker with exit status 70 if its event loop stands still for this time, such as 60s. "
            "watchdog.end_after of the topology takes precedence.",
        ),
    ] = None,
    on_empty_store: Annotated[
        str | None,
        typer.Option(
            "--on-empty-store",
            metavar="ACTION",
            help="What to do if the store is empty, as on a new disk: reclaim takes back the cluster's messages from "
            "other clusters, refuse does not start if they have any, start begins empty. Replaces "
            "store.on_empty_store of the topology for this start.",
        ),
    ] = None,
    monitoring_at: Annotated[
        str | None,
        typer.Option(
            "--monitoring-at",
            metavar="HOST:PORT",
            help="Listen also at this address, where only /metrics, /healthz and /readyz can be read.",
        ),
    ] = None,
) -> None:
    """Run the worker of one cluster until SIGTERM or SIGINT.

    The exit status is 70 if the worker ended itself because its event loop stood still. It is 2 if another store of the
    cluster took the place of the worker's store.
    """
    with made_to_stay():
        import uvloop

        from replicator.topology import load_topology
        from replicator.topology.fields import ON_EMPTY_STORE
        from replicator.worker.starting import run_worker

    _set_up_log()
    stuck = None if end_when_stuck is None else _end_after(end_when_stuck)
    if on_empty_store not in (None, *ON_EMPTY_STORE):
        raise typer.BadParameter(f"--on-empty-store: {on_empty_store!r} is not one of {', '.join(ON_EMPTY_STORE)}")
    uvloop.run(
        run_worker(
            load_topology(file),
            cluster,
            reload_on_change=reload_on_change,
            end_when_stuck=stuck,
            on_empty_store=on_empty_store,
            monitoring=None if monitoring_at is None else _place(monitoring_at),
        )
    )


@app.command()
def up(file: TopologyFile) -> Shown[Done]:
    """Run the workers of all clusters of a topology on this machine, until SIGTERM or SIGINT."""
    from replicator.operating.local import run_all

    return Shown(DONE, status=asyncio.run(run_all(opened_topology(file), file, side_console(standard_error()))))


@app.command()
def plan(file: TopologyFile) -> Shown[PlanAnswer]:
    """Print the resolved topology, what it would change at the workers that run, and what deserves a second look."""
    from replicator.failover.rules import Rules
    from replicator.operating.plan import Probe, ask_rules, probe_workers
    from replicator.operating.plan import plan as make_plan
    from replicator.operating.rollout import Rollout, ask_workers

    topology = opened_topology(file)

    async def look() -> tuple[dict[str, Probe], Rollout, dict[str, Rules]]:
        return await asyncio.gather(probe_workers(topology), ask_workers(topology), ask_rules(topology))

    result = make_plan(topology, *asyncio.run(look()))
    return Shown(result.as_json(), result.render())


app.command()(apply.apply)
app.command()(verify.verify)
app.command()(report.report)
app.command()(backfill.backfill)


@app.command(watched=True)
def status(
    file: TopologyFile,
    patterns: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            metavar="PATTERN",
            help="Show topics of this name, or that this pattern matches, as in a link's `topics`; may be given again.",
        ),
    ] = None,
    top: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            max=LIMIT_MAX,
            help="Rows in each table of the summary; default 10. With --topic: number of topics to show, those with "
            "the largest backlogs first; default all.",
        ),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Show all topics with their subscriptions.")] = False,
) -> Shown[dict[str, WorkerStatus | Unanswered]]:
    """Show the workers of a topology: clusters, links, what is wrong, and the topics that lag most.

    Topics are listed with --topic or --all, or if no cluster has more than 20. JSON and YAML have all topics, or those
    of --topic. Exit status 3 if a worker does not answer, 2 if workers that cannot be shown all refuse the request.
    """
    from replicator.operating.status import exit_status, fetch_all, look
    from replicator.topology.patterns import check_pattern

    if every and top is not None:
        raise typer.BadParameter("--all and --top cannot be given together: --all shows all topics")
    try:
        wanted = [check_pattern(pattern) for pattern in patterns or ()]
    except ValueError as error:
        raise typer.BadParameter(f"--topic: {error}") from None
    topology = opened_topology(file)
    answers: Any
    if WANTED.get() is not Format.TABLE:
        answers = asyncio.run(fetch_all(topology, wanted))
        return Shown(answers, status=exit_status(answers))
    answers, shown = asyncio.run(look(topology, wanted, top=top, every=every))
    return Shown(answers, shown, status=exit_status(answers))


def _place(text: str) -> str:
    """Return ``--monitoring-at``; raise :class:`typer.BadParameter` if it is no ``HOST:PORT``."""
    from replicator.topology.scalars import check_listen

    try:
        return check_listen(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--monitoring-at") from None


def _end_after(duration: str) -> int:
    """Return ``--end-when-stuck`` in seconds; raise :class:`typer.BadParameter` if it is no valid duration."""
    from pydantic import ValidationError

    from replicator.topology import WatchdogSettings

    try:
        return WatchdogSettings.model_validate({"end_after": duration}).end_after or 0
    except ValidationError as error:
        raise typer.BadParameter(error.errors()[0]["msg"], param_hint="--end-when-stuck") from None


def _set_up_log() -> None:
    """Structured lines on stderr: readable at a terminal, JSON elsewhere."""
    renderer = structlog.dev.ConsoleRenderer() if sys.stderr.isatty() else structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.StackInfoRenderer(),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(standard_error()),
    )
