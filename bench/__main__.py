"""``python -m bench [NAME ...]``: measures the groups of figures named; without names, all but those that take long.

Prints a table, and writes ``bench/results.json``. The machine, and what is being measured, go to stderr.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import tempfile
from collections.abc import Collection, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer
import uvloop
from rich.console import Console
from rich.table import Table

from bench.backfill import measure_backfill
from bench.bridge_state import measure_bridge_state
from bench.cases import CASES, Case
from bench.connections import measure_connections, measure_reconnect
from bench.dashboard import measure_dashboard
from bench.disk import DiskLimits, measure_disk
from bench.in_process import measure_commits, measure_engine, measure_large_commits
from bench.jetstream import PEER, JetStreamPair, find_server
from bench.lag import measure_lag
from bench.live import live_markdown, measure_live
from bench.machine import machine_line, page_cache_line
from bench.many import markdown, measure_many, measure_many_idle, measure_many_long
from bench.many_topics_tools import measure_many_topics_tools
from bench.mapping import measure_mapping
from bench.measurement import Measurement, results_json
from bench.network import measure_case
from bench.official_clients import measure_clients, measure_go
from bench.patterns import measure_patterns
from bench.peers import ROUNDS, SYSTEM_NAMES, measure_peers
from bench.security import measure_security
from bench.shared_port import measure_shared_port
from bench.spark import measure_spark
from bench.subscriptions import measure_subscriptions
from bench.sync import measure_sync
from bench.topics import measure_topics
from bench.traces import measure_traces
from bench.verify import measure_verify

GROUPS: Final = (
    "publish",
    "copy",
    "consume",
    "engine",
    "subscriptions",
    "topics",
    "many-topics-tools",
    "dashboard",
    "patterns",
    "mapping",
    "lag",
    "sync",
    "spark",
    "backfill",
    "verify",
    "clients",
    "go",
    "many",
    "many-long",
    "many-idle",
    "live",
    "connections",
    "reconnect",
    "shared-port",
    "security",
    "traces",
    "bridge-state",
    "peers",
)
BY_NAME_ONLY: Final = frozenset({"peers", "many-long", "many-idle", "live", "reconnect"})
"""Groups that run only if they are named. ``peers`` takes longer than all others together, ``many-long`` 20 minutes;
``many-idle`` opens 10,000 topics, ``live`` runs two brokers and five workers for a quarter of an hour, and
``reconnect`` needs 11,000 open files in one process."""
_NETWORK: Final = frozenset({"publish", "copy", "consume"})
TABLE_CHARS: Final = 120
"""Width of the output in a file; rich would guess a lower one."""
RESULTS: Final = Path(__file__).parent / "results.json"

err = Console(stderr=True, highlight=False, soft_wrap=True)


def main(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help=f"Groups to measure: {', '.join(GROUPS)}.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Of group peers: how often each system is measured.")] = ROUNDS,
    scale: Annotated[
        float, typer.Option(min=0.001, help="Of groups peers, many, live and reconnect: part of the work, for a trial.")
    ] = 1.0,
    system: Annotated[
        list[str] | None, typer.Option(help=f"Of group peers: one system, again for each ({', '.join(SYSTEM_NAMES)}).")
    ] = None,
) -> None:
    """Measure, print a table, and write bench/results.json. Without names: everything but groups that take long."""
    groups = set(names or GROUPS) - (frozenset() if names else BY_NAME_ONLY)
    if unknown := sorted(groups.difference(GROUPS)):
        raise typer.BadParameter(f"there is no {', '.join(unknown)}; there are: {', '.join(GROUPS)}")
    if unknown := sorted(set(system or ()).difference(SYSTEM_NAMES)):
        raise typer.BadParameter(f"there is no system {', '.join(unknown)}; there are: {', '.join(SYSTEM_NAMES)}")
    err.print(machine_line(Path(tempfile.gettempdir())))
    err.print(page_cache_line(Path(tempfile.gettempdir())))
    try:
        measurements = uvloop.run(_until_told(_measure(groups, rounds, scale, system or ())))
    except asyncio.CancelledError:
        raise typer.Exit(128 + signal.SIGTERM) from None
    out = Console() if sys.stdout.isatty() else Console(width=TABLE_CHARS)
    out.print(_table(measurements))
    RESULTS.write_text(results_json(measurements))
    typer.echo(RESULTS)


async def _until_told(measuring: Coroutine[Any, Any, list[Measurement]]) -> list[Measurement]:
    """Await ``measuring`` and return its figures. At SIGTERM cancel it, so that started processes are ended first."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, partial(_cancel, asyncio.current_task()))
    return await measuring


