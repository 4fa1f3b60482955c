"""A worker beside an Apache Pulsar cluster of two brokers: topics move between them, a broker is killed, and the worker
too. The other cluster is of kind embedded. The same through Pulsar's own proxy."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest
from peers.apache_support import NAMESPACE, Beside, backlog, beside, let_in, official, until
from peers.several_brokers_support import (
    LINKS,
    Traffic,
    bridged,
    made_topics,
    moved,
    owners,
    proxy_restarts,
    read,
    through_proxy,
)
from peers_required import require
from pulsar import ConsumerType

from replicator.drills.peers.pulsar.cluster import PulsarCluster, missing, missing_proxy, pulsar_cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PulsarCluster]:
    """Two brokers that keep messages to which nobody subscribed yet."""
    require(missing())
    with pulsar_cluster(tmp_path_factory.mktemp("brokers"), cluster="A") as made:
        kept = {"retentionTimeInMinutes": 60, "retentionSizeInMB": 1000}
        made.admin("POST", f"namespaces/{NAMESPACE}/retention", kept)
        yield made


@pytest.fixture(scope="module")
def deployment(cluster: PulsarCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Beside]:
    """A worker beside the brokers, and a cluster of kind embedded, linked both ways."""
    with beside(tmp_path_factory.mktemp("several"), "AC", {"A": cluster}, LINKS) as made:
        yield made


def test_topics_move_between_brokers_under_traffic(cluster: PulsarCluster, deployment: Beside) -> None:
    """Also partitions; a namespace is unloaded, a bundle split; the worker is killed while topics move."""
    topics = made_topics(cluster, deployment, partitions=4)
    traffic = Traffic(deployment, topics, cluster)
    with traffic.running():
        for _ in range(2):
            moved(cluster, topics, traffic)
        cluster.admin("PUT", f"namespaces/{NAMESPACE}/unload")
        traffic.more(20)
        cluster.admin("PUT", f"namespaces/{NAMESPACE}/{cluster.bundle(topics[0])}/split?unload=true")
        traffic.more(20)
        moving = threading.Thread(
            target=lambda: [cluster.move(topic, 1 - (cluster.owner(topic) or 0)) for topic in topics]
        )
        moving.start()
        deployment.kill("A")
        moving.join()
        deployment.start("A")
        traffic.more(20)
    traffic.verified()


def test_a_broker_is_killed_and_comes_back_under_traffic(cluster: PulsarCluster, deployment: Beside) -> None:
    """The first one of the URLs. Its topics are at nobody for seconds, and the status says so."""
    topics = made_topics(cluster, deployment)
    traffic = Traffic(deployment, topics, cluster)
    with traffic.running():
        traffic.more(30)
        assert [cluster.owner(topic) for topic in topics] == [0, 1]
        cluster.brokers[0].kill()
        until(lambda: (bridged(deployment, topics[0]) or {}).get("errors"), lambda: deployment.apache("A"))
        # The other broker serves its topics, and what is asked of the admin API, all the while.
        assert not bridged(deployment, topics[1])["halted"]
        until(lambda: cluster.owner(topics[0]) == 1, "the other broker takes over")
        until(lambda: bridged(deployment, topics[0])["errors"] == {}, lambda: bridged(deployment, topics[0]))
        assert deployment.apache("A")["error"] == ""
        traffic.more(30)
        cluster.start_brokers(0)
        cluster.move(topics[0], 0)
        traffic.more(20)
    traffic.verified()


def test_clients_are_kept_out_at_both_brokers_and_where_topics_move(cluster: PulsarCluster, deployment: Beside) -> None:
    topics = made_topics(cluster, deployment)
    with official(cluster) as client:
        for topic in topics:
            client.create_producer(topic).send(b"A-0")

    def switched() -> bool:
        """Try a switch, and return whether it was done. It is refused without effect while a new broker is too slow."""
        done = deployment.command("failover", "--from", "A", "--to", "C", "--output", "json")
        said.append(done.stdout + done.stderr)
        return json.loads(done.stdout)["outcome"] == "done"

    said: list[str] = []
    until(switched, lambda: said)

    def closed(topic: str) -> bool:
        fence = bridged(deployment, topic)["fence"]
        return fence["producers"] and fence["consumers"]

    def kept_out() -> None:
        for topic in topics:
            until(lambda topic=topic: closed(topic), lambda: deployment.apache("A"))
            with official(cluster) as client:
                with pytest.raises(pulsar.PulsarException):
                    client.create_producer(topic)
                with pytest.raises(pulsar.PulsarException):
                    client.subscribe(topic, "work", ConsumerType.Shared)

    try:
        assert owners(cluster, topics) == {0, 1}
        kept_out()
        for topic in topics:
            cluster.move(topic, 1 - (cluster.owner(topic) or 0))
        kept_out()
        # A broker dies: its topics are at nobody for seconds, and then at the other one.
        cluster.brokers[1].kill()
        until(lambda: owners(cluster, topics) == {0}, "the other broker takes over")
        kept_out()
        cluster.start_brokers(1)
        # Through the fence: what C publishes and acknowledges.
        with official(deployment.client_url("C")) as client:
            for topic in topics:
                client.create_producer(topic).send(b"C-0")
                consumer = let_in(client, topic, "work", ConsumerType.Shared)
                for _ in range(2):
                    consumer.acknowledge(consumer.receive(30_000))
                until(lambda topic=topic: backlog(cluster, topic, "work") == 0, lambda: deployment.apache("A"))
                assert read(cluster, topic, 2) == ["A-0", "C-0"]
    finally:
        assert deployment.report("failback", "--to", "A")["outcome"] == "done"
    with official(cluster) as client:
        for topic in topics:
            client.create_producer(topic).send(b"A-1")


def test_the_same_copy_through_pulsars_proxy(cluster: PulsarCluster, deployment: Beside, tmp_path: Path) -> None:
    """Both URLs are the proxy's."""
    require(missing_proxy())
    topics = made_topics(cluster, deployment)
    with through_proxy(cluster, deployment, tmp_path) as (proxy, _):
        traffic = Traffic(deployment, topics, proxy)
        with traffic.running():
            moved(cluster, topics, traffic)
            proxy_restarts(proxy, deployment, topics, traffic)
        traffic.verified()
