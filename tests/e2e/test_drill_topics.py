"""Drills of many topics, as a user runs them: each topic has a producer and subscriptions, and figures of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from printed_fields import problems

from replicator.drills.json_types import DrillReport, DrillRuns

SOAKED = "SOAK" in os.environ
SOAK = pytest.mark.skipif(not SOAKED, reason="half a minute each: make soak runs them all")
TOPICS, MESSAGES, RATE = (20, 4_000, 200) if SOAKED else (6, 1_000, 100)
"""Load of a drill, so low that no scenario kills a worker in the second in which its clients come. A busy machine tells
the acknowledgements of 20 busy topics more than a second late, and then a drill counts them as repeated."""


def drilled(out: Path, *arguments: str) -> tuple[dict[str, Any], str]:
    """Run ``replicator drill --topics N`` as a user would; return the report, and what is on the screen."""
    command = [sys.executable, "-m", "replicator.cli", "drill", "--out", str(out), "--engine", "embedded"]
    command += ["--topics", str(TOPICS), "--messages", str(MESSAGES), "--rate", str(RATE), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    report = json.loads((out / "report.json").read_text()) if (out / "report.json").exists() else {}
    assert done.returncode == 0, f"{done.stderr[-2000:]}\n{done.stdout[-2000:]}\n{report.get('failures')}"
    assert problems(report, (DrillReport, DrillRuns)) == []
    return report, done.stdout


OFTEN = ["kill-primary", "planned"]
RARE = ["kill-each", "partition", "one-way-partition", "failback", "move"]


@pytest.mark.parametrize("scenario", [*OFTEN, *(pytest.param(each, marks=SOAK) for each in RARE)])
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
