"""Subscriptions: types beside each other, positions, names, who is refused, who takes over, how they end."""

from __future__ import annotations

import time
from typing import Any

import pulsar
from differential.harness import (
    COMES_MS,
    At,
    Differs,
    all_of,
    data,
    program,
    quiet,
    said,
    send_all,
    take,
    texts,
    until,
)

CHOSEN_AFTER_SECONDS = 2.0
"""Upstream changes the active one of a Failover subscription a second after somebody has come."""
TYPES = ("Exclusive", "Shared", "Failover", "KeyShared")


def of(kind: str) -> Any:
    return getattr(pulsar.ConsumerType, kind)


@program(each={f"{first}, then {second}": (first, second) for first in TYPES for second in TYPES})
def a_second_consumer(at: At, first: str, second: str) -> Any:
    one = at.consumer(consumer_type=of(first), consumer_name="a")
    outcome = said(lambda: at.new_client().subscribe(at.topic, "s", of(second), consumer_name="b"))
    at.producer().send(b"m")
    one_gets = said(lambda: one.receive(1_000))
    one.close()
    return outcome, one_gets if first == "Exclusive" else None, said(lambda: at.consumer(consumer_type=of(second)))


@program(each={f"{kind}, {where}": (kind, where) for kind in TYPES for where in ("Earliest", "Latest")})
def where_a_subscription_begins(at: At, kind: str, where: str) -> Any:
    producer = at.producer()
    send_all(producer, ["old 1", "old 2"])
    consumer = at.consumer(consumer_type=of(kind), initial_position=getattr(pulsar.InitialPosition, where))
    send_all(producer, ["new"])
    got = [data(each) for each in all_of(consumer)]
    consumer.close()
    again = at.consumer(consumer_type=of(kind), initial_position=pulsar.InitialPosition.Latest)
    return got, [data(each) for each in all_of(again)]


@program(each={"empty": ("",), "blank": (" ",), "slash": ("a/b",), "long": ("n" * 300,), "letters": ("über:s$%",)})
def names_of_subscriptions(at: At, name: str) -> Any:
    outcome = said(lambda: at.consumer(name))
    if outcome == "fine":
        at.producer().send(b"m")
        return outcome, texts(at.consumer(f"{name}2"), 1)
    return outcome


@program()
def what_a_consumer_says_of_itself(at: At) -> Any:
    consumer = at.consumer("the name", consumer_name="me", properties={"a": "b"})
    unnamed = at.consumer("other")
    before = consumer.is_connected()
    seen = consumer.subscription_name(), consumer.consumer_name(), consumer.topic() == at.topic
    closing = said(consumer.close)
    return (
        before,
        seen,
        bool(unnamed.consumer_name()),
        closing,
        consumer.is_connected(),
        said(consumer.close),
        said(lambda: consumer.receive(100)),
        said(consumer.unsubscribe),
        said(consumer.get_last_message_id),
    )


@program(each={kind: (kind,) for kind in TYPES})
def two_consumers_of_one_name(at: At, kind: str) -> Any:
    at.consumer(consumer_type=of(kind), consumer_name="same")
    return said(lambda: at.new_client().subscribe(at.topic, "s", of(kind), consumer_name="same"))


@program(each={kind: (kind,) for kind in TYPES})
def a_subscription_that_is_deleted_begins_anew(at: At, kind: str) -> Any:
    producer = at.producer()
    consumer = at.consumer(consumer_type=of(kind))
    send_all(producer, range(3))
    first = texts(consumer, 3, acknowledge=True)
    outcome = said(consumer.unsubscribe)
    return first, outcome, said(lambda: consumer.receive(100)), texts(at.consumer(consumer_type=of(kind)), 3)


@program(each={kind: (kind,) for kind in ("Shared", "Failover", "KeyShared")})
def unsubscribing_while_others_are_connected(at: At, kind: str) -> Any:
    one = at.consumer(consumer_type=of(kind), consumer_name="a")
    other = at.new_client().subscribe(at.topic, "s", of(kind), consumer_name="b")
    outcome = said(one.unsubscribe)
    time.sleep(CHOSEN_AFTER_SECONDS)
    at.producer().send(b"m", partition_key="k")
    got = [data(each) for each in (*all_of(one), *all_of(other))]
    return outcome, got, said(other.unsubscribe)


@program()
def acknowledged_messages_do_not_come_to_who_subscribes_again(at: At) -> Any:
    send_all(at.producer(), range(5))
    consumer = at.consumer()
    for each in take(consumer, 5)[:3]:
        consumer.acknowledge(each)
    consumer.close()
    return [(data(each), each.redelivery_count()) for each in take(at.consumer(), 2)]


