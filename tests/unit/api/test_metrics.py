"""The metrics: what is declared is exported and the other way round, by the conventions, and listed in the docs."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from replicator.api.metrics.bounded import Bounds, SubscriptionFigures, TopicFigures
from replicator.api.metrics.catalogue import LINK_COUNTERS, METRICS, STAGING_COUNTERS, SYNC_COUNTERS, TRACES_COUNTERS
from replicator.api.metrics.collector import Scraped, StatusCollector
from replicator.api.metrics.declared import PREFIX
from replicator.api.metrics.reference import page
from replicator.engine.latencies import Latencies

PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"
LINK: dict[str, Any] = {
    "to": "eu-west", "key": "us-east>eu-west", "state": "copying", "paused": False, "topics": 2, "backlog_entries": 7,
    "lag_ms": 1_500, "in_flight_frames": 1, "halted_count": 1, "hold_exceeded_count": 0, "skipped_count": 0,
    "gaps": [{"topic": "t", "kind": "trimmed"}], "backfill": {"bytes_total": 1_000, "bytes_left": 250},
    **dict.fromkeys(LINK_COUNTERS, 3),
}  # fmt: skip
STATUS: dict[str, Any] = {
    "version": "1.0", "started_at_ms": 1_700_000_000_500,
    "database": {"state": "down", "rows_refused": 1},
    "unpacking": {"bytes_max": 8, "bytes": 4, "waiting": 2, "internal_bytes_max": 6, "internal_bytes": 5,
        "links_bytes_max": 9, "links_bytes": 7},
    "audit": {"waiting": 1, "dropped": 2},
    "store": {
        "bytes": 10, "bytes_max": 100, "commits": 5, "failed": None, "full": "it is", "damaged": [{}], "mended": 4,
        "segments": {"live_bytes": 1, "free_bytes": 2, "dead_bytes": 3}, "disk": {"free_bytes": 9, "full": "it is"},
    },
    "run": {"id": "r1", "twins": [{"id": "r2"}, {"id": "r2"}]},
    "start": {
        "how": "reclaimed",
        "lost": [],
        "nobody_asked": False,
        "first_at_ms": int(time.time() * 1000),
        "unasked": {"b": ""},
    },
    "stores": {"b": {"store": "2", "since_ms": int(time.time() * 1000), "earlier": ["1"]}},
    "states": {"clusters": {"b": "", "c": ""}},
    "deduplication": {"shared_names": 1, "other_content": 2, "hidden_differing": 3},
    "clients": {"connections": 1, "accepted": 2},
    "failover": {"epoch": 3, "fenced": False, "serves": ["eu-west"], "producers": "open"},
    "pipeline": {"driver": "waiting", "starts": 2},
    "tasks": {"restarts": {"link": 6, "sync": 0}, "failing": [{"kind": "link"}]},
    "topology": {"refused": None},
    "event_loop": {"lag_max_seconds": 0.25},
    "links": [LINK],
    "staging": {"staged_bytes": 1, "attempts": 1, "publishing": [], **dict.fromkeys(STAGING_COUNTERS, 8)},
    "counters": dict.fromkeys(SYNC_COUNTERS, 9),
    "apache": {"error": "", "topics": [], "refused": {}, "requests_refused": 0},
    "traces": {"exported": 1, "dropped": 0, "refused": 0, "queued": 2, **dict.fromkeys(TRACES_COUNTERS, 7)},
}  # fmt: skip
"""Status of a worker that has some value for everything."""
TOPICS = [
    TopicFigures(f"persistent://a/b/t{index}", 100 + index, 10, 20, 1, (SubscriptionFigures("s", 4, 8, 2),))
    for index in range(3)
]


def some_latencies() -> Latencies:
    """Return latencies, with one of each kind that has labels."""
    latencies = Latencies()
    for each in (
        latencies.dispatch["us-east"],
        latencies.copy["eu-west", "us-east>eu-west"],
        latencies.sync["eu-west"],
    ):
        each.observe(0.1)
    return latencies


def exported(
    *,
    old_names: bool = True,
    topics_max: int = 2,
    latencies: Latencies | None = None,
    status: Mapping[str, Any] = STATUS,
) -> str:
    figures = Bounds().bound(TOPICS, topics_max=topics_max, subscriptions_max=10)
    registry = CollectorRegistry()
    scraped = Scraped(status, ready=True, latencies=latencies or some_latencies())
    registry.register(StatusCollector("us-east", scraped, figures, old_names=old_names))
    return generate_latest(registry).decode()


def samples(text: str) -> dict[tuple[str, tuple[str, ...]], float]:
    """Return samples by name and by the values of the labels after the cluster."""
    return {
        (sample.name, tuple(value for label, value in sample.labels.items() if label != "cluster")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def promtool(text: str) -> list[str]:
    """Return the complaints of promtool."""
    if (tool := shutil.which("promtool")) is None:
        pytest.skip("there is no promtool: on Debian, apt install prometheus; .ci/monitoring runs with it")
    done = subprocess.run([tool, "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    complaints = (done.stdout + done.stderr).splitlines()
    assert (done.returncode == 0) == (not complaints), done
    return complaints


def test_every_declared_metric_is_exported_and_no_other() -> None:
    suffixes = r"_(total|bucket|sum|count)$"
    found = {re.sub(suffixes, "", name) for name, _ in samples(exported(old_names=False))}
    assert found == {f"{PREFIX}{each.name}" for each in METRICS}


def test_topics_that_differ_from_the_brokers_are_counted_and_the_oldest_comparison_has_its_age() -> None:
    def topic(age_seconds: float | None, *differences: str, halted: bool = False) -> dict[str, Any]:
        return {"halted": halted, "comparison": {"age_seconds": age_seconds, "differences": list(differences)}}

    topics = [topic(None), topic(2.5), topic(70.5, "is not read", "is not published"), topic(1, halted=True)]
    status = {**STATUS, "apache": {"error": "", "topics": topics, "refused": {}, "requests_refused": 0}}
    found = samples(exported(status=status))
    assert found["replicator_apache_differing_topics", ()] == 2
    assert found["replicator_apache_comparison_age_max_seconds", ()] == 70.5


def test_refused_rows_and_each_share_of_uncompressed_bytes_have_the_value_of_the_status() -> None:
    found = samples(exported())
    assert found["replicator_index_rows_refused_total", ()] == 1
    shares = {
        share: (
            found["replicator_unpacked_bytes", (share,)],
            found["replicator_unpacked_limit_bytes", (share,)],
        )
        for share in ("clients", "internal", "links")
    }
    assert shares == {"clients": (4, 8), "internal": (5, 6), "links": (7, 9)}
    assert found["replicator_unpacked_waiting", ()] == 2


def test_the_page_lists_the_metrics_as_they_are() -> None:
    assert PAGE.read_text() == page(), "run: make metrics-page"
    for each in METRICS:
        assert f"| `{each.exported}{{{','.join(each.labels)}}}` |".replace("{}", "") in page()
        assert each.help.endswith(".")
        assert each.unit_in_words, each.name


def test_promtool_has_no_complaint_but_of_names_of_the_version_before() -> None:
    assert promtool(exported(old_names=False)) == []
    deprecated = {PREFIX + each.replaces.name for each in METRICS if each.replaces is not None}
    complaints = promtool(exported())
    assert {line.split()[0] for line in complaints} <= deprecated
    assert any(line.startswith("replicator_link_lag_ms ") for line in complaints)


def test_promtool_complains_of_a_metric_against_the_conventions() -> None:
    assert promtool("# HELP replicator_lag_ms Lag.\n# TYPE replicator_lag_ms gauge\nreplicator_lag_ms 1\n")


def test_an_old_name_stands_beside_its_successor_and_says_so() -> None:
    text = exported()
    found, link = samples(text), ("us-east>eu-west", "eu-west")
    assert found["replicator_link_lag_seconds", link] == 1.5
    assert found["replicator_link_lag_ms", link] == 1_500
    assert found["replicator_link_backfill_bytes_total", link] == found["replicator_link_backfill_size_bytes", link]
    assert found["replicator_topic_messages", ("other",)] == found["replicator_topic_messages_total", ("other",)]
    assert "# HELP replicator_link_lag_ms Deprecated, and gone in the next version: use replicator_link_lag_sec" in text
    assert "replicator_link_lag_ms" not in exported(old_names=False)


def test_topics_beyond_the_limit_are_summed_and_a_metric_says_so() -> None:
    found = samples(exported(topics_max=1))
    assert found["replicator_topic_entries", ("persistent://a/b/t0",)] == 10
    assert found["replicator_topic_entries", ("other",)] == 20
    assert ("replicator_topic_entries", ("persistent://a/b/t1",)) not in found
    assert found["replicator_subscription_backlog_messages", ("other", "other")] == 16
    assert found["replicator_metrics_summed_topics", ()] == 2
    assert found["replicator_metrics_summed_subscriptions", ()] == 2
    assert found["replicator_topics", ()] == found["replicator_subscriptions", ()] == 3


def test_a_link_that_is_not_connected_is_down() -> None:
    assert samples(exported())["replicator_link_up", ("us-east>eu-west", "eu-west")] == 1
    for state in ("connecting", "failed", "waiting", "paused"):
        scraped = Scraped({**STATUS, "links": [{**LINK, "state": state}]}, ready=True, latencies=Latencies())
        registry = CollectorRegistry()
        registry.register(StatusCollector("us-east", scraped, Bounds().bound([], topics_max=0, subscriptions_max=0),
                                          old_names=False))  # fmt: skip
        found = samples(generate_latest(registry).decode())
        assert found["replicator_link_up", ("us-east>eu-west", "eu-west")] == 0


def test_latencies_are_histograms_in_seconds_whose_buckets_hold_all_below_them() -> None:
    latencies = Latencies()
    for seconds in (0.0004, 0.0005, 0.004, 400.0, -1.0):
        latencies.copy["eu-west", "us-east>eu-west"].observe(seconds)
    latencies.publish.observe(0.02, 50)
    text = exported(latencies=latencies)
    found, link = samples(text), ("us-east>eu-west", "eu-west")
    buckets = {
        labels[0]: value for (name, labels), value in found.items() if name == "replicator_copy_latency_seconds_bucket"
    }
    assert (buckets["0.0005"], buckets["0.0025"], buckets["0.005"], buckets["300"], buckets["+Inf"]) == (3, 3, 4, 4, 5)
    assert found["replicator_copy_latency_seconds_count", link] == 5
    assert found["replicator_copy_latency_seconds_sum", link] == pytest.approx(400.0049)
    assert found["replicator_publish_latency_seconds_sum", ()] == pytest.approx(1.0)
    assert found["replicator_publish_latency_seconds_bucket", ("0.025",)] == 50
