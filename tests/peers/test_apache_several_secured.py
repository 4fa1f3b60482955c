"""A worker beside an Apache Pulsar cluster of two brokers that have TLS alone and ask everybody for a token, each other
too: topics move, a broker is killed, a token expires. The same through Pulsar's own proxy, with TLS and a token."""

from __future__ import annotations

import asyncio
import http.client
import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest
from peers.apache_support import NAMESPACE, Beside, until
from peers.several_brokers_support import (
    LINKS,
    Traffic,
    bridged,
    made_topics,
    moved,
    owners,
    proxy_restarts,
    through_proxy,
)
from peers_required import require
from postgres_support import databases_of, served_postgres
from security_support import Secrets

from replicator.apache.admin import BrokerAdmin
from replicator.apache.errors import AdminFailed
from replicator.drills.peers.pulsar.cluster import PulsarCluster, missing, missing_proxy, pulsar_cluster
from replicator.drills.peers.pulsar.guard import Guard
from replicator.topology.apache import ApacheAuth, ApacheSettings, ApacheTls

ROLE: Final = "bridge"
TOKEN_SECONDS: Final = 12.0


class Secured(Beside):
    """A worker beside brokers; what it shows to them is in :attr:`token`."""

    def __init__(self, path: Path, databases: dict[str, str], cluster: PulsarCluster, guard: Guard) -> None:
        self.secrets = Secrets(guard.secret_key.parent)
        self.token = path / "token"
        self.token.write_text(self.secrets.token(ROLE))
        super().__init__(path, "AC", LINKS, databases, {"A": cluster})

    def pulsar(self, name: str) -> str:
        if name not in self.brokers:
            return ""
        broker = self.brokers[name]
        return (
            f", kind: pulsar, apache: {{service_url: '{broker.url}', admin_url: '{broker.admin_url}'"
            f", auth: {{token_file: '{self.token}'}}, tls: {{ca: '{broker.authority}'}}}}"
        )

    def refused(self) -> str:
        """Return the errors of A's status if they are about a refused token, else an empty text."""
        shown = self.apache("A")
        said = " ".join([str(shown["error"]), *(str(each["errors"]) for each in shown["topics"])])
        return said if "uthenticat" in said or "401" in said or "expired" in said else ""

    def token_expires(self, traffic: Traffic, topology: str) -> None:
        """Start A with a token that expires under traffic; A goes on when the file has another one."""
        self.kill("A")
        self.token.write_text(self.secrets.token(ROLE, seconds=TOKEN_SECONDS))
        self.start("A", file=topology)
        until(self.refused, lambda: (self.apache("A"), self.log("A")))
        assert str(self.token) in self.refused()
        traffic.more(20)
        self.token.write_text(self.secrets.token(ROLE))
        until(lambda: not self.refused(), lambda: (self.apache("A"), self.log("A")))
        traffic.more(20)


@pytest.fixture(scope="module")
def guard(tmp_path_factory: pytest.TempPathFactory) -> Guard:
    return Guard.made(tmp_path_factory.mktemp("guard"), ROLE)


@pytest.fixture(scope="module")
def cluster(guard: Guard, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PulsarCluster]:
    """Two brokers that keep messages to which nobody subscribed yet."""
    require(missing())
    with pulsar_cluster(tmp_path_factory.mktemp("brokers"), cluster="A", guard=guard) as made:
        kept = {"retentionTimeInMinutes": 60, "retentionSizeInMB": 1000}
        made.admin("POST", f"namespaces/{NAMESPACE}/retention", kept)
        yield made


