"""Acknowledgements, rejections, redeliveries and their counts, timeouts, dead letters."""

from __future__ import annotations

import time
from typing import Any

import pulsar
from differential.harness import (
    COMES_MS,
    At,
    Differs,
    all_of,
    batch,
    data,
    program,
    quiet,
    said,
    send_all,
    take,
    texts,
)

TYPES = ("Exclusive", "Shared", "Failover", "KeyShared")
ACKS_LEAVE_SECONDS = 0.3
"""Time after which acknowledgements have left the client, which groups them for 0.1 s."""
ONE_AT_A_TIME = ("Exclusive", "Failover")
COUNTS = "counts-on-one-consumer"


def counted_here(theirs: Any) -> Any:
    """The rounds of redelivery as the broker shows them, but counted, as ours does."""
    return type(theirs)([(text, number) for text, _ in again] for number, again in enumerate(theirs, 1))


def differs_in_counts(variants: Any) -> dict[str, Differs]:
    return {variant: Differs(COUNTS, counted_here) for variant in variants if variant.startswith(ONE_AT_A_TIME)}


EACH_WAY = {
    f"{kind}, {'batch' if batched else 'single'}": (kind, batched) for kind in TYPES for batched in (False, True)
}


def of(kind: str) -> Any:
    return getattr(pulsar.ConsumerType, kind)


def counted(messages: list[Any]) -> list[tuple[Any, int]]:
    return [(data(each), each.redelivery_count()) for each in messages]


def publish(at: At, batched: bool, count: int) -> None:
    if batched:
        batch(at, range(count))
    else:
        send_all(at.producer(), range(count))


@program(
    each={
        f"{kind}, {how}, {'batch' if batched else 'single'}, {'indexes' if indexes else 'whole'}": (
            kind,
            how,
            batched,
            indexes,
        )
        for kind in ("Exclusive", "Shared")
        for how in ("every second", "all", "the last", "twice")
        for batched in (False, True)
        for indexes in (False, True)
        if batched or not indexes
    }
)
def acknowledged_one_by_one(at: At, kind: str, how: str, batched: bool, indexes: bool) -> Any:
    publish(at, batched, 6)
    options = {"consumer_type": of(kind), "batch_index_ack_enabled": indexes}
    consumer = at.consumer(**options)
    messages = take(consumer, 6)
    chosen = {"every second": messages[::2], "all": messages, "the last": messages[-1:], "twice": messages[:1] * 2}[how]
    outcomes = [said(lambda each=each: consumer.acknowledge(each)) for each in chosen]
    consumer.close()
    return outcomes, [data(each) for each in all_of(at.consumer(**options))]


@program(
    each={
        f"{kind}, {'batch' if batched else 'single'}, {'indexes' if indexes else 'whole'}": (kind, batched, indexes)
        for kind in TYPES
        for batched in (False, True)
        for indexes in (False, True)
        if batched or not indexes
    }
)
def acknowledged_cumulatively(at: At, kind: str, batched: bool, indexes: bool) -> Any:
    publish(at, batched, 6)
    options = {"consumer_type": of(kind), "batch_index_ack_enabled": indexes}
    consumer = at.consumer(**options)
    messages = take(consumer, 6)
    outcome = said(lambda: consumer.acknowledge_cumulative(messages[3]))
    consumer.close()
    return outcome, [data(each) for each in all_of(at.consumer(**options))]


@program()
def acknowledged_by_id(at: At) -> Any:
    send_all(at.producer(), range(4))
    consumer = at.consumer()
    ids = [each.message_id() for each in take(consumer, 4)]
    consumer.acknowledge(ids[0])
    consumer.acknowledge_cumulative(ids[2])
    stored = pulsar.MessageId.deserialize(ids[3].serialize())
    outcome = said(lambda: consumer.acknowledge(stored)), stored == ids[3]
    consumer.close()
    return outcome, quiet(at.consumer())


@program(
    each={
        f"{kind}, {how}": (kind, how)
        for kind in ("Exclusive", "Shared")
        for how in ("of another ledger", "beyond the end", "earliest", "latest")
    }
)
def acknowledging_what_was_never_received(at: At, kind: str, how: str) -> Any:
    ids = send_all(at.producer(), range(3))
    consumer = at.consumer(consumer_type=of(kind))
    wrong = {
        "of another ledger": pulsar.MessageId(-1, ids[0].ledger_id() + 1_000_000, 0, -1),
        "beyond the end": pulsar.MessageId(-1, ids[0].ledger_id(), 1_000_000, -1),
        "earliest": pulsar.MessageId.wrap(pulsar.MessageId.earliest),
        "latest": pulsar.MessageId.wrap(pulsar.MessageId.latest),
    }[how]
    outcome = said(lambda: consumer.acknowledge(wrong))
    got = texts(consumer, 3)
    consumer.close()
    return outcome, got, [data(each) for each in all_of(at.consumer(consumer_type=of(kind)))]


