"""The main job, small: drills over real worker processes, with verify on Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

MESSAGES = 6000
RATE = 2000
VERIFY_COUNTS = ("missing", "duplicated", "reordered", "mismapped", "ack_mismatch")


def run_drill(out: Path, *arguments: str) -> dict[str, Any]:
    """Run ``replicator drill`` as a user would, with a PATH that has no Java and no Postgres."""
    command = [sys.executable, "-m", "replicator.cli", "drill", "--quiet", "--out", str(out)]
    command += ["--rate", str(RATE), "--json", str(out / "copy.json"), *arguments]
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), "/usr/sbin", "/sbin", "/bin"])
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
    report = json.loads((out / "report.json").read_text()) if (out / "report.json").exists() else {}
    assert done.returncode == 0, f"{done.stderr[-2000:]}\n{done.stdout[-2000:]}\n{report.get('failures')}"
    assert json.loads((out / "copy.json").read_text()) == report
    return report


def check(report: dict[str, Any], messages: int) -> None:
    assert report["published"] == report["confirmed"] == report["consumed_unique"] == messages
    assert report["lost"] == 0
    assert report["out_of_order"] == 0
    assert report["repeated_acked_over_1s_before_kill"] == 0
    assert report["late"] <= report["rpo_messages"]
    assert {name: report["verify"][name] for name in VERIFY_COUNTS} == dict.fromkeys(VERIFY_COUNTS, 0)
    assert report["snapshot_mappings"] > 0
    assert report["subscription_updates"] > 0


def test_nothing_is_lost_when_the_primary_is_killed(tmp_path: Path) -> None:
    report = run_drill(tmp_path / "out", "--messages", str(MESSAGES), "--seed", "3")
    check(report, MESSAGES)
    assert report["scenario"] == "kill-primary"
    assert report["seed"] == 3
    assert report["rto_seconds"] > 0
    html = (tmp_path / "out" / "report.html").read_text()
    assert "<svg" in html
    assert "http://" not in html.replace("http://www.w3.org", "")  # self-contained


def test_nothing_is_lost_when_each_cluster_is_killed_once_and_the_input_is_ones_own(tmp_path: Path) -> None:
    own = tmp_path / "orders.jsonl"
    own.write_text("".join(json.dumps({"order": n, "customer": f"c{n % 50}"}) + "\n" for n in range(3000)))
    report = run_drill(tmp_path / "out", "--input", str(own), "--key", "customer", "--scenario", "kill-each")
    check(report, 3000)
    assert len(report["kills"]) == 2


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--scenario", "earthquake"], "kill-primary"),
        (["--input", "missing.jsonl", "--key", "k"], "missing.jsonl"),
        (["--input", "x.jsonl"], "--key"),
        (["--key", "k"], "--input"),
        (["--topology", "missing.yaml"], "missing.yaml"),
        (["--messages", "0"], "--messages"),
    ],
)
def test_bad_options_are_refused_before_anything_starts(tmp_path: Path, arguments: list[str], expected: str) -> None:
    command = [sys.executable, "-m", "replicator.cli", "drill", "--out", str(tmp_path / "out"), *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2, done.stderr
    assert expected in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()
