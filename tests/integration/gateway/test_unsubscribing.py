"""Deleting a replicated subscription in one cluster while consumers use it in another, as official clients live it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import aiohttp
import forked_commands
import pulsar
import pytest
from failover_support import TOPIC, Deployment, deployment
from official_client import official_client, received
from postgres_support import databases_of

from replicator.client import Client

LIMIT_SECONDS = 2.0
LINKS = f"[{{between: [A, B]}}]\nsync: {{in_use_timeout_ms: {LIMIT_SECONDS * 1000:.0f}}}"
SILENCE_MILLIS = 500
"""Time without a message after which the test takes it that none comes."""


@pytest.fixture(scope="module")
def databases(postgres_server: str) -> Iterator[dict[str, str]]:
    with databases_of("AB", postgres_server, "unsubscribing") as urls:
        yield urls


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory, databases: dict[str, str]) -> Iterator[Deployment]:
    with deployment(tmp_path_factory.mktemp("clusters"), "A", "B", links=LINKS, databases=databases) as made:
        yield made


_topics = (f"{TOPIC}-{number}" for number in count())


UNSUBSCRIBING = """
import sys, pulsar
client = pulsar.Client(sys.argv[1], logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Warn))
consumer = client.subscribe(sys.argv[2], "sub", replicate_subscription_state_enabled=True)
try:
    consumer.unsubscribe()
except pulsar.PulsarException as error:
    print("refused:", type(error).__name__)
