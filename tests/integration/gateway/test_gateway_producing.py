"""Producing by official clients: every kind of producer and message of the official Python client."""

from __future__ import annotations

import subprocess
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from gateway_support import ServedEngine

from replicator.engine.policies import BacklogQuota, QuotaPolicy, TopicPolicies
from replicator.gateway.connection import HELD_BYTES_MAX

pulsar = pytest.importorskip("pulsar")

WAIT_MS = 10_000


def reading(official: Any, topic: str, **options: Any) -> Any:
    return official.create_reader(topic, pulsar.MessageId.earliest, **options)


def contents(reader: Any, count: int) -> list[bytes]:
    return [reader.read_next(WAIT_MS).data() for _ in range(count)]


def test_single_messages_arrive_in_order_with_all_that_they_carry(official: Any, topic: str) -> None:
    producer = official.create_producer(topic, producer_name="me", properties={"of": "the producer"})
    before_ms = time.time_ns() // 1_000_000
    ids = [
        producer.send(
            b"m%d" % number,
            properties={"number": str(number)},
            partition_key=f"key {number}",
            ordering_key=f"order {number}",
            event_timestamp=1_000 + number,
        )
        for number in range(3)
    ]
    assert producer.producer_name() == "me"
    assert [each.batch_index() for each in ids] == [-1, -1, -1]
    assert ids == sorted(ids)
    reader = reading(official, topic)
    for number in range(3):
        got = reader.read_next(WAIT_MS)
        assert got.data() == b"m%d" % number
        assert got.message_id() == ids[number]
        assert got.properties() == {"number": str(number)}
        assert (got.partition_key(), got.ordering_key()) == (f"key {number}", f"order {number}")
        assert got.event_timestamp() == 1_000 + number
        assert before_ms <= got.publish_timestamp() <= before_ms + 60_000
        assert got.producer_name() == "me"
        assert got.topic_name() == topic
    assert not reader.has_message_available()


def test_a_batch_is_one_entry_and_its_messages_are_told_apart(official: Any, gateway: ServedEngine, topic: str) -> None:
    producer = official.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=5_000)
    ids: list[Any] = []
    for number in range(10):
        producer.send_async(b"m%d" % number, lambda _result, message_id: ids.append(message_id))
    producer.flush()
    assert [each.batch_index() for each in ids] == list(range(10))
    assert len({(each.ledger_id(), each.entry_id()) for each in ids}) == 1
    assert contents(reading(official, topic), 10) == [b"m%d" % number for number in range(10)]
    assert gateway.ask(lambda: gateway.engine.find(topic).log.last.entry) == 0  # type: ignore[union-attr]


def test_batches_by_key_hold_one_key_each(official: Any, topic: str) -> None:
    producer = official.create_producer(
        topic,
        batching_enabled=True,
        batching_type=pulsar.BatchingType.KeyBased,
        batching_max_publish_delay_ms=5_000,
    )
    for number in range(9):
        producer.send_async(b"%d" % number, None, partition_key=f"k{number % 3}")
    producer.flush()
    reader = reading(official, topic)
    got = [reader.read_next(WAIT_MS) for _ in range(9)]
    by_entry: dict[int, set[str]] = {}
    for message in got:
        by_entry.setdefault(message.message_id().entry_id(), set()).add(message.partition_key())
    assert sorted(by_entry) == [0, 1, 2]
    assert all(len(keys) == 1 for keys in by_entry.values())


@pytest.mark.parametrize("codec", ["LZ4", "ZLib", "ZSTD", "SNAPPY"])
@pytest.mark.parametrize("batched", [False, True])
def test_every_codec(official: Any, topic: str, codec: str, batched: bool) -> None:
    producer = official.create_producer(
        topic, compression_type=getattr(pulsar.CompressionType, codec), batching_enabled=batched
    )
    sent = [bytes([number]) * 5_000 for number in range(5)]
    for each in sent:
        producer.send_async(each, None)
    producer.flush()
    assert contents(reading(official, topic), 5) == sent


