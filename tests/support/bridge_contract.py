"""Contract of workers beside Apache Pulsar clusters (``kind: pulsar``), whoever plays the brokers: messages and the
state of subscriptions travel between clusters whose clients know only their brokers.

A module of tests imports all of it, and has a fixture ``pair``: real brokers in ``tests/peers/test_apache_bridge.py``,
workers of ours in ``tests/peers/test_bridge_at_gateways.py``. Where the two behave differently, real brokers are right.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http import HTTPStatus
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final
from urllib.error import HTTPError

import pulsar
import pyarrow.parquet as pq
import pytest
from peers.apache_support import (
    WAIT_SECONDS,
    Beside,
    backlog,
    bodies,
    cursors,
    drain,
    official,
    partitions,
    read_all,
    until,
)
from pulsar import ConsumerType, InitialPosition
from pulsar.schema import AvroSchema, Integer, Record, StringSchema

from replicator.apache.admin import BrokerAdmin
from replicator.apache.stamps import Identity, marks_of, stamped
from replicator.apache.topic_reader import read_topic
from replicator.client import Client, NotAllowedError
from replicator.client import ConsumerType as OurConsumerType
from replicator.client import InitialPosition as OurInitialPosition
from replicator.client.settings import ProducerSettings
from replicator.client.wire.connector import BrokerConnector
from replicator.drills.peers.pulsar.broker import PulsarBroker
from replicator.engine.types import Delivery
from replicator.running.timeouts import timeout
from replicator.topology.apache import ApacheSettings
from snapshots.position import Position

LINKS: Final = "[{between: [A, B], forward: true}, {between: [A, C], forward: true}]"
KILLS: Final = 50 if os.environ.get("SOAK") else 6
_topics = (f"persistent://public/default/bridged-{number}" for number in count())


def publish(made: Beside, cluster: str, topic: str, messages: list[str], *, batched: bool = False) -> None:
    with official(made.brokers[cluster]) as client:
        producer = client.create_producer(topic, batching_enabled=batched, block_if_queue_full=True)
        for body in messages:
            producer.send_async(body.encode(), lambda *_: None)
        producer.flush()


def bridged(made: Beside, topic: str) -> list[Any]:
    """Return what both workers' status says of a topic."""
    return [each for name in "AB" for each in made.apache(name)["topics"] if each["topic"] == topic]


def in_engine(made: Beside, cluster: str, topic: str) -> list[str]:
    """Return the subscriptions that the engine of a worker has; none while it does not have the topic."""
    try:
        found: list[str] = made.get(cluster, "/admin/v2/" + topic.replace("://", "/") + "/subscriptions")
    except HTTPError as error:
        if error.code != HTTPStatus.NOT_FOUND:
            raise
        return []
    return found


def in_step(made: Beside, topic: str) -> bool:
    """Return whether the engines of both workers have counted the same backlog for some time."""
    counts = set()
    for _ in range(5):
        for name in "AB":
            shown = made.get(name, "/admin/v2/" + topic.replace("://", "/") + "/stats")
            counts.add(shown["subscriptions"]["work"]["msgBacklog"])
        time.sleep(0.3)
    return len(counts) == 1


def test_messages_published_at_one_broker_appear_once_and_in_order_at_the_other(pair: Beside) -> None:
    topic = next(_topics)
    publish(pair, "A", topic, bodies("a", range(300)))
    publish(pair, "A", topic, bodies("b", range(300)), batched=True)
    assert read_all(pair.brokers["B"], topic, 600) == bodies("a", range(300)) + bodies("b", range(300)), pair.log("A")
    assert read_all(pair.brokers["A"], topic, 600) == bodies("a", range(300)) + bodies("b", range(300))


def test_what_is_confirmed_where_it_was_published_is_not_read_back_from_there(pair: Beside) -> None:
    topic = next(_topics)
    publish(pair, "A", topic, bodies("a", range(5_000)))
    until(lambda: [each["messages_read"] for each in bridged(pair, topic)] == [5_000, 5_000], lambda: pair.apache("B"))
    at_a, at_b = bridged(pair, topic)
    assert at_a["messages_confirmed"] == 0  # applications published them
    assert at_b["messages_confirmed"] > 2_500, at_b
    publish(pair, "B", topic, bodies("b", range(10)))  # is read all the same
    published = bodies("a", range(5_000)) + bodies("b", range(10))
    assert read_all(pair.brokers["A"], topic, 5_010) == published
    assert read_all(pair.brokers["B"], topic, 5_010) == published


def test_acknowledgements_out_of_order_at_one_broker_are_exact_at_the_other(pair: Beside) -> None:
    topic = next(_topics)
    with official(pair.brokers["A"]) as client:
        consumer = client.subscribe(topic, "work", ConsumerType.Shared, initial_position=InitialPosition.Earliest)
        publish(pair, "A", topic, bodies("m", range(60)))
        got = [consumer.receive(60_000) for _ in range(60)]
        left = {3, 4, 17, 30, 59}
        for number, message in enumerate(got):
            if number not in left:
                consumer.acknowledge(message)
        until(lambda: backlog(pair.brokers["A"], topic, "work") == 5, "the broker of A counts them")
    assert read_all(pair.brokers["B"], topic, 60) == bodies("m", range(60))
    until(lambda: backlog(pair.brokers["B"], topic, "work") == 5, lambda: (pair.apache("A"), pair.apache("B")))
    # Invariants 5 and 6: exactly these are left, in order.
    assert drain(pair.brokers["B"], topic, "work", ConsumerType.Shared) == bodies("m", sorted(left))
    # What was acknowledged at B comes back to A.
    until(lambda: backlog(pair.brokers["A"], topic, "work") == 0, lambda: (pair.apache("A"), pair.apache("B")))


