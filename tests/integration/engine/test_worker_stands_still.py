"""Real worker processes whose event loop stands still: it is told, the process ends where it may, and starts again."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from failover_support import free_ports
from postgres_support import traversable_directory

from replicator.worker.watchdog import EXIT_STATUS, STACKS_SECONDS

CHILD = Path(__file__).with_name("watchdog_child.py")
RENDERED_CHART = Path(__file__).parents[2] / "helm" / "golden" / "minimal.yaml"
DEADLINE_SECONDS = 60.0
END_AFTER_SECONDS = 3
STACKS = "Timeout (0:00:05)!"
HELD_SECONDS = STACKS_SECONDS + 15.0
"""Time for which the GIL is held: beyond that of the stacks, long enough for a request that times out."""


class Host:
    """A place for one worker, which is started there again and again."""

    def __init__(self, directory: Path, section: str) -> None:
        (self.port,) = free_ports(1)
        self.directory = directory
        self.file = directory / "topology.yaml"
        self.file.write_text(
            f"clusters:\n  solo: {{address: '127.0.0.1:{self.port}', data: {directory / 'data'}}}\n"
            f"pipeline: {{engine: embedded}}\n{section}"
        )
        self.log = directory / "log"

    @contextlib.contextmanager
    def worker(self, *options: str) -> Iterator[subprocess.Popen[bytes]]:
        """A worker that is ready."""
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, CHILD, "worker", "-f", self.file, "-c", "solo", *options],
                stderr=log,
                env={**os.environ, "HELD_SECONDS": f"{HELD_SECONDS:.0f}"},
                cwd=self.directory,
            )
        try:
            until(lambda: self.answers() or process.poll() is not None, "the worker answers")
            assert process.poll() is None, self.log.read_text()
            yield process
        finally:
            process.kill()
            process.wait()

    def answers(self) -> bool:
        try:
            return bool(self.get("/readyz"))
        except OSError:
            return False

    def get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=2) as answer:
            return str(answer.read().decode())

    def publish(self, *payloads: str) -> None:
        body = json.dumps({"messages": [{"payload": each} for each in payloads]}).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/topics/persistent/public/default/t",
            data=body,
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert answer.status == 200

    def messages(self) -> int:
        stats = json.loads(self.get("/admin/v2/persistent/public/default/t/stats"))
        return int(stats["msgInCounter"])

    def database_state(self) -> str:
        return str(json.loads(self.get("/replication/v1/status?topics=false"))["database"]["state"])

    def told(self, text: str) -> int:
        return self.log.read_text(errors="replace").count(text)

    def end_database(self) -> None:
        with contextlib.suppress(OSError, ValueError, IndexError, psutil.NoSuchProcess):
            pid = int((self.directory / "data" / "postgres" / "postmaster.pid").read_text().split()[0])
            psutil.Process(pid).send_signal(signal.SIGINT)


def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


@pytest.fixture
def host(request: pytest.FixtureRequest) -> Iterator[Host]:
    with traversable_directory() as directory:
        directory.chmod(0o755)
        made = Host(directory, getattr(request, "param", ""))
        yield made
        made.end_database()


@pytest.mark.parametrize("host", ["watchdog: {end_after: 7s}\n"], indirect=True)
def test_a_worker_that_stands_still_writes_its_stacks_ends_with_70_and_starts_again_with_all_it_had(host: Host) -> None:
    with host.worker() as process:
        host.publish("a", "b")
        assert host.messages() == 2
        assert host.told(STACKS) == 0
        process.send_signal(signal.SIGUSR1)
        until(lambda: host.told(STACKS) == 1, "the stacks are in the log")
        assert process.poll() is None, "it is told before the end"
        assert host.told("in stand_still") == 1
        assert process.wait(DEADLINE_SECONDS) == EXIT_STATUS == 70
        assert host.told("the event loop stands still; the worker ends") == 1
        assert host.told("in stand_still") == 2, "once more at the end"
    with host.worker():
        assert host.messages() == 2
        until(lambda: host.database_state() == "up", "its database is there again")
        host.publish("c")
        assert host.messages() == 3


def test_a_worker_that_was_suspended_for_longer_than_the_limit_goes_on(host: Host) -> None:
    with host.worker("--end-when-stuck", f"{END_AFTER_SECONDS}s") as process:
        host.publish("a")
        for _ in range(2):
            process.send_signal(signal.SIGSTOP)
            until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED, "it is suspended")
            time.sleep(2 * END_AFTER_SECONDS)  # what is tested is that time passes
            process.send_signal(signal.SIGCONT)
            until(host.answers, "it answers again")
        time.sleep(END_AFTER_SECONDS + 1)  # nothing may happen in this time
        assert process.poll() is None
        assert host.messages() == 1
        assert host.told("the worker ends") == 0
        process.send_signal(signal.SIGUSR1)
        assert process.wait(DEADLINE_SECONDS) == EXIT_STATUS, "the limit is that of the option"


def liveness_probe() -> Any:
    """Return the liveness probe of the chart's worker, as the chart is rendered."""
    (workers,) = [each for each in yaml.safe_load_all(RENDERED_CHART.read_text()) if each["kind"] == "StatefulSet"]
    return workers["spec"]["template"]["spec"]["containers"][0]["livenessProbe"]


