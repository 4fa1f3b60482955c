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


def printed(faulty: VerifyReport, *, details: bool = False) -> str:
    screen = io.StringIO()
    Console(file=screen, width=120).print(format_report(faulty, details=details))
    return screen.getvalue()


def test_faults_of_many_topics_fit_a_screen_the_worst_first_and_details_have_all() -> None:
    examples = tuple(f"message of us 3:{number}" for number in range(10))
    findings = tuple(Finding(fault, f"t{n:03}", n + 1, examples) for fault in FAULTS for n in range(500))
    faulty = report(**dict.fromkeys(FAULTS, 500), findings=findings, remarks=("paused",) * 50)
    screen = printed(faulty)
    assert len(screen.splitlines()) <= 60
    assert "t499" in screen
    assert "t000" not in screen
    assert "498 more topics: --details" in screen
    details = printed(faulty, details=True)
    assert details.count("t000") == len(FAULTS)
    assert details.count("message of us 3:9") == 500 * len(FAULTS)


def test_one_topic_with_faults_shows_all_its_examples() -> None:
    examples = tuple(f"message of us 3:{number}" for number in range(10))
    screen = printed(report(missing=10, findings=(Finding("missing", "b", 10, examples),)))
    assert all(each in screen for each in examples)