def test_the_state_of_subscriptions_travels_whatever_they_are_called(pair: Beside) -> None:
    state_travels(pair, "order service", "a/b", "q?x#y", "a&b=c", "größe", "~*-_.")


def state_travels(pair: Beside, *names: str) -> None:
    """Check that subscriptions of these names have the same exact state at both brokers."""
    topic = next(_topics)
    with official(pair.brokers["A"]) as client:
        consumers = {
            name: client.subscribe(topic, name, ConsumerType.Shared, initial_position=InitialPosition.Earliest)
            for name in names
        }
        publish(pair, "A", topic, bodies("m", range(6)))
        for consumer in consumers.values():
            for number, message in enumerate([consumer.receive(60_000) for _ in range(6)]):
                if number not in (1, 5):
                    consumer.acknowledge(message)
        for name in names:
            until(lambda name=name: backlog(pair.brokers["A"], topic, name) == 2, f"the broker of A counts {name}")
    assert read_all(pair.brokers["B"], topic, 6) == bodies("m", range(6))
    for name in names:
        until(lambda name=name: backlog(pair.brokers["B"], topic, name) == 2, lambda: bridged(pair, topic))
    for name in names[:3]:
        assert drain(pair.brokers["B"], topic, name, ConsumerType.Shared) == ["m-1", "m-5"]
        until(lambda name=name: backlog(pair.brokers["A"], topic, name) == 0, lambda: bridged(pair, topic))


def test_cumulative_acknowledgements_and_both_directions(pair: Beside) -> None:
    topic = next(_topics)
    with official(pair.brokers["A"]) as client:
        consumer = client.subscribe(topic, "fail", ConsumerType.Failover, initial_position=InitialPosition.Earliest)
        publish(pair, "A", topic, bodies("a", range(40)))
        until(lambda: backlog(pair.brokers["B"], topic, "fail") == 40, lambda: (pair.apache("A"), pair.apache("B")))
        publish(pair, "B", topic, bodies("b", range(40)))  # the same topic of both clusters
        got = [consumer.receive(60_000) for _ in range(80)]
        assert [message.data().decode() for message in got] == bodies("a", range(40)) + bodies("b", range(40))
        consumer.acknowledge_cumulative(got[54])
    until(lambda: backlog(pair.brokers["B"], topic, "fail") == 25, lambda: (pair.apache("A"), pair.apache("B")))
    assert drain(pair.brokers["B"], topic, "fail", ConsumerType.Failover) == bodies("b", range(15, 40))


@pytest.mark.parametrize("kind", ["Exclusive", "Shared", "Failover", "KeyShared"])
def test_applications_come_and_go_while_state_is_applied_and_none_is_kept_out(pair: Beside, kind: str) -> None:
    topic = next(_topics)
    type_ = getattr(ConsumerType, kind)
    came: list[int] = []
    stop = threading.Event()

    def come_and_go() -> None:
        with official(pair.brokers["B"]) as client:
            while not stop.is_set():
                client.subscribe(topic, "work", type_, receiver_queue_size=1).close()  # raises where it is kept out
                came.append(1)
                stop.wait(0.01)

    with official(pair.brokers["A"]) as client, ThreadPoolExecutor(1) as applications:
        consumer = client.subscribe(topic, "work", type_, initial_position=InitialPosition.Earliest)
        producer = client.create_producer(topic, batching_enabled=False)
        producer.send(b"first")
        until(lambda: "work" in cursors(pair.brokers["B"], topic), lambda: (pair.apache("A"), pair.apache("B")))
        coming = applications.submit(come_and_go)
        try:
            for number in range(100):
                producer.send(b"m-%d" % number, partition_key=str(number % 7))
                consumer.acknowledge(consumer.receive(60_000))
            consumer.acknowledge(consumer.receive(60_000))
            until(lambda: backlog(pair.brokers["B"], topic, "work") == 0, lambda: (pair.apache("A"), pair.apache("B")))
        finally:
            stop.set()
        coming.result(60)
    assert len(came) > 5
    (at_b,) = (each for each in pair.apache("B")["topics"] if each["topic"] == topic)
    assert at_b["state"]["acknowledged_at_broker"] > 50  # what no answer confirmed in time is not counted
    assert at_b["state"]["resets"] == 0  # invariant 6: nothing was moved back


