"""``replicator verify``: are the clusters of a topology in step?"""

from __future__ import annotations

import math
from dataclasses import replace
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
from replicator.cli.output import Shown, progress_lines
from replicator.pipeline.json_types import VerifyAnswer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TopicNames = Annotated[
    list[str] | None, typer.Option("--topic", metavar="NAME", help="Verify only this topic; may be given again.")
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
        help="Verify only messages published since TIME: a time such as 2026-01-31T12:00:00Z, or so long ago, such as "
        "2h.",
    ),
]
Sample = Annotated[
    str | None,
    typer.Option(
        metavar="SHARE",
        help="Share of the blocks whose contents are read, such as 1%; of the others only the stored checksums are "
        "compared.",
    ),
]
Fix = Annotated[
    bool,
    typer.Option(
        "--fix",
        help="Repair what can be repaired safely, print what was done and what is left, and verify "
        "again. Deletes nothing.",
    ),
]
Brokers = Annotated[
    bool,
    typer.Option(
        "--brokers",
        help="Also compare the messages at the brokers of clusters of kind pulsar: read all of them, "
        "and change nothing.",
    ),
]
ReadAll = Annotated[
    bool,
    typer.Option("--read-all", help="Read the logs of all topics, even if digests say that the clusters agree."),
]
Parquet = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Empty or new directory to write all differences to, as Parquet files with one row for each.",
    ),
]
Master = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Spark master. Default: pipeline.master of the topology, or no Spark for a small amount of data.",
    ),
]
Settle = Annotated[
    str,
    typer.Option(
        metavar="DURATION", help="Time to wait for messages that may be on their way before they count as missing."
    ),
]

Details = Annotated[bool, typer.Option("--details", help="Print every topic that has faults, with all kept examples.")]


def verify(
    file: TopologyFile,
    topics: TopicNames = None,
    patterns: Patterns = None,
    since: Since = None,
    sample: Sample = None,
    fix: Fix = False,
    brokers: Brokers = False,
    read_all: ReadAll = False,
    parquet: Parquet = None,
    master: Master = None,
    settle: Settle = "10s",
    details: Details = False,
) -> Shown[VerifyAnswer]:
    """Compare the clusters of a topology: entries, their order and contents, mappings, and acknowledgements.

    Workers make a digest of each topic. Logs are read if digests differ, or with --read-all, --since, --sample or
    --master. It runs on Spark if there is much to compare or --master is given, else in this process. Messages at
    brokers are always compared in this process. Exit status 0 only if all clusters agree, 1 for faults, 2 for a wrong
    option, 3 if a cluster could not be compared.
    """
    if topics and patterns:
        raise typer.BadParameter("--topic and --topics cannot be given together: give one of them")
    sampled = None if sample is None else _share(sample)
    since_ms = None if since is None else int(moment(since, "--since").timestamp() * 1000)
    settle_seconds = duration_seconds(settle, "--settle")
    master = spark_master(master)

    from replicator.pipeline.errors import BadOption
    from replicator.pipeline.spark.session import spark_session
    from replicator.pipeline.verify.blocks import Selection
    from replicator.pipeline.verify.brokers.found import not_read
    from replicator.pipeline.verify.brokers.verification import verify_brokers
    from replicator.pipeline.verify.cluster_state import named_filter, topic_filter
    from replicator.pipeline.verify.difference_files import BROKERS, DifferenceFiles
    from replicator.pipeline.verify.fix import fix_and_verify
    from replicator.pipeline.verify.verify import VerifySettings, format_report
    from replicator.pipeline.verify.verify import verify as run_verify

    topology = opened_topology(file)
    beside = [cluster.name for cluster in topology.clusters if cluster.apache is not None]
    if brokers and not beside:
        raise BadOption("brokers", "no cluster of the topology is of kind pulsar")
    if brokers and sampled is not None:
        raise BadOption(
            "sample",
            "not with --brokers, which deliver whole topics, so that a sample of them costs as much as all: compare "
            "fewer topics (--topic, --topics) instead",
        )
    urls = {cluster.name: cluster.url for cluster in topology.clusters}
    started: list[SparkSession] = []

    def start_spark() -> SparkSession:
        if not started:
            started.append(spark_session(master or topology.pipeline.master, conf=topology.pipeline.conf))
        return started[0]

    settings = VerifySettings(Selection(since_ms, sampled), settle_seconds, parquet, digests=not read_all)
    wanted = topic_filter(patterns) if patterns else None
    if parquet is not None:
        DifferenceFiles(parquet)  # before seconds or minutes of work whose result could not be written
    try:
        spark = start_spark if master is None else start_spark()
        chosen_topics = topics or None
        with progress_lines() as progress:
            if fix:
                report = fix_and_verify(spark, urls, topology.links, chosen_topics, wanted, settings, file, progress)
            else:
                report = run_verify(
                    spark, urls, topology.links, chosen_topics, wanted=wanted, settings=settings, progress=progress
                )
        if brokers:
            chosen = named_filter(topics) if topics else wanted or (lambda _: True)
            found = verify_brokers(
                topology,
                chosen,
                settle_seconds=settle_seconds,
                since_ms=since_ms,
                parquet=None if parquet is None else parquet / BROKERS,
            )
            report = found.joined(report, fix=fix)
        elif beside:
            report = replace(report, remarks=(*report.remarks, not_read(beside)))
    finally:
        for session in started:
            session.stop()
    if patterns and not report.topics and not report.unreachable:
        raise BadOption(
            "topics",
            f"no cluster has a topic that {', '.join(patterns)} stands for; a pattern stands for whole names, without "
            "the partition, such as public/default/orders-.*",
        )
    return Shown(report.as_json(), format_report(report, details=details), status=report.exit_status)


def _share(text: str) -> float:
    number = text.strip().removesuffix("%")
    try:
        share = float(number) / (100 if text.strip().endswith("%") else 1)
    except ValueError:
        share = math.nan
    if not 0 < share <= 1:
        raise typer.BadParameter(f"--sample: {text[:40]!r} is not a share such as 1% or 0.01")
    return share
