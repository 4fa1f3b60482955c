"""Verify: are the clusters of a topology in step, message by message?

Reads every cluster's topics through the ``replicator`` data source, and subscriptions and mappings through the same
data plane, compares them in Spark (:mod:`replicator.pipeline.reconcile` says how), and reports what is
wrong. Two Spark jobs if nothing is; a further one for the examples of each kind of fault.

The clusters must be at rest, or what is on its way counts as missing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's users write it

from replicator.engine.topic_name import parse_topic
from replicator.pipeline.acks import acked_sets
from replicator.pipeline.data_plane import DataPlane, SubscriptionState
from replicator.pipeline.errors import BadOption, UnexpectedAnswer
from replicator.pipeline.reconcile import READ_COLUMNS, Scope, identities, ordered, row_faults
from replicator.pipeline.report import (
    EXAMPLES_MAX,
    FAULTS,
    ClusterCounts,
    Finding,
    VerifyReport,
    format_report,
    marker_name,
)
from replicator.pipeline.source import FORMAT_NAME
from replicator.pipeline.ways import Ways, ways_of
from replicator.topology import Link
from snapshots.mapping import SnapshotMapping

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["VerifyReport", "format_report", "verify"]


def verify(
    spark: SparkSession,
    clusters: Mapping[str, str],
    links: Sequence[Link],
    topics: Collection[str] | None = None,
) -> VerifyReport:
    """Compare ``clusters`` (name to worker URL) over ``links``, in ``topics`` or in all.

    What no link carries, by its patterns or a namespace's clusters, is not compared; what is forwarded is.

    Blocks for the length of the jobs. Raises :class:`~replicator.pipeline.errors.PeerUnavailable` for a worker that
    does not answer, :class:`UnexpectedAnswer` for one that is of another cluster or whose answers are wrong,
    :class:`BadOption` for a topic that no cluster has or a link of a cluster that is not given.
    """
    started = time.monotonic()
    numbers = {name: number for number, name in enumerate(clusters)}
    for link in links:
        for name in (link.source, link.destination):
            if name not in numbers:
                raise BadOption("links", f"{link}: cluster {name} has no url")
    wanted = None if topics is None else {str(parse_topic(topic)) for topic in topics}
    with ThreadPoolExecutor(max_workers=max(len(clusters), 1)) as pool:
        read = pool.map(lambda name: _read_state(name, clusters[name], wanted), clusters)
        states = dict(zip(clusters, read, strict=True))

    found = sorted({topic for state in states.values() for topic in state.subscriptions})
    if wanted is not None and (unknown := sorted(wanted.difference(found))):
        raise BadOption("topic", f"no cluster has {', '.join(unknown)}")
    mappings = [
        (cluster, topic, mapping)
        for cluster, state in states.items()
        for topic, of_topic in state.mappings.items()
        for mapping in of_topic
        if mapping.peer in numbers
    ]
    acked = acked_sets({cluster: state.subscriptions for cluster, state in states.items()})
    ways: dict[Ways, int] = {}
    ways_by_topic = {
        topic: ways.setdefault(
            ways_of(topic, links, {name: state.copied_to.get(topic) for name, state in states.items()}), len(ways)
        )
        for topic in found
    }
    scope = Scope(tuple(clusters), tuple(ways), ways_by_topic, acked)
    findings = [each for state in states.values() for each in state.stopped]
    totals: list[Row] = []
    if found:
        options = {"url": ",".join(clusters.values()), "topic": ",".join(found)}
        messages = spark.read.format(FORMAT_NAME).schema(READ_COLUMNS).options(**options).load()
        compared = identities(messages, scope).persist()
        try:
            totals = _totals(compared, scope)
            findings += _findings(totals, compared, row_faults(scope), _identity_text(scope))
            log = ordered(spark, compared, mappings, scope)
            in_order = ("reordered", "mismapped")
            order_totals = log.groupBy("topic").agg(*(F.sum(fault).alias(fault) for fault in in_order)).collect()
            findings += _findings(order_totals, log, {fault: F.col(fault) for fault in in_order}, _order_text(scope))
        finally:
            compared.unpersist()
    return VerifyReport(
        **{fault: sum(finding.count for finding in findings if finding.fault == fault) for fault in FAULTS},
        messages=sum(row["identities"] for row in totals if row["kind"] == "message"),
        clusters={name: _cluster_counts(totals, numbers[name]) for name in clusters},
        topics=tuple(sorted({*found, *(finding.topic for finding in findings)})),
        findings=tuple(sorted(findings, key=lambda finding: (list(FAULTS).index(finding.fault), finding.topic))),
        mappings=len(mappings),
        subscriptions=sum(len(names) for sets in list(acked.values())[:1] for names in sets.names.values()),
        seconds=time.monotonic() - started,
    )


@dataclass(frozen=True, slots=True)
class _ClusterState:
    """What a worker says beside its log, by topic."""

    subscriptions: dict[str, list[SubscriptionState]]
    mappings: dict[str, list[SnapshotMapping]]
    copied_to: dict[str, tuple[str, ...] | None]
    """To which clusters the topic's namespace is copied from here; None for all that links lead to."""
    stopped: list[Finding]
    """Topics that a link from here does not copy any more."""