def test_messages_that_the_bridge_published_are_no_news_to_it(pair: Beside) -> None:
    """Invariant 4: what came from A and lies at the broker of B does not come back, nor is it counted as B's."""
    topic = next(_topics)
    publish(pair, "A", topic, bodies("a", range(20)))
    assert read_all(pair.brokers["B"], topic, 20) == bodies("a", range(20))
    publish(pair, "B", topic, bodies("b", range(20)))
    assert sorted(read_all(pair.brokers["A"], topic, 40)) == sorted(bodies("a", range(20)) + bodies("b", range(20)))
    assert len(read_all(pair.brokers["B"], topic, 40)) == 40
    for name in "AB":
        (shown,) = [each for each in pair.apache(name)["topics"] if each["topic"] == topic]
        assert shown["messages_published"] == 20
        assert shown["doubled"] == 0
        assert shown["errors"] == {}


def test_a_worker_beside_brokers_serves_no_clients_and_says_where_they_are_served(pair: Beside) -> None:
    async def subscribe() -> None:
        async with Client(pair.client_url("A")) as client:
            await client.subscribe(next(_topics), "work")

    with pytest.raises(NotAllowedError, match="use the Apache Pulsar brokers"):
        asyncio.run(subscribe())


def test_an_embedded_cluster_behind_one_of_them_has_all_messages_and_the_same_state(pair: Beside) -> None:
    """C is of kind embedded, and linked to A alone: B's messages come to it through A, and its own go on to B."""
    topic = next(_topics)
    publish(pair, "B", topic, bodies("b", range(30)))

    async def at_c() -> None:
        async with Client(pair.client_url("C")) as client:
            consumer = await client.subscribe(
                topic,
                "mixed",
                consumer_type=OurConsumerType.Shared,
                initial_position=OurInitialPosition.Earliest,
                replicate_subscription_state_enabled=True,
            )
            producer = await client.create_producer(topic, batching_enabled=False)
            for body in bodies("c", range(30)):
                await producer.send(body.encode())
            got = {}
            while len(got) < 60:
                message = await consumer.receive(timeout_millis=60_000)
                got[message.data().decode()] = message
            for body in bodies("b", range(10, 30)) + bodies("c", range(5)):
                await consumer.acknowledge(got[body])

    asyncio.run(at_c())
    for name in "AB":
        found = read_all(pair.brokers[name], topic, 60)
        assert [body for body in found if body[0] == "b"] == bodies("b", range(30))
        assert [body for body in found if body[0] == "c"] == bodies("c", range(30))
        until(
            lambda name=name: backlog(pair.brokers[name], topic, "mixed") == 35,
            lambda: (pair.apache("A"), pair.apache("B")),
        )
    left = drain(pair.brokers["B"], topic, "mixed", ConsumerType.Shared)
    assert sorted(left) == sorted(bodies("b", range(10)) + bodies("c", range(5, 30)))
    until(lambda: backlog(pair.brokers["A"], topic, "mixed") == 0, lambda: pair.apache("A"))


@pytest.mark.timeout(max(300, 20 * KILLS))
@pytest.mark.parametrize("seed", [1, 2])
def test_invariants_2_3_5_and_6_hold_while_workers_are_killed_at_random_moments(pair: Beside, seed: int) -> None:
    """Applications publish at both brokers and acknowledge at one, out of order, while both workers are killed."""
    chance, topic = random.Random(seed), next(_topics)
    stop = threading.Event()
    published: dict[str, int] = {"A": 0, "B": 0}

    def traffic(name: str) -> None:
        with official(pair.brokers[name]) as client:
            producer = client.create_producer(
                topic, batching_enabled=False
            )  # what is open of batches, brokers do not show
            while not stop.is_set():
                first = published[name]
                for number in range(first, first + 20):
                    producer.send_async(f"{name}-{number}".encode(), lambda *_: None)
                producer.flush()
                published[name] = first + 20
                stop.wait(0.05)

    with official(pair.brokers["A"]) as client:
        consumer = client.subscribe(topic, "work", ConsumerType.Shared, initial_position=InitialPosition.Earliest)
        threads = [threading.Thread(target=traffic, args=(name,)) for name in "AB"]
        for thread in threads:
            thread.start()
        acknowledged: set[str] = set()
        try:
            for _ in range(KILLS):
                deadline = time.monotonic() + chance.uniform(0.2, 3.0)
                while time.monotonic() < deadline:
                    with suppress(pulsar.Timeout):
                        message = consumer.receive(100)
                        if chance.random() < 0.8:
                            consumer.acknowledge(message)
                            acknowledged.add(message.data().decode())
                victim = chance.choice("AB")
                pair.kill(victim)
                pair.start(victim)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
    total = sum(published.values())
    wanted = {name: bodies(name, range(published[name])) for name in "AB"}
    for name in "AB":
        found = read_all(pair.brokers[name], topic, total)
        for origin in "AB":
            assert [body for body in found if body[0] == origin] == wanted[origin], (name, pair.apache(name))
    until(
        lambda: all(each["state"]["errors"] == {} and not each["publishing_waits"] for each in bridged(pair, topic)),
        lambda: bridged(pair, topic),
    )
    until(lambda: in_step(pair, topic), lambda: bridged(pair, topic))
    # The engines agree also before they have read the last acknowledgements, or told them to the other's brokers.
    left = total - len(acknowledged)
    until(
        lambda: all(backlog(pair.brokers[name], topic, "work") == left for name in "AB"),
        lambda: (left, bridged(pair, topic)),
    )
    open_at_b = drain(pair.brokers["B"], topic, "work", ConsumerType.Shared)
    assert set(open_at_b) == {*wanted["A"], *wanted["B"]} - acknowledged
    assert len(open_at_b) == len(set(open_at_b))


