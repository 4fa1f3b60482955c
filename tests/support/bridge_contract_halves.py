"""Contract of workers beside Apache Pulsar clusters while a broker's admin API or its binary protocol is away, and
while clocks differ: nothing is lost or doubled, order is kept, acknowledgements are exact afterwards, and the status
says what is wrong meanwhile.

A module of tests imports all of it, and has a fixture ``halves``, as with :mod:`bridge_contract`.
"""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from itertools import count
from typing import Any, Final

import pulsar
import pytest
from peers.apache_support import backlog, bodies, drain, official, read_all, until
from peers.half_down_support import ADMIN, BINARY, Halved, restarted
from pulsar import ConsumerType, InitialPosition

from replicator.drills.link_fault import BLACK_HOLE, CUT, LinkFault

FAULTS: Final = pytest.mark.parametrize("fault", [CUT, BLACK_HOLE], ids=["refused", "hanging"])
HOURS: Final = 3600
_topics = (f"persistent://public/default/halves-{number}" for number in count())


class Applications:
    """Applications of one topic at both clusters: each has a producer, and a consumer of the Shared subscription
    ``work``."""

    def __init__(self, made: Halved, topic: str, clients: dict[str, pulsar.Client]) -> None:
        self.made = made
        self.topic = topic
        self.published: dict[str, list[str]] = {"A": [], "B": []}
        self.acknowledged: set[str] = set()
        self._consumers = {
            name: client.subscribe(topic, "work", ConsumerType.Shared, initial_position=InitialPosition.Earliest)
            for name, client in clients.items()
        }
        self._producers = {
            name: client.create_producer(topic, batching_enabled=False) for name, client in clients.items()
        }
        self._got: dict[str, dict[str, pulsar.Message]] = {"A": {}, "B": {}}

    @property
    def all(self) -> list[str]:
        return self.published["A"] + self.published["B"]

    def publish(self, name: str, messages: int) -> list[str]:
        first = len(self.published[name])
        news = bodies(name.lower(), range(first, first + messages))
        for body in news:
            self._producers[name].send(body.encode())
        self.published[name] += news
        return news

    def acknowledge(self, name: str, wanted: Iterable[str]) -> None:
        """Acknowledge the messages with the bodies ``wanted`` at cluster ``name``, each as soon as its consumer there
        has it."""
        got, left = self._got[name], set(wanted)
        for body in left:
            while body not in got:
                message = self._consumers[name].receive(60_000)
                got[message.data().decode()] = message
            self._consumers[name].acknowledge(got[body])
        self.acknowledged |= left

    def arrived(self, name: str, wanted: Iterable[str]) -> None:
        """Return when the consumer of a cluster has received all of these."""
        got = self._got[name]
        while not set(wanted) <= got.keys():
            message = self._consumers[name].receive(60_000)
            got[message.data().decode()] = message

    def settled(self) -> None:
        """Return when both clusters count the same messages as open and no worker reports an error."""
        made, wanted = self.made, len(self.all) - len(self.acknowledged)

        def at_rest() -> bool:
            counts = {backlog(made.brokers[name], self.topic, "work") for name in "AB"}
            return counts == {wanted} and not any(complaints(made, name, self.topic) for name in "AB")

        until(at_rest, lambda: (wanted, made.apache("A"), made.apache("B")))

    def exact(self) -> None:
        """Check that both brokers have every message in the order of its origin, and deliver exactly what was not
        acknowledged. Call it after the applications have gone."""
        made = self.made
        for name in "AB":
            found = read_all(made.brokers[name], self.topic, len(self.all))
            for origin in "AB":
                assert [body for body in found if body[0] == origin.lower()] == self.published[origin], name
        open_ = drain(made.brokers["B"], self.topic, "work", ConsumerType.Shared)
        assert sorted(open_) == sorted(set(self.all) - self.acknowledged)
        until(lambda: backlog(made.brokers["A"], self.topic, "work") == 0, lambda: made.apache("A"))
        for name in "AB":
            shown = of_topic(made, name, self.topic)
            assert (shown["doubled"], shown["state"]["resets"], shown["halted"]) == (0, 0, False), shown


