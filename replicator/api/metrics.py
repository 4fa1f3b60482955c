"""Prometheus metrics, made from the worker's status at each scrape: nothing is counted twice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

_TOPIC_GAUGES: Final = {
    "entries": "Entries in the topic's log, markers included.",
    "messages": "Messages ever appended to the topic.",
    "markers": "Marker entries in the topic's log.",
}
_SUBSCRIPTION_GAUGES: Final = {
    "backlog_entries": "Entries that are not acknowledged, markers not counted.",
    "backlog_messages": "Messages in entries that are not wholly acknowledged.",
    "individually_deleted_entries": "Entries acknowledged beyond the mark-delete position.",
}
_LINK_GAUGES: Final = {
    "backlog_entries": "Entries that the destination has not confirmed, of any origin.",
    "lag_ms": "Age of the oldest block that the destination has not confirmed; 0 when it has all.",
    "paused": "1 while an operator has paused the link.",
    "in_flight_frames": "Frames sent and not acknowledged by the destination.",
}
_LINK_COUNTERS: Final = {
    "blocks": "Blocks sent.",
    "entries": "Entries sent.",
    "messages": "Messages sent.",
    "bytes": "Bytes of blocks sent.",
    "wire_bytes": "Bytes of frames sent, as compressed.",
    "reconnects": "Times that the connection was lost or could not be made.",
}
_LINK_COUNTS: Final = (
    ("halted_topics", "halted_count", "Topics that the link cannot go on with, gaps included."),
    ("hold_exceeded_topics", "hold_exceeded_count", "Topics of which the link holds back more than its hold allows."),
    ("skipped_gaps", "skipped_count", "Gaps that the link went over, by policy or because an operator said so."),
)
_BACKFILL_GAUGES: Final = {
    "bytes_total": "Bytes of the topics that a backfill is bringing over the link; only while there is one.",
    "bytes_left": "Bytes of them that the destination does not have yet.",
}
_STAGING_GAUGES: Final = {
    "staged_bytes": "Bytes that Spark's tasks wrote and that are not committed.",
    "attempts": "Attempts of tasks that are staged.",
}
_STAGING_COUNTERS: Final = {
    "commits": "Commits published.",
    "repeated_commits": "Commits that had been published before.",
    "aborted_attempts": "Attempts of tasks that were dropped by an abort.",
    "swept_attempts": "Attempts of tasks that nobody came back for.",
    "messages": "Messages published by commits.",
    "bytes": "Bytes published by commits.",
    "received_bytes": "Bytes that tasks wrote, committed or not.",
}
_LINK: Final = ["to", "link"]
_GAP_KINDS: Final = ("trimmed", "made-anew", "lost-data")


class StatusCollector(Collector):
    """Renders a status, as ``GET /replication/v1/status`` gives it, as metrics named ``replicator_*``."""

    def __init__(self, cluster: str, status: Mapping[str, Any]) -> None:
        self._cluster = cluster
        self._status = status

    def describe(self) -> Sequence[Metric]:
        return ()  # what there is depends on the topics; asking would mean a scrape at start

    def collect(self) -> Iterator[Metric]:
        status = self._status
        topics, links = status["topics"], status["links"]
        yield self._one("database_up", "1 while Postgres answers.", status["database"]["state"] == "up")
        yield self._one("store_bytes", "Bytes of the store in use.", status["store"]["bytes"])
        if (segments := status["store"].get("segments")) is not None:
            text = "Bytes of the segments: of blocks that are there, free to be written, and dead."
            rows = [([state], segments[f"{state}_bytes"]) for state in ("live", "free", "dead")]
            yield self._gauge("store_segment_bytes", text, ["state"], rows)
        if (disk := status["store"].get("disk")) is not None:
            yield self._one(
                "store_disk_free_bytes", "Bytes that are free on the disk of the store.", disk["free_bytes"]
            )
            text = "1 while messages are refused because that disk is full."
            yield self._one("store_disk_full", text, disk["full"] is not None)
        yield self._one("store_failed", "1 once a write or sync failed.", status["store"]["failed"] is not None)
        if (failover := status.get("failover")) is not None:
            yield self._one("failover_epoch", "The number of the newest failover that is known.", failover["epoch"])
            yield self._one("failover_fenced", "1 while another cluster serves this one's clients.", failover["fenced"])
            served = [([home], 1) for home in failover["serves"]]
            yield self._gauge("failover_serves", "1 for each cluster whose clients are served here.", ["home"], served)
            open_ = failover["producers"] == "open"
            yield self._one("failover_takes_producers", "1 while producers are taken.", open_)
        if (pipeline := status.get("pipeline")) is not None and pipeline["driver"] != "off":
            yield self._one(
                "pipeline_driver_up", "1 while the driver of live copy runs.", pipeline["driver"] == "running"
            )
            starts = "Times that the driver of live copy was started."
            yield self._counter("pipeline_driver_starts", starts, [], [([], pipeline["starts"])])
        if (tasks := status.get("tasks")) is not None:
            text = "Times that a long-lived task ended although nobody had asked for it, by kind; it was started again."
            yield self._counter("task_restarts", text, ["task"], [([kind], n) for kind, n in tasks["restarts"].items()])
            failing = dict.fromkeys(tasks["restarts"], 0)
            for task in tasks["failing"]:
                failing[task["kind"]] += 1
            text = "Long-lived tasks that ended five times within ten minutes, by kind."
            yield self._gauge("tasks_failing", text, ["task"], [([kind], n) for kind, n in failing.items()])
        for name, text in _TOPIC_GAUGES.items():
            yield self._gauge(f"topic_{name}", text, ["topic"], [([t["name"]], t[name]) for t in topics])
        for name, text in _SUBSCRIPTION_GAUGES.items():
            rows = [([t["name"], s["name"]], s[name]) for t in topics for s in t["subscriptions"]]
            yield self._gauge(f"subscription_{name}", text, ["topic", "subscription"], rows)
        for name, text in _LINK_GAUGES.items():
            yield self._gauge(f"link_{name}", text, _LINK, [(_names(link), link[name]) for link in links])
        for name, field, text in _LINK_COUNTS:
            yield self._gauge(f"link_{name}", text, _LINK, [(_names(link), link[field]) for link in links])
        for name, text in _BACKFILL_GAUGES.items():
            rows = [(_names(link), link["backfill"][name]) for link in links if link.get("backfill") is not None]
            yield self._gauge(f"link_backfill_{name}", text, _LINK, rows)
        gaps = [([*_names(link), kind], count) for link in links for kind, count in _gaps_by_kind(link).items()]
        yield self._gauge("link_gaps", "Topics that the link stopped at a gap, by kind.", [*_LINK, "kind"], gaps)
        for name, text in _LINK_COUNTERS.items():
            yield self._counter(f"link_{name}", text, _LINK, [(_names(link), link[name]) for link in links])
        if (staging := status.get("staging")) is not None:
            for name, text in _STAGING_GAUGES.items():
                yield self._one(f"staging_{name}", text, staging[name])
            yield self._one("staging_publishing", "Commits that are being published.", len(staging["publishing"]))
            for name, text in _STAGING_COUNTERS.items():
                yield self._counter(f"staging_{name}", text, [], [([], staging[name])])
        for name, value in status["counters"].items():
            yield self._counter(f"sync_{name}", "Counted by the subscription sync.", [], [([], value)])

    def _one(self, name: str, text: str, value: float) -> Metric:
        return self._gauge(name, text, [], [([], value)])

    def _gauge(self, name: str, text: str, labels: list[str], rows: Sequence[tuple[list[str], float]]) -> Metric:
        family = GaugeMetricFamily(f"replicator_{name}", text, labels=["cluster", *labels])
        for values, value in rows:
            family.add_metric([self._cluster, *values], value)
        return family

    def _counter(self, name: str, text: str, labels: list[str], rows: Sequence[tuple[list[str], float]]) -> Metric:
        family = CounterMetricFamily(f"replicator_{name}", text, labels=["cluster", *labels])
        for values, value in rows:
            family.add_metric([self._cluster, *values], value)
        return family


def _names(link: Mapping[str, Any]) -> list[str]:
    return [link["to"], link["key"]]


def _gaps_by_kind(link: Mapping[str, Any]) -> dict[str, int]:
    found = dict.fromkeys(_GAP_KINDS, 0)
    for gap in link["gaps"]:
        found[gap["kind"]] += 1
    return found