def _cancel(task: asyncio.Task[Any] | None) -> None:
    if task is not None:
        task.cancel()


async def _measure(groups: Collection[str], rounds: int, scale: float, systems: Collection[str]) -> list[Measurement]:
    measured: list[Measurement] = []
    if not _NETWORK.isdisjoint(groups):
        measured += await _measure_network(groups)
    if "engine" in groups:
        for case in CASES:
            with _directory(f"{case.name}: engine in process") as directory:
                measured += await measure_engine(case, directory)
        with _directory("synced commits") as directory:
            measured.append(await measure_commits(directory))
        with _directory("large commits") as directory:
            limits = await asyncio.to_thread(measure_disk, directory)
            measured += [*limits.measurements("engine"), *await measure_large_commits(directory, limits)]
    if "subscriptions" in groups:
        with _directory("subscriptions in process") as directory:
            measured += await measure_subscriptions(directory)
    if "topics" in groups:
        with _directory("ten thousand topics") as directory:
            measured += await measure_topics(directory)
    if "many-topics-tools" in groups:
        with _directory("status and verify over ten thousand topics") as directory:
            directory.chmod(0o755)
            measured += await measure_many_topics_tools(directory)
    if "dashboard" in groups:
        with _directory("the dashboard of five clusters") as directory:
            directory.chmod(0o755)
            measured += await measure_dashboard(directory, err.print)
    if "patterns" in groups:
        with _directory("pattern consumers of topics") as directory:
            measured += await measure_patterns(directory)
    if "mapping" in groups:
        with _directory("the exact mapping in Postgres") as directory:
            directory.chmod(0o755)  # as root, the server runs as another user
            measured += await measure_mapping(directory)
    if "lag" in groups:
        with _directory("copy lag at half load") as directory:
            measured += await measure_lag(directory)
    if "sync" in groups:
        with _directory("acknowledgements seen in the other cluster") as directory:
            measured += await measure_sync(directory)
    if "verify" in groups:
        with _directory("two clusters compared") as directory:
            directory.chmod(0o755)
            measured += await measure_verify(directory)
    if "spark" in groups:
        with _directory("live copy by Spark, beside the embedded engine") as directory:
            measured += await measure_spark(directory)
    if "backfill" in groups:
        with _directory("history into an empty cluster by Spark") as directory:
            measured += await measure_backfill(directory)
    if "clients" in groups:
        with _directory("the official Python client, beside a Pulsar broker") as directory:
            directory.chmod(0o755)
            measured += await measure_clients(directory, err.print)
    if "go" in groups:
        with _directory("the official Go client, beside a Pulsar broker") as directory:
            directory.chmod(0o755)
            measured += await measure_go(directory, err.print)
    if "many" in groups:
        with _directory("many topics, one small message at a time, beside a Pulsar broker") as directory:
            directory.chmod(0o755)
            many = await measure_many(directory, err.print, scale)
            measured += many
            typer.echo(markdown(many))
    if "many-long" in groups:
        with _directory("many topics for ten minutes, beside a Pulsar broker") as directory:
            directory.chmod(0o755)
            measured += await measure_many_long(directory, err.print, scale)
    if "many-idle" in groups:
        with _directory("ten thousand topics with little to do, beside a Pulsar broker") as directory:
            directory.chmod(0o755)
            measured += await measure_many_idle(directory, err.print, scale)
    if "live" in groups:
        with _directory("many topics with replicated subscriptions, beside Pulsar's geo-replication") as directory:
            directory.chmod(0o755)
            live = await measure_live(directory, err.print, scale)
            measured += live
            typer.echo(live_markdown(live))
    if "connections" in groups:
        with _directory("a thousand connections, beside a Pulsar broker") as directory:
            directory.chmod(0o755)
            measured += await measure_connections(directory, err.print)
    if "reconnect" in groups:
        with _directory("ten thousand clients that connect at once, beside a Pulsar broker") as directory:
            directory.chmod(0o755)
            measured += await measure_reconnect(directory, err.print, scale)
    if "shared-port" in groups:
        with _directory("HTTP on the shared port") as directory:
            measured += await measure_shared_port(directory)
    if "security" in groups:
        with _directory("TLS and tokens, and hostile connections") as directory:
            directory.chmod(0o755)
            measured += await measure_security(directory, err.print)
    if "traces" in groups:
        with _directory("publishing and copying with traces and without") as directory:
            directory.chmod(0o755)
            measured += await measure_traces(directory, err.print)
    if "bridge-state" in groups:
        with _directory("the state of 1,000 subscriptions, between two Pulsar brokers") as directory:
            directory.chmod(0o755)
            measured += await measure_bridge_state(directory, err.print)
    if "peers" in groups:
        with _directory("the copy beside Pulsar's geo-replication and MirrorMaker 2") as directory:
            directory.chmod(0o755)
            results = await measure_peers(directory, err.print, rounds=rounds, scale=scale, only=systems)
            measured += results.measurements()
            typer.echo(results.markdown())
    return sorted(measured, key=lambda measurement: GROUPS.index(measurement.group))