@contextmanager
def applications(made: Halved) -> Iterator[Applications]:
    """Yield applications of a new topic that has messages of both clusters in each."""
    with official(made.brokers["A"]) as at_a, official(made.brokers["B"]) as at_b:
        apps = Applications(made, next(_topics), {"A": at_a, "B": at_b})
        for name in "AB":
            apps.publish(name, 20)
        for name in "AB":
            apps.arrived(name, apps.all)
        apps.acknowledge("A", bodies("a", [1, 5]))
        apps.acknowledge("B", bodies("b", [2]))
        apps.settled()
        yield apps
        apps.settled()


def of_topic(made: Halved, name: str, topic: str) -> Any:
    """Return a topic's part of a worker's status; an entry with an error if the worker does not have the topic yet."""
    found = [each for each in made.apache(name)["topics"] if each["topic"] == topic]
    return found[0] if found else {"errors": {"reading": "not bridged yet"}, "state": {"errors": {}}}


def named(made: Halved, topic: str, address: str, *parts: str) -> None:
    """Return when the status of B's worker says that these parts of a topic's bridge wait for an address."""
    for part in parts:
        until(
            lambda part=part: address in of_topic(made, "B", topic)["errors"].get(part, ""),
            lambda part=part: (part, made.apache("B")),
        )


def complaints(made: Halved, name: str, topic: str) -> bool:
    shown = of_topic(made, name, topic)
    return bool(made.apache(name)["error"] or shown["errors"] or shown["state"]["errors"])


@FAULTS
def test_messages_are_copied_while_the_admin_api_is_away_and_acknowledgements_catch_up(
    halves: Halved, fault: LinkFault
) -> None:
    address = halves.address("B", ADMIN)
    with applications(halves) as apps:
        topic = apps.topic
        with halves.fails("B", ADMIN, fault):
            apps.acknowledge("A", bodies("a", [0, 7, 19]) + bodies("b", [4]))  # before anything else comes
            for _ in range(2):
                apps.arrived("B", apps.publish("A", 10))
                apps.arrived("A", apps.publish("B", 10))
            apps.acknowledge("B", bodies("a", [20, 33]) + bodies("b", [25]))
            until(lambda: address in halves.apache("B")["error"], lambda: halves.apache("B"))
            named(halves, topic, address, "subscriptions")
            assert address in halves.command("status").stdout
            assert not complaints(halves, "A", topic)
            # Nothing of subscriptions passes the broker of B, either way.
            until(lambda: backlog(halves.brokers["B"], topic, "work") == len(apps.all) - 6, "B has its own alone")
            assert backlog(halves.brokers["A"], topic, "work") == len(apps.all) - 7
            apps.arrived("B", apps.publish("A", 10))  # after all that, still
    apps.exact()


def test_messages_wait_once_for_a_subscription_that_cannot_be_made_and_it_gets_all_of_its_messages(
    halves: Halved,
) -> None:
    """A subscription and a topic that are new at A while B has no admin API."""
    with applications(halves) as apps:
        fresh = next(_topics)
        with halves.fails("B", ADMIN, CUT), official(halves.brokers["A"]) as client:
            consumer = client.subscribe(apps.topic, "late", ConsumerType.Shared)
            until(lambda: late_in_engine(halves, apps.topic), lambda: halves.apache("B"))
            apps.arrived("B", apps.publish("A", 1))  # brokers are given the time to get the subscription first
            began = time.monotonic()
            for _ in range(3):
                apps.arrived("B", apps.publish("A", 1))
            assert time.monotonic() - began < 9
            for number in range(4):
                message = consumer.receive(60_000)
                if number != 1:
                    consumer.acknowledge(message)
            assert backlog(halves.brokers["B"], apps.topic, "late") == -1
            producer = client.create_producer(fresh, batching_enabled=False)
            for body in bodies("n", range(10)):
                producer.send(body.encode())
            named(halves, fresh, halves.address("B", ADMIN), "reading", "publishing", "subscriptions")
        until(lambda: backlog(halves.brokers["B"], apps.topic, "late") == 1, lambda: halves.apache("B"))
        assert drain(halves.brokers["B"], apps.topic, "late", ConsumerType.Shared) == bodies("a", [21])
        assert read_all(halves.brokers["B"], fresh, 10) == bodies("n", range(10))
    apps.exact()


