"""A producer gives the same sequence ids out twice, in two clusters: every confirmed message is delivered in both.

The workers are processes, the clients are official ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from http import HTTPStatus
from itertools import count
from urllib.error import HTTPError

import pulsar
import pytest
from failover_support import Deployment, deployment
from official_client import official_client
from postgres_support import databases_of

BOTH_WAYS = "[{from: A, to: B}, {from: B, to: A}]"
NAME = "orders"
RECEIVE_MILLIS = 20_000
NOTHING_MORE_MILLIS = 1_000

_topics = (f"persistent://public/default/moved-{number}" for number in count())


class Deduplicating(Deployment):
    """Clusters whose topics have deduplication on."""

    def pulsar(self, name: str) -> str:
        return ", policies: {deduplication: true}"


@pytest.fixture(scope="module")
def databases(postgres_server: str) -> Iterator[dict[str, str]]:
    with databases_of("AB", postgres_server, "moved") as urls:
        yield urls


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory, databases: dict[str, str]) -> Iterator[Deployment]:
    path = tmp_path_factory.mktemp("clusters")
    with deployment(path, "A", "B", links=BOTH_WAYS, databases=databases, kind=Deduplicating) as made:
        yield made


def send(deployed: Deployment, cluster: str, topic: str, contents: Sequence[bytes]) -> int:
    """Send what is to be confirmed; returns the last sequence id that the producer was told when it came."""
    with official_client(deployed.client_url(cluster)) as client:
        producer = client.create_producer(topic, producer_name=NAME, batching_enabled=False)
        told = int(producer.last_sequence_id())
        for content in contents:
            producer.send(content)
    return told


def received(deployed: Deployment, cluster: str, topic: str, expected: int, name: str = "all") -> list[bytes]:
    """All that a subscription from the start gets, and acknowledges."""
    found: list[bytes] = []
    with official_client(deployed.client_url(cluster)) as client:
        consumer = client.subscribe(topic, name, initial_position=pulsar.InitialPosition.Earliest)
        while True:
            try:
                message = consumer.receive(RECEIVE_MILLIS if len(found) < expected else NOTHING_MORE_MILLIS)
            except pulsar.Timeout:
                return found
            found.append(message.data())
            consumer.acknowledge(message)


def messages_of(deployed: Deployment, cluster: str, topic: str) -> int:
    """Return how many messages a cluster has of a topic; none if the topic has not come to it yet."""
    short = topic.removeprefix("persistent://")
    try:
        return int(deployed.get(cluster, f"/admin/v2/persistent/{short}/stats")["msgInCounter"])
    except HTTPError as error:
        if error.code != HTTPStatus.NOT_FOUND:
            raise
        return 0


def settled(deployed: Deployment, topic: str, messages: int) -> None:
    """Both logs have so many messages."""
    for cluster in "AB":
        deployed.until(lambda at=cluster: messages_of(deployed, at, topic) == messages, f"{cluster} has {messages}")


def test_what_a_moved_producer_sends_under_ids_of_stranded_messages_is_delivered_in_both_clusters(
    deployed: Deployment,
) -> None:
    """Five messages are confirmed at A and not copied when it is killed; the producer goes on at B with their ids."""
    topic = next(_topics)
    before = [b"before %d" % number for number in range(5)]
    stranded = [b"at A %d" % number for number in range(5, 10)]
    moved = [b"at B %d" % number for number in range(5, 10)]
    send(deployed, "A", topic, before)
    settled(deployed, topic, 5)
    deployed.kill("B")
    assert send(deployed, "A", topic, stranded) == 4
    deployed.kill("A")
    deployed.start("B")
    assert send(deployed, "B", topic, moved) == 4
    deployed.start("A")
    settled(deployed, topic, 15)
    for cluster in "AB":
        found = received(deployed, cluster, topic, 15)
        assert sorted(found) == sorted([*before, *stranded, *moved]), f"{cluster} does not deliver all, once"
    report = deployed.report("verify", "--topic", topic)
    assert report["messages"] == 15


def test_one_producer_name_that_is_active_in_both_clusters_loses_nothing(deployed: Deployment) -> None:
    topic = next(_topics)
    contents = {cluster: [b"%s %d" % (cluster.encode(), number) for number in range(20)] for cluster in "AB"}
    with ExitStack() as stack:
        clients = {cluster: stack.enter_context(official_client(deployed.client_url(cluster))) for cluster in "AB"}
        producers = {
            cluster: client.create_producer(topic, producer_name=NAME, batching_enabled=False)
            for cluster, client in clients.items()
        }
        for number in range(20):
            for cluster, producer in producers.items():
                producer.send(contents[cluster][number])
    settled(deployed, topic, 40)
    for cluster in "AB":
        assert sorted(received(deployed, cluster, topic, 40)) == sorted(contents["A"] + contents["B"])
