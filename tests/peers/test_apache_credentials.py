"""Beside brokers that know their clients by passwords (A) and by certificates, without which nobody gets to their ports
of TLS (B); and beside an admin API that limits requests. Every test ends with messages and state in step."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count, pairwise
from pathlib import Path
from typing import Final

import pytest
from admin_proxy import AdminProxy, admin_proxy
from peers.apache_support import (
    NAMESPACE,
    Beside,
    backlog,
    bodies,
    drain,
    drill_of_running,
    official,
    read_all,
    until,
)
from peers_support import pulsar_peer
from postgres_support import databases_of, served_postgres
from pulsar import ConsumerType, InitialPosition
from security_support import Secrets

from replicator.apache.admin import BrokerAdmin
from replicator.apache.credentials import showing_of
from replicator.client.errors import PulsarException
from replicator.client.wire.connector import BrokerConnector
from replicator.drills.peers.pulsar.broker import PulsarBroker
from replicator.drills.ports import free_ports
from replicator.security.certificate_making import Authority
from replicator.topology import load_topology
from replicator.topology.apache import ApacheSettings

LINKS: Final = "[{between: [A, B]}]"
PASSWORD: Final = "bridge:it is a secret\n"
REQUESTS_PER_SECOND: Final = 100
"""Limit of requests at the broker of B; tests and its worker make fewer."""
TOO_MANY: Final = 429
OF_ONE_TOPIC: Final = (503, {})
FAULTS: Final = [(TOO_MANY, {}), (TOO_MANY, {"Retry-After": "2"}), OF_ONE_TOPIC, (503, {"Retry-After": "2"})]
_PACKAGE: Final = "org.apache.pulsar.broker.authentication.AuthenticationProvider"
_topics = (f"persistent://public/default/credentials-{number}" for number in count())


@dataclass(frozen=True)
class Shown:
    """Credentials of workers: a file with a password (A), a certificate with its key (B). Tests replace them."""

    directory: Path
    authority: Authority
    stranger: Authority

    @property
    def password(self) -> Path:
        return self.directory / "password"

    @property
    def certificate(self) -> Path:
        return self.directory / "bridge.pem"

    @property
    def key(self) -> Path:
        return self.directory / "bridge.key"

    def certify(self, authority: Authority) -> None:
        for made, file in zip(authority.give("bridge"), (self.certificate, self.key), strict=True):
            file.write_bytes(made.read_bytes())


class Credentialed(Beside):
    """Two workers; requests of A to the admin API go through a proxy."""

    def __init__(
        self,
        path: Path,
        databases: Mapping[str, str],
        brokers: Mapping[str, PulsarBroker],
        shown: Shown,
        proxy: AdminProxy,
    ) -> None:
        self.shown = shown
        self.proxy = proxy
        super().__init__(path, "AB", LINKS, databases, brokers)

    def pulsar(self, name: str) -> str:
        if name == "A":
            return (
                f", kind: pulsar, apache: {{service_url: '{self.brokers['A'].url}', admin_url: '{self.proxy.url}'"
                f", auth: {{password_file: '{self.shown.password}'}}}}"
            )
        settings = self.brokers["B"].settings
        return (
            f", kind: pulsar, apache: {{service_url: 'pulsar+ssl://127.0.0.1:{settings['brokerServicePortTls']}'"
            f", admin_url: 'https://127.0.0.1:{settings['webServicePortTls']}'"
            f", auth: {{certificate: '{self.shown.certificate}', key: '{self.shown.key}'}}"
            f", tls: {{ca: '{self.shown.authority.file}'}}}}"
        )

    def settings(self, name: str) -> ApacheSettings:
        found = load_topology(self.file).cluster(name).apache
        assert found is not None
        return found

    def restart(self, name: str) -> None:
        self.kill(name)
        self.start(name)

    def said(self, name: str) -> str:
        """Return the errors and limits that a worker's status shows for its brokers; empty if there are none."""
        shown = self.apache(name)
        errors = [reason for each in shown["topics"] for reason in each["errors"].values()]
        return " ".join(filter(None, [shown["error"], shown["limited"], *errors]))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Credentialed]:
    path = tmp_path_factory.mktemp("credentials")
    secrets = Secrets.made(path / "secrets")
    operator = secrets.token("operator")
    shown = Shown(path, Authority(path / "authority"), Authority(path / "stranger"))
    shown.password.write_text(PASSWORD)
    shown.certify(shown.authority)
    name, _, password = PASSWORD.strip().partition(":")
    common = {
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "superUserRoles": "operator,bridge",
        "tokenSecretKey": f"file://{secrets.key}",
        "brokerClientAuthenticationPlugin": "org.apache.pulsar.client.impl.auth.AuthenticationToken",
        "brokerClientAuthenticationParameters": f"token:{operator}",
    }
    certificate, key = shown.authority.give("broker")
    ports = free_ports(2)
    settings = {
        "A": {
            "authenticationProviders": f"{_PACKAGE}Token,{_PACKAGE}Basic",
            # The first one is hashed in a way that this broker does not know.
            "basicAuthConf": str(secrets.passwords(unused="x", **{name: password})),
        },
        "B": {
            "authenticationProviders": f"{_PACKAGE}Token,{_PACKAGE}Tls",
            "brokerServicePortTls": str(ports[0]),
            "webServicePortTls": str(ports[1]),
            "tlsCertificateFilePath": str(certificate),
            "tlsKeyFilePath": str(key),
            "tlsTrustCertsFilePath": str(shown.authority.file),
            "tlsRequireTrustedClientCertOnConnect": "true",
            "httpRequestsLimitEnabled": "true",
            "httpRequestsMaxPerSecond": str(REQUESTS_PER_SECOND),
        },
    }
    with ExitStack() as stack:
        peers = [pulsar_peer(path / f"broker-{each}", token=operator, **common, **settings[each]) for each in "AB"]
        with ThreadPoolExecutor() as threads:
            brokers = dict(zip("AB", threads.map(stack.enter_context, peers), strict=True))
        for broker in brokers.values():
            kept = {"retentionTimeInMinutes": 60, "retentionSizeInMB": 1000}
            broker.admin("POST", f"namespaces/{NAMESPACE}/retention", kept)
        server = stack.enter_context(served_postgres())
        databases = stack.enter_context(databases_of("AB", server, "credentials"))
        proxy = stack.enter_context(admin_proxy(brokers["A"].web_port))
        made = Credentialed(path, databases, brokers, shown, proxy)
        stack.callback(made.stop)
        made.start("A", "B")
        yield made


