"""``make audit`` loses no finding of pip-audit, and calls no package clean that was not looked at.

Not every network reaches the data of vulnerabilities, so a script stands for pip-audit, with its words and exit
statuses.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / ".ci" / "audit"
CLEAN = "No known vulnerabilities found\n"
FOUND = "Found 1 known vulnerability in 1 package\nName Version ID Fix Versions\nleaky 1.0 PYSEC-2020-1 1.1\n"
SKIPPED = "Name Skip Reason\nunseen Dependency not found on PyPI and could not be audited: unseen (1.0)\n"


@pytest.mark.parametrize(
    ("said", "status", "ends_with", "shown", "told"),
    [
        (CLEAN, 0, 0, "No known", ""),
        (FOUND, 1, 1, "PYSEC-2020-1", ""),
        (CLEAN + SKIPPED, 0, 3, "", "unseen"),
        (FOUND + SKIPPED, 1, 1, "PYSEC-2020-1", "unseen"),
        ("ConnectionError: no route", 2, 3, "", "no route"),
    ],
    ids=["clean", "found", "not looked at", "found beside what was not looked at", "no connection"],
)
def test_what_was_found_is_shown_and_what_was_not_looked_at_is_named(
    tmp_path: Path, said: str, status: int, ends_with: int, shown: str, told: str
) -> None:
    (tmp_path / "said").write_text(said)
    program = tmp_path / "pip-audit"
    program.write_text(f"#!/bin/sh\ncat {tmp_path}/said\nexit {status}\n")
    program.chmod(0o755)
    run = subprocess.run([SCRIPT, program, tmp_path / "lock"], capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == ends_with, run
    assert shown in run.stdout
    assert ("NOT RUN" in run.stderr) is bool(told)
    assert told in run.stderr
