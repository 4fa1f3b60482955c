"""Workers beside Apache Pulsar clusters and the starts of subscriptions: a start says nothing about what was consumed
(invariant 5, DESIGN §3).

A module of tests imports all of it, as :mod:`bridge_contract`, and has its fixture ``pair``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from typing import Any, Final
from urllib.error import HTTPError

import pulsar
import pytest
from bridge_contract import bridged, in_engine, publish
from peers.apache_support import Beside, backlog, bodies, cursors, drain, official, read_all, until
from pulsar import ConsumerType, InitialPosition

from replicator.client import Client
from replicator.client import ConsumerType as OurConsumerType
from replicator.client import InitialPosition as OurInitialPosition

_topics = (f"persistent://public/default/starts-{number}" for number in count())
KINDS: Final = pytest.mark.parametrize("kind", ["Shared", "Failover", "Exclusive"])


@contextmanager
def apart(made: Beside, *names: str) -> Iterator[None]:
    """These workers do not run until the end of the block."""
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(made.away(name))
        yield


def both_have(made: Beside, topic: str, prefix: str, messages: int) -> None:
    """Publish messages at A, and return when they are at B, too."""
    publish(made, "A", topic, bodies(prefix, range(messages)))
    assert read_all(made.brokers["B"], topic, messages) == bodies(prefix, range(messages)), bridged(made, topic)


def consume(made: Beside, cluster: str, topic: str, kind: str, messages: int) -> None:
    """Subscribe at the earliest message and acknowledge the first messages; return when the broker counts that."""
    with official(made.brokers[cluster]) as client:
        type_ = getattr(ConsumerType, kind)
        consumer = client.subscribe(topic, "work", type_, initial_position=InitialPosition.Earliest)
        total = backlog(made.brokers[cluster], topic, "work")
        for _ in range(messages):
            consumer.acknowledge(consumer.receive(60_000))
        until(lambda: backlog(made.brokers[cluster], topic, "work") == total - messages, "the broker counts them")


def subscribe_at_latest(made: Beside, cluster: str, topic: str, kind: str) -> None:
    with official(made.brokers[cluster]) as client:
        client.subscribe(topic, "work", getattr(ConsumerType, kind), initial_position=InitialPosition.Latest).close()
    assert backlog(made.brokers[cluster], topic, "work") == 0


def open_at(made: Beside, topic: str, messages: int, *names: str) -> None:
    """Return when each of these brokers counts so many entries of ``work`` as open."""
    until(
        lambda: [backlog(made.brokers[name], topic, "work") for name in names] == [messages] * len(names),
        lambda: ([backlog(made.brokers[name], topic, "work") for name in names], bridged(made, topic)),
    )


def put_back(made: Beside, topic: str) -> list[int]:
    """How often each worker has put the subscription of its brokers back."""
    return [each["state"]["put_back"] for each in bridged(made, topic)]


@KINDS
def test_invariant_5_a_subscription_made_at_latest_at_one_broker_takes_nothing_away_from_the_other(
    pair: Beside, kind: str
) -> None:
    topic = next(_topics)
    both_have(pair, topic, "m", 10)
    with apart(pair, "A", "B"):
        consume(pair, "B", topic, kind, 3)
        subscribe_at_latest(pair, "A", topic, kind)
    open_at(pair, topic, 7, "A", "B")
    assert drain(pair.brokers["A"], topic, "work", getattr(ConsumerType, kind)) == bodies("m", range(3, 10))
    open_at(pair, topic, 0, "A", "B")
    assert sum(put_back(pair, topic)) == 1  # once, and at the one that had the later start


@KINDS
def test_invariants_5_and_6_consumers_that_are_connected_get_what_an_earlier_start_opens_and_acknowledgements_stay(
    pair: Beside, kind: str
) -> None:
    topic, type_ = next(_topics), getattr(ConsumerType, kind)
    both_have(pair, topic, "m", 10)
    with official(pair.brokers["A"]) as client:
        with apart(pair, "B"):
            consume(pair, "B", topic, kind, 3)
            consumer = client.subscribe(topic, "work", type_, initial_position=InitialPosition.Latest)
            until(lambda: in_engine(pair, "A", topic) == ["work"], lambda: bridged(pair, topic))
            publish(pair, "A", topic, bodies("later", range(6)))
            for _ in range(3):
                consumer.acknowledge(consumer.receive(60_000))
            until(lambda: backlog(pair.brokers["A"], topic, "work") == 3, "A counts them")
        got: set[str] = set()
        wanted = set(bodies("m", range(3, 10)) + bodies("later", range(3, 6)))

        def all_came() -> bool:
            with suppress(pulsar.Timeout):
                got.add(consumer.receive(1_000).data().decode())
            return wanted <= got

        until(all_came, lambda: (sorted(wanted - got), bridged(pair, topic), pair.log("A")))
        assert got <= wanted | set(bodies("later", range(3)))  # these may come again while the cursor is put back
    open_at(pair, topic, 10, "A", "B")
    assert sorted(drain(pair.brokers["B"], topic, "work", type_)) == sorted(wanted)
    open_at(pair, topic, 0, "A", "B")
    assert sum(put_back(pair, topic)) == 1


def test_a_subscription_that_is_new_at_the_other_broker_begins_where_it_was_made(pair: Beside) -> None:
    """Also among messages of both clusters, and nothing is put back for it."""
    topic = next(_topics)
    both_have(pair, topic, "a", 10)
    publish(pair, "B", topic, bodies("b", range(10)))
    assert len(read_all(pair.brokers["A"], topic, 20)) == 20
    subscribe_at_latest(pair, "A", topic, "Shared")
    open_at(pair, topic, 0, "A", "B")
    for name in "AB":
        publish(pair, name, topic, bodies(f"{name}-later", range(5)))
    open_at(pair, topic, 10, "A", "B")
    later = bodies("A-later", range(5)) + bodies("B-later", range(5))
    assert sorted(drain(pair.brokers["B"], topic, "work", ConsumerType.Shared)) == sorted(later)
    open_at(pair, topic, 0, "A", "B")
    assert put_back(pair, topic) == [0, 0]


def test_invariant_5_a_start_is_one_still_after_workers_were_killed(pair: Beside) -> None:
    topic = next(_topics)
    both_have(pair, topic, "m", 10)
    with apart(pair, "B"):
        subscribe_at_latest(pair, "A", topic, "Shared")
        until(lambda: in_engine(pair, "A", topic) == ["work"], lambda: bridged(pair, topic))
        pair.kill("A")
        pair.start("A")
        consume(pair, "B", topic, "Shared", 3)
    open_at(pair, topic, 7, "A", "B")
    # Only then is it stored. A worker that is killed before, while consumers go on, puts the cursor back again.
    until(lambda: sum(put_back(pair, topic)) == 1, lambda: bridged(pair, topic))
    pair.kill("A")
    pair.start("A")
    assert drain(pair.brokers["A"], topic, "work", ConsumerType.Shared) == bodies("m", range(3, 10))
    open_at(pair, topic, 0, "A", "B")


def test_invariant_5_what_moves_a_cursor_forward_once_it_is_known_counts_as_consumed_everywhere(pair: Beside) -> None:
    """An operator says so: by an expiry up to a message, and by skipping all."""
    topic = next(_topics)
    both_have(pair, topic, "m", 10)
    with official(pair.brokers["A"]) as client:
        client.subscribe(topic, "work", ConsumerType.Shared, initial_position=InitialPosition.Earliest).close()
    open_at(pair, topic, 10, "A", "B")
    ledger = int(cursors(pair.brokers["A"], topic)["work"]["readPosition"].split(":")[0])
    path = f"{topic.replace('://', '/')}/subscription/work"
    place = {"ledgerId": ledger, "entryId": 3, "partitionIndex": -1, "isExcluded": False}
    pair.brokers["A"].admin("POST", f"{path}/expireMessages", place)
    open_at(pair, topic, 6, "A", "B")
    pair.brokers["B"].admin("POST", f"{path}/skip_all")
    open_at(pair, topic, 0, "A", "B")
    assert put_back(pair, topic) == [0, 0]


async def at_c(made: Beside, topic: str, start: OurInitialPosition, acknowledged: int) -> None:
    """Subscribe at the embedded cluster, and acknowledge so many messages."""
    async with Client(made.client_url("C")) as client:
        consumer = await client.subscribe(
            topic,
            "work",
            consumer_type=OurConsumerType.Shared,
            initial_position=start,
            replicate_subscription_state_enabled=True,
        )
        for _ in range(acknowledged):
            await consumer.acknowledge(await consumer.receive(timeout_millis=60_000))


async def rest_at_c(made: Beside, topic: str, messages: int) -> list[str]:
    """Receive so many messages at the embedded cluster, and acknowledge them."""
    async with Client(made.client_url("C")) as client:
        consumer = await client.subscribe(topic, "work", consumer_type=OurConsumerType.Shared)
        found: list[str] = []
        while len(found) < messages:
            message = await consumer.receive(timeout_millis=60_000)
            found.append(message.data().decode())
            await consumer.acknowledge(message)
        return found


def open_at_c(made: Beside, topic: str) -> int:
    stats: Any = made.get("C", f"/admin/v2/{topic.replace('://', '/')}/stats")
    return int(stats["subscriptions"]["work"]["msgBacklog"])


@pytest.mark.parametrize("earliest", ["embedded", "brokers"])
def test_invariant_5_starts_of_brokers_and_of_an_embedded_cluster_take_nothing_from_each_other(
    pair: Beside, earliest: str
) -> None:
    topic = next(_topics)
    both_have(pair, topic, "m", 10)
    assert len(read_all(pair.client_url("C"), topic, 10)) == 10
    with apart(pair, "A"):
        if earliest == "embedded":
            asyncio.run(at_c(pair, topic, OurInitialPosition.Earliest, 3))
            subscribe_at_latest(pair, "A", topic, "Shared")
        else:
            asyncio.run(at_c(pair, topic, OurInitialPosition.Latest, 0))
            consume_seen(pair, topic, 3)
    left: Sequence[str] = bodies("m", range(3, 10))
    open_at(pair, topic, len(left), "A", "B")
    until(lambda: open_at_c(pair, topic) == len(left), lambda: open_at_c(pair, topic))
    assert sorted(asyncio.run(rest_at_c(pair, topic, len(left)))) == sorted(left)
    open_at(pair, topic, 0, "A", "B")


def consume_seen(made: Beside, topic: str, messages: int) -> None:
    """Subscribe at the brokers of B, from the earliest message on, and acknowledge once its worker has seen that."""
    with official(made.brokers["B"]) as client:
        consumer = client.subscribe(topic, "work", ConsumerType.Shared, initial_position=InitialPosition.Earliest)
        until(lambda: in_engine(made, "B", topic) == ["work"], lambda: bridged(made, topic))
        for _ in range(messages):
            consumer.acknowledge(consumer.receive(60_000))
        until(lambda: backlog(made.brokers["B"], topic, "work") == 10 - messages, "the broker counts them")


@KINDS
def test_invariant_5_what_lay_below_a_brokers_cursor_before_its_worker_ran_is_a_start_where_it_is_migrated_to(
    pair: Beside, kind: str
) -> None:
    """Four of ten messages were acknowledged at the broker before. The embedded cluster goes on with the rest."""
    topic = next(_topics)
    with apart(pair, "A"):
        publish(pair, "A", topic, bodies("m", range(10)))
        consume(pair, "A", topic, kind, 4)
    until(lambda: "work" in told_at_c(pair, topic), lambda: bridged(pair, topic))
    until(lambda: open_at_c(pair, topic) == 6, lambda: (open_at_c(pair, topic), told_at_c(pair, topic)))
    state = told_at_c(pair, topic)["work"]
    assert place(state["starts"]["A.pulsar"][1])[1] == 3
    assert state["vector"]["A.pulsar"]["ranges"] == [] == state["vector"]["A.pulsar"]["beyond"]
    assert sorted(asyncio.run(rest_at_c(pair, topic, 6))) == bodies("m", range(4, 10))
    open_at(pair, topic, 0, "A", "B")
    assert put_back(pair, topic) == [0, 0]


def place(position: str) -> tuple[int, ...]:
    return tuple(map(int, position.split(":")))


def told_at_c(made: Beside, topic: str) -> Any:
    """By subscription, what the embedded cluster knows of starts and acknowledgements."""
    try:
        return made.get("C", f"/replication/v1/ack-vectors?topic={topic}")["subscriptions"]
    except HTTPError:  # the topic is not there yet
        return {}