def publish(pair: Credentialed, cluster: str, topic: str, messages: list[str]) -> None:
    with official(pair.brokers[cluster]) as client:
        producer = client.create_producer(topic, batching_enabled=False)
        for body in messages:
            producer.send(body.encode())


def acknowledge(pair: Credentialed, cluster: str, topic: str, messages: int, left: set[int]) -> None:
    """Receive ``messages`` and acknowledge all but those whose number is in ``left``."""
    with official(pair.brokers[cluster]) as client:
        consumer = client.subscribe(topic, "work", ConsumerType.Shared, initial_position=InitialPosition.Earliest)
        for number in range(messages):
            message = consumer.receive(60_000)
            if number not in left:
                consumer.acknowledge(message)
        until(
            lambda: backlog(pair.brokers[cluster], topic, "work") == len(left), f"the broker of {cluster} counts them"
        )


def in_step(pair: Credentialed, topic: str, messages: int, open_: int) -> None:
    """Wait until both brokers have all ``messages``, and ``open_`` of them are unacknowledged in the subscription."""
    for name in "AB":
        assert len(read_all(pair.brokers[name], topic, messages)) == messages
        until(
            lambda name=name: backlog(pair.brokers[name], topic, "work") == open_,
            lambda: (pair.said("A"), pair.said("B")),
        )
        until(lambda name=name: not pair.said(name), lambda name=name: pair.said(name))


def test_messages_state_kills_and_a_switch_with_a_password_here_and_a_certificate_there(pair: Credentialed) -> None:
    topic, brokers = next(_topics), pair.brokers
    publish(pair, "A", topic, bodies("a", range(30)))
    acknowledge(pair, "A", topic, 30, {3, 7, 29})
    assert read_all(brokers["B"], topic, 30) == bodies("a", range(30)), pair.log("B")
    until(lambda: backlog(brokers["B"], topic, "work") == 3, lambda: (pair.said("A"), pair.said("B")))
    for name in "AB":
        pair.kill(name)
        publish(pair, name, topic, bodies(name, range(10)))
        pair.start(name)
    in_step(pair, topic, 50, 23)
    report = pair.report("failover", "--from", "A", "--to", "B")
    assert report["outcome"] == "done", report
    wanted = [*(f"a-{number}" for number in (3, 7, 29)), *bodies("A", range(10)), *bodies("B", range(10))]
    assert sorted(drain(brokers["B"], topic, "work", ConsumerType.Shared)) == sorted(wanted)
    publish(pair, "B", topic, bodies("b", range(5)))
    report = pair.report("failback", "--to", "A")
    assert report["outcome"] == "done", report
    assert drain(brokers["A"], topic, "work", ConsumerType.Shared) == bodies("b", range(5))
    in_step(pair, topic, 55, 0)


async def looked_up(settings: ApacheSettings, topic: str) -> int:
    """Return a topic's number of partitions as the client port answers it."""
    options = {"connection_timeout_seconds": 10, "operation_timeout_seconds": 10}
    connector = BrokerConnector(settings.service_url, showing=showing_of(settings), **options)
    try:
        return await connector.partitions(topic, create=False)
    finally:
        await connector.close()


