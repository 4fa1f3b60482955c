"""Nothing is done, and nothing told, for who may not: every route of a running worker, every command of the binary
protocol, and what a link may bring.

The routes are taken from the running application, the commands from the protocol: a new one is closed until somebody
opens it.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from api_support import routes_of, topology
from asynchronous import asynchronous
from gateway_support import BareClient
from security_support import Secrets
from served_worker import ServedWorker, served_worker

from replicator.api.guarding import ANYBODY_IDENTIFIED, PUBLIC
from replicator.protocol.client import ClientConnection
from replicator.protocol.commands_pb2 import (
    BaseCommand,
    CommandGetTopicsOfNamespace,
    CommandWatchTopicList,
    ServerError,
)
from replicator.protocol.errors import Refused
from replicator.protocol.frames import encode
from replicator.protocol.server import COMMANDS
from replicator.security.certificate_making import Authority
from replicator.topology import load_topology
from replicator.worker.starting import start_worker

T = BaseCommand.Type
TOPIC = "persistent/public/default/there"
OTHER_NAMES = {
    "partitionedmetadata": "partitionmetadata",
    "lookup": "lookuptopic",
    "tcclientconnectrequest": "tcclientconnectrequest",
}
REFUSED = {401: "NotIdentified", 403: "NotPermitted"}


def started(directory: Path, secrets: Secrets) -> tuple[Path, int]:
    file, port = topology(directory)
    auth = secrets.auth(
        permissions={"public/default": {"app": ["produce", "consume"]}, "other": {"small": ["consume"]}}
    )
    file.write_text(file.read_text() + yaml.safe_dump({"auth": auth}))
    return file, port


@asynchronous
async def test_every_route_is_closed_for_who_may_not_use_it(data_dir: Path, tmp_path: Path) -> None:
    secrets = Secrets.made(tmp_path / "secrets")
    file, port = started(data_dir, secrets)
    worker = await start_worker(load_topology(file), "solo")
    url = f"http://127.0.0.1:{port}"
    operator = {"Authorization": f"Bearer {secrets.token('operator')}"}
    shown = {
        "nothing": ({}, 401),
        "another secret's": ({"Authorization": f"Bearer {Secrets.made(tmp_path / 'x').token('operator')}"}, 401),
        "expired": ({"Authorization": f"Bearer {secrets.token('operator', seconds=-1)}"}, 401),
        "garbage": ({"Authorization": "Bearer garbage"}, 401),
        "another way": ({"Authorization": "Digest x"}, 401),
        "of another tenant": ({"Authorization": f"Bearer {secrets.token('small')}"}, 403),
        "unknown role": ({"Authorization": f"Bearer {secrets.token('nobody')}"}, 403),
    }
    try:
        public = {path.replace("{file}", "x") for path in PUBLIC}
        routes = [(method, path) for method, path in routes_of(worker) if path not in public]
        assert len(routes) > 150
        async with aiohttp.ClientSession() as session:
            async with session.put(f"{url}/admin/v2/{TOPIC}", headers=operator) as made:
                assert made.status == 204
            before = await state_of(session, url, operator)
            for method, path in routes:
                for what, (headers, status) in shown.items():
                    if status == 403 and path in ANYBODY_IDENTIFIED:
                        continue
                    query = {"topic": "public/default/absent"} if path.startswith("/replication/") else {}
                    async with session.request(method, f"{url}{path}", headers=headers, params=query) as answer:
                        small_reads = what == "of another tenant" and method in ("GET", "HEAD") and answer.status == 200
                        if small_reads:  # lists of what the role may see, of which there is nothing
                            assert "there" not in await answer.text(), path
                            continue
                        told = await answer.text()
                        assert answer.status in (status, 400), (method, path, what, told)
                        assert "there" not in told, (method, path, what, told)
                        if method != "HEAD" and answer.status == status:
                            assert (await answer.json())["error"] == REFUSED[status]
            for path in PUBLIC:
                path = path.replace("{file}", "dashboard.css")
                async with session.get(f"{url}{path}", params={"cluster": "solo"}) as answer:
                    assert answer.status == 200, path
            assert await state_of(session, url, operator) == before
    finally:
        await worker.stop()


async def state_of(session: aiohttp.ClientSession, url: str, headers: dict[str, str]) -> list[object]:
    found = []
    for path in ("/admin/v2/tenants", "/admin/v2/namespaces/public", f"/admin/v2/{TOPIC}/subscriptions",
                 "/admin/v2/persistent/public/default", "/failover/v1/state", "/replication/v1/audit"):  # fmt: skip
        async with session.get(f"{url}{path}", headers=headers) as answer:
            assert answer.status == 200, path
            found.append(await answer.json())
    return found


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Secrets:
    return Secrets.made(tmp_path_factory.mktemp("secrets"))


@pytest.fixture(scope="module")
def worker(secrets: Secrets) -> Iterator[ServedWorker]:
    auth = secrets.auth(permissions={"public/default": {"app": ["produce", "consume"]}})
    with served_worker(sections={"auth": auth}, token=secrets.token("operator")) as served:
        assert served.ask("PUT", TOPIC).status == 204
        yield served


@pytest.mark.parametrize("command", sorted(COMMANDS), ids=lambda each: T.Name(each))
def test_every_command_needs_a_client_that_has_shown_who_it_is(
    worker: ServedWorker, secrets: Secrets, command: int
) -> None:
    """This holds before CONNECT, and after a refused one."""
    for token in ("", secrets.token("operator", seconds=-1)):
        with socket.create_connection(("127.0.0.1", worker.port), timeout=10) as connection:
            state = ClientConnection(time.monotonic(), software="a test", method="token", credentials=token.encode)
            connection.sendall((state.connect() if token else b"") + encode(whole(command)))
            answered = b""
            while piece := connection.recv(65536):
                answered += piece
            assert b"there" not in answered
            if token:
                assert b"expired" in answered


def whole(command: int) -> BaseCommand:
    """A command of that type, with something in each field that it must have."""
    name = T.Name(command).lower().replace("_", "")
    names = {each.name.lower().replace("_", ""): each for each in BaseCommand.DESCRIPTOR.fields}
    made = BaseCommand(type=command)
    inside = getattr(made, names[OTHER_NAMES.get(name, name)].name)
    inside.SetInParent()
    while missing := inside.FindInitializationErrors():
        *parents, last = missing[0].replace("[0]", "").split(".")
        message = inside
        for parent in parents:
            message = getattr(message, parent)
        field = message.DESCRIPTOR.fields_by_name[last]
        if field.cpp_type == field.CPPTYPE_MESSAGE:
            getattr(message, last).SetInParent()
        else:
            value = b"x" if field.type == field.TYPE_BYTES else "x"
            setattr(message, last, value if field.cpp_type == field.CPPTYPE_STRING else 1)
    return made


def bare(worker: ServedWorker, token: str) -> BareClient:
    return BareClient(worker.port, token=token)


OF_WHAT_IS_OPEN = frozenset(
    {
        T.SEND,
        T.ACK,
        T.FLOW,
        T.UNSUBSCRIBE,
        T.CLOSE_PRODUCER,
        T.CLOSE_CONSUMER,
        T.REDELIVER_UNACKNOWLEDGED_MESSAGES,
        T.CONSUMER_STATS,
        T.SEEK,
        T.GET_LAST_MESSAGE_ID,
        T.WATCH_TOPIC_LIST_CLOSE,
        T.RESTARTED,
    }
)
"""Commands about a producer, consumer or watcher of the same connection, which was asked for when it was opened."""
REFUSED_TO_ALL = frozenset(
    {
        T.NEW_TXN,
        T.ADD_PARTITION_TO_TXN,
        T.ADD_SUBSCRIPTION_TO_TXN,
        T.END_TXN,
        T.END_TXN_ON_PARTITION,
        T.END_TXN_ON_SUBSCRIPTION,
        T.TC_CLIENT_CONNECT_REQUEST,
    }
)
"""Commands of transactions."""


ABOUT: dict[str, Any] = {
    "topic": "persistent://public/default/there",
    "namespace": "public/default",
    "topics_pattern": "persistent://public/default/.*",
    "subscription": "s",
    "request_id": 7,
}


@pytest.mark.parametrize("command", sorted(COMMANDS - OF_WHAT_IS_OPEN - REFUSED_TO_ALL), ids=lambda each: T.Name(each))
def test_every_command_is_refused_to_too_small_a_role(worker: ServedWorker, secrets: Secrets, command: int) -> None:
    made = whole(command)
    inside = next(value for field, value in made.ListFields() if field.name != "type")
    for field, value in ABOUT.items():
        if field in inside.DESCRIPTOR.fields_by_name:
            setattr(inside, field, value)
    before = used(worker)
    with bare(worker, secrets.token("small")) as client:
        client.state._waiting.add(7)  # the request that is sent below
        client.send(made)
        while not client._steps:
            client._receive()
        (answer,) = client._steps
    assert refused(answer), answer
    assert used(worker) == before


def used(worker: ServedWorker) -> tuple[int, set[str]]:
    """Return how many producers the topic has, and which subscriptions."""
    stats = worker.ask("GET", f"{TOPIC}/stats").json
    return len(stats["publishers"]), set(stats["subscriptions"])


def refused(answer: Any) -> bool:
    """Return whether an answer says that the role may not."""
    inside = answer.answer
    if isinstance(inside, Refused):
        return inside.code == ServerError.AuthorizationError
    return ServerError.AuthorizationError in (getattr(inside, "error", None), getattr(inside, "error_code", None))


def test_names_of_topics_are_told_to_none_who_may_not_use_their_namespace(
    worker: ServedWorker, secrets: Secrets
) -> None:
    persistent = CommandGetTopicsOfNamespace.Mode.PERSISTENT
    with bare(worker, secrets.token("app")) as client:
        listed = client.request(
            lambda number: BaseCommand(
                type=T.GET_TOPICS_OF_NAMESPACE,
                getTopicsOfNamespace=CommandGetTopicsOfNamespace(
                    request_id=number, namespace="public/default", mode=persistent
                ),
            )
        )
        assert list(listed.topics) == ["persistent://public/default/there"]
    with bare(worker, secrets.token("small")) as client:
        with pytest.raises(Refused) as refused:
            client.request(
                lambda number: BaseCommand(
                    type=T.GET_TOPICS_OF_NAMESPACE,
                    getTopicsOfNamespace=CommandGetTopicsOfNamespace(
                        request_id=number, namespace="public/default", mode=persistent
                    ),
                )
            )
        assert refused.value.code == ServerError.AuthorizationError
        with pytest.raises(Refused) as refused:
            # The namespace of the request is not the one of its pattern.
            client.request(
                lambda number: BaseCommand(
                    type=T.WATCH_TOPIC_LIST,
                    watchTopicList=CommandWatchTopicList(
                        request_id=number,
                        watcher_id=1,
                        namespace="other/one",
                        topics_pattern="persistent://public/default/.*",
                    ),
                )
            )
        assert refused.value.code == ServerError.AuthorizationError


@pytest.mark.parametrize(
    "letters", ["maxRedeliverCount=1", "deadLetterTopic=public/default/there", "deadLetterTopic=x"]
)
def test_a_websocket_sends_dead_letters_only_where_its_role_may_publish(
    worker: ServedWorker, secrets: Secrets, letters: str
) -> None:
    """The worker publishes them for the client."""
    assert worker.ask("POST", "namespaces/public/default/permissions/listener", '["consume"]').status == 204
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
               "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
               "Authorization": f"Bearer {secrets.token('listener')}"}  # fmt: skip
    path = "/ws/v2/consumer/persistent/public/default/there/s"
    answer = worker.ask("GET", f"{path}?{letters}", None, upgrade)
    assert (answer.status, answer.json["error"]) == (403, "NotPermitted")


def test_where_tls_is_required_nothing_else_is_spoken(secrets: Secrets, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    certificate, key = authority.give("us-east")
    more = f", tls: {{certificate: {certificate}, key: {key}}}"
    sections = {"auth": secrets.auth(), "tls": {"required": True, "trust": str(authority.file)}}
    with served_worker(more=more, sections=sections, token=secrets.token("operator"), trust=authority.file) as served:
        assert served.ask("GET", "/replication/v1/status").status == 200
        for hello in (b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", encode(BaseCommand(type=T.PING))):
            with socket.create_connection(("127.0.0.1", served.port), timeout=10) as plain:
                plain.sendall(hello)
                with contextlib.suppress(ConnectionError):
                    assert plain.recv(1024) == b""
        old = ssl.create_default_context(cafile=authority.file)
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        with (
            socket.create_connection(("127.0.0.1", served.port), timeout=10) as connection,
            old.wrap_socket(connection, server_hostname="127.0.0.1") as wrapped,
        ):
            assert wrapped.version() == "TLSv1.2"