def test_a_seek_back_at_one_broker_is_heard_of_at_the_other(pair: Beside) -> None:
    """Invariant 6: a seek begins the next generation, which wins over what was acknowledged before."""
    topic = next(_topics)
    with official(pair.brokers["A"]) as client:
        consumer = client.subscribe(topic, "work", ConsumerType.Shared, initial_position=InitialPosition.Earliest)
        publish(pair, "A", topic, bodies("m", range(20)))
        got = [consumer.receive(60_000) for _ in range(20)]
        for message in got:
            consumer.acknowledge(message)
        assert read_all(pair.brokers["B"], topic, 20) == bodies("m", range(20))
        until(lambda: backlog(pair.brokers["B"], topic, "work") == 0, lambda: bridged(pair, topic))
        consumer.seek(got[12].message_id())
        until(lambda: backlog(pair.brokers["B"], topic, "work") >= 7, lambda: bridged(pair, topic))
    left = drain(pair.brokers["B"], topic, "work", ConsumerType.Shared)
    assert left == bodies("m", range(20))[-len(left) :]
    assert len(left) in (7, 8)  # a seek to a message delivers that message or not, as the client says
    until(lambda: backlog(pair.brokers["A"], topic, "work") == 0, lambda: bridged(pair, topic))


def test_a_subscription_that_is_deleted_at_one_broker_is_deleted_at_the_other(pair: Beside) -> None:
    """Also right after it was made there."""
    topic = next(_topics)
    publish(pair, "A", topic, bodies("m", range(5)))
    names = [f"gone-{number}" for number in range(8)]
    until(lambda: len(bridged(pair, topic)) == 2, lambda: pair.log("A"))
    with official(pair.brokers["A"]) as client:
        for name in names:
            consumer = client.subscribe(topic, name, ConsumerType.Shared, initial_position=InitialPosition.Earliest)
            until(lambda name=name: name in in_engine(pair, "A", topic), lambda: bridged(pair, topic), pause=0.01)
            consumer.unsubscribe()
    for name in names:
        until(lambda name=name: backlog(pair.brokers["B"], topic, name) == -1, lambda: bridged(pair, topic))
        assert backlog(pair.brokers["A"], topic, name) == -1


def test_a_subscription_that_is_in_use_at_one_broker_outlives_its_deletion_at_the_other(pair: Beside) -> None:
    """A broker refuses to delete what is in use, and does not know of other brokers."""
    topic = next(_topics)
    publish(pair, "A", topic, bodies("m", range(5)))
    until(lambda: len(bridged(pair, topic)) == 2, lambda: pair.log("A"))
    with official(pair.brokers["A"]) as at_a, official(pair.brokers["B"]) as at_b:
        using = at_b.subscribe(topic, "kept", ConsumerType.Shared, initial_position=InitialPosition.Earliest)
        for _ in range(5):
            using.acknowledge(using.receive(60_000))
        until(lambda: backlog(pair.brokers["A"], topic, "kept") == 0, lambda: bridged(pair, topic))
        at_a.subscribe(topic, "kept", ConsumerType.Shared).unsubscribe()
        until(lambda: "subscription kept though it was deleted elsewhere" in pair.log("B"), lambda: pair.log("B"))
        until(lambda: backlog(pair.brokers["A"], topic, "kept") == 0, lambda: bridged(pair, topic))
        publish(pair, "A", topic, bodies("n", range(1)))
        assert using.receive(60_000).data().decode() == bodies("n", range(1))[0], "nothing comes again"


def test_unsubscribing_elsewhere_is_refused_while_applications_use_the_subscription_at_brokers(pair: Beside) -> None:
    topic = next(_topics)
    publish(pair, "A", topic, bodies("m", range(5)))
    until(lambda: len(bridged(pair, topic)) == 2, lambda: pair.log("A"))
    with official(pair.client_url("C")) as at_c, official(pair.brokers["B"]) as at_b:
        using = at_b.subscribe(topic, "used", ConsumerType.Shared, initial_position=InitialPosition.Earliest)
        until(lambda: "used" in in_engine(pair, "B", topic), lambda: bridged(pair, topic))
        until(lambda: pair.topics("C").count(topic) and "used" in in_engine(pair, "C", topic), lambda: pair.log("C"))
        leaving = at_c.subscribe(topic, "used", ConsumerType.Shared)
        with pytest.raises(pulsar.PulsarException):
            leaving.unsubscribe()
        assert "used" in in_engine(pair, "C", topic)
        using.close()
        leaving.unsubscribe()
        for name in "AB":
            until(lambda name=name: backlog(pair.brokers[name], topic, "used") == -1, lambda: bridged(pair, topic))


