"""Each analysis against a small exact model in plain Python, on tables that hypothesis makes up."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replicator.engine.policies import KeyAssignment
from replicator.engine.subscriptions.key_shared.consistent_hash import ConsistentHashSelector
from replicator.engine.subscriptions.key_shared.hash_range import HashRangeSelector
from replicator.engine.subscriptions.key_shared.hashing import NON_KEY, SLOTS, key_hash
from replicator.engine.types import KeySharedPolicy
from replicator.pipeline.analytics import (
    READ_COLUMNS,
    consumer_loads,
    facts,
    key_volumes,
    repeated_contents,
    repeated_sequence_ids,
    replication_lag,
    size_histogram,
    throughput,
)
from replicator.pipeline.analytics.assignments import Assignment, running_assignments, with_slots_elsewhere
from replicator.pipeline.analytics.keys import NOBODY

TOPIC = "persistent://public/default/orders"
START = datetime(2026, 1, 31, 12, tzinfo=UTC)
Rows = Sequence[dict[str, Any]]
few = settings(max_examples=50 if os.environ.get("SOAK") else 3, deadline=None)
"""A Spark job each, and no state between them: width is in the tables, not in the number of runs."""


def message(**values: Any) -> dict[str, Any]:
    """One row of the source; what is not given is of the first message of ``orders`` at A."""
    return {
        "cluster": "A",
        "topic": TOPIC,
        "ledger": 1,
        "entry": 0,
        "batch_index": 0,
        "batch_size": 1,
        "kind": "message",
        "origin": "A",
        "key": None,
        "publish_time": START,
        "producer_name": "p",
        "sequence_id": 0,
        "payload": b"",
    } | values


def table(spark: Any, rows: Rows) -> Any:
    return facts(spark.createDataFrame([tuple(row.values()) for row in rows], READ_COLUMNS))


def answers(frame: Any, *keys: str) -> dict[Any, dict[str, Any]]:
    """Return the rows by the values of their ``keys``."""
    rows = [row.asDict() for row in frame.collect()]
    found = {tuple(row[key] for key in keys): row for row in rows}
    assert len(found) == len(rows)
    return found


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


@st.composite
def logs(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Two clusters' logs of two topics: batches, keys, producers that send again, markers between."""
    rows = []
    for cluster in ("A", "B"):
        for topic in ("t1", "t2"):
            for entry in range(draw(st.integers(2, 12))):
                batch = draw(st.integers(1, 3))
                kind = draw(st.sampled_from(["message", "message", "message", "marker"]))
                origin = draw(st.sampled_from(["A", "B"]))
                shared = {
                    "cluster": cluster,
                    "topic": topic,
                    "ledger": 1 + entry // 5,
                    "entry": entry % 5,
                    "kind": kind,
                    "origin": origin,
                    "publish_time": at(draw(st.integers(0, 200))),
                    "producer_name": draw(st.sampled_from(["p", "q"])),
                    "batch_size": batch if kind == "message" else 0,
                }
                for index in range(batch if kind == "message" else 1):
                    payload = draw(st.sampled_from([None, b"", b"x", b"xy", b"z" * 9]))
                    key = draw(st.sampled_from([None, "k1", "k2", "k3"]))
                    number = draw(st.integers(0, 4))
                    rows.append(message(**shared, batch_index=index, payload=payload, key=key, sequence_id=number))
    return rows


def messages(rows: Rows) -> list[dict[str, Any]]:
    return [row for row in rows if row["kind"] == "message"]


@few
@given(rows=logs())
def test_throughput_counts_each_message_in_the_bucket_of_its_publish_time(spark: Any, rows: Rows) -> None:
    expected: dict[Any, list[int]] = defaultdict(lambda: [0, 0, 0])
    for row in messages(rows):
        way = "published" if row["origin"] == row["cluster"] else "copied"
        bucket = int((row["publish_time"] - START).total_seconds()) // 60
        counts = expected[row["cluster"], row["topic"], way, bucket]
        for index, value in enumerate((1, row["batch_index"] == 0, len(row["payload"] or b""))):
            counts[index] += value
    found = answers(throughput(table(spark, rows), 60), "cluster", "topic", "way", "bucket")
    assert {
        (*key[:3], int((key[3].replace(tzinfo=UTC) - START).total_seconds()) // 60): [
            row["messages"],
            row["entries"],
            row["bytes"],
        ]
        for key, row in found.items()
    } == expected
    for row in found.values():
        assert row["messages_per_second"] == pytest.approx(row["messages"] / 60)
        assert row["bytes_per_second"] == pytest.approx(row["bytes"] / 60)


