"""Failovers as official clients live through them: unplanned, planned, an old primary that returns fenced, and back.

The workers are real, each with a port of its own for the binary protocol, and the client is told of the clusters once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pulsar
import pytest
from failover_support import TOPIC, WithPorts, deployment
from official_client import official_client
from postgres_support import databases_of

BOTH_WAYS = "[{between: [A, B]}]"
WAIT_SECONDS = 60.0
CHECK_MILLIS = 100
"""Interval at which the client looks whether a cluster can be reached."""


@pytest.fixture(scope="module")
def databases(postgres_server: str) -> Iterator[dict[str, str]]:
    with databases_of("AB", postgres_server, "official") as urls:
        yield urls


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory, databases: dict[str, str]) -> Iterator[WithPorts]:
    """Between two tests everybody is served at home."""
    path = tmp_path_factory.mktemp("clusters")
    with deployment(path, "A", "B", links=BOTH_WAYS, databases=databases, kind=WithPorts) as made:
        yield made


_topics = (f"{TOPIC}-{number}" for number in count())


class Traffic:
    """A producer that sends all the time and a consumer that acknowledges all, of one client, each in a thread."""

    def __init__(self, client: Any) -> None:
        topic = next(_topics)
        self.topic = topic
        self.confirmed: list[int] = []
        self.received: list[int] = []
        self.failed: list[str] = []
        self._stopping = threading.Event()
        self._producer = client.create_producer(topic, send_timeout_millis=0, batching_max_publish_delay_ms=1)
        self._consumer = client.subscribe(
            topic, "sub", initial_position=pulsar.InitialPosition.Earliest, replicate_subscription_state_enabled=True
        )
        self._threads = [threading.Thread(target=part) for part in (self._produce, self._consume)]
        for thread in self._threads:
            thread.start()

    def more(self, messages: int = 50) -> None:
        """Return when so many more messages were confirmed and received."""
        confirmed, received = len(self.confirmed) + messages, len(set(self.received)) + messages
        self._until(lambda: len(self.confirmed) >= confirmed and len(set(self.received)) >= received)

    def stop(self) -> None:
        """Return when every confirmed message is received."""
        self._stopping.set()
        self._threads[0].join(WAIT_SECONDS)
        self._until(lambda: set(self.confirmed) <= set(self.received))
        self._threads[1].join(WAIT_SECONDS)
        assert not self.failed

    @property
    def repeated(self) -> int:
        return len(self.received) - len(set(self.received))

    def _until(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while not holds():
            assert time.monotonic() < deadline, (len(self.confirmed), len(self.received), self.failed)
            time.sleep(0.02)

    def _produce(self) -> None:
        for number in count():
            if self._stopping.is_set():
                return
            try:
                self._producer.send(b"%d" % number)
                self.confirmed.append(number)
            except pulsar.PulsarException as error:
                self.failed.append(repr(error))
            time.sleep(0.002)

    def _consume(self) -> None:
        while not (self._stopping.is_set() and set(self.confirmed) <= set(self.received)):
            try:
                message = self._consumer.receive(200)
            except pulsar.Timeout:
                continue
            self.received.append(int(message.data()))
            self._consumer.acknowledge(message)


def test_a_client_of_one_cluster_follows_planned_moves_there_and_back_and_nothing_comes_twice(
    deployed: WithPorts,
) -> None:
    with official_client(f"pulsar://127.0.0.1:{deployed.ports['A']}", seconds=20) as client:
        traffic = Traffic(client)
        traffic.more()
        deployed.report("failover", "--from", "A", "--to", "B")
        traffic.more()
        assert deployed.serves("B", traffic.topic)
        deployed.report("failback", "--to", "A")
        traffic.more()
        assert deployed.serves("A", traffic.topic)
        traffic.stop()
        assert traffic.received == sorted(traffic.confirmed)


def test_a_client_that_tries_clusters_leaves_a_dead_one_stays_away_when_it_returns_fenced_and_comes_back(
    deployed: WithPorts,
) -> None:
    """The returned one can be reached at its address, and at the other port only when it serves again."""
    primary, secondary = (pulsar.ServiceInfo(deployed.service_url(name)) for name in "AB")
    provider = pulsar.AutoClusterFailover(primary, [secondary], check_interval_ms=CHECK_MILLIS)
    with official_client(provider, seconds=20) as client:
        traffic = Traffic(client)
        traffic.more()
        deployed.kill("A")
        deployed.report("failover", "--from", "A", "--to", "B", "--unplanned")
        traffic.more()
        deployed.start("A")
        assert not deployed.reachable("A")
        traffic.more(200)
        assert not deployed.reachable("A")
        assert deployed.serves("B", traffic.topic)
        deployed.report("failback", "--to", "A")
        deployed.until(lambda: deployed.reachable("A"), "the port is open again")
        deployed.until(lambda: deployed.serves("A", traffic.topic), "the client is back")
        traffic.more()
        traffic.stop()


def test_while_a_cluster_is_served_elsewhere_lookups_say_where_and_its_port_is_closed(deployed: WithPorts) -> None:
    assert deployed.reachable("A")
    deployed.report("failover", "--from", "A", "--to", "B")
    try:
        deployed.until(lambda: not deployed.reachable("A"), "the port is closed")
        answer = deployed.get("B", "/failover/v1/service-url?cluster=A")
        assert answer["serviceUrl"] == deployed.service_url("B")
        with official_client(f"pulsar://127.0.0.1:{deployed.ports['A']}", seconds=20) as client:
            producer = client.create_producer(next(_topics))
            producer.send(b"by way of A")
    finally:
        deployed.report("failback", "--to", "A")
    deployed.until(lambda: deployed.reachable("A"), "the port is open again")
