"""Drills of many topics, as a user runs them: each topic has a producer and subscriptions, and figures of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from printed_fields import problems

from replicator.drills.json_types import DrillReport, DrillRuns

TOPICS = 20
MESSAGES = 4_000
RATE = 200
"""So slow that a scenario kills no worker in the second in which its clients come."""


def drilled(out: Path, *arguments: str) -> tuple[dict[str, Any], str]:
    """Run ``replicator drill --topics 20`` as a user would; return the report, and what is on the screen."""
    command = [sys.executable, "-m", "replicator.cli", "drill", "--out", str(out), "--engine", "embedded"]
    command += ["--topics", str(TOPICS), "--messages", str(MESSAGES), "--rate", str(RATE), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    report = json.loads((out / "report.json").read_text()) if (out / "report.json").exists() else {}
    assert done.returncode == 0, f"{done.stderr[-2000:]}\n{done.stdout[-2000:]}\n{report.get('failures')}"
    assert problems(report, (DrillReport, DrillRuns)) == []
    return report, done.stdout


@pytest.mark.parametrize(
    "scenario", ["kill-primary", "kill-each", "partition", "one-way-partition", "planned", "failback", "move"]
)
def test_every_topic_recovers_and_the_report_names_the_worst(tmp_path: Path, scenario: str) -> None:
    report, screen = drilled(tmp_path / "out", "--scenario", scenario, "--subscriptions", "exclusive,shared")
    assert report["topics"] == TOPICS
    assert report["published"] == report["confirmed"] == report["consumed_unique"] == MESSAGES
    over = report["over_topics"]
    assert over["lost"] == {
        "p50": 0,
        "p99": 0,
        "worst": 0,
        "worst_topic": over["lost"]["worst_topic"],
        "topics": TOPICS,
    }
    assert over["recover_seconds"]["topics"] == TOPICS
    assert over["recover_seconds"]["worst"] == report["rto_seconds"]
    assert over["recover_seconds"]["p50"] <= over["recover_seconds"]["p99"] <= report["rto_seconds"]
    assert over["recover_seconds"]["worst_topic"].startswith(report["topic"].rpartition("-")[0])
    assert f"Over {TOPICS} topics" in screen
    assert report["verify"]["missing"] == 0