def late_in_engine(made: Halved, topic: str) -> bool:
    return "late" in made.get("B", f"/admin/v2/{topic.replace('://', '/')}/subscriptions")


def test_a_worker_that_starts_without_the_admin_api_waits_for_it_and_goes_on_where_it_was(halves: Halved) -> None:
    address = halves.address("B", ADMIN)
    with applications(halves) as apps:
        with halves.fails("B", ADMIN, CUT):
            apps.publish("A", 10)
            halves.kill("B")
            apps.publish("A", 10)
            apps.publish("B", 10)
            halves.start("B")
            named(halves, apps.topic, address, "reading", "publishing", "subscriptions")
            apps.acknowledge("A", bodies("a", [3, 25, 39]))
        apps.arrived("A", apps.all)
        apps.arrived("B", apps.all)
    apps.exact()


@FAULTS
def test_messages_wait_while_the_binary_protocol_is_away_and_acknowledgements_need_it_only_for_holes(
    halves: Halved, fault: LinkFault
) -> None:
    address = halves.address("B", BINARY)
    with applications(halves) as apps, official(halves.brokers["A"]) as client:
        topic = apps.topic
        alone = client.subscribe(topic, "alone", ConsumerType.Exclusive, initial_position=InitialPosition.Earliest)
        got = [alone.receive(60_000) for _ in apps.all]
        until(lambda: backlog(halves.brokers["B"], topic, "alone") == 40, lambda: halves.apache("B"))
        with halves.fails("B", BINARY, fault):
            apps.publish("A", 20)
            apps.publish("B", 20)
            named(halves, topic, address, "reading", "publishing")
            assert halves.apache("B")["error"] == ""  # the admin API answers
            assert address in halves.command("status").stdout
            # What was acknowledged at B is seen at A; what leaves no hole goes the other way, too.
            apps.acknowledge("B", bodies("a", [9]) + bodies("b", [11]))
            until(lambda: backlog(halves.brokers["A"], topic, "work") == 60 - 5, lambda: halves.apache("A"))
            for message in got:
                alone.acknowledge(message)
            until(lambda: backlog(halves.brokers["B"], topic, "alone") == 20, lambda: halves.apache("B"))
            # A hole waits.
            apps.acknowledge("A", bodies("a", [12]) + bodies("b", [13]))
            until(
                lambda: address in of_topic(halves, "B", topic)["state"]["errors"].get("work", ""),
                lambda: halves.apache("B"),
            )
            assert backlog(halves.brokers["B"], topic, "work") == 60 - 5
        apps.arrived("A", apps.all)
        apps.arrived("B", apps.all)
    apps.exact()


def test_clocks_that_are_hours_apart_change_nothing(halves: Halved) -> None:
    """A's worker is five hours ahead of the brokers, B's seven behind; then the other way round, in the same logs."""
    with applications(halves) as apps:
        try:
            for ahead in ((5, -7), (-7, 5)):
                restarted(halves, A=ahead[0] * HOURS, B=ahead[1] * HOURS)
                assert apart(halves) > 11 * HOURS
                for name in "AB":
                    apps.publish(name, 10)
                for name in "AB":
                    apps.arrived(name, apps.all)
                first = len(apps.published["A"]) - 10
                apps.acknowledge("A", bodies("a", [first + 3]) + bodies("b", [first + 9]))
                apps.acknowledge("B", bodies("a", [first + 6]) + bodies("b", [first + 1]))
                apps.settled()
        finally:
            restarted(halves, A=0, B=0)
    apps.exact()


def apart(made: Halved) -> float:
    """Return the seconds between the clocks of the two workers, by the times that they report."""
    moments = []
    for name in "AB":
        with urllib.request.urlopen(made.url(name, "/readyz"), timeout=10) as response:
            moments.append(parsedate_to_datetime(response.headers["Date"]))
    return abs((moments[0] - moments[1]).total_seconds())
