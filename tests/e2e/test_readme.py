"""The commands of the README run as they stand there, except for the ports."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from replicator.drills.ports import free_ports

README = Path(__file__).parents[2] / "README.md"
START_SECONDS_MAX = 240


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)


def test_the_readmes_topology_commands_and_client_example_work(tmp_path: Path) -> None:
    first, second = map(str, free_ports(2))

    def here(text: str) -> str:
        return text.replace("7101", first).replace("7102", second)

    (yaml,) = blocks("yaml")
    (python,) = blocks("python")
    commands = [line.split("#")[0].split() for block in blocks("console") for line in block.splitlines()]
    # Starting Spark takes longer than all of this.
    (tmp_path / "topology.yaml").write_text(here(yaml) + "pipeline: {engine: embedded}\n")
    (tmp_path / "example.py").write_text(here(python))

    up = subprocess.Popen(
        [sys.executable, "-m", "replicator.cli", "up", "-f", "topology.yaml"],
        cwd=tmp_path,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + START_SECONDS_MAX
        for port in (first, second):
            while True:
                assert up.poll() is None
                assert time.monotonic() < deadline
                try:
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=1).close()
                    break
                except OSError:
                    time.sleep(0.1)
        shown = subprocess.run(
            [sys.executable, "example.py"], cwd=tmp_path, capture_output=True, text=True, timeout=180, check=False
        )
        assert shown.returncode == 0, shown.stderr
        assert "UA1545" in shown.stdout
        assert "us-east" in shown.stdout
        for command in commands:
            if command[:2] in (["replicator", "up"], ["replicator", "worker"]):
                continue  # runs until it is stopped; `up` is what runs here
            done = subprocess.run(
                [sys.executable, "-m", "replicator.cli", *command[1:]],
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=180,
                check=False,
            )
            assert done.returncode == 0, f"{command}: {done.stderr[-2000:]}"
    finally:
        up.send_signal(signal.SIGTERM)
        assert up.wait(30) == 0
