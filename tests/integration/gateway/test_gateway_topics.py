"""Many topics at once: partitions, lists, patterns, table views, and a topic that there is not."""

from __future__ import annotations

import re
import threading
from typing import Any

import pytest
from gateway_support import ServedEngine

from replicator.engine.topics.namespace_policies import NamespacePolicies

pulsar = pytest.importorskip("pulsar")

WAIT_MS = 10_000
EARLIEST = pulsar.InitialPosition.Earliest


def partitioned(gateway: ServedEngine, topic: str, partitions: int = 3) -> None:
    gateway.run(gateway.engine.partitioned.create(topic, partitions))


def received(consumer: Any, count: int) -> list[Any]:
    return [consumer.receive(WAIT_MS) for _ in range(count)]


def test_the_partitions_of_a_topic_are_told(official: Any, gateway: ServedEngine, topic: str) -> None:
    assert official.get_topic_partitions(topic) == [topic]
    partitioned(gateway, topic)
    assert official.get_topic_partitions(topic) == [f"{topic}-partition-{number}" for number in range(3)]


@pytest.mark.parametrize("batched", [False, True])
def test_a_partitioned_topic_keeps_each_keys_order(
    official: Any, gateway: ServedEngine, topic: str, batched: bool
) -> None:
    partitioned(gateway, topic)
    producer = official.create_producer(topic, batching_enabled=batched)
    consumer = official.subscribe(topic, "s", initial_position=EARLIEST)
    for number in range(30):
        producer.send_async(b"%d" % number, None, partition_key=f"key {number % 10}")
    producer.flush()
    messages = received(consumer, 30)
    by_key: dict[str, list[int]] = {}
    partitions: dict[str, set[int]] = {}
    for message in messages:
        by_key.setdefault(message.partition_key(), []).append(int(message.data()))
        partitions.setdefault(message.partition_key(), set()).add(message.message_id().partition())
        consumer.acknowledge(message)
    assert all(order == sorted(order) for order in by_key.values())
    assert all(len(each) == 1 for each in partitions.values())
    assert set.union(*partitions.values()) == {0, 1, 2}
    consumer.unsubscribe()


def test_a_partition_can_be_used_by_itself(official: Any, gateway: ServedEngine, topic: str) -> None:
    partitioned(gateway, topic)
    message_id = official.create_producer(f"{topic}-partition-1").send(b"here")
    reader = official.create_reader(f"{topic}-partition-1", pulsar.MessageId.earliest)
    got = reader.read_next(WAIT_MS).message_id()
    assert (got.ledger_id(), got.entry_id()) == (message_id.ledger_id(), message_id.entry_id())


def test_a_reader_reads_a_partitioned_topic(official: Any, gateway: ServedEngine, topic: str) -> None:
    partitioned(gateway, topic)
    producer = official.create_producer(topic)
    for number in range(9):
        producer.send(b"%d" % number)
    reader = official.create_reader(topic, pulsar.MessageId.earliest)
    got = []
    while reader.has_message_available():
        got.append(reader.read_next(WAIT_MS).data())
    assert sorted(got) == [b"%d" % number for number in range(9)]


def test_a_consumer_of_a_list_of_topics(official: Any, gateway: ServedEngine, topic: str) -> None:
    partitioned(gateway, f"{topic}-p")
    names = [f"{topic}-a", f"{topic}-b", f"{topic}-p"]
    consumer = official.subscribe(names, "s", consumer_type=pulsar.ConsumerType.Shared)
    for name in names:
        official.create_producer(name).send(name.encode())
    messages = received(consumer, 3)
    assert {message.data().decode() for message in messages} == set(names)
    for message in messages:
        assert message.topic_name().startswith(message.data().decode())
        consumer.acknowledge(message)
    consumer.unsubscribe()


def test_a_pattern_finds_the_topics_that_are_there(official: Any, gateway: ServedEngine, topic: str) -> None:
    partitioned(gateway, f"{topic}-p")
    for name in ("a", "b"):
        official.create_producer(f"{topic}-{name}").send(b"x")
    official.create_producer("persistent://public/default/unrelated-to-any-pattern").send(b"x")
    consumer = official.subscribe(re.compile(f"{topic}-.*"), "s")
    producers = [official.create_producer(f"{topic}-{name}") for name in ("a", "b", "p")]
    for producer in producers:
        producer.send(producer.topic().encode())
    assert {message.data().decode() for message in received(consumer, 3)} == {
        f"{topic}-a",
        f"{topic}-b",
        f"{topic}-p",
    }


def test_a_table_view_has_the_newest_value_of_each_key(official: Any, topic: str) -> None:
    producer = official.create_producer(topic)
    for number in range(4):
        producer.send(b"%d" % number, partition_key=f"key {number % 2}")
    table = official.create_table_view(topic)
    assert len(table) == 2
    assert (table.get("key 0"), table.get("key 1"), table.get("other")) == (b"2", b"3", None)
    heard: dict[str, bytes] = {}
    arrived = threading.Event()

    def listen(key: str, value: bytes) -> None:
        heard[key] = value
        if key == "new":
            arrived.set()

    table.for_each_and_listen(listen)
    producer.send(b"n", partition_key="new")
    assert arrived.wait(10)
    assert heard == {"key 0": b"2", "key 1": b"3", "new": b"n"}
    table.close()


def test_topics_are_not_made_where_their_namespace_forbids_it(official: Any, gateway: ServedEngine) -> None:
    name = "acme/fixed"
    gateway.run(gateway.engine.catalog.create_tenant("acme"))
    gateway.run(gateway.engine.catalog.create_namespace(name, NamespacePolicies(auto_topic_creation=False)))
    with pytest.raises(pulsar.TopicNotFound):
        official.create_producer(f"persistent://{name}/t")
    with pytest.raises(pulsar.TopicNotFound):
        official.subscribe(f"persistent://{name}/t", "s")


def test_failover_consumers_of_a_partitioned_topic_share_its_partitions(
    official: Any, gateway: ServedEngine, topic: str
) -> None:
    partitioned(gateway, topic, 4)
    consumers = [
        official.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Failover, consumer_name=name)
        for name in ("a", "b")
    ]
    producer = official.create_producer(topic)
    for number in range(20):
        producer.send(b"%d" % number)
    partitions = [{message.message_id().partition() for message in received(each, 10)} for each in consumers]
    assert len(partitions[0]) == len(partitions[1]) == 2
    assert partitions[0] | partitions[1] == {0, 1, 2, 3}