client.close()
"""
"""A process of its own: the client has one logger for all of a process, that of the first client."""


@contextmanager
def client_of(deployed: Deployment, cluster: str) -> Iterator[Any]:
    with official_client(deployed.client_url(cluster), seconds=25) as client:
        yield client


def subscribed(client: Any, topic: str, *, replicated: bool = True, **options: Any) -> Any:
    return client.subscribe(
        topic,
        "sub",
        initial_position=pulsar.InitialPosition.Earliest,
        replicate_subscription_state_enabled=replicated,
        **options,
    )


def published(client: Any, topic: str, messages: int = 10) -> Any:
    producer = client.create_producer(topic)
    for number in range(messages):
        producer.send(b"%d" % number)
    return producer


def nothing_comes(consumer: Any) -> None:
    with pytest.raises(pulsar.Timeout):
        consumer.receive(SILENCE_MILLIS)


def backlog(deployed: Deployment, cluster: str, topic: str) -> int | None:
    """Return how many messages are not consumed there; None without the subscription."""
    try:
        stats = deployed.get(cluster, f"/admin/v2/persistent/{topic.removeprefix('persistent://')}/stats")
    except urllib.error.HTTPError:
        return None
    shown = stats["subscriptions"].get("sub")
    return None if shown is None else int(shown["msgBacklog"])


def deleted(deployed: Deployment, cluster: str, topic: str, *, force: bool = False) -> tuple[int, str]:
    """Ask the admin API to delete the subscription; returns status and reason."""
    path = f"/admin/v2/persistent/{topic.removeprefix('persistent://')}/subscription/sub?force={json.dumps(force)}"
    request = urllib.request.Request(deployed.url(cluster, path), method="DELETE")
    try:
        with urllib.request.urlopen(request, timeout=25) as response:
            return response.status, ""
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)["reason"]


async def unsubscribed_by_force(deployed: Deployment, topic: str) -> None:
    """Unsubscribe by force with our own client: the official one in Python cannot say force."""
    async with Client(deployed.client_url("A")) as client:
        await (await client.subscribe(topic, "sub")).unsubscribe(force=True)


@contextmanager
def in_use_at_b(deployed: Deployment, topic: str) -> Iterator[tuple[Any, Any]]:
    """Ten messages that a consumer at B has acknowledged, both sides in step; yields A's client and B's consumer."""
    with client_of(deployed, "A") as at_a, client_of(deployed, "B") as at_b:
        producer = published(at_a, topic)
        consumer = subscribed(at_b, topic)
        assert received(consumer, 10) == list(range(10))
        deployed.until(lambda: backlog(deployed, "A", topic) == 0, "A has the subscription")
        producer.close()
        yield at_a, consumer


def test_unsubscribing_is_refused_while_another_cluster_has_consumers_and_the_error_names_it(
    deployed: Deployment,
) -> None:
    topic = next(_topics)
    with in_use_at_b(deployed, topic) as (at_a, at_b):
        said = subprocess.run(
            [sys.executable, "-c", UNSUBSCRIBING, deployed.client_url("A"), topic],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout
        assert "refused: BrokerMetadataError" in said
        assert f"cluster B has 1 consumers of subscription 'sub' of {topic}" in said
        published(at_a, topic, 1)
        assert received(at_b, 1) == [0]
        nothing_comes(at_b)  # the ten are not processed again
    deployed.until(lambda: backlog(deployed, "A", topic) == 0, "A's subscription is there and in step")


def test_a_consumer_whose_unsubscribe_was_refused_goes_on(deployed: Deployment) -> None:
    topic = next(_topics)
    with in_use_at_b(deployed, topic) as (at_a, at_b):
        leaving = subscribed(at_a, topic)
        with pytest.raises(pulsar.PulsarException):
            leaving.unsubscribe()
        at_b.close()
        published(at_a, topic, 3)
        assert received(leaving, 3) == [0, 1, 2]
        leaving.unsubscribe()
    deployed.until(lambda: backlog(deployed, "B", topic) is None, "the subscription is gone at B too")
    assert backlog(deployed, "A", topic) is None


def test_with_force_the_subscription_goes_everywhere_and_consumers_elsewhere_are_disconnected(
    deployed: Deployment,
) -> None:
    topic = next(_topics)
    with in_use_at_b(deployed, topic) as (_, at_b):
        asyncio.run(unsubscribed_by_force(deployed, topic))
        # B's client comes back by itself, and makes a new one: that is what force is.
        assert received(at_b, 10) == list(range(10))


def test_a_cluster_that_does_not_answer_holds_an_unsubscribe_up_for_its_limit_and_other_requests_not_at_all(
    deployed: Deployment,
) -> None:
    topic = next(_topics)
    with in_use_at_b(deployed, topic) as (at_a, at_b):
        producer = at_a.create_producer(topic)
        leaving = subscribed(at_a, topic)
        with deployed.paused("B"):
            began, took = time.monotonic(), []

            def unsubscribe() -> None:
                leaving.unsubscribe()
                took.append(time.monotonic() - began)

            unsubscribing = threading.Thread(target=unsubscribe)
            unsubscribing.start()
            sent = 0
            while unsubscribing.is_alive():
                producer.send(b"%d" % sent)
                sent += 1
            unsubscribing.join()
            assert LIMIT_SECONDS <= took[0] < LIMIT_SECONDS + 3
            assert sent > 20
            assert backlog(deployed, "A", topic) is None
        # B's consumer has kept its place, and A has the subscription again.
        assert received(at_b, sent) == list(range(sent))
        deployed.until(lambda: backlog(deployed, "A", topic) == 0, "A has what B kept")


def test_a_cluster_that_is_away_holds_nothing_up(deployed: Deployment) -> None:
    topic = next(_topics)
    with client_of(deployed, "A") as at_a:
        published(at_a, topic)
        leaving = subscribed(at_a, topic)
        with deployed.away("B"):
            began = time.monotonic()
            leaving.unsubscribe()
            assert time.monotonic() - began < LIMIT_SECONDS + 1
            assert backlog(deployed, "A", topic) is None


def test_one_partition_in_use_elsewhere_keeps_the_subscription_on_all_partitions(deployed: Deployment) -> None:
    topic = next(_topics)
    path = f"/admin/v2/persistent/{topic.removeprefix('persistent://')}/partitions"
    request = urllib.request.Request(deployed.url("A", path), b"3", {"Content-Type": "application/json"}, method="PUT")
    urllib.request.urlopen(request, timeout=20).close()
    partitions = [f"{topic}-partition-{index}" for index in range(3)]
    with client_of(deployed, "A") as at_a, client_of(deployed, "B") as at_b:
        producer = at_a.create_producer(topic, message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution)
        for number in range(30):
            producer.send(b"%d" % number)
        leaving = subscribed(at_a, topic)
        for each in partitions:
            deployed.until(lambda each=each: backlog(deployed, "B", each) is not None, "B has the subscription")
        using = subscribed(at_b, partitions[2])
        with pytest.raises(pulsar.PulsarException):
            leaving.unsubscribe()
        assert [backlog(deployed, "A", each) is not None for each in partitions] == [True] * 3
        leaving.close()
        status, reason = deleted(deployed, "A", topic)
        assert (status, "cluster B" in reason, partitions[2] in reason) == (412, True, True)
        assert [backlog(deployed, "A", each) is not None for each in partitions] == [True] * 3
        using.close()
        assert deleted(deployed, "A", topic) == (204, "")
    for each in partitions:
        deployed.until(lambda each=each: backlog(deployed, "B", each) is None, "it is gone at B too")


def test_deleting_by_the_admin_api_is_refused_without_force_and_names_the_cluster(deployed: Deployment) -> None:
    topic = next(_topics)
    with in_use_at_b(deployed, topic) as (_, at_b):
        status, reason = deleted(deployed, "A", topic)
        assert (status, "cluster B has 1 consumers" in reason) == (412, True)
        file = str(deployed.file)
        done = forked_commands.run("subscriptions", "delete", topic, "sub", "-f", file, "-c", "A", cwd=deployed.path)
        assert done.returncode == 2, done.stderr
        assert "cluster B" in done.stderr
        assert deleted(deployed, "A", topic, force=True) == (204, "")
        assert received(at_b, 10) == list(range(10))


def test_a_websocket_that_unsubscribes_is_closed_with_the_name_of_the_cluster(deployed: Deployment) -> None:
    topic = next(_topics)

    async def unsubscribed() -> tuple[int | None, str]:
        url = deployed.url("A", f"/ws/v2/consumer/{topic.replace('://', '/')}/sub")
        async with aiohttp.ClientSession() as session, session.ws_connect(url) as socket:
            await socket.send_json({"type": "unsubscribe"})
            said = await socket.receive(30)
            return socket.close_code, str(said.extra)

    with in_use_at_b(deployed, topic) as (at_a, at_b):
        code, reason = asyncio.run(unsubscribed())
        assert (code, "cluster B has 1 consumers" in reason) == (1013, True)
        published(at_a, topic, 1)
        assert received(at_b, 1) == [0]


def test_deleting_in_a_whole_namespace_is_refused_while_one_topic_is_in_use_elsewhere(deployed: Deployment) -> None:
    topics = [f"persistent://public/unsubscribed/t-{index}" for index in range(3)]
    with client_of(deployed, "A") as at_a, client_of(deployed, "B") as at_b:
        for topic in topics:
            published(at_a, topic, 1)
            subscribed(at_a, topic).close()
        for topic in topics:
            deployed.until(lambda topic=topic: backlog(deployed, "B", topic) is not None, "B has the subscription")
        using = subscribed(at_b, topics[1])
        path = "/admin/v2/namespaces/public/unsubscribed/unsubscribe/sub"
        request = urllib.request.Request(deployed.url("A", path), b"", method="POST")
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=20)
        reason = json.load(refused.value)["reason"]
        assert (refused.value.code, topics[1] in reason, "cluster B" in reason) == (412, True, True)
        assert [backlog(deployed, "A", topic) for topic in topics] == [1, 1, 1]
        using.close()
        urllib.request.urlopen(request, timeout=20).close()
        assert [backlog(deployed, "A", topic) for topic in topics] == [None, None, None]


def test_a_subscription_that_is_not_replicated_concerns_nobody_else(deployed: Deployment) -> None:
    topic = next(_topics)
    with client_of(deployed, "A") as at_a, client_of(deployed, "B") as at_b:
        published(at_a, topic)
        leaving = subscribed(at_a, topic, replicated=False)
        using = subscribed(at_b, topic, replicated=False)
        received(using, 10)
        with deployed.paused("B"):
            began = time.monotonic()
            leaving.unsubscribe()
            assert time.monotonic() - began < LIMIT_SECONDS
        nothing_comes(using)


def test_a_topic_is_deleted_here_though_its_subscription_is_in_use_elsewhere(deployed: Deployment) -> None:
    """No link carries the deletion of a topic, so consumers elsewhere keep both."""
    topic = next(_topics)
    with in_use_at_b(deployed, topic) as (_, at_b):
        path = f"/admin/v2/persistent/{topic.removeprefix('persistent://')}"
        request = urllib.request.Request(deployed.url("A", path), method="DELETE")
        urllib.request.urlopen(request, timeout=20).close()
        nothing_comes(at_b)
        assert backlog(deployed, "B", topic) == 0