@program(each={"of another ledger": ("ledger",), "beyond the end": ("end",)})
def acknowledging_cumulatively_what_was_never_received(at: At, how: str) -> Any:
    ids = send_all(at.producer(), range(3))
    consumer = at.consumer()
    texts(consumer, 3)
    wrong = {
        "ledger": pulsar.MessageId(-1, ids[0].ledger_id() + 1_000_000, 0, -1),
        "end": pulsar.MessageId(-1, ids[0].ledger_id(), 1_000_000, -1),
    }[how]
    outcome = said(lambda: consumer.acknowledge_cumulative(wrong))
    consumer.close()
    return outcome, [data(each) for each in all_of(at.consumer())]


@program()
def acknowledging_before_it_comes(at: At) -> Any:
    ids = send_all(at.producer(), range(3))
    first = at.consumer("s", receiver_queue_size=1)
    first.acknowledge(ids[2])
    first.close()
    return [data(each) for each in all_of(at.consumer())]


@program()
def acknowledging_for_another_consumer(at: At) -> Any:
    send_all(at.producer(), range(4))
    one = at.consumer(consumer_type=of("Shared"))
    messages = take(one, 4)
    other = at.new_client().subscribe(at.topic, "s", of("Shared"))
    for each in messages[:2]:
        other.acknowledge(each.message_id())
    other.close()
    one.redeliver_unacknowledged_messages()
    return [data(each) for each in all_of(one)]


@program(each=EACH_WAY, differs=differs_in_counts(EACH_WAY))
def rejected_messages_come_again_and_count(at: At, kind: str, batched: bool) -> Any:
    publish(at, batched, 4)
    consumer = at.consumer(consumer_type=of(kind), negative_ack_redelivery_delay_ms=100)
    seen = []
    messages = take(consumer, 4)
    for _ in range(3):
        consumer.negative_acknowledge(messages[1])
        messages = all_of(consumer, 1_200)
        seen.append(sorted(counted(messages)))
        wanted = [each for each in messages if data(each) == "1"]
        if not wanted:
            break
        messages = [wanted[0], wanted[0]]
    return seen


@program(each={kind: (kind,) for kind in TYPES})
def a_rejected_message_that_is_acknowledged_meanwhile(at: At, kind: str) -> Any:
    publish(at, False, 2)
    consumer = at.consumer(consumer_type=of(kind), negative_ack_redelivery_delay_ms=700)
    first, second = take(consumer, 2)
    consumer.negative_acknowledge(first)
    consumer.acknowledge(first)
    consumer.acknowledge(second)
    return quiet(consumer, 1_500)


@program(each=EACH_WAY, differs=differs_in_counts(EACH_WAY))
def redelivering_all_that_is_unacknowledged(at: At, kind: str, batched: bool) -> Any:
    publish(at, batched, 5)
    consumer = at.consumer(consumer_type=of(kind))
    messages = take(consumer, 5)
    consumer.acknowledge(messages[0])
    time.sleep(ACKS_LEAVE_SECONDS)
    consumer.redeliver_unacknowledged_messages()
    again = all_of(consumer)
    consumer.redeliver_unacknowledged_messages()
    return counted(again), counted(all_of(consumer))


@program(each={kind: (kind,) for kind in ("Shared", "Failover", "KeyShared")})
def what_a_consumer_held_goes_to_another(at: At, kind: str) -> Any:
    one = at.consumer(consumer_type=of(kind), consumer_name="a")
    producer = at.producer()
    for number in range(5):
        producer.send(b"%d" % number, partition_key="k")
    messages = take(one, 5)
    other = at.new_client().subscribe(at.topic, "s", of(kind), consumer_name="b")
    one.acknowledge(messages[1])
    one.close()
    return counted(all_of(other))


@program(each={kind: (kind,) for kind in ("Exclusive", "Shared")})
def counts_after_subscribing_again(at: At, kind: str) -> Any:
    publish(at, False, 2)
    seen = []
    for _ in range(3):
        consumer = at.consumer(consumer_type=of(kind))
        seen.append(counted(take(consumer, 2)))
        consumer.close()
    return seen


@program(
    each={kind: (kind,) for kind in TYPES},
    differs={kind: Differs(COUNTS, [("1", 1), ("2", 1)]) for kind in ONE_AT_A_TIME},
)
def what_is_not_acknowledged_in_time_comes_again(at: At, kind: str) -> Any:
    publish(at, False, 3)
    consumer = at.consumer(consumer_type=of(kind), unacked_messages_timeout_ms=10_000)
    messages = take(consumer, 3)
    consumer.acknowledge(messages[0])
    return counted(take(consumer, 2))


@program()
def a_timeout_that_is_too_short(at: At) -> Any:
    return said(lambda: at.consumer(unacked_messages_timeout_ms=5_000))


