"""Authentication and permissions: tokens, passwords, certificates and roles, with the official client and ours."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from security_support import Secrets
from served_worker import ServedWorker, served_worker

from replicator.client import AuthenticationBasic, AuthenticationToken, Client
from replicator.client import AuthorizationError as OurAuthorizationError
from replicator.client.errors import AuthenticationError as OurAuthenticationError
from replicator.protocol.client import ClientConnection
from replicator.security.certificate_making import Authority

pulsar = pytest.importorskip("pulsar")

WAIT_MS = 10_000
TOPIC = "persistent://acme/orders/t"
GRANTED = "namespaces/acme/orders/permissions"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Secrets:
    return Secrets.made(tmp_path_factory.mktemp("secrets"))


@pytest.fixture(scope="module")
def worker(secrets: Secrets, authority: Authority) -> Iterator[ServedWorker]:
    certificate, key = authority.give("us-east")
    auth = secrets.auth(
        passwords=str(secrets.passwords(alice="wonder", bob="builder")),
        certificates="common-name",
        permissions={"acme/orders": {"app": ["produce", "consume"]}, TOPIC: {"alice": ["consume"]}},
    )
    more = f", tls: {{certificate: {certificate}, key: {key}, ca: {authority.file}}}"
    with served_worker(more=more, sections={"auth": auth}, token=secrets.token("operator")) as served:
        assert served.ask("PUT", "namespaces/acme/orders").status == 204
        yield served


@contextmanager
def connected(url: str, authentication: Any = None, *, seconds: int = 5, **options: Any) -> Iterator[Any]:
    client = pulsar.Client(
        url,
        authentication=authentication,
        operation_timeout_seconds=seconds,
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
        **options,
    )
    try:
        yield client
    finally:
        client.close()


def sent_and_received(client: Any, topic: str = TOPIC, subscription: str = "s") -> None:
    consumer = client.subscribe(topic, subscription)
    client.create_producer(topic).send(b"1")
    message = consumer.receive(WAIT_MS)
    assert message.data() == b"1"
    consumer.acknowledge(message)
    consumer.close()


def test_a_role_that_may_produce_and_consume_does(worker: ServedWorker, secrets: Secrets) -> None:
    with connected(worker.pulsar_url, pulsar.AuthenticationToken(secrets.token("app"))) as client:
        sent_and_received(client)


@pytest.mark.parametrize(
    "shown",
    ["nothing", "another secret", "expired", "no token", "wrong password", "nobody's password"],
)
def test_who_does_not_show_who_they_are_is_refused(
    worker: ServedWorker, secrets: Secrets, shown: str, tmp_path: Path
) -> None:
    authentication = {
        "nothing": lambda: None,
        "another secret": lambda: pulsar.AuthenticationToken(Secrets.made(tmp_path).token("operator")),
        "expired": lambda: pulsar.AuthenticationToken(secrets.token("operator", seconds=-1)),
        "no token": lambda: pulsar.AuthenticationToken("not a token"),
        "wrong password": lambda: pulsar.AuthenticationBasic("alice", "wrong"),
        "nobody's password": lambda: pulsar.AuthenticationBasic("operator", "wonder"),
    }[shown]()
    # This client does not look at why it is refused, and tries until its time is over.
    with (
        connected(worker.pulsar_url, authentication, seconds=1) as client,
        pytest.raises((pulsar.exceptions.AuthenticationError, pulsar.exceptions.Timeout)),
    ):
        client.create_producer(TOPIC)


@pytest.mark.parametrize("claimed", ["another", "operator"])
def test_who_asks_for_another_as_a_proxy_does_is_refused_over_http(
    worker: ServedWorker, secrets: Secrets, claimed: str
) -> None:
    for role in ("app", "boss-of-nothing"):
        shown = {"Authorization": f"Bearer {secrets.token(role)}", "X-Original-Principal": claimed}
        answer = worker.ask("GET", "/lookup/v2/topic/persistent/acme/orders/t", None, shown)
        assert (answer.status, answer.json["error"]) == (401, "NotIdentified")
    own = {"Authorization": f"Bearer {secrets.token('app')}", "X-Original-Principal": "app"}
    assert worker.ask("GET", "/lookup/v2/topic/persistent/acme/orders/t", None, own).status == 200


def test_what_was_not_granted_is_refused_and_changes_nothing(worker: ServedWorker, secrets: Secrets) -> None:
    before = worker.ask("GET", "persistent/acme/orders").json
    with connected(worker.pulsar_url, pulsar.AuthenticationToken(secrets.token("stranger"))) as client:
        for refused in (
            lambda: client.create_producer("persistent://acme/orders/new"),
            lambda: client.subscribe("persistent://acme/orders/new", "s"),
            lambda: client.create_reader("persistent://acme/orders/new", pulsar.MessageId.earliest),
            lambda: client.get_topic_partitions("persistent://acme/orders/new"),
        ):
            with pytest.raises(pulsar.exceptions.AuthorizationError):
                refused()
    assert worker.ask("GET", "persistent/acme/orders").json == before


def test_a_password_says_who_one_is_and_a_topic_can_be_granted_alone(worker: ServedWorker, secrets: Secrets) -> None:
    with connected(worker.pulsar_url, pulsar.AuthenticationToken(secrets.token("app"))) as app:
        app.create_producer(TOPIC).send(b"for alice")
        with connected(worker.pulsar_url, pulsar.AuthenticationBasic("alice", "wonder")) as client:
            consumer = client.subscribe(TOPIC, "of-alice", initial_position=pulsar.InitialPosition.Earliest)
            assert consumer.receive(WAIT_MS) is not None
            with pytest.raises(pulsar.exceptions.AuthorizationError):
                client.create_producer(TOPIC)
            with pytest.raises(pulsar.exceptions.AuthorizationError):
                client.subscribe("persistent://acme/orders/another", "s")


def test_a_certificate_says_who_one_is(worker: ServedWorker, authority: Authority) -> None:
    url = worker.pulsar_url.replace("pulsar://", "pulsar+ssl://")
    certificate, key = authority.give("app")
    trusted = {"tls_trust_certs_file_path": str(authority.file), "tls_validate_hostname": True}
    with connected(url, pulsar.AuthenticationTLS(str(certificate), str(key)), **trusted) as client:
        sent_and_received(client, subscription="by-certificate")
    stranger = Authority(authority.directory / "stranger").give("app")
    with (
        connected(url, pulsar.AuthenticationTLS(*map(str, stranger)), **trusted) as client,
        pytest.raises(pulsar.PulsarException),
    ):
        client.create_producer(TOPIC)


def test_an_operator_grants_and_revokes_and_it_is_noted_who_did(worker: ServedWorker, secrets: Secrets) -> None:
    authentication = pulsar.AuthenticationToken(secrets.token("newcomer"))
    with connected(worker.pulsar_url, authentication) as client:
        with pytest.raises(pulsar.exceptions.AuthorizationError):
            client.create_producer(TOPIC)
        assert worker.ask("POST", f"{GRANTED}/newcomer", '["produce"]').status == 204
        assert worker.ask("GET", GRANTED).json == {"newcomer": ["produce"]}
        client.create_producer(TOPIC).close()
        with pytest.raises(pulsar.exceptions.AuthorizationError):
            client.subscribe(TOPIC, "s")
        assert worker.ask("DELETE", f"{GRANTED}/newcomer").status == 204
        with pytest.raises(pulsar.exceptions.AuthorizationError):
            client.create_producer(TOPIC)
    revoked, granted = worker.ask("GET", "/replication/v1/audit?newest=2").json["entries"]
    assert (revoked["actor"], revoked["action"]) == ("operator", "DELETE namespaces/permissions")
    assert (revoked["detail"]["before"], revoked["detail"]["after"]) == ({"newcomer": ["produce"]}, {})
    assert (granted["detail"]["before"], granted["detail"]["after"]) == ({}, {"newcomer": ["produce"]})


def test_subscriptions_can_be_given_to_roles_and_to_prefixes(worker: ServedWorker, secrets: Secrets) -> None:
    authentication = pulsar.AuthenticationToken(secrets.token("app"))
    assert worker.ask("POST", f"{GRANTED}/subscription/reserved", '["billing"]').status == 204
    with connected(worker.pulsar_url, authentication) as client:
        with pytest.raises(pulsar.exceptions.AuthorizationError):
            client.subscribe(TOPIC, "reserved")
        assert worker.ask("DELETE", f"{GRANTED}/reserved/billing").status == 204
        revoked, granted = worker.ask("GET", "/replication/v1/audit?newest=2").json["entries"]
        assert granted["detail"]["after"] == revoked["detail"]["before"] == {"reserved": ["billing"]}
        assert revoked["detail"]["after"] != revoked["detail"]["before"]
        client.subscribe(TOPIC, "reserved").close()
        mode = "namespaces/acme/orders/subscriptionAuthMode"
        assert worker.ask("POST", mode, '"Prefix"').status == 204
        with pytest.raises(pulsar.exceptions.AuthorizationError):
            client.subscribe(TOPIC, "reserved")
        client.subscribe(TOPIC, "app-1").close()
        assert worker.ask("POST", mode, '"None"').status == 204


def test_a_tenants_admin_rules_the_tenant_and_nothing_else(worker: ServedWorker, secrets: Secrets) -> None:
    assert worker.ask("PUT", "tenants/beta", json.dumps({"adminRoles": ["boss"]})).status == 204
    assert worker.ask("GET", "tenants/beta").json["adminRoles"] == ["boss"]
    boss = {"Authorization": f"Bearer {secrets.token('boss')}"}
    assert worker.ask("PUT", "namespaces/beta/one", None, boss).status == 204
    assert worker.ask("PUT", "persistent/beta/one/t", None, boss).status == 204
    assert worker.ask("GET", "persistent/beta/one/t/stats", None, boss).status == 200
    for method, path in (
        ("PUT", "tenants/gamma"),
        ("DELETE", "tenants/beta"),
        ("PUT", "namespaces/acme/mine"),
        ("GET", "persistent/acme/orders"),
        ("POST", "/failover/v1/propose"),
        ("GET", "/replication/v1/status"),
        ("GET", "/replication/v1/audit"),
    ):
        assert worker.ask(method, path, None, boss).status == 403, path
    with connected(worker.pulsar_url, pulsar.AuthenticationToken(secrets.token("boss"))) as client:
        sent_and_received(client, "persistent://beta/one/t")


def test_what_was_granted_goes_with_what_it_was_granted_for(worker: ServedWorker) -> None:
    assert worker.ask("PUT", "namespaces/acme/short-lived").status == 204
    assert worker.ask("PUT", "persistent/acme/short-lived/t").status == 204
    for path in ("namespaces/acme/short-lived", "persistent/acme/short-lived/t"):
        assert worker.ask("POST", f"{path}/permissions/app", '["consume"]').status == 204
    assert worker.ask("GET", "persistent/acme/short-lived/t/permissions").json == {"app": ["consume"]}
    assert worker.ask("DELETE", "persistent/acme/short-lived/t?force=true").status == 204
    assert worker.ask("DELETE", "namespaces/acme/short-lived").status == 204
    assert worker.ask("PUT", "namespaces/acme/short-lived").status == 204
    assert worker.ask("PUT", "persistent/acme/short-lived/t").status == 204
    assert worker.ask("GET", "namespaces/acme/short-lived/permissions").json == {}
    assert worker.ask("GET", "persistent/acme/short-lived/t/permissions").json == {}


@pytest.mark.parametrize("actions", ['["fly"]', '"produce"', "{}", '[["produce"]]'])
def test_actions_that_there_are_not_are_refused(worker: ServedWorker, actions: str) -> None:
    assert worker.ask("POST", f"{GRANTED}/app", actions).status == 400
    assert worker.ask("GET", GRANTED).json == {}


def test_our_client_shows_tokens_and_passwords(worker: ServedWorker, secrets: Secrets) -> None:
    shown: list[str] = []

    def token() -> str:
        shown.append(secrets.token("app"))
        return shown[-1]

    async def main() -> None:
        async with Client(worker.pulsar_url, authentication=AuthenticationToken(token)) as client:
            producer = await client.create_producer(TOPIC)
            await producer.send(b"1")
        async with Client(worker.pulsar_url, authentication=AuthenticationBasic("alice", "wonder")) as client:
            with pytest.raises(OurAuthorizationError):
                await client.create_producer(TOPIC)
        async with Client(worker.pulsar_url) as client:
            with pytest.raises(OurAuthenticationError):
                await client.create_producer(TOPIC)

    asyncio.run(main())
    assert shown


def test_a_token_that_expires_is_refreshed_on_the_connection(worker: ServedWorker, secrets: Secrets) -> None:
    asked: list[str] = []

    def token() -> str:
        asked.append(secrets.token("app", seconds=2))
        return asked[-1]

    async def ours() -> None:
        async with Client(worker.pulsar_url, authentication=AuthenticationToken(token)) as client:
            producer = await client.create_producer(TOPIC)
            while len(asked) < 3:
                await producer.send(b"goes on")
                await asyncio.sleep(0.05)

    asyncio.run(ours())
    asked.clear()
    with connected(worker.pulsar_url, pulsar.AuthenticationToken(token)) as client:
        producer = client.create_producer(TOPIC)
        while len(asked) < 3:
            producer.send(b"goes on")


@pytest.mark.parametrize("name", ["a\tb", "a\nb", "a\x00b", "a" * 300, "ä" * 200, "", "alice\r"])
def test_names_that_nobody_can_have_are_refused_as_others_are(worker: ServedWorker, name: str) -> None:
    shown = base64.b64encode(f"{name}:wonder".encode()).decode()
    answer = worker.ask("GET", "tenants", None, {"Authorization": f"Basic {shown}"})
    assert (answer.status, answer.json["error"]) == (401, "NotIdentified")
    with socket.create_connection(("127.0.0.1", worker.port), timeout=WAIT_MS / 1000) as connection:
        credentials = f"{name}:wonder".encode
        connection.sendall(ClientConnection(0.0, software="x", method="basic", credentials=credentials).connect())
        answered = b""
        while piece := connection.recv(65536):
            answered += piece
    assert b"wrong" in answered or b"NAME:PASSWORD" in answered


def test_who_may_not_use_a_subscription_does_not_move_it_with_others(worker: ServedWorker, secrets: Secrets) -> None:
    app = {"Authorization": f"Bearer {secrets.token('app')}"}
    assert worker.ask("PUT", "persistent/acme/orders/moved").status == 204
    assert worker.ask("POST", f"{GRANTED}/subscription/billing", '["billing"]').status == 204
    expired = "expireMessages/1"
    for path in (f"subscription/billing/{expired}", f"all_subscription/{expired}"):
        assert worker.ask("POST", f"persistent/acme/orders/moved/{path}", None, app).status == 403
    assert worker.ask("DELETE", f"{GRANTED}/billing/billing").status == 204


def test_a_partition_has_the_permissions_of_its_topic_and_none_of_its_own(worker: ServedWorker) -> None:
    topic = "persistent/acme/orders/parted"
    assert worker.ask("PUT", f"{topic}/partitions", "2").status == 204
    assert worker.ask("POST", f"{topic}-partition-1/permissions/eve", '["consume"]').status == 204
    assert worker.ask("GET", f"{topic}/permissions").json == {"eve": ["consume"]}
    assert worker.ask("DELETE", f"{topic}/permissions/eve").status == 204
    assert worker.ask("GET", f"{topic}-partition-1/permissions").json == {}


def test_what_a_partition_was_granted_before_its_topic_was_partitioned_ends(
    worker: ServedWorker, secrets: Secrets
) -> None:
    topic, eve = "persistent/acme/orders/later", {"Authorization": f"Bearer {secrets.token('eve')}"}
    alone = f"{topic}-partition-1"

    def used() -> int:
        return worker.ask("GET", f"{alone}/stats", None, eve).status

    assert worker.ask("POST", f"{alone}/permissions/eve", '["consume"]').status == 204
    assert worker.ask("PUT", alone, None).status == 204
    assert used() == 200
    assert worker.ask("POST", f"{topic}/permissions/zoe", '["produce"]').status == 204
    assert worker.ask("GET", f"{alone}/permissions").json == {"eve": ["consume"], "zoe": ["produce"]}
    assert worker.ask("DELETE", f"{topic}/permissions/zoe").status == 204
    assert worker.ask("PUT", f"{topic}/partitions", "2").status == 204
    assert used() == 403
    assert worker.ask("GET", f"{alone}/permissions").json == {}
    full = f"persistent://acme/orders/{alone.rpartition('/')[2]}"
    assert full not in worker.ask("GET", "namespaces/acme/orders").json["auth_policies"]["destination_auth"]
    assert not worker.ask("GET", "/replication/v1/rules").json["roles"].get(full)
    assert worker.ask("POST", f"{topic}/permissions/eve", '["consume"]').status == 204
    assert used() == 200
    assert worker.ask("DELETE", f"{alone}/permissions/eve").status == 204
    assert used() == 403
    assert worker.ask("DELETE", f"{topic}/partitions?force=true").status == 204
    assert worker.ask("PUT", alone, None).status == 204
    assert used() == 403


def test_a_policy_of_a_namespace_named_as_a_path_needs_the_namespaces_admin(
    worker: ServedWorker, secrets: Secrets
) -> None:
    at = "namespaces/acme/antiAffinity"
    assert worker.ask("PUT", at).status == 204
    assert worker.ask("POST", f"{at}/permissions/chief", '["admin"]').status == 204
    chief = {"Authorization": f"Bearer {secrets.token('chief')}"}
    assert worker.ask("GET", f"{at}/publishRate", None, chief).status == 204
    assert worker.ask("GET", f"{at}/retention", None, chief).status == 204
    assert worker.ask("GET", f"{at}/backlogQuotaMap", None, chief).json == {}
    assert worker.ask("GET", f"{at}/group-1", None, chief).status == 403
    assert worker.ask("GET", f"{at}/group-1").status == 501


def test_a_websocket_ends_with_the_token_that_it_was_opened_with(worker: ServedWorker, secrets: Secrets) -> None:
    async def main() -> None:
        token = secrets.token("app", seconds=6)
        url = f"{worker.url}/ws/v2/producer/persistent/acme/orders/t?token={token}"
        async with aiohttp.ClientSession() as session, session.ws_connect(url) as opened:
            async with asyncio.timeout(60):
                message = await opened.receive()
            assert message.type in (aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.ERROR)

    asyncio.run(main())
