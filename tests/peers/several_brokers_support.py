"""Applications at a cluster of several Apache Pulsar brokers (A) and at one of kind embedded (C).

Their messages and acknowledgements are checked at the end, after brokers and workers were disturbed."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, Final

import pulsar
from peers.apache_support import (
    MORE_MILLIS,
    NAMESPACE,
    SILENCE_MILLIS,
    Beside,
    Peer,
    backlog,
    bodies,
    let_in,
    official,
    until,
)
from pulsar import ConsumerType, InitialPosition

from replicator.drills.peers.pulsar.cluster import PulsarCluster, PulsarProxy

LINKS: Final = "[{between: [A, C], forward: true}]"
KEPT_EVERY: Final = 10
"""One message of so many is not acknowledged."""
_names = (f"persistent://{NAMESPACE}/several-{number}" for number in count())


class Traffic:
    """Applications at both clusters. They publish to topics, and acknowledge most messages of each other."""

    def __init__(self, made: Beside, topics: list[str], at: Peer) -> None:
        """``at``: the broker or cluster that the clients of A connect to."""
        self._made = made
        self.topics = topics
        self.published = {(name, topic): 0 for name in "AC" for topic in topics}
        self._peers: dict[str, Peer | str] = {"A": at, "C": made.client_url("C")}
        self._over = threading.Event()
        self._consuming_over = threading.Event()
        self.errors: list[str] = []
        self.marks: dict[str, tuple[int, int]] = {}
        self.back: list[str] = []
        """Subscriptions of C that were moved back."""

    @contextmanager
    def running(self) -> Iterator[None]:
        with ExitStack() as stack:
            clients = {name: stack.enter_context(official(peer)) for name, peer in self._peers.items()}
            consumers = [
                client.subscribe(topic, "work", ConsumerType.Shared, initial_position=InitialPosition.Earliest)
                for name, client in clients.items()
                for topic in self.topics
            ]
            producing = [
                threading.Thread(target=self._produce, args=(name, topic, clients[name]))
                for name in "AC"
                for topic in self.topics
            ]
            others = [threading.Thread(target=self._consume, args=(consumer,)) for consumer in consumers]
            others.append(threading.Thread(target=self._watch))
            for thread in (*producing, *others):
                thread.start()
            try:
                yield
            finally:
                self._over.set()
                for thread in producing:
                    thread.join()
                # What is left is acknowledged, too.
                try:
                    self._settle()
                finally:
                    self._consuming_over.set()
                    for thread in others:
                        thread.join()

    def more(self, messages: int) -> None:
        """Wait until each producer has published so many more messages."""
        before = dict(self.published)
        until(
            lambda: all(now - before[key] >= messages for key, now in self.published.items()) or self.errors,
            lambda: (self.published, self.errors, self._made.apache("A")),
        )
        assert not self.errors

    def verified(self) -> None:
        """Check that both clusters have each message once, in its origin's order, and the same ones unacknowledged, and
        that nothing went back."""
        assert not self.errors
        assert not self.back
        for topic in self.topics:
            total = sum(self.published[name, topic] for name in "AC")
            at_a, at_c = (read(self._peers[name], topic, total) for name in "AC")
            for origin in "AC":
                of_origin = [body for body in at_a if body[0] == origin]
                assert of_origin == [body for body in at_c if body[0] == origin], (topic, origin)
                # A producer that was cut off sends again what it does not know to be stored: no part of ours.
                assert list(dict.fromkeys(of_origin)) == bodies(origin, range(self.published[origin, topic]))
            open_ = sorted(body for body in at_a if kept(body))
            with official(self._peers["C"]) as client:
                consumer = let_in(client, topic, "work", ConsumerType.Shared)
                left: list[str] = []
                with suppress(pulsar.Timeout):
                    while True:
                        silence = SILENCE_MILLIS if len(left) < len(open_) else MORE_MILLIS
                        left.append(consumer.receive(silence).data().decode())
            assert sorted(left) == open_, topic

    def _produce(self, name: str, topic: str, client: pulsar.Client) -> None:
        try:
            producer = client.create_producer(topic, batching_enabled=False, send_timeout_millis=120_000)
            while not self._over.is_set():
                first = self.published[name, topic]
                for number in range(first, first + 10):
                    producer.send_async(f"{name}-{number}".encode(), self._sent)
                producer.flush()
                self.published[name, topic] = first + 10
                self._over.wait(0.1)
        except pulsar.PulsarException as error:
            self.errors.append(f"{name} {topic}: {error!r}")

    def _sent(self, result: pulsar.Result, _: Any) -> None:
        if result != pulsar.Result.Ok:
            self.errors.append(str(result))

    def _consume(self, consumer: pulsar.Consumer) -> None:
        while not self._consuming_over.is_set():
            with suppress(pulsar.Timeout):
                message = consumer.receive(200)
                if not kept(message.data().decode()):
                    consumer.acknowledge(message)

    def _watch(self) -> None:
        while not self._consuming_over.wait(0.2):
            for topic in self.topics:
                shown = self._made.get("C", f"/admin/v2/{topic.replace('://', '/')}/internalStats")["cursors"]
                if "work" in shown:
                    ledger, entry = shown["work"]["markDeletePosition"].split(":")
                    mark = (int(ledger), int(entry))
                    if mark < self.marks.get(topic, mark):
                        self.back.append(f"{topic}: {mark} after {self.marks[topic]}")
                    self.marks[topic] = mark

    def _settle(self) -> None:
        """Wait until only the messages to be kept are unacknowledged, at both clusters."""

        def settled(topic: str, wanted: int) -> bool:
            there = self._made.get("C", f"/admin/v2/{topic.replace('://', '/')}/stats")["subscriptions"]["work"]
            return backlog(self._made.brokers["A"], topic, "work") == wanted == there["msgBacklog"]

        for topic in self.topics:
            at_a = read(self._peers["A"], topic, sum(self.published[name, topic] for name in "AC"))
            wanted = sum(map(kept, at_a))
            until(
                lambda topic=topic, wanted=wanted: settled(topic, wanted),
                lambda: (self._made.apache("A"), self._made.log("A")),
            )


def kept(body: str) -> bool:
    return int(body.partition("-")[2]) % KEPT_EVERY == 0


def read(peer: Peer | str, topic: str, messages: int) -> list[str]:
    """Return so many messages of a topic, and what comes within half a second after them."""
    found: list[str] = []
    with official(peer) as client:
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        deadline = time.monotonic() + 60
        while True:
            try:
                found.append(reader.read_next(MORE_MILLIS).data().decode())
            except pulsar.Timeout:
                if len(found) >= messages or time.monotonic() > deadline:
                    return found


def made_topics(cluster: PulsarCluster, made: Beside, plain: int = 2, partitions: int = 0) -> list[str]:
    """Make topics, spread over both brokers, with a subscription; wait until both clusters have them."""
    topics = [next(_names) for _ in range(plain)]
    if partitions:
        parted = next(_names)
        cluster.admin("PUT", f"{parted.replace('://', '/')}/partitions", partitions)
        topics += [f"{parted}-partition-{number}" for number in range(partitions)]
    for number, topic in enumerate(topics):
        if "-partition-" not in topic:
            cluster.admin("PUT", topic.replace("://", "/"))
        until(lambda topic=topic: cluster.owner(topic) is not None, "each topic has a broker")
        if cluster.owner(topic) != number % 2:
            cluster.move(topic, number % 2)
        cluster.admin("PUT", f"{topic.replace('://', '/')}/subscription/work", {"ledgerId": -1, "entryId": -1})

    def there(topic: str) -> bool:
        with suppress(OSError):
            shown = made.get("C", f"/admin/v2/{topic.replace('://', '/')}/stats")
            return "work" in shown["subscriptions"]
        return False

    for topic in topics:
        until(lambda topic=topic: there(topic), lambda: (made.apache("A"), made.log("A")))
    return topics


def bridged(made: Beside, topic: str) -> Any:
    return next((each for each in made.apache("A")["topics"] if each["topic"] == topic), None)


def owners(cluster: PulsarCluster, topics: list[str]) -> set[int | None]:
    return {cluster.owner(topic) for topic in topics}


def moved(cluster: PulsarCluster, topics: list[str], traffic: Traffic) -> None:
    """Move each topic to the other broker under traffic. Before, each broker owns some of them."""
    traffic.more(20)
    assert owners(cluster, topics) == {0, 1}
    for topic in topics:
        cluster.move(topic, 1 - (cluster.owner(topic) or 0))
    traffic.more(20)


@contextmanager
def through_proxy(cluster: PulsarCluster, made: Beside, path: Path) -> Iterator[tuple[PulsarProxy, str]]:
    """Restart the worker of A behind Pulsar's own proxy; give the proxy, and the name of the topology file."""
    proxy = PulsarProxy(path, cluster)
    made.kill("A")
    try:
        proxy.start()
        made.brokers["A"] = proxy
        topology = made.write(LINKS, "proxied.yaml").name
        made.start("A", file=topology)
        yield proxy, topology
    finally:
        made.kill("A")
        proxy.stop()
        made.brokers["A"] = cluster
        made.start("A")


def proxy_restarts(proxy: PulsarProxy, made: Beside, topics: list[str], traffic: Traffic) -> None:
    """Kill the proxy, wait until the status of each topic shows it, and start the proxy again."""
    proxy.kill()
    until(lambda: all(bridged(made, topic)["errors"] for topic in topics), lambda: made.apache("A"))
    proxy.start()
    traffic.more(20)