def test_a_reader_at_one_broker_is_no_subscription_of_the_other_clusters(pair: Beside) -> None:
    topic = next(_topics)
    with official(pair.brokers["A"]) as client:
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        publish(pair, "A", topic, bodies("r", range(3)))
        assert [reader.read_next(60_000).data().decode() for _ in range(3)] == bodies("r", range(3))
        (name,) = [each for each in cursors(pair.brokers["A"], topic) if each.startswith("reader-")]
        client.subscribe(topic, "work", ConsumerType.Shared)  # comes after it, by name and in time
        until(lambda: "work" in cursors(pair.brokers["B"], topic), lambda: (pair.apache("A"), pair.apache("B")))
        assert name not in cursors(pair.brokers["B"], topic)
        assert [in_engine(pair, cluster, topic) for cluster in "AB"] == [["work"], ["work"]]
        publish(pair, "A", topic, bodies("r", range(3, 6)))
        assert [reader.read_next(60_000).data().decode() for _ in range(3)] == bodies("r", range(3, 6))


def test_brokers_tell_of_topics_that_come(pair: Beside) -> None:
    """Workers watch the brokers' list of topics, so that no new topic waits until the next look."""
    for name in "AB":
        until(lambda name=name: pair.apache(name)["watched"] >= 1, lambda: (pair.apache("A"), pair.apache("B")))


def test_each_partition_of_a_partitioned_topic_is_bridged(pair: Beside) -> None:
    topic = next(_topics)
    pair.brokers["A"].admin("PUT", f"{topic.replace('://', '/')}/partitions", 3)
    with official(pair.brokers["A"]) as client:
        producer = client.create_producer(topic, batching_enabled=False)
        for body in bodies("p", range(60)):
            producer.send(body.encode(), partition_key=body)
    at_a = [read_all(pair.brokers["A"], f"{topic}-partition-{index}", 1) for index in range(3)]
    assert sum(map(len, at_a)) == 60
    # Not before: a reader of a partition that is not there has its broker make it, as a topic without partitions.
    until(lambda: partitions(pair.brokers["B"], topic) == 3, lambda: [pair.apache(name) for name in "AB"])
    for index in range(3):
        assert read_all(pair.brokers["B"], f"{topic}-partition-{index}", len(at_a[index])) == at_a[index]


def test_partitions_that_are_added_later_are_added_at_the_other_broker_with_the_topics_subscriptions(
    pair: Beside,
) -> None:
    topic = next(_topics)
    place = f"{topic.replace('://', '/')}/partitions"
    pair.brokers["A"].admin("PUT", place, 2)
    with official(pair.brokers["A"]) as client:
        consumer = client.subscribe(topic, "work", ConsumerType.Shared, initial_position=InitialPosition.Earliest)
        client.create_producer(topic, batching_enabled=False).send(b"before")
        consumer.acknowledge(consumer.receive(60_000))
    until(lambda: partitions(pair.brokers["B"], topic) == 2, lambda: [pair.apache(name) for name in "AB"])
    pair.brokers["A"].admin("POST", place, 4)
    with official(pair.brokers["A"]) as client:  # looks up how many there are
        producer = client.create_producer(topic, batching_enabled=False)
        for body in bodies("p", range(40)):
            producer.send(body.encode(), partition_key=body)
    until(lambda: partitions(pair.brokers["B"], topic) == 4, lambda: [pair.apache(name) for name in "AB"])
    of_partitions = [f"{topic}-partition-{index}" for index in range(4)]

    def left(cluster: str) -> list[int]:
        return [backlog(pair.brokers[cluster], partition, "work") for partition in of_partitions]

    assert all(left("A"))
    until(lambda: left("B") == left("A"), lambda: [left("B"), pair.apache("B")])
    assert sum(left("B")) == 40
    assert sorted(drain(pair.brokers["B"], topic, "work", ConsumerType.Shared)) == sorted(bodies("p", range(40)))
    until(lambda: sum(left("A")) == 0, lambda: [left("A"), pair.apache("A")])


class Order(Record):
    number = Integer()


def _with_price() -> type[Record]:
    """Return the next version of :class:`Order`, of the same name, as Avro wants it."""

    class Order(Record):
        number = Integer()
        price = Integer(required_default=True)

    return Order


PricedOrder: Final = _with_price()


def test_messages_with_schemas_are_read_with_them_at_the_other_broker(pair: Beside) -> None:
    """The second one of a topic, too; brokers give them versions of their own. An embedded cluster behind has them."""
    topic = next(_topics)
    schemas = AvroSchema(Order), AvroSchema(PricedOrder)
    with official(pair.brokers["B"]) as client:  # there the second one comes first
        producer = client.create_producer(topic, schema=schemas[1], batching_enabled=False)
        producer.send(PricedOrder(number=100, price=1))
    for schema, record in zip(schemas, (Order, PricedOrder), strict=True):
        with official(pair.brokers["A"]) as client:
            producer = client.create_producer(topic, schema=schema, batching_enabled=False)
            for number in range(20):
                producer.send(record(number=number))
    for name, place in (("B", pair.brokers["B"]), ("A", pair.brokers["A"]), ("C", pair.client_url("C"))):
        found = []
        with official(place) as client:
            consumer = client.subscribe(
                topic, f"typed-{name}", initial_position=InitialPosition.Earliest, schema=AvroSchema(PricedOrder)
            )
            for _ in range(41):
                value = consumer.receive(60_000).value()
                found.append((value.number, value.price))
        assert sorted(found, key=str) == sorted([(100, 1), *[(each, None) for each in range(20)] * 2], key=str), name


