"""Authentication and authorization compared with a real broker: the same programs of the official client at both.

Tokens, passwords, certificates and permissions are switched on in both. What each program sees is compared, by the
class of the error where there is one.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from peers_support import pulsar_peer
from security_support import Secrets
from served_worker import served_worker

from replicator.protocol.commands_pb2 import BaseCommand, CommandConnect
from replicator.protocol.frames import FrameDecoder, encode
from replicator.protocol.versions import NEWEST
from replicator.security.certificate_making import Authority

pulsar = pytest.importorskip("pulsar")

TOPIC = "persistent://public/default/t"
WAIT_MS = 5_000
PROVIDERS = ("Token", "Basic", "Tls")
GRANTED = {"app": ["produce", "consume"], "writer": ["produce"], "reader": ["consume"], "alice": ["consume"]}


@dataclass(frozen=True, slots=True)
class Served:
    """A cluster that asks who somebody is."""

    url: str
    tls_url: str


@dataclass(frozen=True, slots=True)
class Means:
    """Credentials that clients show, good ones and bad ones."""

    secrets: Secrets
    others: Secrets
    authority: Authority
    stranger: Authority


@pytest.fixture(scope="module")
def means(tmp_path_factory: pytest.TempPathFactory) -> Means:
    directory = tmp_path_factory.mktemp("means")
    return Means(
        Secrets.made(directory / "secrets"),
        Secrets.made(directory / "others"),
        Authority(directory / "authority"),
        Authority(directory / "stranger"),
    )


@pytest.fixture(scope="module")
def theirs(means: Means, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    certificate, key = means.authority.give("broker")
    with socket.create_server(("127.0.0.1", 0)) as free:
        tls_port = free.getsockname()[1]
    token = means.secrets.token("operator")
    package = "org.apache.pulsar.broker.authentication.AuthenticationProvider"
    settings = {
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "authenticationProviders": ",".join(f"{package}{name}" for name in PROVIDERS),
        "superUserRoles": "operator",
        "tokenSecretKey": f"file://{means.secrets.key}",
        # Its broker knows apr1, and no bcrypt.
        "basicAuthConf": str(means.secrets.passwords(bcrypted="x", alice="wonder", bob="builder")),
        "brokerClientAuthenticationPlugin": "org.apache.pulsar.client.impl.auth.AuthenticationToken",
        "brokerClientAuthenticationParameters": f"token:{token}",
        "brokerServicePortTls": str(tls_port),
        "tlsCertificateFilePath": str(certificate),
        "tlsKeyFilePath": str(key),
        "tlsTrustCertsFilePath": str(means.authority.file),
    }
    with pulsar_peer(tmp_path_factory.mktemp("secure"), token=token, **settings) as broker:
        for role, actions in GRANTED.items():
            broker.admin("POST", f"namespaces/public/default/permissions/{role}", actions)
        broker.admin("PUT", TOPIC.replace("://", "/"))  # the first one takes it seconds
        seen(broker.url, SHOWN["token of a superuser"](means), seconds=20)
        yield Served(broker.url, f"pulsar+ssl://127.0.0.1:{tls_port}")


@pytest.fixture(scope="module")
def ours(means: Means) -> Iterator[Served]:
    certificate, key = means.authority.give("worker")
    auth = means.secrets.auth(passwords=str(means.secrets.directory / "htpasswd"), certificates="common-name")
    more = f", tls: {{certificate: {certificate}, key: {key}, ca: {means.authority.file}}}"
    with served_worker(more=more, sections={"auth": auth}, token=means.secrets.token("operator")) as worker:
        for role, actions in GRANTED.items():
            body = str(actions).replace("'", '"')
            assert worker.ask("POST", f"namespaces/public/default/permissions/{role}", body).status == 204
        yield Served(worker.pulsar_url, worker.pulsar_url.replace("pulsar://", "pulsar+ssl://"))


Show = Callable[[Means], dict[str, Any]]


def trusting(means: Means, authentication: Any = None) -> dict[str, Any]:
    return {
        "authentication": authentication,
        "tls_trust_certs_file_path": str(means.authority.file),
        "tls_validate_hostname": True,
    }


def certified(means: Means, authority: Authority, role: str) -> dict[str, Any]:
    certificate, key = authority.give(role)
    return trusting(means, pulsar.AuthenticationTLS(str(certificate), str(key)))


SHOWN: dict[str, Show] = {
    "good token": lambda means: {"authentication": pulsar.AuthenticationToken(means.secrets.token("app"))},
    "token of who only produces": lambda means: {
        "authentication": pulsar.AuthenticationToken(means.secrets.token("writer"))
    },
    "token of who only consumes": lambda means: {
        "authentication": pulsar.AuthenticationToken(means.secrets.token("reader"))
    },
    "token of a superuser": lambda means: {
        "authentication": pulsar.AuthenticationToken(means.secrets.token("operator"))
    },
    "token of a role without grants": lambda means: {
        "authentication": pulsar.AuthenticationToken(means.secrets.token("nobody"))
    },
    "token by another key": lambda means: {"authentication": pulsar.AuthenticationToken(means.others.token("app"))},
    "expired token": lambda means: {
        "authentication": pulsar.AuthenticationToken(means.secrets.token("app", seconds=-10))
    },
    "no token": lambda means: {"authentication": pulsar.AuthenticationToken("nothing of the kind")},
    "nothing": lambda means: {},
    "good password": lambda means: {"authentication": pulsar.AuthenticationBasic("alice", "wonder")},
    "wrong password": lambda means: {"authentication": pulsar.AuthenticationBasic("alice", "wrong")},
    "password of a role without grants": lambda means: {"authentication": pulsar.AuthenticationBasic("bob", "builder")},
}
SHOWN_BY_TLS: dict[str, Show] = {
    "good token": lambda means: trusting(means, pulsar.AuthenticationToken(means.secrets.token("app"))),
    "expired token": lambda means: trusting(means, pulsar.AuthenticationToken(means.secrets.token("app", seconds=-10))),
    "good certificate": lambda means: certified(means, means.authority, "app"),
    "certificate of a role without grants": lambda means: certified(means, means.authority, "nobody"),
    "certificate of another authority": lambda means: certified(means, means.stranger, "app"),
    "nothing": trusting,
    "trust in another authority": lambda means: {
        **trusting(means, pulsar.AuthenticationToken(means.secrets.token("app"))),
        "tls_trust_certs_file_path": str(means.stranger.file),
    },
}


def seen(url: str, options: dict[str, Any], *, seconds: int = 2) -> list[str]:
    """Use a topic in each way; return for each the class of the client's error, or its result."""
    answers: list[str] = []

    def tried(what: Callable[[], Any]) -> Any:
        try:
            result = what()
        except pulsar.PulsarException as error:
            answers.append(type(error).__name__)
            return None
        answers.append("done")
        return result

    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    with closing(pulsar.Client(url, operation_timeout_seconds=seconds, logger=logger, **options)) as client:
        producer = tried(lambda: client.create_producer(TOPIC))
        if producer is not None:
            tried(lambda: producer.send(b"1") and None)
        consumer = tried(lambda: client.subscribe(TOPIC, "s", initial_position=pulsar.InitialPosition.Earliest))
        if consumer is not None and producer is not None:
            tried(lambda: consumer.acknowledge(consumer.receive(WAIT_MS)))
        reader = tried(lambda: client.create_reader(TOPIC, pulsar.MessageId.earliest))
        if reader is not None:
            reader.close()
        tried(lambda: client.get_topic_partitions(TOPIC))
    return answers


