"""The report of verify as JSON and as a table."""

from __future__ import annotations

import io
import json
from typing import Any

from rich.console import Console

from replicator.pipeline.verify.report import FAULTS, ClusterCounts, Finding, VerifyReport, format_report


def report(**fields: Any) -> VerifyReport:
    counters = dict.fromkeys(FAULTS, 0)
    rest = {
        "messages": 5,
        "clusters": {"us": ClusterCounts(5, {"snapshot_request": 1}), "eu": ClusterCounts(4, {})},
        "topics": ("a", "b"),
        "findings": (),
        "mappings": 2,
        "subscriptions": 1,
        "seconds": 1.23456,
    }
    return VerifyReport(**(counters | rest | fields))


def test_json_has_the_counters_and_the_findings_of_each_topic() -> None:
    faulty = report(missing=3, findings=(Finding("missing", "b", 3, ("message of us 3:0",)),))
    shown = json.loads(json.dumps(faulty.as_json()))
    assert shown["missing"] == 3
    assert shown["topics"] == {"a": {}, "b": {"missing": {"count": 3, "examples": ["message of us 3:0"]}}}
    assert shown["clusters"]["us"] == {"messages": 5, "markers": {"snapshot_request": 1}, "duplicates": 0}
    assert {"duplicated", "reordered", "corrupted", "mismapped", "ack_mismatch", "messages", "seconds"} <= set(shown)


def test_a_report_is_clean_only_if_every_counter_is_zero() -> None:
    assert report().clean
    for fault in FAULTS:
        assert not report(**{fault: 1}).clean


def test_the_table_shows_the_examples() -> None:
    screen = io.StringIO()
    faulty = report(corrupted=1, findings=(Finding("corrupted", "topic-b", 1, ("message of us [3:0]",)),))
    Console(file=screen, width=120).print(format_report(faulty))
    assert "FAULTS FOUND" in screen.getvalue()
    assert "topic-b" in screen.getvalue()
    assert "message of us [3:0]" in screen.getvalue()