def test_a_schema_that_the_other_broker_refuses_halts_the_topic_and_the_status_says_why(pair: Beside) -> None:
    topic = next(_topics)
    with official(pair.brokers["B"]) as client:
        client.create_producer(topic, schema=StringSchema()).send("there first")
    with official(pair.brokers["A"]) as client:
        client.create_producer(topic, schema=AvroSchema(Order)).send(Order(number=1))

    def said() -> str:
        return " ".join(str(each["errors"]) for each in bridged(pair, topic) if each["halted"])

    until(lambda: "refuse a schema" in said(), lambda: bridged(pair, topic))


def test_a_topic_is_unloaded_again_and_again_under_traffic(pair: Beside) -> None:
    topic = next(_topics)
    with official(pair.brokers["A"]) as client:  # without a subscription, brokers delete what they unload
        client.subscribe(topic, "keep", ConsumerType.Shared, initial_position=InitialPosition.Earliest)
    publish(pair, "A", topic, bodies("m", range(10)))
    until(lambda: backlog(pair.brokers["B"], topic, "keep") == 10, lambda: bridged(pair, topic))
    for round_number in range(1, 6):
        publish(pair, "A", topic, bodies("m", range(10 * round_number, 10 * round_number + 10)))
        for name in "AB":
            pair.brokers[name].admin("PUT", f"{topic.replace('://', '/')}/unload")
    assert read_all(pair.brokers["B"], topic, 60) == bodies("m", range(60))
    assert read_all(pair.brokers["A"], topic, 60) == bodies("m", range(60))


def test_a_topic_whose_reading_subscription_is_gone_halts_and_says_so(pair: Beside) -> None:
    """Invariant 5 of copying: what was published meanwhile may be missing, so nobody goes on as if it were not."""
    topic = next(_topics)
    publish(pair, "A", topic, bodies("m", range(5)))
    read_all(pair.brokers["B"], topic, 5)
    with pair.away("A"):
        pair.brokers["A"].admin("DELETE", f"{topic.replace('://', '/')}/subscription/replicator.bridge.A?force=true")

    def halted() -> bool:
        return any(each["halted"] and "is gone" in each["errors"].get("reading", "") for each in bridged(pair, topic))

    until(halted, lambda: bridged(pair, topic))


def test_a_topic_that_is_made_anew_at_a_broker_takes_no_subscription_away_elsewhere(pair: Beside) -> None:
    """Its subscriptions are gone with it. That is no wish to delete them in other clusters, where messages wait."""
    topic = next(_topics)
    with official(pair.brokers["A"]) as client:
        client.subscribe(topic, "work", ConsumerType.Shared, initial_position=InitialPosition.Earliest).close()
    publish(pair, "A", topic, bodies("m", range(5)))
    until(lambda: backlog(pair.brokers["B"], topic, "work") == 5, lambda: bridged(pair, topic))
    pair.brokers["A"].admin("DELETE", f"{topic.replace('://', '/')}?force=true")
    publish(pair, "A", topic, bodies("n", range(5)))

    def halted() -> bool:
        return any(each["halted"] and "is gone" in each["errors"].get("reading", "") for each in bridged(pair, topic))

    until(halted, lambda: bridged(pair, topic))
    until(
        lambda: any(
            "does not read this topic" in each["errors"].get("subscriptions", "") for each in bridged(pair, topic)
        ),
        lambda: bridged(pair, topic),
    )
    assert drain(pair.brokers["B"], topic, "work", ConsumerType.Shared) == bodies("m", range(5))


async def _publish_stamped(broker: PulsarBroker, topic: str, entries: list[tuple[bytes, Identity]]) -> None:
    """Publish stamped entries as a bridge does, without the knowledge of the bridge that runs."""
    connector = BrokerConnector(broker.url, connection_timeout_seconds=30, operation_timeout_seconds=30)
    try:
        channel = await connector.open_producer(ProducerSettings(topic, "behind-its-back", batching=None))
        done = asyncio.Event()
        events = SimpleNamespace(on_receipts=lambda ids, _: ids[-1] == len(entries) and done.set())
        channel.start(events)  # type: ignore[arg-type]
        channel.own_numbers = True
        for number, (entry, identity) in enumerate(entries, 1):
            channel.publish(number, stamped(entry, identity, b""))
        async with timeout(WAIT_SECONDS):
            await done.wait()
        await channel.close()
    finally:
        await connector.close()