def same(ours: str, theirs: str, options: dict[str, Any]) -> None:
    """Fail unless a client sees the same at both URLs. It tries both at once: what is refused is tried for seconds."""
    with ThreadPoolExecutor() as threads:
        here, there = threads.map(lambda url: seen(url, options), (ours, theirs))
    assert here == there


@pytest.mark.parametrize("shown", SHOWN)
def test_a_client_sees_the_same_of_both(theirs: Served, ours: Served, means: Means, shown: str) -> None:
    same(ours.url, theirs.url, SHOWN[shown](means))


@pytest.mark.parametrize("shown", SHOWN_BY_TLS)
def test_a_client_that_uses_tls_sees_the_same_of_both(theirs: Served, ours: Served, means: Means, shown: str) -> None:
    same(ours.tls_url, theirs.tls_url, SHOWN_BY_TLS[shown](means))


def test_tls_at_a_port_without_it(theirs: Served, means: Means) -> None:
    """A TLS client sees the same at ports without TLS, ours and theirs. Our worker has no certificate here; with one,
    its port would take both."""
    options = SHOWN_BY_TLS["good token"](means)
    plain = theirs.url.replace("pulsar://", "pulsar+ssl://")
    with served_worker(sections={"auth": means.secrets.auth()}) as worker:
        same(worker.pulsar_url.replace("pulsar://", "pulsar+ssl://"), plain, options)


def test_no_tls_where_nothing_else_is_spoken(theirs: Served, means: Means, tmp_path: Path) -> None:
    certificate, key = means.authority.give("alone")
    options = SHOWN["good token"](means)
    sections = {"auth": means.secrets.auth(), "tls": {"required": True, "trust": str(means.authority.file)}}
    more = f", tls: {{certificate: {certificate}, key: {key}}}"
    with served_worker(more=more, sections=sections, trust=means.authority.file) as worker:
        theirs_plain = theirs.tls_url.replace("pulsar+ssl://", "pulsar://")
        same(worker.pulsar_url, theirs_plain, options)


CLAIMED: dict[str, dict[str, str]] = {
    "nothing": {},
    "another role": {"original_principal": "reader"},
    "its own role": {"original_principal": "app"},
    "another role, with what that shows": {
        "original_principal": "reader",
        "original_auth_data": "x",
        "original_auth_method": "token",
    },
    "no role": {"original_principal": " "},
    "what another shows, and no role": {"original_auth_data": "x", "original_auth_method": "token"},
    "the version of a proxy": {"proxy_version": "4.0.0"},
    "where a proxy connects it": {"proxy_to_broker_url": "127.0.0.1:1"},
}
"""Fields of CONNECT in which a proxy names the client that it speaks for."""


def answered(url: str, token: str, claimed: dict[str, str]) -> tuple[str, int, str]:
    """Connect with a token and the fields ``claimed``; return the answer."""
    host, port = url.removeprefix("pulsar://").split(":")
    command = CommandConnect(
        client_version="a test",
        protocol_version=NEWEST,
        auth_method_name="token",
        auth_data=token.encode(),
        **claimed,  # type: ignore[arg-type]
    )
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(encode(BaseCommand(type=BaseCommand.CONNECT, connect=command)))
        decoder = FrameDecoder()
        while True:
            for frame in decoder.receive(connection.recv(65536)):
                answer = frame.command
                if answer.type == BaseCommand.ERROR:
                    assert connection.recv(65536) == b"", "the connection stays"
                return BaseCommand.Type.Name(answer.type), answer.error.error, answer.error.message


@pytest.mark.parametrize("claimed", CLAIMED)
def test_who_says_that_it_speaks_for_others_is_answered_the_same_by_both(
    theirs: Served, ours: Served, means: Means, claimed: str
) -> None:
    token = means.secrets.token("app")
    assert answered(ours.url, token, CLAIMED[claimed]) == answered(theirs.url, token, CLAIMED[claimed])
