"""``replicator drill``: sets the stage, runs the scenario, verifies, writes the report, and keeps it."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain, islice
from typing import Any, Final

import uvloop
from rich.console import Console, Group, RenderableType
from rich.text import Text

from replicator.drills.compare import render_comparison, render_runs
from replicator.drills.errors import DrillError
from replicator.drills.input import InputMessage, InputSource
from replicator.drills.jobs import BOTH, SYNC_MODES, DrillOptions, falls_back_to_embedded, input_of
from replicator.drills.measures import Measures, measure
from replicator.drills.progress_bars import OnProgress, progress_bars
from replicator.drills.report import OWN_FIELDS, build_report, render_table, write, write_json
from replicator.drills.run_store import StorePlace, find_place, new_run, opened_store
from replicator.drills.scenarios.cast import Cast
from replicator.drills.scenarios.run import Outcome, Run
from replicator.drills.systems.catalog import plan
from replicator.drills.systems.system import Findings, Job
from replicator.index.database import DatabaseError
from replicator.running import ending
from replicator.running.extras import how_to_install
from replicator.running.short_tasks import awaited
from snapshots.errors import SnapshotsError

PREPARED_MESSAGES_MAX: Final = 250_000
"""Messages made before the drill, some 100 MB of flights. The rest of a larger input is made during the drill."""
COLLECTOR_THRESHOLDS: Final = (100_000, 50, 100)
"""Thresholds of the garbage collector during a drill. A drill holds hundreds of thousands of messages, and no
garbage: with the default thresholds, collecting would take a quarter of its time."""


Showing = Callable[[bool, Console, int, Sequence[str]], AbstractContextManager[OnProgress]]
"""Function that shows the progress of a drill. It gets: whether to be quiet, the console, the number of messages,
and the names of subscriptions."""


def run_drill(
    options: DrillOptions, console: Console, *, showing: Showing = progress_bars
) -> tuple[dict[str, Any], RenderableType]:
    """Run the requested drills, with progress on ``console``. Return the report, or for several runs ``{"passed",
    "runs"}``, and its form for people.

    Raises :class:`DrillError`, :class:`TopologyError`, :class:`WorkerFailed`, :class:`FailoverError`,
    :class:`ExtraMissing`.
    """
    source = input_of(options)
    jobs, left_out = plan(options)
    count = source.check()
    place = find_place(options.store, options.out_dir, jobs[0].topology, options.kept_by)
    if not options.quiet and falls_back_to_embedded(options):
        brings = f"{how_to_install('drill')} brings Spark, and real flights for messages"
        console.print(f"Spark is not installed, so the embedded engine carries the links; {brings}", style="dim")
    for job in jobs:
        job.prepare()
    reports = []
    for number, job in enumerate(jobs):
        if len(jobs) > 1 and not options.quiet:
            console.print(f"{number + 1} of {len(jobs)}: {job.out_dir.name}", style="bold")
        report = _run_job(options, job, source, count, place, console, showing)
        reports.append(report)
        if len(jobs) > 1 and not options.quiet:
            console.print(_verdict_line(report))
    shown: list[RenderableType]
    if len(jobs) == 1:
        result = reports[0]
        where = options.out_dir / "report.html"
        shown = [render_table(result)]
    else:
        result = {"passed": all(report["passed"] for report in reports), "runs": reports, "left_out": left_out}
        where = options.out_dir / "report.json"
        write_json(result, where)
        shown = [render_runs(reports), *(Text(f"left out: {reason}", style="dim") for reason in left_out)]
        if options.sync == BOTH and len(reports) == len(SYNC_MODES):
            shown.append(render_comparison((reports[0], reports[1]), SYNC_MODES))
    if options.json_path is not None:
        options.json_path.write_text(json.dumps(result, indent=2) + "\n")
    kept = (f"report: {where}", f"kept in: {place.shown} (replicator drills list)")
    return result, Group(*shown, *(Text(line, no_wrap=True, overflow="ignore") for line in kept))


def _verdict_line(report: Mapping[str, Any]) -> str:
    return "passed" if report["passed"] else f"FAILED: {report['failures'][0]}"


def _prepared(source: InputSource) -> Iterator[InputMessage]:
    """Return the messages; make the first :data:`PREPARED_MESSAGES_MAX` at once. Making them is not part of the drill,
    which must keep its clients' pace with one core.
    """
    messages = iter(source)
    return chain(list(islice(messages, PREPARED_MESSAGES_MAX)), messages)


# One run.


def _run_job(
    options: DrillOptions,
    job: Job,
    source: InputSource,
    count: int,
    place: StorePlace,
    console: Console,
    showing: Showing,
) -> dict[str, Any]:
    started, started_at = time.monotonic(), datetime.now(UTC)
    usual = gc.get_threshold()
    try:
        gc.set_threshold(*COLLECTOR_THRESHOLDS)
        with showing(options.quiet, console, count, [each.name for each in job.subscriptions]) as on_progress:
            ran = uvloop.run(_run(options, job, source, count, on_progress))
    except asyncio.CancelledError:
        raise DrillError("the drill was stopped by SIGTERM; what it had started is stopped too") from None
    finally:
        gc.set_threshold(*usual)
        job.clear()
    outcome, findings = ran.outcome, ran.findings
    measures = measure(outcome.observations)
    report = build_report(
        scenario=job.scenario.name,
        engine=findings.engine,
        seed=options.seed,
        measures=measures,
        verify=findings.verify,
        extras={
            "system": findings.system,
            "input": source.description,
            "topic": outcome.topics[0],
            "topics": len(outcome.topics),
            "rate": options.rate,
            "client": job.client,
            "secure": options.secure,
            "sync": findings.sync,
            "links": "both-ways" if ran.cast.both_ways else "one-way",
            "clusters": list(ran.clusters),
            "pair": list(ran.cast.pair),
            "judged": sorted(each.name for each in job.scenario.judged),
            "tasks_ended": os.environ.get(ending.VARIABLE),
            "not_checked": _not_checked(ran.cast),
            "failover_reports": outcome.failovers,
            "lost_disks": [
                {**each, **findings.stores.get(each["cluster"], {}), **_lost_messages(measures, each["cluster"])}
                for each in outcome.lost_disks
            ],
            **dict.fromkeys(OWN_FIELDS),
            **findings.more,
            "lacks": list(findings.lacks),
            "configuration": findings.configuration,
            "snapshot_mappings": findings.snapshot_mappings,
            "subscription_updates": findings.subscription_updates,
            "unsettled": outcome.unsettled,
            "started_at": started_at.isoformat(timespec="seconds"),
            "traffic_seconds": round(outcome.ended_s - outcome.started_s, 3),
            "wall_seconds": round(time.monotonic() - started, 3),
        },
        topics=outcome.topics,
    )
    report |= _keep(job, started_at, report, place)
    write(report, measures.series, job.out_dir)
    return report


def _lost_messages(measures: Measures, cluster: str) -> dict[str, int]:
    """Return the fields of a lost disk that were measured."""
    found = {each.cluster: each for each in measures.lost_disks}
    if cluster not in found:
        return {}
    of = found[cluster]
    return {"lost_messages": of.lost, "named_messages": of.named, "differing_messages": of.differing}


def _not_checked(cast: Cast) -> list[str]:
    if cast.both_ways:
        return []
    return [
        f"there is no link from {cast.secondary} to {cast.primary}: what is published and acknowledged at "
        f"{cast.secondary} is not expected at {cast.primary}, whose subscriptions keep a backlog"
    ]


def _keep(job: Job, started_at: datetime, report: dict[str, Any], place: StorePlace) -> dict[str, Any]:
    """Keep the run in Postgres. A drill whose result cannot be kept is still a drill: the report says so."""
    run = new_run(job.scenario.name, job.digest, started_at, report)

    async def keep() -> None:
        async with opened_store(place, make=True) as repository:
            await repository.save_drill_run(run)

    try:
        asyncio.run(keep())
    except (DatabaseError, SnapshotsError) as error:
        return {"id": run.id, "kept": f"not kept: {error}"}
    return {"id": run.id, "kept": place.shown}


@dataclass(frozen=True, slots=True)
class _RunResult:
    """Results of a run that remain when its clusters are gone."""

    outcome: Outcome
    findings: Findings
    cast: Cast
    clusters: tuple[str, ...]


async def _run(options: DrillOptions, job: Job, source: InputSource, count: int, on_progress: OnProgress) -> _RunResult:
    _stop_in_order_on_sigterm()
    preparing = awaited(asyncio.to_thread(_prepared, source))  # while the clusters start
    async with job.opened() as system:
        run = Run(
            system,
            job.scenario,
            job.subscriptions,
            messages=await preparing,
            count=count,
            rate=options.rate,
            seed=options.seed,
            on_progress=on_progress,
        )
        try:
            outcome = await run.run()
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        on_progress(replace(run.progress(), phase="verifying"))
        return _RunResult(outcome, await system.findings(), system.cast, system.clusters)


def _stop_in_order_on_sigterm() -> None:
    """Cancel the drill on SIGTERM, as Ctrl-C does. Otherwise workers would outlive a drill that a script ends."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
