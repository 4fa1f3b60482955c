"""``replicator drill``: sets the stage, runs the scenario, verifies, writes the report, and keeps it."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final

import aiohttp
import uvloop
from rich.console import Console

from replicator.drills import canary
from replicator.drills.compare import render_comparison, render_runs
from replicator.drills.errors import DrillError
from replicator.drills.input import InputMessage, InputSource
from replicator.drills.jobs import BOTH, SYNC_MODES, DrillOptions, Job, input_of, plan_jobs
from replicator.drills.judge import EXACT
from replicator.drills.measures import measure
from replicator.drills.progress_bars import OnProgress, progress_bars
from replicator.drills.report import build_report, render_table, write, write_json
from replicator.drills.run_store import StorePlace, find_place, new_run, opened_store
from replicator.drills.scenarios.cast import Cast
from replicator.drills.scenarios.operator import Failover
from replicator.drills.scenarios.run import Outcome, Progress, Run
from replicator.drills.stage import Stage, prepare_directory, remove_data, set_stage
from replicator.failover.peers import Peers
from replicator.failover.rules import differences
from replicator.failover.switch import Switch
from replicator.index.database import DatabaseError
from replicator.operating.plan import ask_rules
from replicator.running import ending
from replicator.running.short_tasks import awaited
from replicator.security.asking import worker_session
from replicator.topology import Topology
from snapshots.errors import SnapshotsError

VERIFY_SECONDS_MAX: Final = 600.0
PREPARED_MESSAGES_MAX: Final = 250_000
"""Some 100 MB of flights; of a larger input the rest is made on the way."""
COLLECTOR_THRESHOLDS: Final = (100_000, 50, 100)
"""Of the garbage collector, while a drill runs: it holds hundreds of thousands of messages, none of them garbage, and
to go through them again and again would take a quarter of its time."""
UPDATE_MARKER: Final = "subscription_update"


def run_drill(options: DrillOptions, console: Console) -> dict[str, Any]:
    """Run what is asked for; returns the report, or for several runs ``{"passed", "runs"}``.

    Raises :class:`DrillError`, :class:`TopologyError`, :class:`WorkerFailed`, :class:`FailoverError`,
    :class:`ExtraMissing`.
    """
    source = input_of(options)
    jobs, left_out = plan_jobs(options)
    count = source.check()
    place = find_place(options.store, options.out_dir, jobs[0].setting.topology)
    for job in jobs:
        prepare_directory(job.setting)
    reports = []
    for number, job in enumerate(jobs):
        if len(jobs) > 1 and not options.quiet:
            console.print(f"{number + 1} of {len(jobs)}: {job.setting.out_dir.name}", style="bold", highlight=False)
        report = _run_job(options, job, source, count, place, console)
        reports.append(report)
        if not options.quiet:
            console.print(render_table(report) if len(jobs) == 1 else _verdict_line(report))
    if len(jobs) == 1:
        result = reports[0]
        where = options.out_dir / "report.html"
    else:
        result = {"passed": all(report["passed"] for report in reports), "runs": reports, "left_out": left_out}
        where = options.out_dir / "report.json"
        write_json(result, where)
        if not options.quiet:
            console.print(render_runs(reports))
            for reason in left_out:
                console.print(f"left out: {reason}", style="dim", markup=False, highlight=False)
            if options.sync == BOTH and len(reports) == len(SYNC_MODES):
                console.print(render_comparison((reports[0], reports[1]), SYNC_MODES))
    if options.json_path is not None:
        options.json_path.write_text(json.dumps(result, indent=2) + "\n")
    if not options.quiet:
        console.print(f"report: {where}", highlight=False, soft_wrap=True)
        console.print(f"kept in: {place.shown} (replicator drills list)", highlight=False, soft_wrap=True)
    return result


def _verdict_line(report: Mapping[str, Any]) -> str:
    return "passed" if report["passed"] else f"FAILED: {report['failures'][0]}"


def _prepared(source: InputSource) -> Iterator[InputMessage]:
    """The messages, with the first ones made: finding and forming them is no part of the drill, which has to keep the
    pace of its clients with one core."""
    messages = iter(source)
    return chain(list(islice(messages, PREPARED_MESSAGES_MAX)), messages)


# One run.


@dataclass(frozen=True, slots=True)
class _Seen:
    """What can only be asked while the workers run."""

    mappings: int
    verified: dict[str, Any]
    tracebacks: dict[str, int]
    differences: list[str]
    """What clients find otherwise after a switch of the pair."""


def _run_job(
    options: DrillOptions, job: Job, source: InputSource, count: int, place: StorePlace, console: Console
) -> dict[str, Any]:
    started, started_at = time.monotonic(), datetime.now(UTC)
    usual = gc.get_threshold()
    try:
        gc.set_threshold(*COLLECTOR_THRESHOLDS)
        with progress_bars(options.quiet, console, count, [each.name for each in job.subscriptions]) as on_progress:
            outcome, seen, topology = uvloop.run(_run(options, job, source, count, on_progress))
    except asyncio.CancelledError:
        raise DrillError("the drill was stopped by SIGTERM; what it had started is stopped too") from None
    finally:
        gc.set_threshold(*usual)
        if not options.keep_data:
            remove_data(job.setting)
    measures = measure(outcome.observations)
    report = build_report(
        scenario=job.scenario.name,
        engine=" and ".join(sorted({topology.engine_of(link) for link in topology.links})) or "none",
        seed=options.seed,
        measures=measures,
        verify=seen.verified,
        extras={
            "input": source.description,
            "topic": outcome.topic,
            "rate": options.rate,
            "client": job.client,
            "secure": options.secure,
            "sync": getattr(topology.sync, "mode", EXACT),
            "links": "both-ways" if job.cast.both_ways else "one-way",
            "clusters": list(topology.names),
            "pair": list(job.cast.pair),
            "judged": sorted(each.name for each in job.scenario.judged),
            "differences": seen.differences,
            "tasks_ended": os.environ.get(ending.VARIABLE),
            "not_checked": _not_checked(job.cast),
            "failover_reports": outcome.failovers,
            "connections": {name: status["clients"]["accepted"] for name, status in outcome.statuses.items()},
            "databases": {name: status["database"]["state"] for name, status in outcome.statuses.items()},
            "snapshot_mappings": seen.mappings,
            "worker_tracebacks": seen.tracebacks,
            "subscription_updates": _updates(seen.verified),
            "unsettled": outcome.unsettled,
            "started_at": started_at.isoformat(timespec="seconds"),
            "traffic_seconds": round(outcome.ended_s - outcome.started_s, 3),
            "wall_seconds": round(time.monotonic() - started, 3),
        },
    )
    report |= _keep(job, topology, started_at, report, place)
    write(report, measures.series, job.setting.out_dir)
    return report


def _not_checked(cast: Cast) -> list[str]:
    if cast.both_ways:
        return []
    return [
        f"there is no link from {cast.secondary} to {cast.primary}: what is published and acknowledged at "
        f"{cast.secondary} is not expected at {cast.primary}, whose subscriptions keep a backlog"
    ]


def _keep(
    job: Job, topology: Topology, started_at: datetime, report: dict[str, Any], place: StorePlace
) -> dict[str, Any]:
    """Keep the run in Postgres. A drill whose result cannot be kept is still a drill: the report says so."""
    run = new_run(job.scenario.name, topology, started_at, report)

    async def keep() -> None:
        async with opened_store(place, make=True) as repository:
            await repository.save_drill_run(run)

    try:
        asyncio.run(keep())
    except (DatabaseError, SnapshotsError) as error:
        return {"id": run.id, "kept": f"not kept: {error}"}
    return {"id": run.id, "kept": place.shown}


async def _run(
    options: DrillOptions, job: Job, source: InputSource, count: int, on_progress: OnProgress
) -> tuple[Outcome, _Seen, Topology]:
    _stop_in_order_on_sigterm()
    preparing = awaited(asyncio.to_thread(_prepared, source))  # while the workers start
    async with set_stage(job.setting) as stage:
        if job.setting.is_running:
            await canary.check_namespace(stage.topology, options.namespace)
        try:
            run = Run(
                stage,
                job.scenario,
                job.subscriptions,
                job.cast,
                topic=job.topic,
                messages=await preparing,
                count=count,
                rate=options.rate,
                seed=options.seed,
                client=job.client,
                out_dir=job.setting.out_dir,
                failover=_failover(stage.topology),
                on_progress=on_progress,
            )
            try:
                outcome = await run.run()
            except ExceptionGroup as errors:
                raise errors.exceptions[0] from None
            everything = {each.name: count for each in job.subscriptions}
            on_progress(Progress("verifying", count, count, everything))
            return outcome, await _look(job, stage), stage.topology
        finally:
            if job.setting.is_running:
                for left in await canary.remove_topic(stage.topology, job.topic):
                    print(f"{job.topic} could not be removed: {left}", file=sys.stderr)


def _stop_in_order_on_sigterm() -> None:
    """As Ctrl-C does: what was started is stopped. Else workers would outlive a drill that a script ends."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)


