"""Workers beside real Apache Pulsar brokers, and what is asked of both."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.error
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import forked_commands
import pulsar
from failover_support import Deployment
from peers_support import pulsar_peer
from postgres_support import databases_of, served_postgres

from replicator.drills.peers.pulsar.broker import PulsarBroker
from replicator.drills.peers.pulsar.cluster import PulsarCluster, PulsarProxy

WAIT_SECONDS: Final = 90.0
READER_SECONDS: Final = 30
"""Time after which a request for a reader is sent again, with a busy broker that may have lost it."""
LOAD_SECONDS: Final = 180.0
SILENCE_MILLIS: Final = 2_000
"""Silence after which a topic is taken for read to its end, where nothing or too little has come."""
MORE_MILLIS: Final = 500
"""Silence that ends a reading after the messages that were expected: what comes twice comes right behind them."""
Peer = PulsarBroker | PulsarCluster | PulsarProxy
NAMESPACE: Final = "public/default"
DRILL_MESSAGES: Final = 500


class Beside(Deployment):
    """Clusters, some of which run beside a broker."""

    def __init__(
        self,
        path: Path,
        names: Sequence[str],
        links: str,
        databases: Mapping[str, str],
        brokers: Mapping[str, Peer],
        pipeline: str = "",
    ) -> None:
        self.brokers = brokers
        self.pipeline = pipeline
        super().__init__(path, names, links, databases)

    def pulsar(self, name: str) -> str:
        broker = self.brokers.get(name)
        if broker is None:
            return ""
        return f", kind: pulsar, apache: {{service_url: '{broker.url}', admin_url: '{broker.admin_url}'}}"

    def apache(self, name: str) -> Any:
        """Return the section on the bridge in a worker's status."""
        return self.get(name, "/replication/v1/status")["apache"]

    def topics(self, name: str) -> list[str]:
        """Return the names of the topics that a worker has."""
        return [each["name"] for each in self.get(name, "/replication/v1/status")["topics"]]

    def log(self, name: str) -> str:
        return (self.path / f"{name}.log").read_text()[-6000:]


@contextmanager
def brokers_of(path: Path, *names: str, **settings: str) -> Iterator[dict[str, PulsarBroker]]:
    """Run a broker for each of ``names``. The broker's cluster has the same name.

    A broker keeps messages without a subscription, because a new subscription reaches other brokers a moment later.
    """
    with ExitStack() as stack, ThreadPoolExecutor() as threads:
        peers = [pulsar_peer(path / f"broker-{name}", cluster=name, **settings) for name in names]
        made = dict(zip(names, threads.map(stack.enter_context, peers), strict=True))
        for broker in made.values():
            kept = {"retentionTimeInMinutes": 60, "retentionSizeInMB": 1000}
            broker.admin("POST", f"namespaces/{NAMESPACE}/retention", kept)
        yield made


@contextmanager
def beside(path: Path, names: str, brokers: Mapping[str, Peer], links: str, pipeline: str = "") -> Iterator[Beside]:
    """Start workers of clusters, as a context manager. ``pipeline``: more fields for that section of the topology."""
    with served_postgres() as server, databases_of(names, server, "bridge") as databases:
        made = Beside(path, tuple(names), links, databases, brokers, pipeline)
        try:
            made.start(*names)
            yield made
        finally:
            made.stop()


def until(
    holds: Callable[[], Any], what: Callable[[], object] | str, seconds: float = WAIT_SECONDS, *, pause: float = 0.1
) -> Any:
    """Wait until ``holds`` returns something true, and return that."""
    deadline = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < deadline, what if isinstance(what, str) else what()
        time.sleep(pause)
    return found


@contextmanager
def official(broker: Peer | str, answer_seconds: int = 120) -> Iterator[pulsar.Client]:
    """Connect the official client to a broker, or to an address, as a context manager.

    A request fails after ``answer_seconds``. A broker that has just started, on a busy machine, may take a minute to
    load a topic.
    """
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    url, token, authority = (
        (broker, None, None) if isinstance(broker, str) else (broker.url, broker.token, broker.authority)
    )
    shown = None if token is None else pulsar.AuthenticationToken(token)
    trusted = None if authority is None else str(authority)
    client = pulsar.Client(
        url,
        authentication=shown,
        operation_timeout_seconds=answer_seconds,
        logger=logger,
        tls_trust_certs_file_path=trusted,
    )
    try:
        yield client
    finally:
        client.close()