def policy(times: int, topic: str | None = None, subscription: str | None = None) -> Any:
    return pulsar.ConsumerDeadLetterPolicy(times, topic, subscription)


def rejected_until_quiet(consumer: Any, bad: str, receives_max: int = 12) -> list[tuple[Any, int]]:
    """Reject that message whenever it comes, and acknowledge the others."""
    seen: list[tuple[Any, int]] = []
    while len(seen) < receives_max:
        try:
            message = consumer.receive(2_500)
        except pulsar.Timeout:
            break
        seen.append((data(message), message.redelivery_count()))
        if data(message) == bad:
            consumer.negative_acknowledge(message)
        else:
            consumer.acknowledge(message)
    return seen


@program(each={f"{kind}, {times}": (kind, times) for kind in ("Shared", "KeyShared") for times in (1, 3)})
def dead_letters(at: At, kind: str, times: int) -> Any:
    producer = at.producer()
    producer.send(b"bad", partition_key="k", properties={"a": "1"})
    producer.send(b"good", partition_key="k")
    dead = at.consumer("dead", f"{at.topic}-s-DLQ")
    consumer = at.consumer(
        consumer_type=of(kind), negative_ack_redelivery_delay_ms=100, dead_letter_policy=policy(times)
    )
    seen = rejected_until_quiet(consumer, "bad")
    letters = all_of(dead)
    return seen, [(data(each), each.partition_key(), sorted(each.properties())) for each in letters]


@program(each={kind: (kind,) for kind in ONE_AT_A_TIME})
def dead_letters_of_one_consumer(at: At, kind: str) -> Any:
    at.producer().send(b"bad")
    dead = at.consumer("dead", f"{at.topic}-s-DLQ")
    consumer = at.consumer(consumer_type=of(kind), negative_ack_redelivery_delay_ms=100, dead_letter_policy=policy(2))
    rejected_until_quiet(consumer, "bad", 6)
    return [data(each) for each in all_of(dead)]


@program()
def dead_letters_of_a_batch(at: At) -> Any:
    batch(at, range(3))
    dead = at.consumer("dead", f"{at.topic}-dead")
    consumer = at.consumer(
        consumer_type=of("Shared"),
        negative_ack_redelivery_delay_ms=100,
        dead_letter_policy=policy(2, f"{at.topic}-dead"),
        batch_index_ack_enabled=True,
    )
    seen = rejected_until_quiet(consumer, "1")
    return sorted(seen), [data(each) for each in all_of(dead)]


@program()
def a_dead_letter_topic_with_a_first_subscription(at: At) -> Any:
    at.producer().send(b"bad")
    consumer = at.consumer(
        consumer_type=of("Shared"),
        negative_ack_redelivery_delay_ms=100,
        dead_letter_policy=policy(1, f"{at.topic}-dead", "first"),
    )
    for _ in range(2):
        consumer.negative_acknowledge(consumer.receive(COMES_MS))
    quiet(consumer, 2_500)
    return [
        data(each)
        for each in all_of(at.consumer("first", f"{at.topic}-dead", initial_position=pulsar.InitialPosition.Latest))
    ]


@program(each={"none": (0,), "negative": (-1,)})
def dead_letter_policies_that_make_no_sense(at: At, times: int) -> Any:
    return said(lambda: policy(times))


@program()
def rejecting_after_closing(at: At) -> Any:
    at.producer().send(b"m")
    consumer = at.consumer()
    message = consumer.receive(COMES_MS)
    consumer.close()
    return (
        said(lambda: consumer.negative_acknowledge(message)),
        said(lambda: consumer.acknowledge(message)),
        said(consumer.redeliver_unacknowledged_messages),
    )


@program()
def rejecting_what_another_topic_sent(at: At) -> Any:
    at.producer(f"{at.topic}-other").send(b"m")
    at.producer().send(b"mine")
    other = at.consumer("s", f"{at.topic}-other").receive(COMES_MS)
    consumer = at.consumer()
    return said(lambda: consumer.acknowledge(other)), texts(consumer, 1)


@program(each={"Shared": ("Shared",), "KeyShared": ("KeyShared",)})
def rejected_messages_go_to_whoever_is_there(at: At, kind: str) -> Any:
    options = {"consumer_type": of(kind), "negative_ack_redelivery_delay_ms": 100}
    one = at.consumer(consumer_name="a", **options)
    publish(at, False, 6)
    messages = take(one, 6)
    for each in messages:
        one.negative_acknowledge(each)
    return sorted(counted(all_of(one, 1_500)))


@program()
def acknowledgements_of_a_batch_are_kept_over_a_redelivery(at: At) -> Any:
    batch(at, range(5))
    consumer = at.consumer(consumer_type=of("Shared"), batch_index_ack_enabled=True)
    messages = take(consumer, 5)
    for number in (0, 3):
        consumer.acknowledge(messages[number])
    quiet(consumer)
    consumer.redeliver_unacknowledged_messages()
    return counted(all_of(consumer))
