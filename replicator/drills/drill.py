"""``replicator drill``: sets the stage, runs the scenario, verifies with Spark, and writes the report."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final

import aiohttp
import uvloop
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from replicator.drills import scenario as scenarios
from replicator.drills.errors import DrillError, InputError
from replicator.drills.input import Flights, InputMessage, InputSource, JsonLines
from replicator.drills.measures import measure
from replicator.drills.report import build_report, render_table, write
from replicator.drills.scenario import Outcome, Run, Scenario
from replicator.topology import Topology, default_topology, dump, load_topology

VERIFY_SECONDS_MAX: Final = 600.0
UPDATE_MARKER: Final = "subscription_update"


@dataclass(frozen=True, slots=True)
class DrillOptions:
    """What the command line gives; see ``replicator drill --help``."""

    messages: int
    input_file: Path | None
    key: str | None
    topology_file: Path | None
    scenario: str
    rate: int
    seed: int
    out_dir: Path
    json_path: Path | None
    keep_data: bool
    quiet: bool


def run_drill(options: DrillOptions, console: Console) -> dict[str, Any]:
    """Run one drill; returns its report. Raises :class:`DrillError`, :class:`InputError`, :class:`TopologyError`."""
    started = time.monotonic()
    scenario = _scenario(options.scenario)
    source = _input(options)
    count = source.check()
    topology, topology_file = _stage(options)
    try:
        with _progress_bars(options.quiet, console, count) as on_progress:
            outcome, verified, mappings = uvloop.run(
                _run(options, topology, topology_file, scenario, source, count, on_progress)
            )
    finally:
        if not options.keep_data and options.topology_file is None:
            shutil.rmtree(options.out_dir / "data", ignore_errors=True)
    measures = measure(outcome.observations)
    report = build_report(
        scenario=scenario.value,
        engine=topology.pipeline.engine,
        seed=options.seed,
        measures=measures,
        verify=verified,
        extras={
            "input": source.description,
            "topic": outcome.topic,
            "rate": options.rate,
            "clusters": list(topology.names),
            "snapshot_mappings": mappings,
            "subscription_updates": _updates(verified),
            "unsettled": outcome.unsettled,
            "traffic_seconds": round(outcome.ended_s - outcome.started_s, 3),
            "wall_seconds": round(time.monotonic() - started, 3),
        },
    )
    write(report, measures.series, options.out_dir)
    if options.json_path is not None:
        options.json_path.write_text(json.dumps(report, indent=2) + "\n")
    if not options.quiet:
        console.print(render_table(report))
        console.print(f"report: {options.out_dir / 'report.html'}", highlight=False, soft_wrap=True)
    return report


async def _run(
    options: DrillOptions,
    topology: Topology,
    topology_file: Path,
    scenario: Scenario,
    source: InputSource,
    count: int,
    on_progress: _OnProgress,
) -> tuple[Outcome, dict[str, Any], int]:
    run = Run(
        topology,
        topology_file,
        options.out_dir,
        scenario=scenario,
        messages=_started(source),
        count=count,
        rate=options.rate,
        seed=options.seed,
        on_progress=on_progress,
    )
    try:
        await run.start()
        try:
            outcome = await run.run()
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        on_progress(scenarios.Progress("verifying with Spark", count, count, count, count))
        mappings = await _count_mappings(topology, outcome.topic)
        verified = await asyncio.to_thread(_verify, topology_file, outcome.topic, options.out_dir)
        return outcome, verified, mappings
    finally:
        await run.stop()


async def _count_mappings(topology: Topology, topic: str) -> int:
    """Snapshot mappings that Postgres holds in all clusters."""
    total = 0
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as session:
        for cluster in topology.clusters:
            url = f"http://{cluster.address}/replication/v1/mappings"
            async with session.get(url, params={"topic": topic}) as response:
                total += len((await response.json()).get("mappings", ()))
    return total


def _verify(topology_file: Path, topic: str, out_dir: Path) -> dict[str, Any]:
    """``replicator verify`` as a user would run it; its log goes to verify.log."""
    command = [sys.executable, "-m", "replicator.cli", "verify", "--file", str(topology_file), "--topic", topic]
    with (out_dir / "verify.log").open("wb") as log:
        done = subprocess.run(
            [*command, "--output", "json"], stdout=subprocess.PIPE, stderr=log, timeout=VERIFY_SECONDS_MAX, check=False
        )
    if done.returncode not in (0, 1):
        raise DrillError(f"verify ended with status {done.returncode}; see {out_dir / 'verify.log'}")
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def _updates(verified: dict[str, Any]) -> int:
    """Update markers in the logs: each is written in one cluster and copied to the other, so the larger count is of
    those that arrived everywhere."""
    return max((counts["markers"].get(UPDATE_MARKER, 0) for counts in verified["clusters"].values()), default=0)


# The stage.


def _scenario(name: str) -> Scenario:
    try:
        return Scenario(name)
    except ValueError:
        names = ", ".join(each.value for each in Scenario)
        raise DrillError(f"--scenario {name!r} is not known; there are: {names}") from None


def _input(options: DrillOptions) -> InputSource:
    if options.input_file is None:
        if options.key is not None:
            raise InputError("--key goes with --input FILE.jsonl; the flights are keyed by tail number")
        return Flights(options.messages)
    if options.key is None:
        raise InputError(f"--input {options.input_file} needs --key FIELD, the field that is the message key")
    return JsonLines(options.input_file, options.key, options.messages)


def _started(source: InputSource) -> Iterator[InputMessage]:
    """The messages, with the first one taken: finding it may mean sorting the input, which is no part of the drill."""
    messages = iter(source)
    return chain([next(messages)], messages)


def _stage(options: DrillOptions) -> tuple[Topology, Path]:
    """The topology to run on, and a file of it for the workers. Makes the output directory."""
    if options.topology_file is not None:
        topology = load_topology(options.topology_file)
        scenarios.choose_pair(topology)
    try:
        options.out_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DrillError(f"--out {options.out_dir} cannot be used: {error.strerror}") from None
    if options.topology_file is not None:
        return topology, options.topology_file
    data = options.out_dir.absolute() / "data"
    shutil.rmtree(data, ignore_errors=True)
    file = options.out_dir.absolute() / "topology.yaml"
    file.write_text(dump(default_topology(data, _free_ports(2))))
    return load_topology(file), file


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


# Progress bars.


class _OnProgress:
    """Moves the bars; does nothing where there are none."""

    def __init__(self, bars: Progress | None = None, tasks: dict[str, TaskID] | None = None) -> None:
        self._bars = bars
        self._tasks = tasks or {}

    def __call__(self, progress: scenarios.Progress) -> None:
        if self._bars is not None:
            for name, task in self._tasks.items():
                self._bars.update(task, completed=getattr(progress, name))
            self._bars.update(self._tasks["published"], description=f"published  [dim]{progress.phase}")


@contextmanager
def _progress_bars(quiet: bool, console: Console, count: int) -> Iterator[_OnProgress]:
    if quiet:
        yield _OnProgress()
        return
    columns = (
        SpinnerColumn(),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console, refresh_per_second=5) as bars:
        names = {"published": "published", "confirmed": "confirmed"}
        names |= {"exclusive": "consumed by the Exclusive subscription", "shared": "consumed by the Shared one"}
        yield _OnProgress(bars, {name: bars.add_task(text, total=count) for name, text in names.items()})
