"""Messages and topics that end: expiry, termination; deduplication by policy; subscriptions that do not last; times."""

from __future__ import annotations

import time
from typing import Any

import pulsar
from differential.harness import At, Differs, all_of, attempt, data, program, quiet, said, send_all, take, texts, until


def path(at: At, rest: str = "") -> str:
    return f"persistent/public/default/{at.name}{rest}"


def backlog(at: At, subscription: str = "s") -> Any:
    _, stats = at.admin("GET", path(at, "/stats"))
    return stats["subscriptions"][subscription]["msgBacklog"]


@program(
    each={"nobody there": (False,), "a consumer there": (True,)},
    differs={"a consumer there": Differs("expiring-at-once", (204, 1))},
)
def expiring_by_age(at: At, connected: bool) -> Any:
    consumer = at.consumer(receiver_queue_size=1)
    if not connected:
        consumer.close()
    producer = at.producer(batching_enabled=False)
    for number in range(3):
        producer.send(b"%d" % number)
    time.sleep(2.2)
    producer.send(b"3")
    status, _ = at.admin("POST", path(at, "/subscription/s/expireMessages/2"))
    if status == 204:
        until(lambda: backlog(at) == 1)
    return status, backlog(at)


@program()
def expiring_all_subscriptions(at: At) -> Any:
    first, second = at.consumer("a"), at.consumer("b")
    first.close()
    second.close()
    at.producer(batching_enabled=False).send(b"1")
    time.sleep(2.2)
    status, _ = at.admin("POST", path(at, "/all_subscription/expireMessages/1"))
    until(lambda: backlog(at, "a") == backlog(at, "b") == 0)
    return status, backlog(at, "a"), backlog(at, "b")


@program()
def expiring_for_a_subscription_that_is_not_there(at: At) -> Any:
    at.producer().close()
    return at.admin("POST", path(at, "/subscription/none/expireMessages/1"))[0]


@program(differs=Differs("expiring-at-once", 204))
def expiring_nothing(at: At) -> Any:
    at.consumer().close()
    return at.admin("POST", path(at, "/subscription/s/expireMessages/100000"))[0]


@program(each={f"of {made} partitions, as of {index}": (made, index) for made in (0, 2) for index in (-1, 0, 1)})
def expiring_up_to_a_message(at: At, made: int, index: int) -> Any:
    if made:
        at.admin("PUT", path(at, "/partitions"), made)
    one = path(at, "-partition-1" if made else "")
    topic = one.replace("persistent/", "persistent://", 1)
    at.consumer(topic=topic).close()
    producer = at.producer(topic, batching_enabled=False)
    _, second, _ = send_all(producer, range(3))
    body = {"ledgerId": second.ledger_id(), "entryId": second.entry_id(), "partitionIndex": index}
    status, _ = at.admin("POST", f"{one}/subscription/s/expireMessages", body)

    def left() -> Any:
        return at.admin("GET", f"{one}/stats")[1]["subscriptions"]["s"]["msgBacklog"]

    if status == 204:
        until(lambda: left() == 1)
    return status, left()


@program()
def terminating(at: At) -> Any:
    producer = at.producer(batching_enabled=False)
    ids = send_all(producer, range(2))
    status, answer = at.admin("POST", path(at, "/terminate"))
    again, _ = at.admin("POST", path(at, "/terminate"))
    refused = attempt(lambda: producer.send(b"more"))
    other = said(lambda: at.new_client().create_producer(at.topic))
    got = texts(at.consumer(), 2, acknowledge=True)
    return status, answer["entryId"] == ids[-1].entry_id(), again, refused, other, got


@program()
def reading_what_was_terminated(at: At) -> Any:
    send_all(at.producer(batching_enabled=False), range(3))
    at.admin("POST", path(at, "/terminate"))
    reader = at.reader()
    got = [data(reader.read_next(5_000)) for _ in range(3)]
    return got, reader.has_message_available()


