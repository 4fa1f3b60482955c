"""A few random histories of whole workers, and known sequences. ``make histories`` runs as many as you like."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from histories.known import KNOWN

TESTS = Path(__file__).parents[1]
SEED, COUNT = 100, 3


@pytest.mark.parametrize(
    ("arguments", "count"),
    [(["-n", str(COUNT), "--seed", str(SEED)], COUNT), (["--known"], len(KNOWN))],
    ids=["random", "known"],
)
def test_histories_end_as_users_may_expect(arguments: list[str], count: int) -> None:
    command = [sys.executable, "-m", "histories", *arguments, "--no-shrink"]
    environment = {**os.environ, "PYTHONPATH": f"{TESTS.parent}:{TESTS}:{TESTS / 'support'}"}
    done = subprocess.run(command, cwd=TESTS, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-8_000:] + done.stderr[-2_000:]
    assert f"{count} histories, 0 failed" in done.stdout
