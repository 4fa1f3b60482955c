"""Options that other programs do not touch: of clients, of queues, of limits, of compacted topics."""

from __future__ import annotations

from typing import Any

import pulsar
import pulsar.schema as ps
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
    read_all,
    said,
    send_all,
    texts,
    until,
)
from google.protobuf.wrappers_pb2 import StringValue

QUIETLY = {"operation_timeout_seconds": 5}


def used(client: Any, at: At) -> Any:
    """Return whether a client can be used."""
    consumer = client.subscribe(at.topic, "s", initial_position=pulsar.InitialPosition.Earliest)
    client.create_producer(at.topic).send(b"m")
    return data(consumer.receive(COMES_MS))


@program(
    each={
        "threads": ({"io_threads": 3, "message_listener_threads": 2},),
        "limits": ({"concurrent_lookup_requests": 1, "connection_timeout_ms": 3_000},),
        "stats": ({"stats_interval_in_seconds": 1},),
        "a token": ({"authentication": pulsar.AuthenticationToken("token")},),
        "a password": ({"authentication": pulsar.AuthenticationBasic("me", "secret")},),
        "a listener that there is not": ({"listener_name": "nosuch"},),
    },
    differs={"a listener that there is not": Differs("listener-names", "m")},
)
def options_of_clients(at: At, options: dict[str, Any]) -> Any:
    return attempt(lambda: used(at.new_client(**QUIETLY, **options), at))


@program(each={"primary": (True,), "secondary": (False,)})
def automatic_failover(at: At, primary: bool) -> Any:
    there, nowhere = pulsar.ServiceInfo(at.side.service_url), pulsar.ServiceInfo("pulsar://127.0.0.1:1")
    first, second = (there, nowhere) if primary else (nowhere, there)
    way = pulsar.AutoClusterFailover(first, [second], check_interval_ms=100, failover_threshold=1)
    quietly = pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null")
    client = pulsar.Client(way, operation_timeout_seconds=10, logger=quietly)
    try:
        return attempt(lambda: used(client, at))
    finally:
        client.close()


@program()
def batches_end_at_their_limits(at: At) -> Any:
    by_count = at.producer(batching_enabled=True, batching_max_messages=3, batching_max_publish_delay_ms=500)
    counted = places(send_all(by_count, range(7)))
    by_size = at.producer(
        batching_enabled=True, batching_max_allowed_size_in_bytes=2_000, batching_max_publish_delay_ms=500
    )
    return counted, len({each[1] for each in places(send_all(by_size, [b"x" * 900] * 6))})


@program()
def a_message_that_is_too_big_fails_its_callback(at: At) -> Any:
    results: list[Any] = []
    producer = at.producer(batching_enabled=True)
    producer.send_async(bytes(6 * 1024 * 1024), lambda result, _: results.append(str(result)))
    until(lambda: results)
    return results, said(lambda: producer.send(b"small"))


@program(
    each={
        "max_pending_messages_across_partitions": ({"max_pending_messages_across_partitions": 10},),
        "properties": ({"properties": {"a": "b"}},),
        "blocking": ({"block_if_queue_full": True, "max_pending_messages": 2, "batching_enabled": True},),
        "send timeout": ({"send_timeout_millis": 0},),
    }
)
def options_of_producers(at: At, options: dict[str, Any]) -> Any:
    send_all(at.producer(**options), range(10))
    return texts(at.consumer(), 10)


@program(
    each={
        "total queue": ({"max_total_receiver_queue_size_across_partitions": 1},),
        "stats cache": ({"broker_consumer_stats_cache_time_ms": 1_000},),
        "chunks": ({"max_pending_chunked_message": 1, "auto_ack_oldest_chunked_message_on_queue_full": True},),
        "properties": ({"properties": {"a": "b"}},),
    }
)
def options_of_consumers(at: At, options: dict[str, Any]) -> Any:
    send_all(at.producer(), range(5))
    return texts(at.consumer(**options), 5)