def test_a_message_larger_than_an_entry_goes_in_chunks(official: Any, gateway: ServedEngine, topic: str) -> None:
    producer = official.create_producer(topic, chunking_enabled=True)
    large = bytes(range(256)) * (12 * 1024 * 1024 // 256)
    message_id = producer.send(large)
    producer.send(b"small")
    assert contents(reading(official, topic), 2) == [large, b"small"]
    assert message_id.entry_id() == 2
    consumer = official.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
    consumer.acknowledge(consumer.receive(WAIT_MS))
    gateway.until(
        lambda: gateway.engine.find(topic).subscriptions["s"].mark_delete.entry == 2,  # type: ignore[union-attr]
        "all chunks are acknowledged",
    )


def test_without_chunking_a_message_larger_than_the_server_takes_is_refused_by_the_client(
    official: Any, topic: str
) -> None:
    producer = official.create_producer(topic)
    with pytest.raises(pulsar.MessageTooBig):
        producer.send(bytes(6 * 1024 * 1024))
    producer.send(bytes(5 * 1024 * 1024 - 2_000))
    assert len(reading(official, topic).read_next(WAIT_MS).data()) == 5 * 1024 * 1024 - 2_000


def test_encrypted_messages_are_read_by_those_who_have_the_key(official: Any, topic: str, tmp_path: Path) -> None:
    private, public = tmp_path / "private.pem", tmp_path / "public.pem"
    subprocess.run(["openssl", "genrsa", "-out", private, "2048"], check=True, capture_output=True)
    subprocess.run(["openssl", "rsa", "-in", private, "-pubout", "-out", public], check=True, capture_output=True)
    keys = pulsar.CryptoKeyReader(str(public), str(private))
    producer = official.create_producer(topic, encryption_key="k", crypto_key_reader=keys, batching_enabled=True)
    for number in range(3):
        producer.send_async(b"secret %d" % number, None)
    producer.flush()
    assert contents(reading(official, topic, crypto_key_reader=keys), 3) == [b"secret 0", b"secret 1", b"secret 2"]
    consume = pulsar.ConsumerCryptoFailureAction.CONSUME
    assert b"secret" not in reading(official, topic, crypto_failure_action=consume).read_next(WAIT_MS).data()


def test_a_delayed_message_comes_when_it_is_due_to_shared_consumers(official: Any, topic: str) -> None:
    consumer = official.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    producer = official.create_producer(topic)
    due_ms = time.time_ns() // 1_000_000 + 600
    producer.send(b"later", deliver_at=due_ms)
    producer.send(b"even later", deliver_after=timedelta(milliseconds=900))
    producer.send(b"now")
    assert consumer.receive(WAIT_MS).data() == b"now"
    assert consumer.receive(WAIT_MS).data() == b"later"
    assert time.time_ns() // 1_000_000 >= due_ms
    assert consumer.receive(WAIT_MS).data() == b"even later"


def test_what_was_sent_before_is_dropped_by_its_sequence_id(official: Any, gateway: ServedEngine, topic: str) -> None:
    async def deduplicated() -> None:
        await (await gateway.engine.topic(topic)).policies.set(TopicPolicies(deduplication=True))

    gateway.run(deduplicated())
    producer = official.create_producer(topic, producer_name="p")
    for sequence_id in (3, 7):
        producer.send(b"m%d" % sequence_id, sequence_id=sequence_id)
    assert producer.last_sequence_id() == 7
    producer.close()
    again = official.create_producer(topic, producer_name="p")
    assert again.last_sequence_id() == 7
    dropped = again.send(b"m7 again", sequence_id=7)
    assert (dropped.ledger_id(), dropped.entry_id()) == (-1, -1)
    again.send(b"m8", sequence_id=8)
    reader = reading(official, topic)
    assert contents(reader, 3) == [b"m3", b"m7", b"m8"]
    assert not reader.has_message_available()


def test_a_batch_that_was_sent_before_is_dropped_whole(official: Any, gateway: ServedEngine, topic: str) -> None:
    async def deduplicated() -> None:
        await (await gateway.engine.topic(topic)).policies.set(TopicPolicies(deduplication=True))

    gateway.run(deduplicated())
    for _ in range(2):
        producer = official.create_producer(
            topic, producer_name="p", initial_sequence_id=10, batching_enabled=True, batching_max_publish_delay_ms=5_000
        )
        for number in range(3):
            producer.send_async(b"m%d" % number, None, sequence_id=11 + number)
        producer.flush()
        assert producer.last_sequence_id() == 13
        producer.close()
    reader = reading(official, topic)
    assert contents(reader, 3) == [b"m0", b"m1", b"m2"]
    assert not reader.has_message_available()


def test_a_name_that_is_taken_is_busy(official: Any, topic: str) -> None:
    official.create_producer(topic, producer_name="me")
    with pytest.raises(pulsar.ProducerBusy):
        official.create_producer(topic, producer_name="me")


def test_an_exclusive_producer_is_alone(official: Any, topic: str) -> None:
    exclusive = official.create_producer(topic, access_mode=pulsar.ProducerAccessMode.Exclusive)
    exclusive.send(b"1")
    with pytest.raises(pulsar.ProducerFenced):
        official.create_producer(topic, access_mode=pulsar.ProducerAccessMode.Exclusive)
    with pytest.raises(pulsar.ProducerBusy):
        official.create_producer(topic)
    exclusive.close()
    official.create_producer(topic).send(b"2")


def test_who_waits_for_exclusive_gets_the_topic_when_it_is_free(gateway: ServedEngine, topic: str) -> None:
    client = pulsar.Client(gateway.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    first = client.create_producer(topic, access_mode=pulsar.ProducerAccessMode.Exclusive)
    waiting: list[Any] = []

    def wait() -> None:
        waiting.append(client.create_producer(topic, access_mode=pulsar.ProducerAccessMode.WaitForExclusive))

    thread = threading.Thread(target=wait)
    thread.start()
    gateway.until(
        lambda: gateway.engine.find(topic).producers.connected == 2,  # type: ignore[union-attr]
        "the second one waits",
    )
    assert not waiting
    first.close()
    thread.join(20)
    waiting[0].send(b"mine")
    client.close()


def test_who_fences_puts_the_others_out_and_they_hear_why(official: Any, topic: str) -> None:
    first = official.create_producer(topic, access_mode=pulsar.ProducerAccessMode.Exclusive)
    first.send(b"1")
    second = official.create_producer(topic, access_mode=pulsar.ProducerAccessMode.ExclusiveWithFencing)
    second.send(b"2")
    with pytest.raises((pulsar.ProducerFenced, pulsar.AlreadyClosed)):
        first.send(b"3")
    assert contents(reading(official, topic), 2) == [b"1", b"2"]


def test_a_topic_that_no_name_can_be_is_refused_by_name(gateway: ServedEngine) -> None:
    hasty = pulsar.Client(gateway.url, operation_timeout_seconds=1)  # it tries such a name again, and says no more
    with pytest.raises(pulsar.Timeout):
        hasty.create_producer("persistent://public/default/a/b/c/d")
    hasty.close()


def test_non_persistent_topics_are_refused_at_once(official: Any) -> None:
    with pytest.raises(pulsar.NotAllowedError):
        official.create_producer("non-persistent://public/default/t")


def test_a_backlog_over_its_quota_that_a_client_fills_and_consumes_by_one_connection(
    official: Any, gateway: ServedEngine, topic: str
) -> None:
    """The worker hears the client's acknowledgements, although more of its messages wait than a connection may have
    waiting."""
    padding = bytes(1024 * 1024)
    wanted = [b"%d" % number for number in range(HELD_BYTES_MAX // len(padding) + 8)]
    consumer = official.subscribe(topic, "s")
    producer = official.create_producer(topic, send_timeout_millis=0, block_if_queue_full=True)
    producer.send(b"first")
    there = gateway.run(gateway.engine.topic(topic))
    gateway.run(there.policies.set(TopicPolicies(backlog_quota=BacklogQuota(bytes_max=1))))
    gateway.run(gateway.engine.maintenance.run_once())
    assert there.writing.quota_exceeded is QuotaPolicy.PRODUCER_REQUEST_HOLD
    for number in wanted:
        producer.send_async(number + padding, lambda *_: None)
    gateway.until(lambda: there.producers.connected == 0, "the producer is still connected")
    consumer.acknowledge(consumer.receive(WAIT_MS))
    producer.flush()  # the backlog is within its quota
    got = contents(reading(official, topic), 1 + len(wanted))
    assert [content.rstrip(b"\0") for content in got] == [b"first", *wanted]
