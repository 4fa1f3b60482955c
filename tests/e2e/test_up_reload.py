"""SIGHUP to real processes: ``replicator up`` and a worker take a changed file, but no bad one."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
from topology_files import topology_of, write

from replicator.topology import Link, SyncSettings, Topology

SECONDS_MAX = 90.0


class Up:
    """A running ``replicator up``, what it has printed, and its workers."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.printed = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.printed += line

    def until(self, condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + SECONDS_MAX
        while not condition():
            assert self.process.poll() is None, self.printed
            assert time.monotonic() < deadline, f"{what} did not come true: {self.printed}"
            time.sleep(0.05)

    def prints(self, text: str, times: int = 1) -> None:
        self.until(lambda: self.printed.count(text) >= times, repr(text))

    def hang_up(self, pid: int | None = None) -> None:
        os.kill(pid or self.process.pid, signal.SIGHUP)


@contextmanager
def up(path: Path) -> Iterator[Up]:
    process = subprocess.Popen(
        [sys.executable, "-m", "replicator.cli", "up", "-f", "topology.yaml"],
        cwd=path,
        env={**os.environ, "COLUMNS": "500"},
        stderr=subprocess.PIPE,
        text=True,
    )
    running = Up(process)
    try:
        yield running
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(SECONDS_MAX)


def status(topology: Topology, cluster: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{topology.cluster(cluster).url}/replication/v1/status", timeout=10) as response:
        answer: dict[str, Any] = json.load(response)
        return answer


def pids(topology: Topology, *clusters: str) -> list[int]:
    return [status(topology, cluster)["pid"] for cluster in clusters]


def destinations(topology: Topology, cluster: str) -> list[str]:
    return [link["to"] for link in status(topology, cluster)["links"]]


def without(topology: Topology, name: str) -> Topology:
    clusters = tuple(each for each in topology.clusters if each.name != name)
    return replace(
        topology,
        clusters=clusters,
        links=tuple(link for link in topology.links if name not in (link.source, link.destination)),
    )


def test_up_starts_and_stops_workers_as_the_file_says_and_restarts_none(data_dir: Path) -> None:
    path = data_dir.parent
    three = topology_of(path, "us-east", "eu-west", "ap-south")
    two, file = without(three, "ap-south"), path / "topology.yaml"
    write(two, file)
    with up(path) as running:
        running.prints("ready at", 2)
        before = pids(three, "us-east", "eu-west")

        file.write_text(file.read_text() + "lnks: []\n")
        running.hang_up()
        running.prints("lnks: unknown key")
        running.prints("nothing was changed")

        moved = two.clusters[1].model_copy(update={"address": three.cluster("ap-south").address})
        write(replace(two, clusters=(two.clusters[0], moved), links=(Link("us-east", "eu-west"),)), file)
        running.hang_up()
        running.prints("needs a restart of the worker of eu-west")
        running.prints("nothing was changed", 2)
        assert destinations(three, "eu-west") == ["us-east"]

        write(three, file)
        running.hang_up()
        running.prints("ap-south: ready at")
        running.prints("us-east: cluster ap-south: added")
        running.until(lambda: "ap-south" in destinations(three, "us-east"), "a link to the new cluster")
        assert pids(three, "us-east", "eu-west") == before
        (new,) = pids(three, "ap-south")

        write(without(three, "eu-west"), file)
        running.hang_up()
        running.prints("eu-west: stopped")
        assert destinations(three, "us-east") == ["ap-south"]
        assert pids(three, "us-east", "ap-south") == [before[0], new]
        assert not (three.cluster("eu-west").data / "postgres" / "postmaster.pid").exists()

        file.write_text("clusters: {}\n")
        running.hang_up(before[0])  # a worker that is told by itself
        running.prints("topology not reloaded")
        assert destinations(three, "us-east") == ["ap-south"]
        write(replace(without(three, "eu-west"), sync=SyncSettings(update_interval_ms=50)), file)
        running.hang_up(before[0])
        running.until(lambda: status(three, "us-east")["topology"]["reloads"] == 3, "the third reload")
    assert running.process.returncode == 0, running.printed


def test_up_ends_with_the_terminal_that_it_was_started_at(data_dir: Path) -> None:
    """Closing a terminal sends SIGHUP too; workers that nobody sees any more would keep their ports for ever."""
    path = data_dir.parent
    solo = write(topology_of(path, "solo"), path / "topology.yaml")
    person, terminal = pty.openpty()

    def take_terminal() -> None:
        os.setsid()
        fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)

    process = subprocess.Popen(
        [sys.executable, "-m", "replicator.cli", "up", "-f", "topology.yaml"],
        cwd=path,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        preexec_fn=take_terminal,
    )
    os.close(terminal)
    printed = b""
    while b"ready at" not in printed:
        assert select.select([person], [], [], SECONDS_MAX)[0], printed
        try:
            printed += os.read(person, 4096)
        except OSError:
            raise AssertionError(printed.decode()) from None
    (pid,) = pids(solo, "solo")
    os.close(person)
    try:
        assert process.wait(SECONDS_MAX) == 0
    finally:
        process.terminate()
    assert not psutil.pid_exists(pid)
    assert not (solo.clusters[0].data / "postgres" / "postmaster.pid").exists()


def test_what_cannot_be_printed_ends_nobody(data_dir: Path) -> None:
    """A log on a full disk, or at a terminal that is going: the lines are lost, and the workers go on."""
    solo = write(topology_of(data_dir.parent, "solo"), data_dir.parent / "topology.yaml")
    with Path("/dev/full").open("w") as full:
        process = subprocess.Popen(
            [sys.executable, "-m", "replicator.cli", "up", "-f", "topology.yaml"], cwd=data_dir.parent, stderr=full
        )
    try:
        deadline = time.monotonic() + SECONDS_MAX
        while not answers(solo, "solo"):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGHUP)
        while status(solo, "solo")["topology"]["reloads"] == 0:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        process.terminate()
        ended = process.wait(SECONDS_MAX)
    assert ended == 0


def answers(topology: Topology, cluster: str) -> bool:
    try:
        with urllib.request.urlopen(f"{topology.cluster(cluster).url}/readyz", timeout=10):
            return True
    except OSError:
        return False