@program(each={kind: (kind,) for kind in ("Exclusive", "Failover", "Shared", "KeyShared")})
def reading_compacted(at: At, kind: str) -> Any:
    producer = at.producer()
    for number in range(6):
        producer.send(b"%d" % number, partition_key=f"k{number % 2}")
    options = {"consumer_type": getattr(pulsar.ConsumerType, kind), "is_read_compacted": True}
    consumer = attempt(lambda: at.consumer(**options))
    return consumer if isinstance(consumer, str) else [data(each) for each in all_of(consumer)]


def without_the_tombstone(theirs: Any) -> Any:
    done, newest, everything, got, later = theirs
    return done, newest[:-1], everything, got[:-1], later


def compacted(at: At) -> bool:
    """Compact the topic, and wait for it."""
    begun, _ = at.admin("PUT", f"persistent/public/default/{at.name}/compaction")
    path = f"persistent/public/default/{at.name}/compaction"
    return begun == 204 and bool(until(lambda: at.admin("GET", path)[1]["status"] == "SUCCESS"))


NOTHING = {"null": None, "empty": b""}


@program(
    each={
        f"{what}{' in a batch' if batched else ''}": (value, batched)
        for what, value in NOTHING.items()
        for batched in (False, True)
    },
    differs={what: Differs("compacted-tombstones", without_the_tombstone) for what in NOTHING},
)
def readers_and_consumers_of_a_compacted_topic(at: At, nothing: Any, batched: bool) -> Any:
    producer = at.producer()
    for number in range(9):
        producer.send(b"%d" % number, partition_key=f"k{number % 3}")
    at.producer(batching_enabled=batched).send(nothing, partition_key="k0")
    batch(at, ["10", "11"])
    done = compacted(at)
    newest = read_all(at.reader(is_read_compacted=True))
    everything = read_all(at.reader())
    consumer = at.consumer(is_read_compacted=True)
    got = [data(each) for each in all_of(consumer)]
    producer.send(b"later", partition_key="k1")
    return done, newest, everything, got, texts(consumer, 1)


def without_what_is_compacted_out(theirs: Any) -> Any:
    done, compacted_end, newest, *rest = theirs
    return (done, compacted_end, newest[:-1], *rest)


@program(differs=Differs("compacted-out", without_what_is_compacted_out))
def ends_of_compacted_topics(at: At) -> Any:
    """Compact a batch so that its last message goes, then add a batch of one.

    Return what consumers and readers of both take for the end of the topic.
    """
    producer = at.producer(batching_enabled=True, batching_max_publish_delay_ms=10_000)
    for key, content in (("a", b"1"), ("b", b"2"), (None, b"no key")):
        producer.send_async(content, lambda *_: None, partition_key=key)
    producer.flush()
    done = compacted(at)
    reader = at.reader(is_read_compacted=True)
    compacted_end = at.consumer("compacted", is_read_compacted=True).get_last_message_id().batch_index()
    newest = read_all(reader)
    producer.send(b"3", partition_key="c")
    one = at.consumer("one").get_last_message_id().batch_index()
    latest = read_all(at.reader(pulsar.MessageId.latest, start_message_id_inclusive=True, is_read_compacted=True))
    return done, compacted_end, newest, one, latest, read_all(reader)


@program()
def native_protobuf(at: At) -> Any:
    schema = ps.ProtobufNativeSchema(StringValue)
    producer = at.producer(schema=schema)
    producer.send(StringValue(value="v"))
    got = at.consumer(schema=schema).receive(COMES_MS)
    return got.value().value, bool(got.schema_version()), said(lambda: at.producer(schema=ps.StringSchema()))


@program()
def answers_to_asking_again(at: At) -> Any:
    producer, consumer = at.producer(), at.consumer()
    return (
        said(producer.flush),
        producer.is_connected(),
        said(consumer.redeliver_unacknowledged_messages),
        said(consumer.pause_message_listener),
        said(consumer.resume_message_listener),
    )
