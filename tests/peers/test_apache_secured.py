"""Beside brokers as companies run them: TLS on both ports, tokens that expire, deduplication, and producers that must
bring a schema. Some of the bridge's contract (``tests/support/bridge_contract.py``) runs with them too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final
from urllib.error import HTTPError

import pulsar
import pytest
from bridge_contract import (
    KILLS,
    LINKS,
    Order,
    bridged,
    publish,
    test_a_broker_that_is_killed_and_comes_back_gets_what_it_missed_once,  # noqa: F401 - a test of here, too
    test_messages_with_schemas_are_read_with_them_at_the_other_broker,  # noqa: F401
)
from bridge_contract import test_invariants_2_3_5_and_6_hold_while_workers_are_killed_at_random_moments as killed
from peers.apache_support import (
    NAMESPACE,
    Beside,
    bodies,
    drill_against,
    drill_of_running,
    official,
    read_all,
    until,
)
from peers_support import pulsar_peer
from postgres_support import databases_of, served_postgres
from pulsar.schema import AvroSchema
from security_support import Secrets

from replicator.drills.peers.pulsar.broker import PulsarBroker
from replicator.drills.ports import free_ports
from replicator.security.certificate_making import Authority

TOKEN_SECONDS: Final = 15.0
_PACKAGE = "org.apache.pulsar.broker.authentication.AuthenticationProvider"


class Secured(Beside):
    """Workers that reach their brokers by TLS, each with a token file."""

    def __init__(
        self,
        path: Path,
        names: Sequence[str],
        databases: Mapping[str, str],
        brokers: Mapping[str, PulsarBroker],
        tokens: Mapping[str, Path],
        authority: Authority,
    ) -> None:
        self._tokens = tokens
        self._authority = authority
        super().__init__(path, names, LINKS, databases, brokers)

    def pulsar(self, name: str) -> str:
        if name not in self.brokers:
            return ""
        settings = self.brokers[name].settings
        return (
            f", kind: pulsar, apache: {{service_url: 'pulsar+ssl://127.0.0.1:{settings['brokerServicePortTls']}'"
            f", admin_url: 'https://127.0.0.1:{settings['webServicePortTls']}'"
            f", auth: {{token_file: '{self._tokens[name]}'}}, tls: {{ca: '{self._authority.file}'}}}}"
        )


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Secrets:
    return Secrets.made(tmp_path_factory.mktemp("secrets"))


@pytest.fixture(scope="module")
def tokens(secrets: Secrets, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Give the file with each worker's token; tests of the module replace a token as it expires."""
    directory = tmp_path_factory.mktemp("tokens")
    files = {name: directory / name for name in "AB"}
    for file in files.values():
        file.write_text(secrets.token("bridge"))
    return files