async def _measure_network(groups: Collection[str]) -> list[Measurement]:
    """Return the figures of groups ``publish``, ``copy`` and ``consume``, as far as they are in ``groups``.

    For each size of message measure the peer, then our two cases, so that both see the machine in the same state.
    """
    server = find_server() if "copy" in groups else None
    if "copy" in groups and server is None:
        err.print("nats-server is not on this machine: figures come without a peer")
    measured: list[Measurement] = []
    limits: DiskLimits | None = None
    if "copy" in groups:
        with _directory("the disk, through the page cache and past it") as directory:
            limits = await asyncio.to_thread(measure_disk, directory)
        measured += limits.measurements("copy")
    peer_runs: dict[int, tuple[float, ...]] = {}
    for case in CASES:
        if server is not None and case.size_bytes not in peer_runs:
            peer_runs[case.size_bytes] = await _peer_runs(server, case)
        with _directory(f"{case.name}: {', '.join(sorted(_NETWORK.intersection(groups)))}") as directory:
            runs = await measure_case(case, groups, directory)
        for group, values in runs.items():
            peer = peer_runs.get(case.size_bytes, ()) if group == "copy" else ()
            measured.append(Measurement(f"{group}/{case.name}", case.unit, tuple(values), PEER if peer else None, peer))
            if group == "copy" and limits is not None:
                measured += limits.beside(f"copy/{case.name}/of-the-disk", tuple(map(case.mb_s, values)))
    return measured


async def _peer_runs(server: str, case: Case) -> tuple[float, ...]:
    with _directory(f"{case.size_name}: {PEER} ({server})") as directory:
        async with JetStreamPair(server, directory) as pair:
            return tuple(await pair.mirror_rates(case.of_copies()))


@contextmanager
def _directory(step: str) -> Iterator[Path]:
    """Print ``step``, the name of the next measurement, and yield a temporary directory for it."""
    err.print(step)
    with tempfile.TemporaryDirectory(prefix="replicator-bench-", ignore_cleanup_errors=True) as directory:
        yield Path(directory)


def _table(measurements: Collection[Measurement]) -> Table:
    table = Table()
    table.add_column("figure", no_wrap=True)
    for heading in ("median", "runs from", "to", "unit", "peer", "ratio"):
        table.add_column(heading, justify="left" if heading == "unit" else "right", no_wrap=True)
    group = ""
    for each in measurements:
        if group not in ("", each.group):
            table.add_section()
        group = each.group
        table.add_row(
            each.name,
            _number(each.value),
            _number(min(each.runs)),
            _number(max(each.runs)),
            each.unit,
            "" if each.peer_value is None else _number(each.peer_value),
            "" if each.ratio is None else f"{each.ratio:.2f} ×",
        )
    return table


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


if __name__ == "__main__":
    typer.run(main)
