"""Seek, readers, last message ids, table views: where one is in a topic, and where one goes."""

from __future__ import annotations

import time
from typing import Any

import pulsar
from differential.harness import (
    COMES_MS,
    At,
    Differs,
    all_of,
    attempt,
    batch,
    data,
    places,
    program,
    quiet,
    read_all,
    said,
    send_all,
    take,
    texts,
    until,
)

TYPES = ("Exclusive", "Shared", "Failover", "KeyShared")
EARLIEST, LATEST = pulsar.MessageId.earliest, pulsar.MessageId.latest


def of(kind: str) -> Any:
    return getattr(pulsar.ConsumerType, kind)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@program(
    each={
        f"{kind}, {where}": (kind, where)
        for kind in TYPES
        for where in ("earliest", "latest", "third", "time 0", "now")
    }
)
def seeking(at: At, kind: str, where: str) -> Any:
    producer = at.producer()
    ids = send_all(producer, range(5))
    consumer = at.consumer(consumer_type=of(kind))
    got = texts(consumer, 5, acknowledge=True)
    to = {"earliest": EARLIEST, "latest": LATEST, "third": ids[2], "time 0": 0, "now": now_ms() + 1}[where]
    outcome = said(lambda: consumer.seek(to))
    time.sleep(0.002)
    producer.send(b"new")
    return got, outcome, [(data(each), each.redelivery_count()) for each in all_of(consumer)]


@program(
    each={
        f"{where}, {'inclusive' if inclusive else 'exclusive'}": (where, inclusive)
        for where in (0, 2, 4)
        for inclusive in (False, True)
    }
)
def seeking_into_a_batch(at: At, where: int, inclusive: bool) -> Any:
    ids = batch(at, range(5))
    batch(at, range(5, 8))
    consumer = at.consumer(start_message_id_inclusive=inclusive)
    texts(consumer, 8)
    outcome = said(lambda: consumer.seek(ids[where]))
    return outcome, [data(each) for each in all_of(consumer)]


@program(each={"inclusive": (True,), "exclusive": (False,)})
def seeking_by_id(at: At, inclusive: bool) -> Any:
    ids = send_all(at.producer(), range(5))
    consumer = at.consumer(start_message_id_inclusive=inclusive)
    seen = []
    for number in (3, 0, 4):
        consumer.seek(ids[number])
        seen.append([data(each) for each in all_of(consumer)])
    return seen


@program(
    each={
        "another ledger": (1_000_000, 0),
        "beyond the end": (0, 1_000_000),
        "an older ledger": (-1_000_000, 0),
    },
    differs={
        "another ledger": Differs("unknown-message-ids", ("!BrokerMetadataError", [], ["new"])),
        "beyond the end": Differs("unknown-message-ids", ("!BrokerMetadataError", [], ["new"])),
        "an older ledger": Differs("unknown-message-ids", ("!BrokerMetadataError", [], ["new"])),
    },
)
def seeking_what_is_not_there(at: At, ledgers: int, entries: int) -> Any:
    ids = send_all(at.producer(), range(3))
    consumer = at.consumer()
    texts(consumer, 3)
    to = pulsar.MessageId(-1, max(0, ids[0].ledger_id() + ledgers), ids[0].entry_id() + entries, -1)
    outcome = said(lambda: consumer.seek(to))
    got = [data(each) for each in all_of(consumer)]
    at.producer().send(b"new")
    return outcome, got, [data(each) for each in all_of(consumer)]


@program()
def seeking_by_time(at: At) -> Any:
    producer = at.producer()
    producer.send(b"1")
    time.sleep(0.05)
    between = now_ms()
    time.sleep(0.05)
    producer.send(b"2")
    producer.send(b"3")
    consumer = at.consumer()
    texts(consumer, 3)
    consumer.seek(between)
    first = [data(each) for each in all_of(consumer)]
    consumer.seek(now_ms() + 3_600_000)
    return first, quiet(consumer)


