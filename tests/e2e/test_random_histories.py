"""A few random histories of whole workers. ``make histories`` runs as many as you like."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
SEED, COUNT = 100, 3
"""A pair, a one-way link with deduplication, and a pair whose workers are stopped and killed."""


def test_random_histories_end_as_users_may_expect() -> None:
    command = [sys.executable, "-m", "histories", "-n", str(COUNT), "--seed", str(SEED), "--no-shrink"]
    environment = {**os.environ, "PYTHONPATH": f"{TESTS.parent}:{TESTS}"}
    done = subprocess.run(command, cwd=TESTS, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-8_000:] + done.stderr[-2_000:]
    assert f"{COUNT} histories, 0 failed" in done.stdout