@program()
def a_shared_subscription_goes_round(at: At) -> Any:
    consumers = [at.new_client().subscribe(at.topic, "s", of("Shared"), receiver_queue_size=10) for _ in range(3)]
    producer = at.producer()
    for number in range(60):
        producer.send(b"%d" % number)
    got = [sorted(int(data(each)) for each in all_of(consumer)) for consumer in consumers]
    return sorted(number for each in got for number in each) == list(range(60)), [len(each) > 0 for each in got]


@program()
def a_failover_consumer_takes_over(at: At) -> Any:
    consumers = [
        at.new_client().subscribe(at.topic, "s", of("Failover"), consumer_name=f"{name}-{at.name}") for name in "ab"
    ]
    time.sleep(CHOSEN_AFTER_SECONDS)
    send_all(at.producer(), range(6))
    got = [all_of(each) for each in consumers]
    active = 0 if got[0] else 1  # by a hash of names
    consumers[active].acknowledge_cumulative(got[active][2])
    consumers[active].close()
    rest = [(data(each), each.redelivery_count()) for each in take(consumers[1 - active], 3)]
    return sorted([data(message) for message in each] for each in got), rest


@program(differs=Differs("key-shared-policies", "!ConsumerBusy"))
def out_of_order_and_in_order_do_not_mix(at: At) -> Any:
    loose = pulsar.ConsumerKeySharedPolicy(allow_out_of_order_delivery=True)
    at.consumer(consumer_type=of("KeyShared"), key_shared_policy=loose)
    return said(lambda: at.new_client().subscribe(at.topic, "s", of("KeyShared")))


@program(differs=Differs("key-shared-policies", "!ConsumerBusy"))
def auto_split_and_sticky_do_not_mix(at: At) -> Any:
    at.consumer(consumer_type=of("KeyShared"))
    return said(
        lambda: at.new_client().subscribe(at.topic, "s", of("KeyShared"), key_shared_policy=sticky((0, 20_000)))
    )


@program()
def a_key_is_with_one_consumer_in_order(at: At) -> Any:
    consumers = [at.new_client().subscribe(at.topic, "s", of("KeyShared"), consumer_name=name) for name in "abc"]
    producer = at.producer()
    for number in range(120):
        producer.send(b"%d" % number, partition_key=f"k{number % 12}")
    owners: dict[str, list[Any]] = {}
    for which, consumer in enumerate(consumers):
        for message in all_of(consumer):
            owners.setdefault(message.partition_key(), []).append((which, int(data(message))))
    return {
        key: (len({which for which, _ in got}), [number for _, number in got]) for key, got in sorted(owners.items())
    }


def sticky(*ranges: tuple[int, int]) -> Any:
    return pulsar.ConsumerKeySharedPolicy(pulsar.KeySharedMode.Sticky, sticky_ranges=list(ranges))


@program()
def sticky_ranges_say_which_consumer_has_a_key(at: At) -> Any:
    halves = (sticky((0, 32_767)), sticky((32_768, 65_535)))
    consumers = [
        at.new_client().subscribe(at.topic, "s", of("KeyShared"), key_shared_policy=policy) for policy in halves
    ]
    producer = at.producer()
    for number in range(40):
        producer.send(b"%d" % number, partition_key=f"key {number}")
    for number in range(5):
        producer.send(b"%d" % (100 + number), partition_key="same", ordering_key=f"order {number}")
    return [[data(each) for each in all_of(consumer)] for consumer in consumers]


@program(
    each={
        "that overlap": ((0, 40_000), (40_000, 65_535)),
        "of which one is inside": ((0, 65_535), (100, 200)),
        "beyond the end": ((0, 100), (200, 65_536)),
        "backwards": ((0, 100), (300, 200)),
        "apart": ((0, 100), (200, 300)),
    }
)
def two_sticky_ranges(at: At, first: tuple[int, int], second: tuple[int, int]) -> Any:
    at.consumer(consumer_type=of("KeyShared"), key_shared_policy=sticky(first))
    return said(lambda: at.new_client().subscribe(at.topic, "s", of("KeyShared"), key_shared_policy=sticky(second)))


@program()
def keys_outside_all_sticky_ranges_wait(at: At) -> Any:
    first = at.consumer(consumer_type=of("KeyShared"), key_shared_policy=sticky((0, 20_000)))
    producer = at.producer()
    for number in range(20):
        producer.send(b"%d" % number, partition_key=f"key {number}")
    got = [data(each) for each in all_of(first)]
    second = at.new_client().subscribe(at.topic, "s", of("KeyShared"), key_shared_policy=sticky((20_001, 65_535)))
    return got, [data(each) for each in all_of(second)]