@program()
def deduplication_by_a_namespaces_policy(at: At) -> Any:
    namespace = f"public/{at.name}"
    made, _ = at.admin("PUT", f"namespaces/{namespace}")
    switched, _ = at.admin("POST", f"namespaces/{namespace}/deduplication", True)
    asked = at.admin("GET", f"namespaces/{namespace}/deduplication")
    topic = f"persistent://{namespace}/t"
    consumer = at.consumer(topic=topic)
    producer = at.producer(topic, producer_name="p", batching_enabled=False)
    for sequence in (1, 2, 2, 1, 5, 4, 6):
        producer.send(b"%d" % sequence, sequence_id=sequence)
    last = producer.last_sequence_id()
    producer.close()
    again = at.producer(topic, producer_name="p", batching_enabled=False)
    resumed = again.last_sequence_id()
    again.send(b"next")
    return made, switched, asked, [data(each) for each in all_of(consumer)], last, resumed


@program()
def deduplication_switched_off_again(at: At) -> Any:
    namespace = f"public/{at.name}"
    at.admin("PUT", f"namespaces/{namespace}")
    at.admin("POST", f"namespaces/{namespace}/deduplication", True)
    removed, _ = at.admin("DELETE", f"namespaces/{namespace}/deduplication")
    _, asked = at.admin("GET", f"namespaces/{namespace}/deduplication")
    topic = f"persistent://{namespace}/t"
    consumer = at.consumer(topic=topic)
    producer = at.producer(topic, producer_name="p", batching_enabled=False)
    for sequence in (1, 1, 0):
        producer.send(b"%d" % sequence, sequence_id=sequence)
    return removed, asked, [data(each) for each in all_of(consumer)]


def acknowledged_once(at: At) -> Any:
    """Return the topic's only subscription, when one of its three messages is consumed."""
    (subscription,) = at.admin("GET", path(at, "/stats"))[1]["subscriptions"].values()
    return subscription if subscription["msgBacklog"] == 2 else None


@program()
def a_readers_subscription_goes_with_it(at: At) -> Any:
    send_all(at.producer(), range(3))
    reader = at.reader(reader_name="r", subscription_role_prefix="mine")
    reader.read_next(5_000)
    _, before = at.admin("GET", path(at, "/subscriptions"))
    subscription = until(lambda: acknowledged_once(at))
    reader.close()
    until(lambda: not at.admin("GET", path(at, "/subscriptions"))[1])
    shown = {key: subscription[key] for key in ("isDurable", "type", "msgBacklog", "isReplicated")}
    return [name.partition("-")[0] for name in before], shown, at.admin("GET", path(at, "/subscriptions"))


@program(each={"before all": (0,), "between": (1,), "after all": (2,)})
def readers_that_seek_by_time(at: At, where: int) -> Any:
    producer = at.producer(batching_enabled=False)
    marks = [time.time_ns() // 1_000_000]
    for number in range(2):
        time.sleep(0.05)
        producer.send(b"%d" % number)
        time.sleep(0.05)
        marks.append(time.time_ns() // 1_000_000)
    reader = at.reader()
    reader.read_next(5_000)
    time.sleep(0.2)  # else what the reader acknowledges, grouped, comes behind the seek
    outcome = said(lambda: reader.seek(marks[where]))
    left = []
    while reader.has_message_available():
        left.append(data(reader.read_next(5_000)))
    producer.send(b"new")
    return outcome, left, data(reader.read_next(5_000))


@program(each={kind: (kind,) for kind in ("Exclusive", "Shared", "Failover")})
def seeking_to_a_time_acknowledges_what_is_before(at: At, kind: str) -> Any:
    producer = at.producer(batching_enabled=False)
    send_all(producer, range(2))
    time.sleep(0.05)
    mark = time.time_ns() // 1_000_000
    time.sleep(0.05)
    send_all(producer, range(2, 5))
    consumer = at.consumer(consumer_type=getattr(pulsar.ConsumerType, kind))
    take(consumer, 5)
    consumer.seek(mark)
    until(lambda: backlog(at) == 3)
    return backlog(at), texts(consumer, 3, acknowledge=True), quiet(consumer)
