"""What holds of workers beside Apache Pulsar clusters while one half of a broker is away, such as the admin API:
nothing is lost, nothing comes twice, order is kept, acknowledgements are exact afterwards, and the status says what is
wrong while it is.

A module of tests imports all of it, and has a fixture ``halves``, as with :mod:`bridge_contract`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import pulsar
from peers.apache_support import backlog, bodies, drain, official, read_all, until
from peers.half_down_support import ADMIN, Halved
from pulsar import ConsumerType, InitialPosition

from replicator.drills.link_fault import CUT

_topics = (f"persistent://public/default/halves-{number}" for number in count())


class Applications:
    """Those of one topic at both clusters: each has a producer, and a consumer of the Shared subscription ``work``."""

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
        """At one cluster, as soon as its consumer has them."""
        got, left = self._got[name], set(wanted)
        for body in left:
            while body not in got:
                message = self._consumers[name].receive(60_000)
                got[message.data().decode()] = message
            self._consumers[name].acknowledge(got[body])
        self.acknowledged |= left

    def arrived(self, name: str, wanted: Iterable[str]) -> None:
        """Returns when the consumer of a cluster has got all of these."""
        got = self._got[name]
        while not set(wanted) <= got.keys():
            message = self._consumers[name].receive(60_000)
            got[message.data().decode()] = message

    def settled(self) -> None:
        """Returns when both clusters count the same as open, and no worker complains any more."""
        made, wanted = self.made, len(self.all) - len(self.acknowledged)

        def at_rest() -> bool:
            counts = {backlog(made.brokers[name], self.topic, "work") for name in "AB"}
            return counts == {wanted} and not any(complaints(made, name, self.topic) for name in "AB")

        until(at_rest, lambda: (wanted, made.apache("A"), made.apache("B")))

    def exact(self) -> None:
        """What both brokers have, in the order of each origin, and what is still delivered. To be called when the
        applications have gone."""
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
    """Of a new topic, of which each cluster has messages of the other one."""
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
    """What the status of a worker says of a topic; an error if it does not have it yet."""
    found = [each for each in made.apache(name)["topics"] if each["topic"] == topic]
    return found[0] if found else {"errors": {"reading": "not bridged yet"}, "state": {"errors": {}}}


def named(made: Halved, topic: str, address: str, *parts: str) -> None:
    """Returns when the status of B's worker names an address as what these parts of a topic's bridge wait for."""
    for part in parts:
        until(
            lambda part=part: address in of_topic(made, "B", topic)["errors"].get(part, ""),
            lambda part=part: (part, made.apache("B")),
        )


def complaints(made: Halved, name: str, topic: str) -> bool:
    shown = of_topic(made, name, topic)
    return bool(made.apache(name)["error"] or shown["errors"] or shown["state"]["errors"])


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