def spoil_password(shown: Shown) -> None:
    shown.password.write_text("bridge:wrong\n")


def spoil_certificate(shown: Shown) -> None:
    shown.certify(shown.stranger)


def mend(shown: Shown) -> None:
    shown.password.write_text(PASSWORD)
    shown.certify(shown.authority)


def test_a_drill_of_clusters_that_run_shows_what_their_workers_show(pair: Credentialed, tmp_path: Path) -> None:
    drill_of_running(pair, tmp_path / "out")


@pytest.mark.parametrize(
    ("cluster", "spoil", "named"),
    [
        ("A", spoil_password, "apache.auth.password_file, {shown.password}"),
        ("B", spoil_certificate, "apache.auth.certificate and .key, {shown.certificate}, {shown.key}"),
    ],
)
def test_what_brokers_refuse_is_named_and_what_takes_its_place_is_shown_at_once(
    pair: Credentialed, cluster: str, spoil: Callable[[Shown], None], named: str
) -> None:
    """At both ports, by a worker that runs as by one that starts; nothing is lost meanwhile."""
    topic, named = next(_topics), named.format(shown=pair.shown)
    other = "B" if cluster == "A" else "A"
    publish(pair, other, topic, bodies("m", range(5)))
    acknowledge(pair, other, topic, 5, {1, 3})
    until(lambda: backlog(pair.brokers[cluster], topic, "work") == 2, lambda: pair.apache(cluster))
    spoil(pair.shown)
    try:
        for again in (False, True):
            if again:
                pair.restart(cluster)
            until(lambda: named in pair.apache(cluster)["error"], lambda: pair.apache(cluster))
        with pytest.raises(PulsarException, match=re.escape(named)):
            asyncio.run(looked_up(pair.settings(cluster), topic))
        publish(pair, other, topic, bodies("m", range(5, 10)))
    finally:
        mend(pair.shown)
    in_step(pair, topic, 10, 7)


def test_an_admin_api_that_limits_requests_is_waited_for_and_nothing_is_lost(pair: Credentialed) -> None:
    """Messages of a topic that is bridged already need no admin API; acknowledgements and new topics wait for it."""
    topic, fresh, brokers = next(_topics), next(_topics), pair.brokers
    publish(pair, "A", topic, bodies("m", range(5)))
    acknowledge(pair, "A", topic, 5, set())
    assert read_all(brokers["B"], topic, 5) == bodies("m", range(5))
    until(lambda: backlog(brokers["B"], topic, "work") == 0, lambda: pair.said("B"))
    messages = 5
    with official(brokers["B"]) as client:
        consumer = client.subscribe(topic, "work", ConsumerType.Shared)
        for status, headers in FAULTS:
            with pair.proxy.refusing(status, **headers):
                began = time.monotonic()
                news = bodies("m", range(messages, messages + 5))
                publish(pair, "A", topic, news)
                got = [consumer.receive(60_000) for _ in news]
                assert [message.data().decode() for message in got] == news
                for message in got:
                    consumer.acknowledge(message)
                until(lambda status=status: str(status) in pair.said("A"), lambda: pair.apache("A"))
                if (status, headers) != OF_ONE_TOPIC:
                    until(lambda: "limits requests" in pair.apache("A")["limited"], lambda: pair.apache("A"))
                if headers:
                    assert len(pair.proxy.refused_at) <= (time.monotonic() - began) / 2 + 9  # eight were under way
                elif status == TOO_MANY:
                    until(lambda: max(pauses(pair.proxy), default=0) > 1, lambda: pauses(pair.proxy))
                    assert len(pair.proxy.refused_at) < 20
            messages += 5
            until(lambda: backlog(brokers["A"], topic, "work") == 0, lambda: pair.apache("A"))
        with pair.proxy.refusing(TOO_MANY):
            publish(pair, "A", fresh, bodies("n", range(5)))
            until(lambda: pair.said("A"), lambda: pair.apache("A"))
            assert "limits" in pair.command("status").stdout
    assert read_all(brokers["B"], fresh, 5) == bodies("n", range(5)), pair.said("A")
    in_step(pair, topic, messages, 0)


def pauses(proxy: AdminProxy) -> list[float]:
    """Return the seconds between successive requests that the proxy refused."""
    return [after - before for before, after in pairwise(proxy.refused_at[:])]


def test_a_broker_that_limits_requests_by_itself_answers_all_of_them(pair: Credentialed) -> None:
    async def ask(requests: int) -> int:
        async with BrokerAdmin(pair.settings("B")) as admin:
            for _ in range(10):  # on a busy machine the first ones may come too slowly to be refused
                await asyncio.gather(*(admin.partitioned_topics(NAMESPACE) for _ in range(requests)))
                if admin.refusals:
                    break
            return admin.refusals

    assert asyncio.run(ask(4 * REQUESTS_PER_SECOND)) > 0
    until(lambda: not pair.said("B"), lambda: pair.apache("B"))