@program()
def seeking_an_empty_topic(at: At) -> Any:
    consumer = at.consumer()
    outcomes = [said(lambda to=to: consumer.seek(to)) for to in (EARLIEST, LATEST, 0, now_ms())]
    at.producer().send(b"m")
    return outcomes, texts(consumer, 1)


@program(each={kind: (kind,) for kind in ("Shared", "KeyShared", "Failover")})
def seeking_with_two_consumers(at: At, kind: str) -> Any:
    one = at.consumer(consumer_type=of(kind), consumer_name="a")
    other = at.new_client().subscribe(at.topic, "s", of(kind), consumer_name="b")
    send_all(at.producer(), range(6))
    for consumer in (one, other):
        for each in all_of(consumer):
            consumer.acknowledge(each)
    outcome = said(lambda: one.seek(EARLIEST))
    got = sorted(data(each) for consumer in (one, other) for each in all_of(consumer))
    return outcome, got


@program()
def seeking_keeps_what_is_acknowledged_no_more(at: At) -> Any:
    ids = send_all(at.producer(), range(4))
    consumer = at.consumer()
    for each in take(consumer, 4):
        consumer.acknowledge(each)
    consumer.seek(ids[1])
    quiet(consumer, 1)
    consumer.close()
    return [data(each) for each in all_of(at.consumer())]


@program(each={"empty": ("empty",), "single": ("single",), "batch": ("batch",), "consumed": ("consumed",)})
def the_last_message_id(at: At, kind: str) -> Any:
    ids: list[Any] = []
    if kind in ("single", "consumed"):
        ids = send_all(at.producer(), range(3))
    elif kind == "batch":
        ids = batch(at, range(3))
    consumer = at.consumer()
    if kind == "consumed":
        texts(consumer, 3, acknowledge=True)
    last = consumer.get_last_message_id()
    return (
        [last == each for each in ids],
        (last.entry_id(), last.batch_index(), last.partition()),
        last.ledger_id() == -1,
    )


@program()
def the_last_message_id_of_partitions(at: At) -> Any:
    at.admin("PUT", f"persistent/public/default/{at.name}/partitions", 2)
    consumer = at.consumer()
    return said(consumer.get_last_message_id)


@program(each={"earliest": ("earliest",), "latest": ("latest",)})
def readers_of_an_empty_topic(at: At, where: str) -> Any:
    reader = at.reader(getattr(pulsar.MessageId, where))
    before = reader.has_message_available(), said(lambda: reader.read_next(200))
    at.producer().send(b"m")
    return before, until(reader.has_message_available), data(reader.read_next(COMES_MS)), reader.has_message_available()


@program(
    each={
        f"{where}, {'inclusive' if inclusive else 'exclusive'}, {kind}": (where, inclusive, kind)
        for where in ("earliest", "latest", "first", "middle", "last")
        for inclusive in (False, True)
        for kind in ("single", "batch")
    }
)
def readers_begin(at: At, where: str, inclusive: bool, kind: str) -> Any:
    ids = send_all(at.producer(), range(5)) if kind == "single" else batch(at, range(5))
    start = {"earliest": EARLIEST, "latest": LATEST, "first": ids[0], "middle": ids[2], "last": ids[-1]}[where]
    reader = at.reader(start, start_message_id_inclusive=inclusive)
    old = read_all(reader)
    at.producer().send(b"new")
    until(reader.has_message_available)
    return old, read_all(reader), reader.has_message_available(), reader.topic() == at.topic, reader.is_connected()


@program(
    each={"another ledger": (1_000_000, 0), "beyond the end": (0, 1_000_000), "an older ledger": (-1_000_000, 0)},
    differs={
        "another ledger": Differs("unknown-message-ids", "!NotAllowedError"),
        "beyond the end": Differs("unknown-message-ids", "!NotAllowedError"),
        "an older ledger": Differs("unknown-message-ids", "!NotAllowedError"),
    },
)
def readers_begin_where_nothing_is(at: At, ledgers: int, entries: int) -> Any:
    ids = send_all(at.producer(), range(3))
    start = pulsar.MessageId(-1, max(0, ids[0].ledger_id() + ledgers), ids[0].entry_id() + entries, -1)
    reader = attempt(lambda: at.reader(start))
    if isinstance(reader, str):
        return reader
    seen = attempt(reader.has_message_available), attempt(lambda: data(reader.read_next(600)))
    at.producer().send(b"new")
    return seen, attempt(lambda: data(reader.read_next(1_500)))