@few
@given(rows=logs())
def test_lag_lies_between_what_the_nearest_own_entries_before_and_behind_allow(spark: Any, rows: Rows) -> None:
    expected: dict[Any, list[tuple[int, int | None]]] = defaultdict(list)
    for cluster, topic in {(row["cluster"], row["topic"]) for row in rows}:
        log = [r for r in rows if (r["cluster"], r["topic"], r["batch_index"]) == (cluster, topic, 0)]
        log.sort(key=lambda row: (row["ledger"], row["entry"]))
        for index, row in enumerate(log):
            if row["origin"] == cluster or row["kind"] != "message":
                continue
            before = [r["publish_time"] for r in log[:index] if r["origin"] == cluster]
            behind = [r["publish_time"] for r in log[index:] if r["origin"] == cluster]
            since = [
                max(round((time - row["publish_time"]).total_seconds() * 1000), 0)
                for time in (before or [row["publish_time"]])[-1:] + behind[:1]
            ]
            expected[row["origin"], cluster, topic].append((since[0], since[1] if behind else None))
    found = answers(replication_lag(table(spark, rows), 86_400), "origin", "cluster", "topic")
    assert found.keys() == expected.keys()
    for pair, lags in expected.items():
        row = found[pair]
        least = sorted(low for low, _ in lags)
        most = sorted(high for _, high in lags if high is not None)
        assert (row["entries"], row["unbounded"]) == (len(lags), len(lags) - len(most))
        assert (row["at_least_ms_max"], row["at_most_ms_max"]) == (least[-1], most[-1] if most else None)
        assert row["at_least_ms_p50"] == least[(len(least) - 1) // 2]
        assert row["at_most_ms_p99"] == (most[-1] if most else None), "of fewer than a hundred"


@few
@given(rows=logs())
def test_the_heaviest_keys_come_first_with_their_share(spark: Any, rows: Rows) -> None:
    by_topic: dict[Any, Counter[Any]] = defaultdict(Counter)
    for row in messages(rows):
        by_topic[row["cluster"], row["topic"]][row["key"]] += 1
    found = answers(key_volumes(table(spark, rows), 2), "cluster", "topic", "rank")
    assert {key[:2] for key in found} == by_topic.keys()
    for topic, counts in by_topic.items():
        ranked = [found[*topic, rank] for rank in range(1, min(len(counts), 2) + 1)]
        assert [row["messages"] for row in ranked] == [count for _, count in counts.most_common(2)]
        for row in ranked:
            assert row["messages"] == counts[row["key"]]
            assert row["share"] == pytest.approx(row["messages"] / counts.total())
    assert len(found) == sum(min(len(counts), 2) for counts in by_topic.values())


@few
@given(rows=logs())
def test_loads_of_consumers_are_those_of_the_keys_that_the_engine_gives_them(spark: Any, rows: Rows) -> None:
    ring, halves = ConsistentHashSelector(), HashRangeSelector()
    for consumer in range(3):
        ring.add(consumer, f"c{consumer}", KeySharedPolicy())
        halves.add(consumer, f"c{consumer}", KeySharedPolicy())
    status = {
        "topics": [
            {
                "name": "t1",
                "subscriptions": [
                    {
                        "name": name,
                        "key_assignment": assignment.value,
                        "consumers": [
                            {"name": f"c{consumer}", "key_hash_ranges": [list(each) for each in ranges]}
                            for consumer, ranges in selector.ranges().items()
                        ],
                    }
                    for name, assignment, selector in (
                        ("ring", KeyAssignment.CONSISTENT_HASHING, ring),
                        ("halves", KeyAssignment.HASH_RANGE, halves),
                    )
                ],
            }
        ]
    }
    running = list(running_assignments("A", status))
    expected: dict[Any, list[int]] = {
        (each.subscription, consumer): [0, 0, 0] for each in running for consumer in each.consumers
    }
    of_t1 = [row for row in messages(rows) if (row["cluster"], row["topic"]) == ("A", "t1")]
    for name, selector in (("ring", ring), ("halves", halves)):
        for key in {row["key"] for row in of_t1}:
            owner = selector.select(key_hash(NON_KEY if key is None else key.encode()))
            loads = expected[name, f"c{owner}"]
            mine = [row for row in of_t1 if row["key"] == key]
            for index, value in enumerate((1, len(mine), sum(len(row["payload"] or b"") for row in mine))):
                loads[index] += value
    found = answers(consumer_loads(table(spark, rows), running), "subscription", "consumer")
    assert {key: [row["keys"], row["messages"], row["bytes"]] for key, row in found.items()} == expected
    for row in found.values():
        assert row["share"] == pytest.approx(row["messages"] / len(of_t1) if of_t1 else 0)
        assert row["skew"] == pytest.approx(row["share"] * 3)


@few
@given(rows=logs())
def test_a_sequence_id_that_came_before_is_a_repetition_and_its_content_tells_which(spark: Any, rows: Rows) -> None:
    by_id: dict[Any, Counter[Any]] = defaultdict(Counter)
    for row in messages(rows):
        producer = (row["cluster"], row["topic"], row["origin"], row["producer_name"])
        by_id[*producer, row["sequence_id"]][row["key"], row["payload"]] += 1
    expected: dict[Any, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for (*producer, _), contents in by_id.items():
        total = contents.total()
        figures = (total, total - 1, total - len(contents), total > 1)
        for index, value in enumerate(figures):
            expected[tuple(producer)][index] += value
    found = answers(repeated_sequence_ids(table(spark, rows)), "cluster", "topic", "origin", "producer_name")
    figures_of = ("messages", "repeated", "same_content", "repeated_ids")
    assert {key: [row[name] for name in figures_of] for key, row in found.items()} == expected


@few
@given(rows=logs())
def test_equal_content_within_the_window_is_repeated_whoever_published_it(spark: Any, rows: Rows) -> None:
    expected: dict[Any, list[int]] = defaultdict(lambda: [0, 0])
    latest: dict[Any, datetime] = {}
    place = ("publish_time", "ledger", "entry", "batch_index")
    for row in sorted(messages(rows), key=lambda row: tuple(row[name] for name in place)):
        content = (row["cluster"], row["topic"], row["key"], row["payload"])
        counts = expected[row["cluster"], row["topic"], row["producer_name"]]
        counts[0] += 1
        counts[1] += content in latest and row["publish_time"] - latest[content] <= timedelta(seconds=10)
        latest[content] = row["publish_time"]
    found = answers(repeated_contents(table(spark, rows), 10), "cluster", "topic", "producer_name")
    assert {key: [row["messages"], row["repeated"]] for key, row in found.items()} == expected


@few
@given(rows=logs())
def test_sizes_fall_into_classes_that_double(spark: Any, rows: Rows) -> None:
    sizes: dict[Any, list[int]] = defaultdict(list)
    entries: dict[Any, list[int]] = defaultdict(list)
    for row in messages(rows):
        size = len(row["payload"] or b"")
        sizes[row["cluster"], row["topic"], "message_bytes"].append(size)
        entries[row["cluster"], row["topic"], row["ledger"], row["entry"]].append(size)
    for (cluster, topic, *_), batch in entries.items():
        sizes[cluster, topic, "batch_messages"].append(len(batch))
        sizes[cluster, topic, "batch_bytes"].append(sum(batch))
    found = answers(size_histogram(table(spark, rows)), "cluster", "topic", "measure", "low")
    for (cluster, topic, measure), values in sizes.items():
        for size in values:
            low = 0 if size == 0 else 1 << (size.bit_length() - 1)
            row = found[cluster, topic, measure, low]
            assert row["low"] <= size <= row["high"]
            inside = [each for each in values if row["low"] <= each <= row["high"]]
            assert (row["count"], row["total"]) == (len(inside), sum(inside))
    assert {key[:3] for key in found} == sizes.keys()


def test_a_power_of_two_is_the_first_of_its_class(spark: Any) -> None:
    rows = [message(entry=entry, payload=b"x" * size) for entry, size in enumerate((2**15 - 1, 2**15))]
    found = answers(size_histogram(table(spark, rows)), "measure", "low", "high")
    assert found["message_bytes", 2**14, 2**15 - 1]["count"] == found["message_bytes", 2**15, 2**16 - 1]["count"] == 1


def test_keys_of_hashes_that_no_consumer_has_are_nobodys(spark: Any) -> None:
    slot = key_hash(b"k") % SLOTS
    gap = Assignment("A", TOPIC, "s", ("c",), SLOTS, (slot + 1,), (SLOTS - 1,), (0,))
    found = answers(consumer_loads(table(spark, [message(key="k")]), [gap]), "consumer")
    assert {key: row["messages"] for (key,), row in found.items()} == {"c": 0, NOBODY: 1}
    assert found[NOBODY,]["skew"] is None


def test_topics_without_consumers_are_cut_into_equal_slots() -> None:
    running = Assignment("A", "t1", "s", ("c",), SLOTS, (0,), (SLOTS - 1,), (0,))
    first, second = with_slots_elsewhere([running], [("A", "t1"), ("B", "t1")], 3)
    assert first is running
    assert (second.cluster, second.running, second.subscription) == ("B", False, "(3 equal slots)")
    assert (second.start[0], second.end[-1]) == (0, SLOTS - 1)
    assert all(end + 1 == start for end, start in zip(second.end, second.start[1:], strict=False))