def read_entries(broker: PulsarBroker, topic: str) -> list[Delivery]:
    """Return all entries of a topic as they are stored."""
    found: list[Delivery] = []

    async def take(arrived: Sequence[Delivery]) -> None:
        found.extend(arrived)

    async def read() -> None:
        settings = ApacheSettings(service_url=broker.url, admin_url=broker.admin_url)
        admin = BrokerAdmin(settings)
        connector = BrokerConnector(broker.url, connection_timeout_seconds=30, operation_timeout_seconds=30)
        try:
            await read_topic(connector, admin, topic, (await admin.internals(topic)).last, take)
        finally:
            await connector.close()
            await admin.close()

    asyncio.run(read())
    return found


def verified(made: Beside, topic: str, *more: str, status: int = 0, settle: str = "10s") -> Any:
    return made.report("verify", "--brokers", "--topic", topic, "--settle", settle, *more, status=status)


FAULTS: Final = ("missing", "duplicated", "reordered", "corrupted", "mismapped", "ack_mismatch", "gaps")


def faults(report: Any) -> dict[str, int]:
    return {name: report[name] for name in FAULTS if report[name]}


def test_verify_reads_the_brokers_while_they_are_used_and_changes_nothing_there(pair: Beside) -> None:
    topic = next(_topics)
    stop = threading.Event()
    with official(pair.brokers["A"]) as client:
        consumer = client.subscribe(topic, "work", ConsumerType.Shared, initial_position=InitialPosition.Earliest)
        publish(pair, "A", topic, bodies("a", range(60)), batched=True)
        publish(pair, "B", topic, bodies("b", range(40)))
        for _ in range(50):
            consumer.acknowledge(consumer.receive(60_000))

        def traffic() -> None:
            with official(pair.brokers["B"]) as other:
                producer = other.create_producer(topic, batching_enabled=False)
                while not stop.is_set():
                    producer.send(b"more")
                    stop.wait(0.02)

        until(lambda: len(bridged(pair, topic)) == 2, lambda: pair.log("B"))
        thread = threading.Thread(target=traffic)
        thread.start()
        try:
            report = verified(pair, topic)
        finally:
            stop.set()
            thread.join()
        assert faults(report) == {}, report
    known = {name: set(cursors(pair.brokers[name], topic)) for name in "AB"}
    marks = {name: cursors(pair.brokers[name], topic)["work"]["markDeletePosition"] for name in "AB"}
    report = verified(pair, topic)
    assert faults(report) == {}, report
    assert report["unreachable"] == {}
    assert report["behind"] == 0
    assert {name: counts["gone"] for name, counts in report["brokers"].items()} == {"A": 0, "B": 0}
    assert report["brokers"]["A"]["messages"] == report["brokers"]["B"]["messages"] > 100
    assert report["subscriptions"] >= 2
    assert {name: set(cursors(pair.brokers[name], topic)) for name in "AB"} == known
    assert {name: cursors(pair.brokers[name], topic)["work"]["markDeletePosition"] for name in "AB"} == marks


def test_verify_names_what_was_lost_doubled_changed_and_forged_behind_the_bridges_back(
    pair: Beside, tmp_path: Path
) -> None:
    topic = next(_topics)
    publish(pair, "A", topic, bodies("a", range(10)))
    assert read_all(pair.brokers["B"], topic, 10) == bodies("a", range(10))
    until(lambda: len(bridged(pair, topic)) == 2, lambda: pair.log("B"))
    assert faults(verified(pair, topic)) == {}
    pair.kill("B")
    publish(pair, "A", topic, bodies("a", range(10, 13)))
    at_a, at_b = (read_entries(pair.brokers[name], topic) for name in "AB")
    first = marks_of(at_b[3].entry).identity
    assert first is not None

    def of_a(index: int) -> Identity:
        return first._replace(position=at_a[index].position)

    never = first._replace(position=Position(at_a[12].position.ledger, at_a[12].position.entry + 7))
    forged = [
        (at_a[3].entry, of_a(3)),  # doubled
        (at_a[9].entry, of_a(10)),  # changed
        (at_a[12].entry, of_a(12)),  # and so 11 is lost
        (at_a[12].entry, never),
    ]
    asyncio.run(_publish_stamped(pair.brokers["B"], topic, forged))
    pair.start("B")
    # 11 is missing behind what was forged, so B's worker publishes it there.
    until(
        lambda: bridged(pair, topic)[1:] and bridged(pair, topic)[1]["out_of_order"]["entries"] == 1,
        lambda: pair.log("B"),
    )
    report = verified(pair, topic, "--parquet", str(tmp_path / "rows"), status=1)
    assert faults(report) == {"missing": 1, "duplicated": 1, "corrupted": 1, "reordered": 1}, report
    assert sorted(path.name for path in (tmp_path / "rows").iterdir()) == ["brokers.parquet", "differences.parquet"]
    rows = pq.read_table(tmp_path / "rows").to_pylist()  # of logs, there are none
    assert sorted((row["kind"], row["cluster"], row["other"], row["count"]) for row in rows) == [
        ("corrupted", "the brokers of B", "the brokers of A", 1),
        ("duplicated", "the brokers of B", None, 1),
        ("missing", "the brokers of A", "the brokers of B", 1),
        ("reordered", "the brokers of B", None, 1),
    ]
    (late_row,) = [row for row in rows if row["kind"] == "reordered"]
    assert (late_row["topic"], late_row["origin"]) == (topic, "A.pulsar")
    assert Position(late_row["origin_ledger"], late_row["origin_first"]) == at_a[11].position
    found = report["topics"][topic]
    (late,) = found["reordered"]["examples"]
    assert f"A.pulsar {at_a[11].position}" in late
    (unknown,) = found["missing"]["examples"]
    assert f"A.pulsar {never.position}" in unknown
    assert "not in the brokers of A" in unknown
    (doubled,) = found["duplicated"]["examples"]
    assert f"A.pulsar {at_a[3].position}" in doubled
    assert f"and at {at_b[3].position} before" in doubled
    (changed,) = found["corrupted"]["examples"]
    assert f"A.pulsar {at_a[10].position}" in changed
    assert "other content in the brokers of B" in changed
    left = pair.report("verify", "--brokers", "--fix", "--topic", topic, status=1)["fix"]
    assert any("brokers" in line and "nothing" in line for line in left), left