@program()
def sticky_and_auto_split_do_not_mix(at: At) -> Any:
    at.consumer(consumer_type=of("KeyShared"), key_shared_policy=sticky((0, 20_000)))
    return said(lambda: at.new_client().subscribe(at.topic, "s", of("KeyShared")))


@program(each={"1": (1,), "2": (2,), "1000": (1_000,)})
def receiver_queues(at: At, size: int) -> Any:
    send_all(at.producer(), range(5))
    return texts(at.consumer(receiver_queue_size=size), 5, acknowledge=True)


@program()
def a_receiver_queue_of_none(at: At) -> Any:
    send_all(at.producer(), range(3))
    consumer = at.consumer(receiver_queue_size=0)
    return [data(consumer.receive()) for _ in range(3)], said(lambda: consumer.receive(100))


@program()
def a_receiver_queue_of_none_and_a_batch(at: At) -> Any:
    producer = at.producer(batching_enabled=True, batching_max_publish_delay_ms=10_000)
    consumer = at.consumer(receiver_queue_size=0)
    send_all(producer, range(3))
    send = at.producer()
    send.send(b"single")
    return [data(consumer.receive())], consumer.is_connected()


@program(each={kind: (kind,) for kind in TYPES})
def a_listener_gets_all_in_order(at: At, kind: str) -> Any:
    got: list[Any] = []

    def listener(consumer: Any, message: Any) -> None:
        got.append(data(message))
        consumer.acknowledge(message)

    at.consumer(consumer_type=of(kind), message_listener=listener)
    send_all(at.producer(), range(20))
    until(lambda: len(got) == 20)
    return got


@program()
def a_listener_pauses(at: At) -> Any:
    got: list[Any] = []
    consumer = at.consumer(message_listener=lambda _, message: got.append(data(message)), receiver_queue_size=1)
    producer = at.producer()
    producer.send(b"1")
    until(lambda: len(got) == 1)
    consumer.pause_message_listener()
    producer.send(b"2")
    producer.send(b"3")
    until(lambda: len(got) == 3, 0.5)
    while_paused = len(got) < 3
    consumer.resume_message_listener()
    until(lambda: len(got) == 3)
    return while_paused, got, said(lambda: consumer.receive(100))


@program(
    each={
        "messages": ((3, -1, -1),),
        "bytes": ((-1, 20, -1),),
        "time": ((-1, -1, 300),),
        "nothing": ((-1, -1, -1),),
    }
)
def batch_receive(at: At, limits: tuple[int, int, int]) -> Any:
    send_all(at.producer(), ["0123456789"] * 7)
    outcome: list[Any] = []

    def receive() -> None:
        consumer = at.consumer(batch_receive_policy=pulsar.ConsumerBatchReceivePolicy(*limits))
        until(lambda: False, 0.5)
        outcome.append([data(each) for each in consumer.batch_receive()])

    return said(receive), outcome


@program()
def a_consumer_name_and_properties_with_strange_letters(at: At) -> Any:
    consumer = at.consumer("s", consumer_name="名前 / ü", properties={"": "empty", "a=b": "c"})
    at.producer().send(b"m")
    return consumer.consumer_name(), texts(consumer, 1)


@program(each={"replicated": (True,), "not replicated": (False,)})
def replicated_subscriptions(at: At, replicated: bool) -> Any:
    send_all(at.producer(), range(3))
    consumer = at.consumer(replicate_subscription_state_enabled=replicated)
    got = texts(consumer, 3, acknowledge=True)
    consumer.close()
    return got, quiet(at.consumer(replicate_subscription_state_enabled=not replicated))


@program()
def subscriptions_are_independent(at: At) -> Any:
    one, two = at.consumer("one"), at.consumer("two", consumer_type=of("Shared"))
    send_all(at.producer(), range(4))
    one.acknowledge_cumulative(take(one, 4)[-1])
    one.close()
    return texts(two, 4), quiet(at.consumer("one"))


@program()
def an_exclusive_subscription_is_free_when_its_client_is_gone(at: At) -> Any:
    other = at.new_client()
    consumer = other.subscribe(at.topic, "s")
    at.producer().send(b"m")
    first = data(consumer.receive(COMES_MS))
    other.shutdown()
    outcome = until(lambda: said(lambda: at.consumer()) == "fine")
    return first, outcome
