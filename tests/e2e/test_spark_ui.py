"""Spark's UI shows no credential, though the tasks of its jobs have them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CHILD = Path(__file__).with_name("spark_ui_child.py")
TOKEN = "seeded-token-4b7e1f"


def test_sparks_ui_shows_no_token_that_its_tasks_use(tmp_path: Path) -> None:
    environment = os.environ | {"REPLICATOR_TOKEN": TOKEN}
    shown = subprocess.run(
        [sys.executable, str(CHILD)], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240
    )
    assert shown.returncode == 0, shown.stderr
    for page in ("/environment/", "/jobs/", "/SQL/", "/executors"):
        assert page in shown.stdout, "the UI was searched"
    assert "spark.app.name" in shown.stdout, "its settings are shown"
    assert TOKEN not in shown.stdout + shown.stderr
