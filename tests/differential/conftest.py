"""One Apache Pulsar broker and one worker for all programs, which run beside each other on both.

``REPLICATOR_DIFFERENTIAL_SIDES`` names sides that run already, for whoever works on this: service URL and admin URL of
the broker, then of the worker, with commas between.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from peers_support import pulsar_peer

pytest.importorskip("pulsar")

from differential.harness import Program, Side, pairs_of_runs

AT_ONCE = 12
"""Programs wait most of the time: for what should not come, and for delays."""
READY_SECONDS_MAX = 60.0


@contextmanager
def served_worker() -> Iterator[Side]:
    """A worker of its own process, its data in a directory that an embedded Postgres can reach as another user."""
    directory = Path(tempfile.mkdtemp(prefix="differential-"))
    directory.chmod(0o755)
    with socket.create_server(("127.0.0.1", 0)) as held:
        address = f"127.0.0.1:{held.getsockname()[1]}"
    file = directory / "topology.yaml"
    file.write_text(
        f"clusters:\n  peer: {{address: '{address}', data: {directory / 'data'}}}\npipeline: {{engine: embedded}}\n"
    )
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "replicator.cli", "worker", "--cluster", "peer", "-f", str(file)],
            stderr=log,
            stdout=log,
        )
    try:
        deadline = time.monotonic() + READY_SECONDS_MAX
        while True:
            try:
                urllib.request.urlopen(f"http://{address}/readyz", timeout=1).close()
                break
            except OSError:
                assert process.poll() is None, (directory / "log").read_text()
                assert time.monotonic() < deadline, (directory / "log").read_text()
                time.sleep(0.05)
        yield Side("ours", f"pulsar://{address}", f"http://{address}")
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Side, Side]]:
    """The broker, and ours."""
    running = os.environ.get("REPLICATOR_DIFFERENTIAL_SIDES")
    if running:
        theirs_service, theirs_admin, service, admin = running.split(",")
        yield Side("pulsar", theirs_service, theirs_admin), Side("ours", service, admin)
        return
    with pulsar_peer(tmp_path_factory.mktemp("pulsar")) as broker, served_worker() as ours:
        yield Side("pulsar", broker.url, broker.admin_url), ours


class Runs:
    """The programs of this session, begun all together."""

    def __init__(self, sides: tuple[Side, Side], programs: list[Program]) -> None:
        self._pool = ThreadPoolExecutor(AT_ONCE)
        mine = secrets.token_hex(3)
        self._seen = {each.name: pairs_of_runs(each, sides, mine, self._pool) for each in programs}

    def seen(self, program: Program) -> Iterator[tuple[Any, Any]]:
        """Return an iterator over pairs of the program's results, at the broker and at ours.

        The first pair is of the run in the background. Each further pair is of a new run; there are RUNS_MAX in all.
        """
        return self._seen[program.name]

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


@pytest.fixture(scope="session")
def runs(request: pytest.FixtureRequest, sides: tuple[Side, Side]) -> Iterator[Runs]:
    """All programs that were asked for run in the background; each test waits for its own."""
    asked = [item.callspec.params["program"] for item in request.session.items if _has_program(item)]
    runs = Runs(sides, asked)
    yield runs
    runs.close()


def _has_program(item: Any) -> bool:
    return "program" in getattr(getattr(item, "callspec", None), "params", {})