@program(each={"earliest": ("earliest",), "latest": ("latest",), "an id": ("id",), "a time": ("time",)})
def readers_seek(at: At, where: str) -> Any:
    ids = send_all(at.producer(), range(4))
    reader = at.reader()
    first = read_all(reader)
    to = {"earliest": EARLIEST, "latest": LATEST, "id": ids[1], "time": 0}[where]
    outcome = said(lambda: reader.seek(to))
    return first, outcome, reader.has_message_available(), read_all(reader)


@program()
def readers_leave_nothing_and_hinder_nobody(at: At) -> Any:
    send_all(at.producer(), range(2))
    first = at.reader(reader_name="r", subscription_role_prefix="role")
    second = at.reader(reader_name="r")
    got = read_all(first), read_all(second)
    closing = (
        said(first.close),
        said(first.close),
        said(lambda: first.read_next(100)),
        said(first.has_message_available),
    )
    return got, closing, first.is_connected()


@program()
def a_readers_listener(at: At) -> Any:
    got: list[Any] = []
    send_all(at.producer(), range(5))
    at.reader(reader_listener=lambda _, message: got.append(data(message)))
    until(lambda: len(got) == 5)
    return got


@program()
def a_reader_follows(at: At) -> Any:
    reader = at.reader(LATEST)
    producer = at.producer(batching_enabled=True)
    seen = []
    for number in range(10):
        producer.send(b"%d" % number)
        seen.append((data(reader.read_next(COMES_MS)), reader.has_message_available()))
    return seen


@program()
def a_reader_of_partitions(at: At) -> Any:
    at.admin("PUT", f"persistent/public/default/{at.name}/partitions", 2)
    producer = at.producer()
    for number in range(6):
        producer.send(b"%d" % number, partition_key=f"k{number}")
    reader = at.reader()
    got = sorted(data(reader.read_next(COMES_MS)) for _ in range(6))
    return got, reader.has_message_available()


@program()
def a_table_view_has_the_newest_of_each_key(at: At) -> Any:
    producer = at.producer()
    for number in range(9):
        producer.send(b"%d" % number, partition_key=f"k{number % 3}")
    view = at.client.create_table_view(at.topic, "view")
    first = {key: view.get(key) for key in ("k0", "k1", "k2", "none")}
    producer.send(b"new", partition_key="k1")
    until(lambda: view.get("k1") == b"new")
    seen: dict[str, Any] = {}
    view.for_each(lambda key, value: seen.__setitem__(key, value))
    return first, seen, len(view), said(view.close)


@program()
def a_table_view_hears_of_changes(at: At) -> Any:
    producer = at.producer()
    producer.send(b"1", partition_key="a")
    view = at.client.create_table_view(at.topic)
    heard: list[Any] = []
    view.for_each_and_listen(lambda key, value: heard.append((key, value)))
    producer.send(b"2", partition_key="b")
    producer.send(b"", partition_key="a")
    until(lambda: len(heard) >= 3)
    return heard, view.get("a"), view.get("b")


@program()
def ids_are_kept_as_bytes(at: At) -> Any:
    ids = batch(at, range(3))
    stored = [pulsar.MessageId.deserialize(each.serialize()) for each in ids]
    reader = at.reader(stored[1])
    return [one == other for one, other in zip(ids, stored, strict=True)], places(stored), read_all(reader)


@program()
def two_ledgers_of_ids_are_in_order(at: At) -> Any:
    first, second = at.producer().send(b"1"), at.producer(f"{at.topic}-2").send(b"2")
    return first != second, str(first).count(","), (first < second) or (second < first)
