"""Texts about the end of a process, with the name of the signal."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from replicator.operating.processes import exit_reason


@pytest.mark.parametrize(
    ("program", "told"),
    [
        ("raise SystemExit(3)", "ended with status 3"),
        (
            "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
            "was ended by signal SIGKILL, as the system does when memory runs out",
        ),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", "was ended by signal SIGTERM"),
    ],
)
def test_a_process_that_a_signal_ended_is_told_by_its_name(program: str, told: str) -> None:
    ended = subprocess.run([sys.executable, "-c", program], check=False)
    assert exit_reason(ended.returncode) == told


def test_a_real_time_signal_has_a_number_alone() -> None:
    assert exit_reason(-(signal.SIGRTMIN + 1)) == f"was ended by signal number {signal.SIGRTMIN + 1}"