def read_all(broker: Peer | str, topic: str, count: int, seconds: float = WAIT_SECONDS) -> list[str]:
    """Return the first ``count`` messages of a topic, and those that come within half a second after them."""
    with official(broker, READER_SECONDS) as client:
        reader = None
        started = time.monotonic()
        while reader is None:
            try:
                reader = client.create_reader(topic, pulsar.MessageId.earliest)
            except pulsar.Timeout:  # it loads the topic still, or lost the request while it was busy
                assert time.monotonic() < started + LOAD_SECONDS, f"{topic} cannot be read"
        deadline = time.monotonic() + seconds
        found: list[str] = []
        while True:
            silence = MORE_MILLIS if found and len(found) >= count else SILENCE_MILLIS
            try:
                found.append(reader.read_next(silence).data().decode())
            except pulsar.Timeout:
                if len(found) >= count or time.monotonic() > deadline:
                    return found


def cursors(broker: PulsarBroker, topic: str) -> Any:
    """Return a topic's cursors from the broker's internal statistics; none if the topic is not there."""
    try:
        return broker.admin("GET", f"{topic.replace('://', '/')}/internalStats")["cursors"]
    except urllib.error.HTTPError as error:
        if error.code != 404:
            raise
        return {}


def partitions(broker: PulsarBroker, topic: str) -> int:
    """Return a topic's number of partitions; 0 if it is not partitioned or not there."""
    try:
        return int(broker.admin("GET", f"{topic.replace('://', '/')}/partitions")["partitions"])
    except urllib.error.HTTPError as error:
        if error.code != 404:
            raise
        return 0


def backlog(broker: Peer, topic: str, subscription: str) -> int:
    """Return the number of a subscription's unacknowledged entries; -1 if there is no such subscription."""
    try:
        shown = broker.admin("GET", f"{topic.replace('://', '/')}/stats?getPreciseBacklog=true")["subscriptions"]
    except urllib.error.HTTPError as error:
        if error.code != 404:
            raise
        return -1
    return int(shown[subscription]["msgBacklog"]) if subscription in shown else -1


def let_in(client: pulsar.Client, topic: str, subscription: str, kind: pulsar.ConsumerType) -> pulsar.Consumer:
    """Subscribe, and try again while a worker keeps consumers out: for milliseconds, to acknowledge what another
    cluster has acknowledged (docs/apache-pulsar.md)."""

    def subscribed() -> pulsar.Consumer | None:
        try:
            return client.subscribe(topic, subscription, kind)
        except pulsar.ConsumerBusy:
            return None

    return until(subscribed, f"{subscription} of {topic} lets nobody in")


def drain(broker: PulsarBroker, topic: str, subscription: str, kind: pulsar.ConsumerType) -> list[str]:
    """Consume and acknowledge until a subscription has no backlog; return the payloads."""
    deadline = time.monotonic() + WAIT_SECONDS
    with official(broker) as client:
        consumer = let_in(client, topic, subscription, kind)
        found: list[str] = []
        while True:
            try:
                message = consumer.receive(MORE_MILLIS)
            except pulsar.Timeout:
                if backlog(broker, topic, subscription) <= 0 or time.monotonic() > deadline:
                    return found
                continue
            found.append(message.data().decode())
            consumer.acknowledge(message)


def bodies(prefix: str, numbers: Iterable[int]) -> list[str]:
    return [f"{prefix}-{number}" for number in numbers]


def drill_against(deployment: Beside, out: Path) -> subprocess.CompletedProcess[str]:
    """Run a drill against clusters that run."""
    options = ("--messages", str(DRILL_MESSAGES), "--rate", "100", "--out", str(out))
    return forked_commands.run("drill", "--against", str(deployment.file), *options, cwd=deployment.path)


def drill_of_running(deployment: Beside, out: Path) -> None:
    """Make namespace ``public/canary`` at the brokers, and run a drill in it, against clusters that run.

    Check that the drill loses no message and leaves no topic behind. ``out`` is the directory for its report.
    """
    for broker in deployment.brokers.values():
        broker.admin("PUT", "namespaces/public/canary")
        broker.admin(
            "POST", "namespaces/public/canary/retention", {"retentionTimeInMinutes": 5, "retentionSizeInMB": 9}
        )
    done = drill_against(deployment, out)
    assert done.stdout, done.stderr
    report = json.loads((out / "report.json").read_text())
    # How fast acknowledgements travel is not asserted: see test_drills_beside.
    assert [each for each in report["failures"] if "more than 1 s before the cut" not in each] == []
    assert report["published"] == report["confirmed"] == report["consumed_unique"] == DRILL_MESSAGES
    assert (report["lost"], report["out_of_order"]) == (0, 0)
    assert [each["kind"] for each in report["failovers"]] == ["move"]
    assert set(report["kinds"]) == set(deployment.ports)
    for broker in deployment.brokers.values():
        assert broker.admin("GET", "persistent/public/canary") == []
    for name in deployment.ports:
        assert not [each for each in deployment.topics(name) if "replicator-drill" in each]
