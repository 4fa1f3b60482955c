"""Links that Spark carries between workers beside brokers: workers of ours play these, so only Spark needs Java."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from gateway_broker import gateways_of
from peers.apache_support import Beside, backlog, beside, bodies, drain, official, read_all, until
from pulsar import ConsumerType, InitialPosition

TOPIC = "persistent://public/default/live"
LINKS = "[{from: A, to: B, engine: spark}, {from: B, to: A}]"
"""One way is enough: the other one's driver would need as much of the machine again."""
SECONDS_MAX = 240.0
"""A driver that starts on a busy machine takes a minute and more."""
AHEAD_MAX = 1_000
"""Limit of messages that are published and have not arrived yet."""
KILLS = 10 if os.environ.get("SOAK") else 1
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Beside]:
    path = tmp_path_factory.mktemp("pair")
    with gateways_of(path, "A", "B") as brokers, beside(path, "AB", brokers, LINKS) as made:
        yield made


class Traffic:
    """Publishes at the brokers of one cluster until it is stopped."""

    def __init__(self, made: Beside, cluster: str, there: str) -> None:
        self._made = made
        self._cluster = cluster
        self._there = there
        self._stop = threading.Event()
        self.published = 0
        self._thread = threading.Thread(target=self._publish)
        self._thread.start()

    def _publish(self) -> None:
        """Publish with a bound on unfinished messages: Spark takes its time to start."""
        with official(self._made.brokers[self._cluster]) as client:
            producer = client.create_producer(TOPIC, batching_enabled=False)
            while not self._stop.is_set():
                if self.published - self.arrived() < AHEAD_MAX:
                    for number in range(self.published, self.published + 10):
                        producer.send_async(f"{self._cluster}-{number}".encode(), lambda *_: None)
                    producer.flush()
                    self.published += 10
                self._stop.wait(0.1)

    def arrived(self) -> int:
        """Return how many messages the bridge at the other cluster has published at its brokers."""
        shown = self._made.apache(self._there)["topics"]
        return sum(int(each["messages_published"]) for each in shown if each["topic"] == TOPIC)

    def more(self, count: int) -> None:
        """Return when so many more have arrived."""
        wanted = self.arrived() + count
        until(lambda: self.arrived() >= wanted, lambda: self._said(wanted), SECONDS_MAX)

    def _said(self, wanted: int) -> object:
        link = self._made.get(self._cluster, f"/replication/v1/links/{self._cluster}%3E{self._there}")
        return f"{self.arrived()} of {wanted} arrived", link, self._made.log(self._cluster)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


def driver(made: Beside, cluster: str) -> Any:
    """Return the driver's part of a worker's status."""
    return made.get(cluster, "/replication/v1/status")["pipeline"]


def test_what_brokers_have_comes_once_and_in_order_and_so_do_acknowledgements_though_drivers_are_killed(
    pair: Beside,
) -> None:
    """Invariants 2, 3, 5 and 6, from brokers to brokers and both ways."""
    acknowledged: set[str] = set()
    with official(pair.brokers["A"]) as client:
        consumer = client.subscribe(TOPIC, "work", ConsumerType.Shared, initial_position=InitialPosition.Earliest)

        def acknowledge() -> None:
            for _ in range(40):
                message = consumer.receive(60_000)
                body = message.data().decode()
                if int(body.partition("-")[2]) % 7:
                    consumer.acknowledge(message)
                    acknowledged.add(body)

        traffic = {"A": Traffic(pair, "A", "B"), "B": Traffic(pair, "B", "A")}
        try:
            for each in traffic.values():
                each.more(60)
            for _ in range(KILLS):
                acknowledge()
                os.kill(driver(pair, "A")["pid"], signal.SIGKILL)
                acknowledge()
                for each in traffic.values():
                    each.more(60)
        finally:
            for each in traffic.values():
                each.stop()
        acknowledge()
    assert driver(pair, "A")["starts"] == 1 + KILLS
    published = {name: bodies(name, range(each.published)) for name, each in traffic.items()}
    total = sum(map(len, published.values()))
    for name in "AB":
        found = read_all(pair.brokers[name], TOPIC, total, SECONDS_MAX)
        for origin, wanted in published.items():
            assert [body for body in found if body.startswith(origin)] == wanted, (name, pair.apache(name))
        assert len(found) == total
    left = total - len(acknowledged)
    until(lambda: backlog(pair.brokers["B"], TOPIC, "work") == left, lambda: pair.apache("B"), SECONDS_MAX)
    open_at_b = drain(pair.brokers["B"], TOPIC, "work", ConsumerType.Shared)
    assert set(open_at_b) == {*published["A"], *published["B"]} - acknowledged
    assert len(open_at_b) == left
    # What was acknowledged at B comes back to A.
    until(lambda: backlog(pair.brokers["A"], TOPIC, "work") == 0, lambda: pair.apache("A"), SECONDS_MAX)
    verified = pair.report("verify", "--brokers", "--topic", TOPIC)
    assert verified["brokers"]["A"]["messages"] == verified["brokers"]["B"]["messages"] == total
    link = pair.get("A", "/replication/v1/links/A%3EB")
    assert (link["engine"], link["halted_count"], link["gap_count"]) == ("spark", 0, 0)