@pytest.fixture(scope="module")
def pair(secrets: Secrets, tokens: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    path = tmp_path_factory.mktemp("secured")
    authority = Authority(path / "authority")
    operator = secrets.token("operator")
    with ExitStack() as stack:
        brokers: dict[str, PulsarBroker] = {}
        for name in "AB":
            certificate, key = authority.give(f"broker-{name}")
            ports = free_ports(2)
            settings = {
                "brokerDeduplicationEnabled": "true",
                "authenticationEnabled": "true",
                "authorizationEnabled": "true",
                "authenticationProviders": f"{_PACKAGE}Token",
                "authenticationRefreshCheckSeconds": "1",
                "superUserRoles": "operator,bridge",
                "tokenSecretKey": f"file://{secrets.key}",
                "brokerClientAuthenticationPlugin": "org.apache.pulsar.client.impl.auth.AuthenticationToken",
                "brokerClientAuthenticationParameters": f"token:{operator}",
                "brokerServicePortTls": str(ports[0]),
                "webServicePortTls": str(ports[1]),
                "tlsCertificateFilePath": str(certificate),
                "tlsKeyFilePath": str(key),
                "tlsTrustCertsFilePath": str(authority.file),
            }
            broker = stack.enter_context(pulsar_peer(path / f"broker-{name}", token=operator, **settings))
            kept = {"retentionTimeInMinutes": 60, "retentionSizeInMB": 1000}
            broker.admin("POST", f"namespaces/{NAMESPACE}/retention", kept)
            brokers[name] = broker
        server = stack.enter_context(served_postgres())
        databases = stack.enter_context(databases_of("ABC", server, "secured"))
        made = Secured(path, "ABC", databases, brokers, tokens, authority)
        stack.callback(made.stop)
        made.start(*"ABC")
        yield made


@pytest.mark.timeout(max(300, 20 * KILLS))
def test_invariants_2_3_5_and_6_hold_while_workers_beside_secured_brokers_are_killed(pair: Secured) -> None:
    killed(pair, seed=3)


def test_a_worker_goes_on_with_a_token_that_expires_when_its_file_has_the_next_one(
    pair: Secured, tokens: dict[str, Path], secrets: Secrets
) -> None:
    """The next one comes too late here: the worker is refused, the status says why, and nothing is lost."""
    topic = "persistent://public/default/expiring"

    def refused() -> str:
        shown = pair.apache("B")
        said = " ".join([str(shown["error"]), *(str(each["errors"]) for each in shown["topics"])])
        return said if "uthenticat" in said or "401" in said or "expired" in said else ""

    pair.kill("B")
    try:
        tokens["B"].write_text(secrets.token("bridge", seconds=TOKEN_SECONDS))
        pair.start("B")
        # On a busy machine the token has expired before these are copied.
        publish(pair, "A", topic, bodies("m", range(10)))
        until(refused, lambda: pair.apache("B"))
        publish(pair, "A", topic, bodies("m", range(10, 20)))
    finally:
        tokens["B"].write_text(secrets.token("bridge"))  # other tests use this worker, too
    assert read_all(pair.brokers["B"], topic, 20) == bodies("m", range(20)), pair.log("B")
    until(lambda: not refused(), lambda: pair.apache("B"))


def has_schema(broker: PulsarBroker, topic: str) -> bool:
    try:
        broker.admin("GET", f"schemas/{topic.removeprefix('persistent://')}/schema")
    except HTTPError as error:
        if error.code != 404:
            raise
        return False
    return True


def test_a_namespace_that_wants_a_schema_of_each_producer_gets_the_topic_s_own(pair: Secured) -> None:
    for broker in pair.brokers.values():
        broker.admin("POST", f"namespaces/{NAMESPACE}/schemaValidationEnforced", True)
    topic = "persistent://public/default/typed-only"
    try:
        for first in range(0, 40, 20):
            with official(pair.brokers["A"]) as client:
                producer = client.create_producer(topic, schema=AvroSchema(Order), batching_enabled=first > 0)
                for number in range(first, first + 20):
                    producer.send_async(Order(number=number), lambda *_: None)
                producer.flush()
            pair.kill("B")  # its next producer finds a topic that has a schema
            pair.start("B")
        until(lambda: has_schema(pair.brokers["B"], topic), lambda: bridged(pair, topic))  # a reader would be refused
        with official(pair.brokers["B"]) as client:
            reader = client.create_reader(topic, pulsar.MessageId.earliest, schema=AvroSchema(Order))
            found = [reader.read_next(60_000).value().number for _ in range(40)]
        assert found == list(range(40)), bridged(pair, topic)
    finally:
        for broker in pair.brokers.values():
            broker.admin("POST", f"namespaces/{NAMESPACE}/schemaValidationEnforced", False)


def test_a_drill_of_clusters_that_run_uses_a_namespace_of_its_own_and_leaves_nothing(
    pair: Secured, tmp_path: Path
) -> None:
    refused = drill_against(pair, tmp_path / "refused")
    assert refused.returncode == 2
    assert "the brokers of A have no such namespace; make it there first" in refused.stderr
    drill_of_running(pair, tmp_path / "out")


def test_what_a_producer_sent_at_one_cluster_is_not_taken_again_at_the_other(pair: Secured) -> None:
    """Brokers that deduplicate know the numbers of a producer that came with its messages from the other cluster, once
    they were started again; an application that goes on there under its name repeats nothing."""
    topic = "persistent://public/default/deduplicated"

    def sent(cluster: str, numbers: range) -> None:
        with official(pair.brokers[cluster]) as client:
            producer = client.create_producer(topic, producer_name="shop", initial_sequence_id=numbers[0] - 1)
            for number in numbers:
                producer.send(f"m-{number}".encode(), sequence_id=number)

    sent("A", range(10))
    assert read_all(pair.brokers["B"], topic, 10) == bodies("m", range(10))
    pair.brokers["B"].kill()
    pair.brokers["B"].start()
    sent("B", range(5, 15))  # the last five are new
    for name in "BA":
        assert read_all(pair.brokers[name], topic, 15) == bodies("m", range(15)), bridged(pair, topic)
