"""Failovers as the official clients in Java and Go live through them: nothing that was confirmed is lost.

The workers are real processes, and so is each client, which sends and receives all the time (``java/Traffic.java``,
``go/traffic.go``).
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Final

import pytest
from failover_support import TOPIC, WithPorts, deployment
from peers.client_programs import go_program, java_program
from postgres_support import databases_of, served_postgres

BOTH_WAYS: Final = "[{between: [A, B]}]"
WAIT_SECONDS: Final = 60.0
FOLLOWS_SECONDS_MAX: Final = 150.0
"""The Go client's pauses between two tries grow to a minute."""

_topics = (f"{TOPIC}-{number}" for number in count())


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WithPorts]:
    """Give two clusters with links both ways. Before and after each test, each serves its own clients."""
    with served_postgres() as server, databases_of("AB", server, "clients") as databases:
        path = tmp_path_factory.mktemp("clusters")
        with deployment(path, "A", "B", links=BOTH_WAYS, databases=databases, kind=WithPorts) as made:
            yield made


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return java_program(tmp_path_factory.mktemp("java"), "Traffic.java")


@pytest.fixture(scope="module")
def go(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return go_program(tmp_path_factory.mktemp("go"))


class Traffic:
    """A program that sends and receives all the time."""

    def __init__(self, directory: Path, *command: str) -> None:
        self.confirmed: list[int] = []
        self.received: list[int] = []
        self.failed: list[str] = []
        self._errors = directory / "errors"
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)
        self._reading = threading.Thread(target=self._read)
        self._reading.start()

    def more(self, messages: int = 50) -> None:
        """Wait until so many more messages were confirmed and received."""
        confirmed, received = len(self.confirmed) + messages, len(set(self.received)) + messages
        self._until(lambda: len(self.confirmed) >= confirmed and len(set(self.received)) >= received)

    def stop(self) -> None:
        """End the client; all confirmed messages must have been received."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(WAIT_SECONDS) == 0, self._errors.read_text()[-3000:]
        self._reading.join(WAIT_SECONDS)
        assert set(self.confirmed) <= set(self.received)
        assert not self.failed

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reading.join(WAIT_SECONDS)

    def _until(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while not holds():
            assert self._process.poll() is None, self._errors.read_text()[-3000:]
            assert time.monotonic() < deadline, (len(self.confirmed), len(self.received), self.failed)
            time.sleep(0.02)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            kind, _, what = line.decode().strip().partition(" ")
            match kind:
                case "+":
                    self.confirmed.append(int(what))
                case "-":
                    self.received.append(int(what))
                case "!":
                    self.failed.append(what)


@contextmanager
def traffic_of(directory: Path, *command: str) -> Iterator[Traffic]:
    traffic = Traffic(directory, *command)
    try:
        traffic.more()
        yield traffic
    finally:
        traffic.kill()


def provider(deployed: WithPorts) -> str:
    """Return the URL that tells which cluster serves for A, at a worker that is never stopped."""
    return deployed.url("B", "/failover/v1/service-url?cluster=A")


def there_and_back(deployed: WithPorts, topic: str, traffic: Traffic) -> None:
    """Fail over from A to B as planned, and back."""
    deployed.report("failover", "--from", "A", "--to", "B")
    deployed.until(lambda: deployed.serves("B", topic), "the client follows", FOLLOWS_SECONDS_MAX)
    traffic.more()
    back(deployed, topic, traffic)


def back(deployed: WithPorts, topic: str, traffic: Traffic) -> None:
    deployed.report("failback", "--to", "A")
    deployed.until(lambda: deployed.serves("A", topic), "the client is back", FOLLOWS_SECONDS_MAX)
    traffic.more()


def test_java_tries_clusters_leaves_a_dead_one_stays_away_when_it_returns_fenced_and_comes_back(
    deployed: WithPorts, java: list[str], tmp_path: Path
) -> None:
    topic = next(_topics)
    with traffic_of(tmp_path, *java, topic, deployed.service_url("A"), "auto", deployed.service_url("B")) as traffic:
        deployed.kill("A")
        deployed.report("failover", "--from", "A", "--to", "B", "--unplanned")
        traffic.more()
        deployed.start("A")
        traffic.more(200)
        assert not deployed.reachable("A")
        assert deployed.serves("B", topic)
        back(deployed, topic, traffic)
        traffic.stop()


def test_java_asks_a_worker_that_lives_where_to_go(deployed: WithPorts, java: list[str], tmp_path: Path) -> None:
    """Planned, back, and unplanned, with the old primary that returns fenced at the end."""
    topic = next(_topics)
    with traffic_of(tmp_path, *java, topic, deployed.service_url("A"), "controlled", provider(deployed)) as traffic:
        there_and_back(deployed, topic, traffic)
        deployed.kill("A")
        deployed.report("failover", "--from", "A", "--to", "B", "--unplanned")
        traffic.more()
        deployed.start("A")
        traffic.more(200)
        assert deployed.serves("B", topic)
        back(deployed, topic, traffic)
        traffic.stop()


def test_go_is_sent_where_it_is_served_by_the_one_cluster_that_it_knows(
    deployed: WithPorts, go: list[str], tmp_path: Path
) -> None:
    """Planned and back; when its cluster is dead it waits until that is back, fenced, and is sent on."""
    topic = next(_topics)
    with traffic_of(tmp_path, *go, "traffic", topic, deployed.client_url("A")) as traffic:
        there_and_back(deployed, topic, traffic)
        assert len(traffic.received) == len(set(traffic.received)), "nothing comes twice where the switch was planned"
        deployed.kill("A")
        deployed.report("failover", "--from", "A", "--to", "B", "--unplanned")
        deployed.start("A")
        deployed.until(lambda: deployed.serves("B", topic), "the client is sent on")
        traffic.more()
        back(deployed, topic, traffic)
        traffic.stop()
