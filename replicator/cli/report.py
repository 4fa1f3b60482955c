"""``replicator report``: what is in the topics of a topology's clusters, as tables, JSON, Parquet and a page."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from replicator.cli.admin import (
    TopologyFile,
    duration_seconds,
    moment,
    opened_topology,
    spark_master,
)
from replicator.cli.output import Shown
from replicator.pipeline.json_types import ReportAnswer

if TYPE_CHECKING:
    from replicator.pipeline.analytics.assignments import Assignment
    from replicator.topology import Topology

Clusters = Annotated[
    list[str] | None,
    typer.Option("--cluster", "-c", metavar="NAME", help="Read only the log of this cluster; may be given again."),
]
Patterns = Annotated[
    list[str] | None,
    typer.Option(
        "--topics",
        metavar="PATTERN",
        help="Read only topics of this name or pattern, written as in a link's `topics`; may be given again.",
    ),
]
Since = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Read only messages published since TIME: a time such as 2026-01-31T12:00:00Z, or so long ago, such as "
        "24h.",
    ),
]
OutDirectory = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR", help="Directory to write report.html, report.json and one Parquet file for each table to."
    ),
]
Consumers = Annotated[
    int,
    typer.Option(
        min=1,
        max=65_536,
        metavar="N",
        help="Number of consumers that keys are shared out to in the report, if no Key_Shared consumer is connected.",
    ),
]
Window = Annotated[
    str,
    typer.Option(
        metavar="DURATION",
        help="Two messages with equal key and payload count as repeated if no more time than this lies between them, "
        "such as 10m.",
    ),
]
Master = Annotated[
    str | None, typer.Option(metavar="URL", help="Spark master. Default: pipeline.master of the topology.")
]


def report(
    file: TopologyFile,
    cluster: Clusters = None,
    topics: Patterns = None,
    since: Since = None,
    out: OutDirectory = None,
    consumers: Consumers = 4,
    window: Window = "60s",
    master: Master = None,
) -> Shown[ReportAnswer]:
    """Analyse topics with Spark: throughput, replication lag, keys and skew, repeated messages, sizes.

    docs/reports.md says what each figure means.
    """
    start = None if since is None else moment(since, "--since")
    window_seconds = duration_seconds(window, "--window")
    master = spark_master(master)
    if window_seconds < 1:
        raise typer.BadParameter("--window: must be at least 1s")

    if out is not None:
        _check_out(out)

    topology = opened_topology(file)
    chosen = [topology.cluster(name) for name in dict.fromkeys(cluster)] if cluster else list(topology.clusters)

    from replicator.pipeline.analytics.report import Wanted, find_topics, make_report
    from replicator.pipeline.analytics.summary import format_report
    from replicator.pipeline.spark.session import session_while

    wanted = Wanted(tuple(topics or ()), start, consumers, window_seconds)
    urls = {each.name: each.url for each in chosen}
    found = find_topics(urls, wanted.topics)  # before Spark is started, which takes seconds
    running = asyncio.run(_running(topology, [each.name for each in chosen]))
    with session_while(master or topology.pipeline.master, "replicator report", conf=topology.pipeline.conf) as spark:
        result = make_report(spark, urls, wanted, running, found)
    if out is not None:
        _write(result, out)
    return Shown(result.as_json(), format_report(result))


def _check_out(directory: Path) -> None:
    """Check that the result can be written, before the minutes of work."""
    from replicator.running.extras import require_extra

    require_extra("report", "--out: drawing charts")
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise typer.BadParameter(
            f"--out: the directory {directory} cannot be made: {error.strerror or error}"
        ) from None


async def _running(topology: Topology, names: list[str]) -> list[Assignment]:
    """Return one assignment of consumers for each Key_Shared subscription of the workers ``names``.

    A worker that does not answer has none here. It is reported when it is read.
    """
    from replicator.operating.status import fetch_all
    from replicator.pipeline.analytics.assignments import running_assignments

    answers = await fetch_all(topology)
    return [each for name in names for each in running_assignments(name, answers[name])]


def _write(result: object, directory: Path) -> None:
    import json

    from replicator.pipeline.analytics.page import render_html
    from replicator.pipeline.analytics.report import Report

    assert isinstance(result, Report)
    try:
        result.write_parquet(directory)
        (directory / "report.json").write_text(json.dumps(result.as_json(), indent=1), encoding="utf-8")
        (directory / "report.html").write_text(render_html(result), encoding="utf-8")
    except OSError as error:
        raise typer.BadParameter(
            f"--out: the report cannot be written to {directory}: {error.strerror or error}"
        ) from None