@pytest.fixture(scope="module")
def deployment(cluster: PulsarCluster, guard: Guard, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A worker beside the brokers, and a cluster of kind embedded, linked both ways."""
    with ExitStack() as stack:
        server = stack.enter_context(served_postgres())
        databases = stack.enter_context(databases_of("AC", server, "several"))
        made = Secured(tmp_path_factory.mktemp("several"), databases, cluster, guard)
        stack.callback(made.stop)
        made.start("A", "C")
        yield made


def test_topics_move_and_a_broker_is_killed_under_traffic(cluster: PulsarCluster, deployment: Secured) -> None:
    topics = made_topics(cluster, deployment)
    traffic = Traffic(deployment, topics, cluster)
    with traffic.running():
        moved(cluster, topics, traffic)
        gone = [topic for topic in topics if cluster.owner(topic) == 0]
        cluster.brokers[0].kill()
        until(lambda: any(bridged(deployment, topic)["errors"] for topic in gone), lambda: deployment.apache("A"))
        until(lambda: owners(cluster, gone) == {1}, "the other broker takes over")
        until(lambda: not any(bridged(deployment, topic)["errors"] for topic in gone), lambda: deployment.apache("A"))
        assert deployment.apache("A")["error"] == ""
        traffic.more(20)
        cluster.start_brokers(0)
        cluster.move(gone[0], 0)
        traffic.more(20)
    traffic.verified()


def test_a_request_that_a_broker_sends_on_is_shown_the_same_by_tls(
    cluster: PulsarCluster, deployment: Secured, guard: Guard
) -> None:
    """Asked is one broker alone, for topics of both; whoever asks without a token gets nowhere, at neither of them."""
    topics = made_topics(cluster, deployment)
    assert [cluster.owner(topic) for topic in topics] == [0, 1]
    asked, other = cluster.brokers
    assert sent_to(cluster, f"{topics[1].replace('://', '/')}/internalStats").startswith(f"{other.admin_url}/")

    async def last_entries(auth: ApacheAuth) -> list[int]:
        settings = ApacheSettings(
            service_url=asked.url, admin_url=asked.admin_url, auth=auth, tls=ApacheTls(ca=guard.authority)
        )
        async with BrokerAdmin(settings) as admin:
            return [(await admin.internals(topic)).last.entry for topic in topics]

    assert asyncio.run(last_entries(ApacheAuth(token_file=deployment.token))) == [-1, -1]
    with pytest.raises(AdminFailed) as refused:
        asyncio.run(last_entries(ApacheAuth()))
    assert refused.value.status == 401


def sent_to(cluster: PulsarCluster, path: str) -> str:
    """Return the address to which the first broker redirects a request."""
    asked = cluster.brokers[0]
    context = ssl.create_default_context(cafile=cluster.authority)
    connection = http.client.HTTPSConnection("127.0.0.1", asked.web_port, timeout=30, context=context)
    try:
        connection.request("GET", f"/admin/v2/{path}", headers={"Authorization": f"Bearer {cluster.token}"})
        answer: Any = connection.getresponse()
        assert answer.status == 307
        return str(answer.headers["Location"])
    finally:
        connection.close()


def test_a_token_that_expires_is_replaced_in_its_file_and_shown_to_both_brokers(
    cluster: PulsarCluster, deployment: Secured
) -> None:
    topics = made_topics(cluster, deployment)
    traffic = Traffic(deployment, topics, cluster)
    with traffic.running():
        traffic.more(20)
        deployment.token_expires(traffic, deployment.file.name)
        moved(cluster, topics, traffic)
    traffic.verified()


def test_a_copy_through_pulsars_proxy_with_tls_and_a_token(
    cluster: PulsarCluster, deployment: Secured, tmp_path: Path
) -> None:
    """Both URLs are the proxy's. It looks at the token, and so do the brokers behind it."""
    require(missing_proxy())
    topics = made_topics(cluster, deployment)
    with through_proxy(cluster, deployment, tmp_path) as (proxy, topology):
        traffic = Traffic(deployment, topics, proxy)
        with traffic.running():
            moved(cluster, topics, traffic)
            proxy_restarts(proxy, deployment, topics, traffic)
            deployment.token_expires(traffic, topology)
        traffic.verified()
