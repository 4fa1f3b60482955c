"""Programs of producers: messages of every kind, batches, codecs, chunks, names, access modes, deduplication's
numbers."""

from __future__ import annotations

import functools
import subprocess
import tempfile
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pulsar
from differential.harness import (
    COMES_MS,
    At,
    Differs,
    all_of,
    attempt,
    batch,
    carried,
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

MODES = {
    "shared": pulsar.ProducerAccessMode.Shared,
    "exclusive": pulsar.ProducerAccessMode.Exclusive,
    "waiting": pulsar.ProducerAccessMode.WaitForExclusive,
    "fencing": pulsar.ProducerAccessMode.ExclusiveWithFencing,
}


@program(
    each={
        "plain": ({},),
        "empty": ({"content": b""},),
        "null": ({"content": None},),
        "null with a key": ({"content": None, "partition_key": "k"},),
        "properties": ({"properties": {"a": "1", "b": "", "ü": "ö"}},),
        "key": ({"partition_key": "key"},),
        "empty key": ({"partition_key": ""},),
        "ordering key": ({"partition_key": "key", "ordering_key": "other"},),
        "event time": ({"event_timestamp": 1_700_000_000_000},),
        "sequence id": ({"sequence_id": 77},),
        "not replicated": ({"disable_replication": True},),
        "to a cluster": ({"replication_clusters": ["peer"]},),
        "to a cluster that there is not": ({"replication_clusters": ["nowhere"]},),
    }
)
def one_message(at: At, options: dict[str, Any]) -> Any:
    producer = at.producer()
    options = {"content": b"m", **options}
    sent = producer.send(**options)
    (got,) = take(at.consumer(), 1)
    return carried(got), got.message_id() == sent, producer.last_sequence_id(), places([sent])


@program(
    each={
        "plain": ({},),
        "empty": ({"content": b""},),
        "null": ({"content": None},),
        "null with a key": ({"content": None, "partition_key": "k"},),
        "properties": ({"properties": {"a": "1"}},),
        "ordering key": ({"partition_key": "key", "ordering_key": "other"},),
        "event time": ({"event_timestamp": 1_700_000_000_000},),
    }
)
def messages_of_a_batch(at: At, options: dict[str, Any]) -> Any:
    producer = at.producer(batching_enabled=True, batching_max_publish_delay_ms=10_000)
    content = options.get("content", b"m")
    ids = send_all(producer, [content] * 3, **{key: value for key, value in options.items() if key != "content"})
    return places(ids), [carried(each) for each in take(at.consumer(), 3)]


@program()
def ids_of_single_messages(at: At) -> Any:
    producer = at.producer()
    ids = [producer.send(b"%d" % number) for number in range(5)]
    return places(ids), ids == sorted(ids), [each.ledger_id() >= 0 for each in ids]


@program(each={"of one": (1,), "of 2": (2,), "of 70": (70,), "of 1000": (1_000,)})
def ids_of_a_batch(at: At, size: int) -> Any:
    ids = batch(at, range(size))
    got = take(at.consumer(), size)
    return (
        places(ids)[:3],
        places(ids)[-1],
        [each.message_id() for each in got] == ids,
        [data(each) for each in got][-1],
    )


@program()
def batches_by_key_hold_one_key_each(at: At) -> Any:
    producer = at.producer(
        batching_enabled=True, batching_type=pulsar.BatchingType.KeyBased, batching_max_publish_delay_ms=10_000
    )
    for number in range(9):
        producer.send_async(b"%d" % number, None, partition_key=f"k{number % 3}")
    producer.flush()
    got = take(at.consumer(), 9)
    entries: dict[int, list[Any]] = {}
    for each in got:
        entries.setdefault(each.message_id().entry_id(), []).append((each.partition_key(), data(each)))
    return sorted(entries), sorted(entries.values())


CODECS = ("NONE", "LZ4", "ZLib", "ZSTD", "SNAPPY")


@program(each={f"{codec}, {kind}": (codec, kind == "batched") for codec in CODECS for kind in ("single", "batched")})
def compression(at: At, codec: str, batched: bool) -> Any:
    producer = at.producer(compression_type=getattr(pulsar.CompressionType, codec), batching_enabled=batched)
    send_all(producer, [bytes([65 + number]) * 3_000 for number in range(4)])
    return texts(at.consumer(), 4)


@program(each={"plain": ({},), "compressed": ({"compression_type": pulsar.CompressionType.LZ4},)})
def chunked_messages(at: At, options: dict[str, Any]) -> Any:
    producer = at.producer(chunking_enabled=True, **options)
    large = functools.reduce(
        lambda so_far, _: so_far + so_far[-65_536:][::-1] + b"%d" % len(so_far), range(100), b"x" * 65_536
    )
    large += bytes(range(256)) * 40_000
    first, second = producer.send(large), producer.send(b"small")
    consumer = at.consumer()
    got = take(consumer, 2)
    consumer.acknowledge(got[0])
    consumer.close()
    return (
        [each.data() for each in got] == [large, b"small"],
        second.entry_id() > first.entry_id(),
        [each.message_id() == sent for each, sent in zip(got, (first, second), strict=True)],
        texts(at.consumer(), 1),
    )


@program()
def a_message_in_chunks_is_one_for_a_reader(at: At) -> Any:
    producer = at.producer(chunking_enabled=True)
    large = b"y" * (11 * 1024 * 1024)
    ids = [producer.send(b"before"), producer.send(large), producer.send(b"after")]
    reader = at.reader()
    sizes = [len(reader.read_next(COMES_MS).data()) for _ in range(3)]
    more = reader.has_message_available()
    later = at.reader(ids[1], start_message_id_inclusive=True)
    return sizes, more, len(later.read_next(COMES_MS).data()), places(ids)


@program(each={"5 MiB": (5 * 1024 * 1024,), "5 MiB and one": (5 * 1024 * 1024 + 1,), "6 MiB": (6 * 1024 * 1024,)})
def a_large_message(at: At, size: int) -> Any:
    producer = at.producer()
    outcome = said(lambda: producer.send(bytes(size)))
    return outcome, said(lambda: producer.send(b"small"))


@functools.cache
def _keys() -> tuple[str, str]:
    directory = Path(tempfile.mkdtemp(prefix="differential-keys-"))
    private, public = directory / "private.pem", directory / "public.pem"
    subprocess.run(["openssl", "genrsa", "-out", private, "2048"], check=True, capture_output=True)
    subprocess.run(["openssl", "rsa", "-in", private, "-pubout", "-out", public], check=True, capture_output=True)
    return str(public), str(private)


@program(
    each={
        f"{action}, {kind}": (action, kind == "batched")
        for action in ("with the key", "FAIL", "DISCARD", "CONSUME")
        for kind in ("single", "batched")
    }
)
def encryption(at: At, action: str, batched: bool) -> Any:
    keys = pulsar.CryptoKeyReader(*_keys())
    producer = at.producer(encryption_key="k", crypto_key_reader=keys, batching_enabled=batched)
    send_all(producer, [b"secret %d" % number for number in range(3)])
    at.producer().send(b"open")
    if action == "with the key":
        return texts(at.consumer(crypto_key_reader=keys), 4)
    got = all_of(at.consumer(crypto_failure_action=getattr(pulsar.ConsumerCryptoFailureAction, action)))
    contexts = [each.encryption_context() for each in got]
    return (
        [data(each) if data(each) == "open" else "unreadable" for each in got],
        [
            None if each is None else ([key.key for key in each.keys()], each.is_decryption_failed())  # noqa: SIM118
            for each in contexts
        ],
    )


@program(each={kind: (kind,) for kind in ("Exclusive", "Shared", "Failover", "KeyShared")})
def delayed_messages(at: At, kind: str) -> Any:
    consumer = at.consumer(consumer_type=getattr(pulsar.ConsumerType, kind))
    producer = at.producer()
    producer.send(b"third", deliver_after=timedelta(seconds=5))
    producer.send(b"second", deliver_at=time.time_ns() // 1_000_000 + 1_500)
    producer.send(b"first")
    producer.send(b"past", deliver_at=1_000)
    return texts(consumer, 4, acknowledge=True)


@program()
def names_of_producers(at: At) -> Any:
    named, unnamed = at.producer(producer_name="me"), at.producer()
    named.send(b"m")
    (got,) = take(at.consumer(), 1)
    return (
        named.producer_name(),
        unnamed.producer_name().startswith("peer-"),
        named.topic() == at.topic,
        got.producer_name(),
        got.topic_name() == at.topic,
        said(lambda: at.producer(producer_name="me")),
        said(named.close),
        said(lambda: at.producer(producer_name="me")),
    )


@program()
def a_name_is_taken_by_another_connection(at: At) -> Any:
    at.producer(producer_name="me")
    other = at.new_client()
    return said(lambda: other.create_producer(at.topic, producer_name="me"))


@program()
def states_of_a_producer(at: At) -> Any:
    producer = at.producer(properties={"a": "b"})
    before = producer.is_connected(), producer.last_sequence_id()
    producer.send(b"m")
    after = producer.last_sequence_id()
    closing = said(producer.close)
    return (
        before,
        after,
        closing,
        producer.is_connected(),
        said(producer.close),
        said(lambda: producer.send(b"late")),
        said(producer.flush),
    )


@program()
def sequence_ids(at: At) -> Any:
    producer = at.producer(producer_name="counted", initial_sequence_id=100)
    seen = [producer.last_sequence_id()]
    producer.send(b"a")
    seen.append(producer.last_sequence_id())
    producer.send(b"b", sequence_id=500)
    seen.append(producer.last_sequence_id())
    producer.send(b"c")
    seen.append(producer.last_sequence_id())
    producer.close()
    return seen, at.producer(producer_name="counted").last_sequence_id(), texts(at.consumer(), 3)


@program()
def sequence_ids_without_deduplication_may_repeat(at: At) -> Any:
    producer = at.producer(producer_name="again")
    ids = [producer.send(b"%d" % number, sequence_id=sequence) for number, sequence in enumerate((5, 5, 3, 6))]
    return places(ids), texts(at.consumer(), 4)


@program(
    each={
        f"{first}, then {second}": (first, second)
        for first in ("shared", "exclusive", "waiting", "fencing")
        for second in MODES
    },
    differs={
        "shared, then waiting": Differs("waiting-behind-shared", ("waits", "fine", "fine")),
        "waiting, then fencing": Differs("fenced-while-waiting", ("connected", "!ProducerFenced", "fine")),
    },
)
def access_modes(at: At, first: str, second: str) -> Any:
    holder = at.producer(access_mode=MODES[first], send_timeout_millis=4_000)
    outcome: list[Any] = []
    other = at.new_client()

    def connect() -> None:
        try:
            outcome.append(other.create_producer(at.topic, access_mode=MODES[second]))
        except pulsar.PulsarException as error:
            outcome.append(f"!{type(error).__name__}")

    connecting = threading.Thread(target=connect, daemon=True)
    connecting.start()
    connecting.join(1.5)
    at_first = "waits" if not outcome else outcome[0] if isinstance(outcome[0], str) else "connected"
    held = said(lambda: holder.send(b"held"))
    said(holder.close)
    connecting.join(5)
    at_last = "waits" if not outcome else outcome[0] if isinstance(outcome[0], str) else "connected"
    if at_last == "connected":
        at_last = said(lambda: outcome[0].send(b"other"))
    return at_first, held, at_last


@program()
def who_was_fenced_stays_out(at: At) -> Any:
    first = at.producer(access_mode=MODES["exclusive"])
    first.send(b"1")
    second = at.new_client().create_producer(at.topic, access_mode=MODES["fencing"])
    second.send(b"2")
    outcomes = [said(lambda: first.send(b"lost")), said(lambda: first.send(b"lost too"))]
    second.send(b"3")
    return outcomes, texts(at.consumer(), 3)


@program()
def a_consumer_does_not_hinder_an_exclusive_producer(at: At) -> Any:
    consumer = at.consumer()
    producer = at.producer(access_mode=MODES["exclusive"])
    producer.send(b"m")
    return texts(consumer, 1)


@program()
def a_full_queue_of_a_producer(at: At) -> Any:
    producer = at.producer(
        max_pending_messages=3, batching_enabled=True, batching_max_publish_delay_ms=60_000, block_if_queue_full=False
    )
    results: list[Any] = []
    for number in range(5):
        producer.send_async(b"%d" % number, lambda result, _: results.append(str(result)))
    producer.flush()
    until(lambda: len(results) == 5)
    return sorted(results), texts(at.consumer(), 3)


@program()
def closing_a_client_closes_what_it_made(at: At) -> Any:
    client = at.new_client()
    producer, consumer = client.create_producer(at.topic), client.subscribe(at.topic, "s")
    client.close()
    return (
        said(lambda: producer.send(b"late")),
        said(lambda: consumer.receive(100)),
        said(lambda: client.create_producer(at.topic)),
        said(client.close),
        said(lambda: at.consumer("s")),
    )


@program()
def many_producers_of_a_topic_keep_their_order(at: At) -> Any:
    producers = [at.producer(producer_name=f"p{number}", batching_enabled=True) for number in range(4)]
    for number in range(25):
        for which, producer in enumerate(producers):
            producer.send_async(b"%d:%d" % (which, number), None)
    for producer in producers:
        producer.flush()
    got = texts(at.consumer(), 100)
    return {which: [each for each in got if each.startswith(f"{which}:")] for which in range(4)}


@program()
def nothing_is_sent_to_a_topic_that_is_deleted_under_it(at: At) -> Any:
    producer = at.producer()
    first = producer.send(b"1")
    return places([first]), quiet(at.consumer("late", initial_position=pulsar.InitialPosition.Latest))


@program()
def a_router_of_ones_own(at: At) -> Any:
    at.admin("PUT", f"persistent/public/default/{at.name}/partitions", 3)
    producer = at.producer(
        message_routing_mode=pulsar.PartitionsRoutingMode.CustomPartition,
        message_router=lambda message, partitions: int(message.data()) % partitions,
    )
    ids = [producer.send(b"%d" % number) for number in range(6)]
    return (
        [each.partition() for each in ids],
        attempt(lambda: at.client.get_topic_partitions(at.topic) and len(at.client.get_topic_partitions(at.topic))),
        read_all_partitions(at, 3),
    )


def read_all_partitions(at: At, count: int) -> list[Any]:
    return [read_all(at.reader(topic=f"{at.topic}-partition-{number}")) for number in range(count)]