def _read_state(cluster: str, url: str, wanted: Collection[str] | None) -> _ClusterState:
    with DataPlane(url) as worker:
        answering, listing = worker.topics()
        if answering != cluster:
            raise UnexpectedAnswer(f"worker at {url} is of cluster {answering}, not {cluster}")
        names = [topic.name for topic in listing if wanted is None or topic.name in wanted]
        return _ClusterState(
            subscriptions={name: worker.subscriptions(name) for name in names},
            mappings={name: worker.mappings(name) for name in names},
            copied_to={topic.name: topic.clusters for topic in listing},
            stopped=[
                Finding("gaps", topic, 1, (f"link {link}: {reason}",))
                for link, stopped in worker.stopped_topics().items()
                for topic, reason in stopped.items()
                if wanted is None or topic in wanted
            ],
        )


def _totals(compared: DataFrame, scope: Scope) -> list[Row]:
    """By topic and kind of entry: identities, occurrences in each cluster, and faults; one small row each."""
    counts = [F.sum(f"count_{number}").alias(f"count_{number}") for number in range(len(scope.clusters))]
    faults = [F.sum(column).alias(fault) for fault, column in row_faults(scope).items()]
    grouped = compared.groupBy("topic", "kind", "marker_type")
    return list(grouped.agg(F.count("*").alias("identities"), *counts, *faults).collect())


def _cluster_counts(totals: Iterable[Row], number: int) -> ClusterCounts:
    messages, markers = 0, dict[str, int]()
    for row in totals:
        count = row[f"count_{number}"]
        if row["kind"] == "message":
            messages += count
        elif count:
            name = marker_name(row["marker_type"])
            markers[name] = markers.get(name, 0) + count
    return ClusterCounts(messages, markers)


def _findings(
    totals: Iterable[Row], rows: DataFrame, faults: Mapping[str, Column], text: Callable[[str, Row], str]
) -> list[Finding]:
    """The faults that were found, with examples. ``text`` puts one row of ``rows`` in words."""
    findings = []
    for fault, column in faults.items():
        counts: dict[str, int] = {}
        for row in totals:
            counts[row["topic"]] = counts.get(row["topic"], 0) + row[fault]
        if not any(counts.values()):
            continue
        first = Window.partitionBy("topic").orderBy(*(name for name in _EXAMPLE_ORDER if name in rows.columns))
        samples = rows.where(column > 0).withColumn("rank", F.row_number().over(first))
        examples: dict[str, list[str]] = {}
        for row in samples.where(F.col("rank") <= EXAMPLES_MAX).orderBy("topic", "rank").collect():
            examples.setdefault(row["topic"], []).append(text(fault, row))
        findings += [
            Finding(fault, topic, count, tuple(examples.get(topic, ()))) for topic, count in counts.items() if count
        ]
    return findings


_EXAMPLE_ORDER = ("at", "ledger", "entry", "origin", "origin_ledger", "origin_entry", "batch_index")


def _identity_text(scope: Scope) -> Callable[[str, Row], str]:
    def text(fault: str, row: Row) -> str:
        what = "message" if row["kind"] == "message" else marker_name(row["marker_type"])
        identity = f"{what} of {row['origin']} {row['origin_ledger']}:{row['origin_entry']} index {row['batch_index']}"
        places = ", ".join(
            f"{name} {row[f'ledger_{number}']}:{row[f'entry_{number}']}" + (f" ×{count}" if count > 1 else "")
            if (count := row[f"count_{number}"])
            else f"not in {name}"
            for number, name in enumerate(scope.clusters)
        )
        if fault != "ack_mismatch":
            return f"{identity} ({places})"
        differences = [
            f"{', '.join(names)}: acknowledged in {scope.clusters[source]}, not in {scope.clusters[destination]}"
            for source, destination in _acks_of(scope, row["topic"])
            if (names := _only_acked_at(scope, row, source, destination))
        ]
        return f"{identity} ({places}) {'; '.join(differences)}"

    return text


def _acks_of(scope: Scope, topic: str) -> list[tuple[int, int]]:
    pairs = sorted(scope.ways[scope.ways_of[topic]].acks)
    return [(scope.clusters.index(source), scope.clusters.index(destination)) for source, destination in pairs]


def _only_acked_at(scope: Scope, row: Row, source: int, destination: int) -> list[str]:
    if not (row[f"count_{source}"] and row[f"count_{destination}"]):
        return []
    words = [row[f"acked_{source}_{word}"] & ~row[f"acked_{destination}_{word}"] for word in range(scope.words)]
    return scope.acked[scope.clusters[source]].named(row["topic"], words)


def _order_text(scope: Scope) -> Callable[[str, Row], str]:
    def text(fault: str, row: Row) -> str:
        place = f"{scope.clusters[row['at']]} {row['ledger']}:{row['entry']}"
        if fault == "mismapped":
            home = f"{scope.clusters[row['home']]} {row['local_ledger']}:{row['local_entry']}"
            return f"snapshot {row['snapshot_id']}: {home} ↔ {place}"
        now, before = row["origin_position"], row["previous"]
        return (
            f"{place}: {row['origin']} {now['origin_ledger']}:{now['origin_entry']} "
            f"after {before['origin_ledger']}:{before['origin_entry']}"
        )

    return text
