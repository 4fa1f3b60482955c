"""Consuming by official clients: every type of subscription, acknowledgement and redelivery of the Python client."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from gateway_support import ServedEngine

from replicator.engine.subscriptions.subscription import Subscription

pulsar = pytest.importorskip("pulsar")

WAIT_MS = 10_000
NOTHING_MS = 200
"""Time that a test waits to see that nothing comes."""
EARLIEST = pulsar.InitialPosition.Earliest
SHARED = pulsar.ConsumerType.Shared
FAILOVER = pulsar.ConsumerType.Failover
KEY_SHARED = pulsar.ConsumerType.KeyShared


def publish(official: Any, topic: str, count: int, *, first: int = 0, **options: Any) -> None:
    producer = official.create_producer(topic, batching_max_publish_delay_ms=5_000, **options)
    for number in range(first, first + count):
        producer.send_async(b"m%d" % number, None, partition_key=f"key {number}")
    producer.flush()
    producer.close()


def publish_batch(official: Any, topic: str, count: int) -> None:
    publish(official, topic, count, batching_enabled=True)


def taken(consumer: Any, count: int) -> list[Any]:
    return [consumer.receive(WAIT_MS) for _ in range(count)]


def contents(messages: list[Any]) -> list[bytes]:
    return [message.data() for message in messages]


def named(*numbers: int) -> list[bytes]:
    return [b"m%d" % number for number in numbers]


def nothing_comes(consumer: Any) -> None:
    with pytest.raises(pulsar.Timeout):
        consumer.receive(NOTHING_MS)


def subscription(gateway: ServedEngine, topic: str, name: str = "s") -> Callable[[], Subscription]:
    def found() -> Subscription:
        there = gateway.engine.find(topic)
        assert there is not None
        return there.subscriptions[name]

    return found


def all_consumed(gateway: ServedEngine, topic: str, name: str = "s") -> None:
    of = subscription(gateway, topic, name)
    gateway.until(lambda: of().backlog_messages() == 0, "everything is acknowledged")


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("kind", ["Exclusive", "Shared", "Failover", "KeyShared"])
def test_every_type_gets_each_message_once_and_acknowledges_it(
    official: Any, gateway: ServedEngine, topic: str, kind: str, batched: bool
) -> None:
    publish(official, topic, 20, batching_enabled=batched)
    consumer = official.subscribe(
        topic, "s", consumer_type=getattr(pulsar.ConsumerType, kind), initial_position=EARLIEST
    )
    messages = taken(consumer, 20)
    assert contents(messages) == named(*range(20))
    assert {message.redelivery_count() for message in messages} == {0}
    for message in messages:
        consumer.acknowledge(message)
    all_consumed(gateway, topic)
    consumer.close()
    again = official.subscribe(topic, "s", consumer_type=getattr(pulsar.ConsumerType, kind))
    nothing_comes(again)


def test_a_new_subscription_begins_at_the_end_unless_it_says_otherwise(official: Any, topic: str) -> None:
    publish(official, topic, 2)
    latest = official.subscribe(topic, "latest")
    earliest = official.subscribe(topic, "earliest", initial_position=EARLIEST)
    publish(official, topic, 1, first=2)
    assert contents(taken(latest, 1)) == named(2)
    assert contents(taken(earliest, 3)) == named(0, 1, 2)


def test_a_second_exclusive_consumer_is_busy(official: Any, topic: str) -> None:
    official.subscribe(topic, "s")
    with pytest.raises(pulsar.ConsumerBusy):
        official.subscribe(topic, "s")
    with pytest.raises(pulsar.ConsumerBusy):
        official.subscribe(topic, "s", consumer_type=SHARED)


def test_shared_consumers_divide_the_messages(official: Any, topic: str) -> None:
    consumers = [
        official.subscribe(topic, "s", consumer_type=SHARED, receiver_queue_size=5, initial_position=EARLIEST)
        for _ in range(2)
    ]
    publish(official, topic, 10)
    got = [contents(taken(consumer, 5)) for consumer in consumers]
    assert sorted(got[0] + got[1]) == sorted(named(*range(10)))


def test_what_a_shared_consumer_leaves_goes_to_the_next(official: Any, topic: str) -> None:
    publish(official, topic, 3)
    first = official.subscribe(topic, "s", consumer_type=SHARED, initial_position=EARLIEST)
    assert contents(taken(first, 3)) == named(0, 1, 2)
    second = official.subscribe(topic, "s", consumer_type=SHARED)
    first.close()
    assert sorted(contents(taken(second, 3))) == named(0, 1, 2)


def test_a_failover_consumer_takes_over_from_the_first_unacknowledged(official: Any, topic: str) -> None:
    publish(official, topic, 4)
    names = ("a", "b")
    first, second = (
        official.subscribe(topic, "s", consumer_type=FAILOVER, consumer_name=name, initial_position=EARLIEST)
        for name in names
    )
    messages = taken(first, 3)
    nothing_comes(second)
    first.acknowledge(messages[0])
    first.close()
    assert contents(taken(second, 3)) == named(1, 2, 3)


def test_key_shared_keeps_a_key_with_one_consumer(official: Any, topic: str) -> None:
    consumers = [
        official.subscribe(topic, "s", consumer_type=KEY_SHARED, consumer_name=f"c{number}") for number in range(3)
    ]
    producer = official.create_producer(topic)
    for number in range(60):
        producer.send(b"%d" % (number // 20), partition_key=f"key {number % 20}")
    owners: dict[str, set[int]] = {}
    orders: dict[str, list[bytes]] = {}
    for at, consumer in enumerate(consumers):
        while True:
            try:
                message = consumer.receive(NOTHING_MS)
            except pulsar.Timeout:
                break
            owners.setdefault(message.partition_key(), set()).add(at)
            orders.setdefault(message.partition_key(), []).append(message.data())
            consumer.acknowledge(message)
    assert len(owners) == 20
    assert all(len(owner) == 1 for owner in owners.values())
    assert set(map(tuple, orders.values())) == {(b"0", b"1", b"2")}
    assert len(set.union(*owners.values())) == 3


def test_sticky_ranges_are_a_consumers_own_and_may_not_overlap(official: Any, topic: str) -> None:
    def sticky(*ranges: tuple[int, int]) -> Any:
        policy = pulsar.ConsumerKeySharedPolicy(key_shared_mode=pulsar.KeySharedMode.Sticky, sticky_ranges=list(ranges))
        return official.subscribe(topic, "s", consumer_type=KEY_SHARED, key_shared_policy=policy)

    low, high = sticky((0, 32767)), sticky((32768, 65535))
    with pytest.raises(pulsar.ConsumerAssignError):
        sticky((100, 200))
    producer = official.create_producer(topic)
    producer.send(b"x", partition_key="Order-3459134")  # slot 6067
    assert low.receive(WAIT_MS).data() == b"x"
    nothing_comes(high)


def test_key_shared_out_of_order_is_another_kind_of_subscription(official: Any, topic: str) -> None:
    relaxed = pulsar.ConsumerKeySharedPolicy(allow_out_of_order_delivery=True)
    official.subscribe(topic, "s", consumer_type=KEY_SHARED, key_shared_policy=relaxed)
    with pytest.raises(pulsar.ConsumerBusy):
        official.subscribe(topic, "s", consumer_type=KEY_SHARED)


def test_a_cumulative_acknowledgement_covers_all_before_it(official: Any, gateway: ServedEngine, topic: str) -> None:
    publish(official, topic, 5)
    consumer = official.subscribe(topic, "s", initial_position=EARLIEST)
    consumer.acknowledge_cumulative(taken(consumer, 5)[3])
    of = subscription(gateway, topic)
    gateway.until(lambda: of().backlog_messages() == 1, "four are acknowledged")
    consumer.redeliver_unacknowledged_messages()
    assert contents(taken(consumer, 1)) == named(4)


@pytest.mark.parametrize("kind", ["Shared", "KeyShared"])
def test_a_cumulative_acknowledgement_is_not_for_shared_types(official: Any, topic: str, kind: str) -> None:
    publish(official, topic, 1)
    consumer = official.subscribe(
        topic, "s", consumer_type=getattr(pulsar.ConsumerType, kind), initial_position=EARLIEST
    )
    with pytest.raises(pulsar.CumulativeAcknowledgementNotAllowedError):
        consumer.acknowledge_cumulative(consumer.receive(WAIT_MS))


def test_a_cumulative_acknowledgement_in_the_midst_of_a_batch_leaves_the_rest(official: Any, topic: str) -> None:
    publish_batch(official, topic, 6)
    publish_batch(official, topic, 4)
    consumer = official.subscribe(topic, "s", initial_position=EARLIEST, batch_index_ack_enabled=True)
    consumer.acknowledge_cumulative(taken(consumer, 10)[7])
    consumer.close()
    again = official.subscribe(topic, "s", batch_index_ack_enabled=True)
    assert contents(taken(again, 2)) == named(2, 3)
    nothing_comes(again)


def test_messages_of_a_batch_are_acknowledged_one_by_one(official: Any, topic: str) -> None:
    publish_batch(official, topic, 100)
    options = {"consumer_type": SHARED, "batch_index_ack_enabled": True, "initial_position": EARLIEST}
    consumer = official.subscribe(topic, "s", **options)
    for message in taken(consumer, 100):
        if int(message.data()[1:]) % 3:
            consumer.acknowledge(message)
    consumer.close()
    again = official.subscribe(topic, "s", **options)
    assert contents(taken(again, 34)) == named(*range(0, 100, 3))
    nothing_comes(again)


def test_without_batch_index_acknowledgement_a_batch_comes_again_whole(official: Any, topic: str) -> None:
    publish_batch(official, topic, 5)
    consumer = official.subscribe(topic, "s", consumer_type=SHARED, initial_position=EARLIEST)
    for message in taken(consumer, 4):
        consumer.acknowledge(message)
    consumer.close()
    assert contents(taken(official.subscribe(topic, "s", consumer_type=SHARED), 5)) == named(*range(5))


def test_a_rejected_message_comes_again_and_counts(official: Any, topic: str) -> None:
    publish(official, topic, 3)
    consumer = official.subscribe(
        topic, "s", consumer_type=SHARED, initial_position=EARLIEST, negative_ack_redelivery_delay_ms=100
    )
    for message in taken(consumer, 3):
        if message.data() == b"m1":
            consumer.negative_acknowledge(message)
        else:
            consumer.acknowledge(message)
    for count in (1, 2):
        (again,) = taken(consumer, 1)
        assert (again.data(), again.redelivery_count()) == (b"m1", count)
        consumer.negative_acknowledge(again)


def test_what_is_not_acknowledged_in_time_comes_again(official: Any, topic: str) -> None:
    publish(official, topic, 1)
    consumer = official.subscribe(
        topic, "s", consumer_type=SHARED, initial_position=EARLIEST, unacked_messages_timeout_ms=10_000
    )
    began = time.monotonic()
    assert taken(consumer, 1)[0].redelivery_count() == 0
    again = consumer.receive(25_000)
    assert again.redelivery_count() == 1
    assert time.monotonic() - began > 9


def test_redelivery_of_everything_brings_it_again_in_order(official: Any, topic: str) -> None:
    publish(official, topic, 3)
    consumer = official.subscribe(topic, "s", initial_position=EARLIEST)
    taken(consumer, 3)
    consumer.redeliver_unacknowledged_messages()
    assert contents(taken(consumer, 3)) == named(0, 1, 2)


def test_what_is_rejected_too_often_goes_to_the_dead_letter_topic(
    official: Any, gateway: ServedEngine, topic: str
) -> None:
    publish(official, topic, 2)
    consumer = official.subscribe(
        topic,
        "s",
        consumer_type=SHARED,
        initial_position=EARLIEST,
        negative_ack_redelivery_delay_ms=100,
        dead_letter_policy=pulsar.ConsumerDeadLetterPolicy(
            max_redeliver_count=2, dead_letter_topic=f"{topic}-dead", initial_subscription_name="undertaker"
        ),
    )
    for _ in range(6):
        consumer.negative_acknowledge(consumer.receive(WAIT_MS))
    dead = official.subscribe(f"{topic}-dead", "undertaker", consumer_type=SHARED)
    messages = taken(dead, 2)
    assert sorted(contents(messages)) == named(0, 1)
    assert messages[0].properties()["REAL_TOPIC"] == topic
    all_consumed(gateway, topic)


def test_a_dead_letter_topic_has_its_first_subscription_before_its_first_message(
    official: Any, gateway: ServedEngine, topic: str
) -> None:
    publish(official, topic, 1)
    consumer = official.subscribe(
        topic,
        "s",
        consumer_type=SHARED,
        initial_position=EARLIEST,
        negative_ack_redelivery_delay_ms=100,
        dead_letter_policy=pulsar.ConsumerDeadLetterPolicy(1, None, "undertaker"),
    )
    for _ in range(2):
        consumer.negative_acknowledge(consumer.receive(WAIT_MS))
    dead = f"{topic}-s-DLQ"
    gateway.until(lambda: gateway.engine.find(dead) is not None, "there is a dead letter topic")
    of = subscription(gateway, dead, "undertaker")
    gateway.until(lambda: of().backlog_messages() == 1, "and the message in it waits for its subscription")


def test_messages_come_in_batches_where_that_is_asked(official: Any, topic: str) -> None:
    publish(official, topic, 7)
    consumer = official.subscribe(
        topic,
        "s",
        initial_position=EARLIEST,
        batch_receive_policy=pulsar.ConsumerBatchReceivePolicy(5, 10 * 1024 * 1024, 1_000),
    )
    assert contents(consumer.batch_receive()) == named(*range(5))
    assert contents(consumer.batch_receive()) == named(5, 6)


def test_a_listener_gets_what_comes_and_can_be_paused(official: Any, gateway: ServedEngine, topic: str) -> None:
    heard: list[bytes] = []

    def listen(consumer: Any, message: Any) -> None:
        heard.append(message.data())
        consumer.acknowledge(message)

    consumer = official.subscribe(topic, "s", message_listener=listen)
    publish(official, topic, 3)
    all_consumed(gateway, topic)
    assert heard == named(0, 1, 2)
    consumer.pause_message_listener()
    publish(official, topic, 1, first=3)
    assert heard == named(0, 1, 2)
    consumer.resume_message_listener()
    all_consumed(gateway, topic)
    assert heard == named(0, 1, 2, 3)


@pytest.mark.parametrize("queue", [1, 3])
def test_a_small_queue_gets_everything(official: Any, topic: str, queue: int) -> None:
    publish(official, topic, 10)
    publish_batch(official, topic, 10)
    consumer = official.subscribe(topic, "s", initial_position=EARLIEST, receiver_queue_size=queue)
    assert contents(taken(consumer, 20)) == named(*range(10), *range(10))


def test_a_replicated_subscription_says_so(official: Any, gateway: ServedEngine, topic: str) -> None:
    official.subscribe(topic, "s", replicate_subscription_state_enabled=True)
    official.subscribe(topic, "t")
    assert gateway.ask(lambda: subscription(gateway, topic)().replicated)
    assert not gateway.ask(lambda: subscription(gateway, topic, "t")().replicated)


def test_read_compacted_gives_the_newest_of_each_key(official: Any, gateway: ServedEngine, topic: str) -> None:
    producer = official.create_producer(topic)
    for number in range(6):
        producer.send(b"%d" % number, partition_key=f"key {number % 2}")

    async def compact() -> None:
        await (await gateway.engine.topic(topic)).compaction.run()

    gateway.run(compact())
    consumer = official.subscribe(topic, "s", initial_position=EARLIEST, is_read_compacted=True)
    assert contents(taken(consumer, 2)) == [b"4", b"5"]
    nothing_comes(consumer)
    with pytest.raises(pulsar.PulsarException):
        official.subscribe(topic, "t", consumer_type=SHARED, is_read_compacted=True)


def test_a_null_value_is_none(official: Any, topic: str) -> None:
    producer = official.create_producer(topic)
    producer.send(None, partition_key="k")
    (message,) = taken(official.subscribe(topic, "s", initial_position=EARLIEST), 1)
    assert message.has_null_value()