def lag_of(scraped: str) -> tuple[float, int, int]:
    """Return the greatest lag of the event loop, and the beats of its histogram: all, and those later than 10 s."""
    found = {
        name.removeprefix("replicator_event_loop_lag_"): float(value)
        for name, _, value in (line.rpartition(" ") for line in scraped.splitlines())
        if name.startswith("replicator_event_loop_lag_")
    }
    (greatest,) = [value for name, value in found.items() if name.startswith("max_seconds{")]
    (beats,) = [value for name, value in found.items() if name.startswith("seconds_count{")]
    (to_ten,) = [value for name, value in found.items() if 'le="10"' in name]
    return greatest, int(beats), int(beats - to_ten)


def test_a_worker_whose_c_code_holds_the_gil_is_told_and_not_ended_and_fails_its_liveness_probe(host: Host) -> None:
    """The kubelet ends a container after ``failureThreshold`` such answers in a row."""
    probe = liveness_probe()
    assert 0 < probe["failureThreshold"] * probe["periodSeconds"] <= 60

    def is_alive() -> bool:
        url = f"http://127.0.0.1:{host.port}{probe['httpGet']['path']}"
        with urllib.request.urlopen(url, timeout=probe["timeoutSeconds"]) as answer:
            return bool(answer.status == 200)

    with host.worker("--end-when-stuck", f"{END_AFTER_SECONDS}s") as process:
        assert is_alive()
        assert lag_of(host.get("/metrics"))[0] < STACKS_SECONDS
        process.send_signal(signal.SIGUSR2)
        until(lambda: host.told(STACKS) == 1, "the stacks are in the log")
        with pytest.raises(TimeoutError):
            is_alive()
        assert host.told("in hold_the_gil") == 1
        until(host.answers, "it goes on when the code returns")
        assert process.poll() is None
        assert is_alive()
        greatest, beats, late = lag_of(host.get("/metrics"))
        assert greatest > HELD_SECONDS - 1
        assert beats > late == 1


def test_by_default_a_worker_that_stands_still_is_told_and_not_ended(host: Host) -> None:
    with host.worker() as process:
        process.send_signal(signal.SIGUSR1)
        until(lambda: host.told(STACKS) == 1, "the stacks are in the log")
        time.sleep(END_AFTER_SECONDS)  # nothing may happen in this time
        assert process.poll() is None


@pytest.mark.parametrize("wrong", ["2s", "soon", "2d", "-1"])
def test_a_limit_that_makes_no_sense_is_refused(wrong: str, host: Host) -> None:
    ran = subprocess.run(
        [sys.executable, CHILD, "worker", "-f", host.file, "-c", "solo", f"--end-when-stuck={wrong}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_SECONDS,
    )
    assert ran.returncode == 2
    assert "--end-when-stuck" in ran.stderr
    assert len(ran.stderr.splitlines()) == 1


@contextlib.contextmanager
def unread(free: int, stands_seconds: float, end_after: int) -> Iterator[subprocess.Popen[str]]:
    """A loop whose standard error has ``free`` bytes left, and nobody who reads it."""
    read, write = os.pipe()
    child = CHILD.with_name("watchdog_blocked_child.py")
    process = subprocess.Popen(
        [sys.executable, child, str(free), str(stands_seconds), str(end_after)],
        stdout=subprocess.PIPE,
        stderr=write,
        text=True,
        pass_fds=[read],
        env={**os.environ, "READ_END": str(read)},
    )
    os.close(write)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
        os.close(read)


def test_a_loop_that_stood_still_turns_again_though_nobody_reads_its_log() -> None:
    with unread(free=0, stands_seconds=2.5, end_after=0) as process:
        assert process.wait(DEADLINE_SECONDS) == 0
        assert process.stdout is not None
        assert process.stdout.read().splitlines() == [f"turn {number}" for number in range(5)]


@pytest.mark.parametrize("free", [0, 4096])
def test_a_loop_that_stands_still_is_ended_though_nobody_reads_its_log(free: int) -> None:
    with unread(free, stands_seconds=DEADLINE_SECONDS, end_after=2) as process:
        assert process.wait(DEADLINE_SECONDS / 2) == EXIT_STATUS
