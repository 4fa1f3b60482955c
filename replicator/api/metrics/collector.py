"""Prometheus metrics, made from the worker's status at each scrape: nothing is counted twice."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from replicator.api.metrics import catalogue as names
from replicator.api.metrics.bounded import BoundedFigures
from replicator.api.metrics.declared import PREFIX, Kind
from replicator.api.metrics.declared import Metric as Declared
from replicator.engine.latencies import BOUNDS_SECONDS, Histogram, Latencies
from replicator.links.gaps import KINDS

NEW_SECONDS: Final = 24 * 3600
"""Time for which a store counts as new: long enough for somebody to read the alert the next morning."""
CONNECTED_STATES: Final = frozenset({"idle", "copying", "backfilling"})
"""States in which a link counts as connected; see docs/http.md."""

Row = tuple[tuple[str, ...], float]
"""Values of the labels after ``cluster``, and the metric's value."""


@dataclass(frozen=True, slots=True)
class Scraped:
    """State of a worker for one scrape: its status as in ``GET /replication/v1/status``, without its topics."""

    status: Mapping[str, Any]
    ready: bool
    latencies: Latencies


class StatusCollector(Collector):
    """Renders what was scraped of the worker, and the figures of its topics.

    With ``old_names`` each metric that was renamed also stands under the name that the version before had for it.
    """

    def __init__(self, cluster: str, scraped: Scraped, figures: BoundedFigures, *, old_names: bool) -> None:
        self._cluster = cluster
        self._status = scraped.status
        self._figures = figures
        self._ready = scraped.ready
        self._latencies = scraped.latencies
        self._old_names = old_names
        self._rows: dict[str, list[Row]] = {}

    def describe(self) -> Sequence[Metric]:
        return ()  # what there is depends on the topics; asking would mean a scrape at start

    def collect(self) -> Iterator[Metric]:
        self._rows = {}
        self._collect_worker()
        self._collect_store()
        self._collect_deduplication()
        self._collect_failover()
        self._collect_topics()
        for link in self._status["links"]:
            self._collect_link(link)
        self._collect_pipeline()
        self._collect_apache()
        self._collect_traces()
        for name, value in self._status["counters"].items():
            self._add(names.SYNC_COUNTERS[name], value)
        for metric in names.METRICS:
            yield from self._families(metric)

    def _collect_worker(self) -> None:
        status = self._status
        if (version := status.get("version")) is not None:
            self._add(names.BUILD_INFO, 1, version)
            self._add(names.START_TIME, status["started_at_ms"] / 1000)
        self._add(names.READY, self._ready)
        if (clients := status.get("clients")) is not None:
            self._add(names.CONNECTIONS, clients["connections"])
            self._add(names.ACCEPTED, clients["accepted"])
        if (tasks := status.get("tasks")) is not None:
            failing = dict.fromkeys(tasks["restarts"], 0)
            for task in tasks["failing"]:
                failing[task["kind"]] += 1
            for kind, count in tasks["restarts"].items():
                self._add(names.TASK_RESTARTS, count, kind)
                self._add(names.TASKS_FAILING, failing[kind], kind)
        if (topology := status.get("topology")) is not None:
            self._add(names.TOPOLOGY_REFUSED, topology.get("refused") is not None)
        if (event_loop := status.get("event_loop")) is not None:
            self._add(names.LOOP_LAG_MAX, event_loop["lag_max_seconds"])
        self._add(names.DATABASE_UP, status["database"]["state"] == "up")
        if (refused := status["database"].get("rows_refused")) is not None:
            self._add(names.ROWS_REFUSED, refused)
        if (audit := status.get("audit")) is not None:
            self._add(names.AUDIT_WAITING, audit["waiting"])
            self._add(names.AUDIT_DROPPED, audit["dropped"])
        if (unpacking := status.get("unpacking")) is not None:
            for share, prefix in (("clients", ""), ("internal", "internal_"), ("links", "links_")):
                if f"{prefix}bytes" not in unpacking:
                    continue  # a worker of an earlier version
                self._add(names.UNPACKED_BYTES, unpacking[f"{prefix}bytes"], share)
                self._add(names.UNPACKED_LIMIT, unpacking[f"{prefix}bytes_max"], share)
            self._add(names.UNPACKED_WAITING, unpacking["waiting"])

    def _collect_store(self) -> None:
        store = self._status["store"]
        self._add(names.STORE_BYTES, store["bytes"])
        self._add(names.STORE_FAILED, store["failed"] is not None)
        if (limit := store.get("bytes_max")) is not None:
            self._add(names.STORE_LIMIT, limit)
        if (segments := store.get("segments")) is not None:
            for state in ("live", "free", "dead"):
                self._add(names.STORE_SEGMENT_BYTES, segments[f"{state}_bytes"], state)
        if (disk := store.get("disk")) is not None:
            self._add(names.STORE_DISK_FREE, disk["free_bytes"])
            self._add(names.STORE_DISK_FULL, disk["full"] is not None)
        if "full" in store:  # a worker of an earlier version does not report it
            self._add(names.STORE_FULL, store["full"] is not None)
        if (commits := store.get("commits")) is not None:
            self._add(names.STORE_COMMITS, commits)
        if (damaged := store.get("damaged")) is not None:
            self._add(names.STORE_DAMAGED, len(damaged))
            self._add(names.STORE_MENDED, store["mended"])
        if (run := self._status.get("run")) is not None:
            self._add(names.STORE_TWINS, len({twin["id"] for twin in run["twins"]}))

        self._collect_new_stores()

    def _collect_new_stores(self) -> None:
        """Collect what says that this cluster, or another one, has a new store."""
        if (start := self._status.get("start")) is None:
            return
        proved = start["nobody_asked"] or bool(start["lost"])
        replaces = start["how"] in ("reclaimed", "empty") or (start["how"] == "first" and proved)
        self._add(names.STORE_NEW, replaces and _is_recent(start["first_at_ms"]))
        for peer, store in self._status.get("stores", {}).items():
            self._add(names.PEER_STORE_NEW, bool(store["earlier"]) and _is_recent(store["since_ms"]), peer)
        states = self._status.get("states") or {"clusters": {}}
        awaited = states["clusters"].keys() | (start["unasked"].keys() if start["how"] != "usual" else set())
        self._add(names.STORE_AWAITED, len(awaited))

    def _collect_deduplication(self) -> None:
        if (found := self._status.get("deduplication")) is None:
            return
        self._add(names.SHARED_NAMES, found["shared_names"])
        self._add(names.OTHER_CONTENT, found["other_content"])
        self._add(names.HIDDEN_DIFFERING, found["hidden_differing"])

    def _collect_failover(self) -> None:
        if (failover := self._status.get("failover")) is None:
            return
        self._add(names.FAILOVER_EPOCH, failover["epoch"])
        self._add(names.FAILOVER_FENCED, failover["fenced"])
        for home in failover["serves"]:
            self._add(names.FAILOVER_SERVES, 1, home)
        self._add(names.FAILOVER_PRODUCERS, failover["producers"] == "open")

    def _collect_topics(self) -> None:
        figures = self._figures
        self._add(names.TOPICS, figures.topics_in_all)
        self._add(names.SUBSCRIPTIONS, figures.subscriptions_in_all)
        self._add(names.SUMMED_TOPICS, figures.topics_summed)
        self._add(names.SUMMED_SUBSCRIPTIONS, figures.subscriptions_summed)
        for topic in figures.topics:
            self._add(names.TOPIC_ENTRIES, topic.entries, topic.name)
            self._add(names.TOPIC_MESSAGES, topic.messages, topic.name)
            self._add(names.TOPIC_MARKERS, topic.markers, topic.name)
        for name, each in figures.subscriptions:
            self._add(names.BACKLOG_ENTRIES, each.backlog_entries, name, each.name)
            self._add(names.BACKLOG_MESSAGES, each.backlog_messages, name, each.name)
            self._add(names.DELETED_ENTRIES, each.individually_deleted_entries, name, each.name)

    def _collect_link(self, link: Mapping[str, Any]) -> None:
        labels = (link["to"], link["key"])
        self._add(names.LINK_UP, link["state"] in CONNECTED_STATES, *labels)
        self._add(names.LINK_PAUSED, link["paused"], *labels)
        self._add(names.LINK_TOPICS, link["topics"], *labels)
        self._add(names.LINK_BACKLOG, link["backlog_entries"], *labels)
        self._add(names.LINK_LAG, link["lag_ms"] / 1000, *labels)
        self._add(names.LINK_IN_FLIGHT, link["in_flight_frames"], *labels)
        self._add(names.LINK_HALTED, link["halted_count"], *labels)
        self._add(names.LINK_HOLD_EXCEEDED, link["hold_exceeded_count"], *labels)
        for kind, count in _gaps_by_kind(link).items():
            self._add(names.LINK_GAPS, count, *labels, kind)
        self._add(names.LINK_SKIPPED, link["skipped_count"], *labels)
        if (backfill := link.get("backfill")) is not None:
            self._add(names.BACKFILL_BYTES, backfill["bytes_total"], *labels)
            self._add(names.BACKFILL_LEFT, backfill["bytes_left"], *labels)
        for name, metric in names.LINK_COUNTERS.items():
            self._add(metric, link[name], *labels)

    def _collect_pipeline(self) -> None:
        pipeline, staging = self._status.get("pipeline"), self._status.get("staging")
        if pipeline is not None and pipeline["driver"] != "off":
            self._add(names.DRIVER_UP, pipeline["driver"] == "running")
            self._add(names.DRIVER_STARTS, pipeline["starts"])
        if staging is not None:
            self._add(names.STAGED_BYTES, staging["staged_bytes"])
            self._add(names.STAGED_ATTEMPTS, staging["attempts"])
            self._add(names.STAGED_PUBLISHING, len(staging["publishing"]))
            for name, metric in names.STAGING_COUNTERS.items():
                self._add(metric, staging[name])

    def _collect_apache(self) -> None:
        if (apache := self._status.get("apache")) is None:
            return
        self._add(names.APACHE_UP, not apache["error"])
        self._add(names.APACHE_TOPICS, len(apache["topics"]))
        self._add(names.APACHE_REFUSED, len(apache["refused"]))
        self._add(names.APACHE_REQUESTS_REFUSED, apache["requests_refused"])
        compared = [(topic["halted"], topic["comparison"]) for topic in apache["topics"]]
        self._add(names.APACHE_DIFFERING, sum(halted or bool(each["differences"]) for halted, each in compared))
        self._add(names.APACHE_COMPARED_AGE, max((each["age_seconds"] or 0.0 for _, each in compared), default=0.0))

    def _collect_traces(self) -> None:
        if (traces := self._status.get("traces")) is None:
            return
        for outcome in ("exported", "dropped", "refused"):
            self._add(names.TRACES_SPANS, traces[outcome], outcome)
        self._add(names.TRACES_QUEUED, traces["queued"])
        for name, metric in names.TRACES_COUNTERS.items():
            self._add(metric, traces[name])

    def _add(self, metric: Declared, value: float, *labels: str) -> None:
        self._rows.setdefault(metric.name, []).append((labels, value))

    def _histograms(self) -> Mapping[str, Mapping[tuple[str, ...], Histogram]]:
        """Return the histograms by metric, and by the label values after ``cluster``. They are copies, as this is
        another thread."""
        each = self._latencies
        return {
            names.LOOP_LAG.name: {(): each.event_loop},
            names.PUBLISH.name: {(): each.publish},
            names.ACKNOWLEDGE.name: {(): each.acknowledge},
            names.DISPATCH.name: {(origin,): found for origin, found in list(each.dispatch.items())},
            names.COPY.name: dict(list(each.copy.items())),
            names.ANNOUNCE.name: {(): each.announce},
            names.SYNC.name: {(origin,): found for origin, found in list(each.sync.items())},
        }

    def _families(self, metric: Declared) -> Iterator[Metric]:
        if metric.kind is Kind.HISTOGRAM:
            yield self._histogram_family(metric, self._histograms()[metric.name])
            return
        rows = self._rows.get(metric.name, [])
        yield self._family(metric.name, metric.kind, metric.help, metric.labels, rows)
        if (old := metric.replaces) is not None and self._old_names:
            text = f"Deprecated, and gone in the next version: use {metric.exported}. {metric.help}"
            scaled = [(labels, value * old.factor) for labels, value in rows]
            yield self._family(old.name, old.kind, text, metric.labels, scaled)

    def _family(self, name: str, kind: Kind, text: str, labels: Sequence[str], rows: Sequence[Row]) -> Metric:
        made = CounterMetricFamily if kind is Kind.COUNTER else GaugeMetricFamily
        family = made(PREFIX + name, text, labels=["cluster", *labels])
        for values, value in rows:
            family.add_metric([self._cluster, *values], value)
        return family

    def _histogram_family(self, metric: Declared, rows: Mapping[tuple[str, ...], Histogram]) -> Metric:
        family = HistogramMetricFamily(PREFIX + metric.name, metric.help, labels=["cluster", *metric.labels])
        for values, histogram in rows.items():
            below = list(accumulate(list(histogram.counts)))
            limits = [*(f"{limit:g}" for limit in BOUNDS_SECONDS), "+Inf"]
            buckets = list(zip(limits, map(float, below), strict=True))
            family.add_metric([self._cluster, *values], buckets, histogram.sum_seconds)
        return family


def _gaps_by_kind(link: Mapping[str, Any]) -> dict[str, int]:
    found = dict.fromkeys(KINDS, 0)
    for gap in link["gaps"]:
        found[gap["kind"]] += 1
    return found


def _is_recent(at_ms: int | None) -> bool:
    return at_ms is not None and time.time() - at_ms / 1000 < NEW_SECONDS
