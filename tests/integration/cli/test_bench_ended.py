"""A benchmark that is ended leaves nothing behind: no worker, no Postgres, no directory."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

SECONDS_MAX = 120.0
COMMAND = """
import typer
from bench import __main__ as bench
bench.machine_line = bench.page_cache_line = str  # they measure the machine for seconds
typer.run(bench.main)
"""
ROOT = Path(__file__).parents[3]


def beneath(directory: Path) -> list[psutil.Process]:
    """The processes that name a file in that directory."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if any(str(directory) in argument for argument in process.info["cmdline"] or ()):
            found.append(process)
    return found


def test_a_benchmark_that_is_told_to_end_ends_what_it_started(data_dir: Path) -> None:
    data_dir.mkdir(mode=0o755)
    bench = subprocess.Popen(
        [sys.executable, "-c", COMMAND, "publish"],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "HOME": str(Path.home()), "TMPDIR": str(data_dir)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + SECONDS_MAX
        while not any("worker" in process.cmdline() for process in beneath(data_dir)):
            assert bench.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        bench.send_signal(signal.SIGTERM)
        assert bench.wait(SECONDS_MAX) == 128 + signal.SIGTERM
        assert beneath(data_dir) == []
        assert list(data_dir.iterdir()) == []
    finally:
        for process in [*beneath(data_dir), psutil.Process(bench.pid)] if bench.poll() is None else beneath(data_dir):
            process.kill()