def test_what_brokers_have_deleted_is_not_missing_and_is_counted_where_nobody_can_tell(pair: Beside) -> None:
    topic = next(_topics)
    for first in (0, 6):
        publish(pair, "A", topic, bodies("a", range(first, first + 6)))
        assert read_all(pair.brokers["B"], topic, first + 6) == bodies("a", range(first + 6))
    until(lambda: all(not each["publishing_waits"] for each in bridged(pair, topic)), lambda: bridged(pair, topic))
    gone = {"A": 0, "B": 0}

    def left(name: str) -> int:
        shown = pair.brokers[name].admin("GET", f"{topic.replace('://', '/')}/internalStats")
        return int(shown["numberOfEntries"])

    for name in "AB":
        pair.brokers[name].admin("PUT", f"{topic.replace('://', '/')}/unload")  # a broker goes on in another ledger
        pair.brokers[name].admin("DELETE", f"{topic.replace('://', '/')}/truncate")
        until(lambda name=name: left(name) <= 6, lambda: "nothing is deleted")  # workers of ours keep the last block
        report = verified(pair, topic)
        gone["B"] = 12 - left("B")
        assert (faults(report), report["unreachable"]) == ({}, {}), report
        assert {each: counts["gone"] for each, counts in report["brokers"].items()} == gone
        assert report["brokers"][name]["entries"] == left(name)
    assert gone["B"] >= 6


def test_verify_names_acknowledgements_that_the_other_broker_lacks(pair: Beside, tmp_path: Path) -> None:
    topic = next(_topics)
    with official(pair.brokers["A"]) as client, official(pair.brokers["B"]) as other:
        consumer = client.subscribe(topic, "alone", ConsumerType.Shared, initial_position=InitialPosition.Earliest)
        publish(pair, "A", topic, bodies("a", range(6)))
        until(lambda: backlog(pair.brokers["B"], topic, "alone") == 6, lambda: bridged(pair, topic))
        holder = other.subscribe(topic, "alone", ConsumerType.Exclusive)  # lets nobody else in
        consumer.receive(60_000)  # without this hole they would be applied by the admin API
        for _ in range(4):
            consumer.acknowledge(consumer.receive(60_000))
        until(lambda: backlog(pair.brokers["A"], topic, "alone") == 2, lambda: bridged(pair, topic))
        report = verified(pair, topic, "--parquet", str(tmp_path / "rows"), status=1, settle="3s")
        assert faults(report) == {"ack_mismatch": 4}, report
        rows = pq.read_table(tmp_path / "rows").to_pylist()
        assert {(row["kind"], row["cluster"], row["other"], row["subscription"]) for row in rows} == {
            ("ack_mismatch", "the brokers of B", "the brokers of A", "alone")
        }
        assert sum(row["count"] for row in rows) == 4
        assert "alone: acknowledged in the brokers of A, not in the brokers of B" in str(report["topics"][topic])
        holder.close()
        until(lambda: backlog(pair.brokers["B"], topic, "alone") == 2, lambda: bridged(pair, topic))
        assert faults(verified(pair, topic)) == {}


def test_a_broker_that_is_killed_and_comes_back_gets_what_it_missed_once(pair: Beside) -> None:
    """The last test: a broker that starts again may take long."""
    topic = next(_topics)
    with official(pair.brokers["A"]) as client:
        consumer = client.subscribe(topic, "work", ConsumerType.Shared, initial_position=InitialPosition.Earliest)
        publish(pair, "A", topic, bodies("m", range(30)))
        assert read_all(pair.brokers["B"], topic, 30) == bodies("m", range(30))
        pair.brokers["B"].kill()
        publish(pair, "A", topic, bodies("m", range(30, 60)))
        for _ in range(50):
            consumer.acknowledge(consumer.receive(60_000))
        pair.brokers["B"].start()
    assert read_all(pair.brokers["B"], topic, 60, 2 * WAIT_SECONDS) == bodies("m", range(60)), bridged(pair, topic)
    until(lambda: backlog(pair.brokers["B"], topic, "work") == 10, lambda: bridged(pair, topic))
    assert drain(pair.brokers["B"], topic, "work", ConsumerType.Shared) == bodies("m", range(50, 60))