async def _look(job: Job, stage: Stage) -> _Seen:
    return _Seen(
        mappings=await _count_mappings(stage.topology, job.topic),
        differences=await _differences(stage.topology, job.cast.pair),
        verified=await asyncio.to_thread(_verify, stage.topology_file, job.topic, job.setting.out_dir),
        tracebacks=stage.workers.tracebacks(),
    )


def _failover(topology: Topology) -> Failover:
    """``replicator failover`` and ``failback``, as an operator gives them."""

    async def fail_over(source: str, to: str, planned: bool, back: bool) -> dict[str, Any]:
        async with Peers({cluster.name: cluster.address for cluster in topology.clusters}) as peers:
            switch = Switch(topology, peers)
            report = await (switch.failback(to) if back else switch.failover(source, to, planned=planned))
        if report.outcome != "done":
            raise DrillError(f"the failover from {source} to {to} was {report.outcome}: {report.reason}")
        return report.as_json()

    return fail_over


async def _differences(topology: Topology, pair: tuple[str, str]) -> list[str]:
    rules = await ask_rules(topology)
    primary, secondary = pair
    return differences(rules[primary], rules[secondary]) if primary in rules and secondary in rules else []


async def _count_mappings(topology: Topology, topic: str) -> int:
    """Snapshot mappings that Postgres holds in all clusters; none of those whose database is away."""
    total = 0
    async with worker_session(timeout=aiohttp.ClientTimeout(total=10)) as session:
        for cluster in topology.clusters:
            async with session.get(f"{cluster.url}/replication/v1/mappings", params={"topic": topic}) as response:
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
