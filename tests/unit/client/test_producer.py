"""The producer when a cluster answers late, refuses, or answers nothing: a channel driven by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest

from replicator.client.errors import (
    ConnectError,
    InvalidMessage,
    MessageTooBig,
    ProducerBlockedQuotaExceededError,
    ProducerFenced,
    ProducerQueueIsFull,
    PulsarException,
    SchemaError,
    Timeout,
)
from replicator.client.message import ChunkMessageId
from replicator.client.producing.producer import Producer
from replicator.client.schema import Schema, StringSchema
from replicator.client.settings import BatchingType, BatchLimits, ProducerSettings
from replicator.client.wire.channel import ProducerEvents, ProducerReady
from replicator.engine.log.entry import METADATA_ROOM_BYTES, decode_entry, split_batch
from replicator.engine.types import DUPLICATE
from replicator.metadata.metadata_pb2 import MessageMetadata
from snapshots.position import Position

TOPIC = "persistent://public/default/t"


class HandChannel:
    """A producer channel that keeps what it is given, and confirms only what the test makes it confirm."""

    def __init__(self, ready: ProducerReady) -> None:
        self.ready = ready
        self.events: ProducerEvents
        self.entries: list[tuple[int, bytes]] = []

    def start(self, events: ProducerEvents) -> None:
        self.events = events

    def publish(self, entry_id: int, entry: bytes) -> None:
        self.entries.append((entry_id, entry))

    async def close(self) -> None:
        pass


def run(
    scenario: Callable[[Producer, list[HandChannel]], Awaitable[None]],
    *,
    reconnect: bool = True,
    ready: ProducerReady = ProducerReady("p", -1, None),  # noqa: B008  (a value)
    readies: Sequence[ProducerReady] = (),
    opened_with: list[tuple[str | None, int | None]] | None = None,
    schema: Schema | None = None,
    **settings: Any,
) -> None:
    async def main() -> None:
        channels: list[HandChannel] = []

        async def open_channel(settings: ProducerSettings, topic_epoch: int | None) -> HandChannel:
            if opened_with is not None:
                opened_with.append((settings.producer_name, topic_epoch))
            channels.append(HandChannel(readies[len(channels)] if readies else ready))
            return channels[-1]

        producer = Producer(
            ProducerSettings(TOPIC, **{"producer_name": "p", "batching": None, **settings}),
            open_channel,
            reconnect=reconnect,
            operation_timeout_seconds=5,
            on_close=lambda _: None,
            schema=schema,
        )
        await producer.connect()
        async with asyncio.timeout(10):
            await scenario(producer, channels)

    asyncio.run(main())


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  (there is no event to wait for)
        await asyncio.sleep(0)  # a turn of the event loop, not a wait for time to pass


def test_a_receipt_that_comes_after_the_timeout_changes_nothing() -> None:
    async def scenario(producer: Producer, channels: list[HandChannel]) -> None:
        late = producer.enqueue(b"late")
        with pytest.raises(Timeout):
            await late
        channels[0].events.on_receipts([1], [Position(1, 0)])
        assert producer.pending() == []
        assert producer.last_sequence_id() == -1
        in_time = producer.enqueue(b"in time")
        channels[0].events.on_receipts([2], [Position(1, 1)])
        assert (await in_time).entry_id() == 1

    run(scenario, send_timeout_ms=20)


def test_a_refused_entry_fails_its_own_messages_and_flush_tells() -> None:
    async def scenario(producer: Producer, channels: list[HandChannel]) -> None:
        first, second, third = (producer.enqueue(b"%d" % index) for index in range(3))
        flushing = asyncio.create_task(producer.flush())
        await asyncio.sleep(0)
        channels[0].events.on_receipts([1], [Position(1, 0)])
        channels[0].events.on_refused(2, ProducerBlockedQuotaExceededError("full"))
        channels[0].events.on_receipts([3], [Position(1, 1)])
        with pytest.raises(ProducerBlockedQuotaExceededError):
            await flushing
        assert (await first).entry_id() == 0
        with pytest.raises(ProducerBlockedQuotaExceededError):
            await second
        assert (await third).entry_id() == 1
        assert producer.pending() == []

    run(scenario)


def test_a_flush_waits_for_what_was_sent_before_it_and_not_for_what_comes_after() -> None:
    async def scenario(producer: Producer, channels: list[HandChannel]) -> None:
        producer.enqueue(b"before")
        flushing = asyncio.create_task(producer.flush())
        await asyncio.sleep(0)
        producer.enqueue(b"after")
        assert not flushing.done()
        channels[0].events.on_receipts([1], [Position(1, 0)])
        await flushing
        assert len(producer.pending()) == 1

    run(scenario)


def test_after_a_loss_only_the_unconfirmed_entries_are_sent_again_as_they_were_before_newer_ones() -> None:
    async def scenario(producer: Producer, channels: list[HandChannel]) -> None:
        for index in range(3):
            producer.enqueue(b"%d" % index)
        channels[0].events.on_receipts([1], [Position(1, 0)])
        channels[0].events.on_lost(ConnectError("cut"))
        producer.enqueue(b"3")
        await until(lambda: len(channels) == 2 and len(channels[1].entries) == 3)
        producer.enqueue(b"4")
        assert channels[1].entries[:2] == channels[0].entries[1:]
        assert [entry_id for entry_id, _ in channels[1].entries] == [2, 3, 4, 5]

    run(scenario)


def test_after_a_loss_messages_are_cut_as_the_cluster_takes_them_that_serves_now() -> None:
    """A failover may lead to one whose largest message is another."""
    ready = [ProducerReady("p", -1, None, message_bytes_max=size) for size in (2_000, 1_000)]

    async def chunks(producer: Producer, channels: list[HandChannel]) -> None:
        producer.enqueue(b"x" * 1_900)
        assert _sizes(channels[0]) == [1_900]
        channels[0].events.on_receipts([1], [Position(1, 0)])
        channels[0].events.on_lost(ConnectError("cut"))
        await until(lambda: len(channels) == 2)
        producer.enqueue(b"x" * 1_900)
        assert sum(_sizes(channels[1])) == 1_900
        assert max(_sizes(channels[1])) <= 1_000

    async def messages(producer: Producer, channels: list[HandChannel]) -> None:
        producer.enqueue(b"x" * 1_500)
        channels[0].events.on_receipts([1], [Position(1, 0)])
        channels[0].events.on_lost(ConnectError("cut"))
        await until(lambda: len(channels) == 2 and producer.is_connected())
        with pytest.raises(MessageTooBig):
            producer.enqueue(b"x" * 1_500)

    run(chunks, readies=ready, chunk_message_bytes=5_000)
    run(messages, readies=ready)


@pytest.mark.parametrize("kind", BatchingType)
def test_batches_are_no_larger_than_the_cluster_takes(kind: BatchingType) -> None:
    ready = ProducerReady("p", -1, None, message_bytes_max=64 * 1024)

    async def scenario(producer: Producer, channels: list[HandChannel]) -> None:
        for _ in range(200):
            producer.enqueue(b"x" * 999)
        producer.seal_batches()
        assert max(len(entry) for _, entry in channels[0].entries) <= 64 * 1024 + METADATA_ROOM_BYTES

    run(scenario, ready=ready, batching=BatchLimits(), batching_type=kind)


def test_sequence_ids_go_on_from_the_initial_one_and_the_batch_has_its_first_and_last() -> None:
    async def scenario(producer: Producer, channels: list[HandChannel]) -> None:
        assert producer.last_sequence_id() == 41
        confirmations = [producer.enqueue(b"%d" % index) for index in range(3)]
        channels[0].events.on_receipts([1], [Position(1, 0)])
        assert [(await confirmation).batch_index() for confirmation in confirmations] == [0, 1, 2]
        assert producer.last_sequence_id() == 44

    run(scenario, initial_sequence_id=41, batching=BatchLimits(messages_max=3))


def test_a_batch_goes_when_its_delay_is_over() -> None:
    async def scenario(producer: Producer, channels: list[HandChannel]) -> None:
        producer.enqueue(b"a")
        producer.enqueue(b"b")
        assert channels[0].entries == []
        await until(lambda: len(channels[0].entries) == 1)
        producer.enqueue(b"c")
        await until(lambda: len(channels[0].entries) == 2)

    run(scenario, batching=BatchLimits(publish_delay_ms=5))


def test_without_reconnecting_unconfirmed_messages_stay_listed_in_order() -> None:
    async def scenario(producer: Producer, channels: list[HandChannel]) -> None:
        confirmations = [producer.enqueue(b"%d" % index) for index in range(5)]
        channels[0].events.on_receipts([1], [Position(1, 0)])
        channels[0].events.on_lost(ConnectError("cut"))
        assert [message.content for message in producer.pending()] == [b"2", b"3", b"4"]
        assert confirmations[1].exception() is None
        assert isinstance(confirmations[2].exception(), ConnectError)

    run(scenario, reconnect=False, batching=BatchLimits(messages_max=2))


def _sizes(channel: HandChannel) -> list[int]:
    return [sum(map(len, contents)) for _, contents in _sent(channel)]


def _sent(channel: HandChannel) -> list[tuple[MessageMetadata, list[bytes]]]:
    """Return the entries that a channel was given: metadata and contents."""
    read = []
    for _, entry in channel.entries:
        metadata, payload = decode_entry(entry)
        batched = metadata.HasField("num_messages_in_batch")
        contents = [bytes(one.payload) for one in split_batch(metadata, payload)] if batched else [bytes(payload)]
        read.append((metadata, contents))
    return read


def test_the_cluster_names_the_producer_and_says_where_its_sequence_goes_on() -> None:
    opened_with: list[tuple[str | None, int | None]] = []

    async def scenario(producer: Producer, channels: list[HandChannel]) -> None:
        assert (producer.producer_name(), producer.last_sequence_id()) == ("chosen", 7)
        producer.enqueue(b"a")
        assert [(one.producer_name, one.sequence_id) for one, _ in _sent(channels[0])] == [("chosen", 8)]
        channels[0].events.on_lost(ConnectError("cut"))
        await until(lambda: len(channels) == 2 and bool(channels[1].entries))
        assert channels[1].entries == channels[0].entries
        assert opened_with == [(None, None), ("chosen", 3)]

    run(scenario, producer_name=None, ready=ProducerReady("chosen", 7, 3), opened_with=opened_with)


def test_an_initial_sequence_id_wins_over_what_the_topic_has() -> None:
    async def scenario(producer: Producer, channels: list[HandChannel]) -> None:
        assert producer.last_sequence_id() == 41
        producer.enqueue(b"a")
        assert _sent(channels[0])[0][0].sequence_id == 42

    run(scenario, initial_sequence_id=41, ready=ProducerReady("p", 7, None))


def test_a_fenced_producer_never_connects_again() -> None:
    async def scenario(producer: Producer, channels: list[HandChannel]) -> None:
        sent = producer.enqueue(b"a")
        channels[0].events.on_lost(ProducerFenced("another one took the topic"))
        with pytest.raises(ProducerFenced):
            await sent
        with pytest.raises(ProducerFenced):
            producer.enqueue(b"b")
        assert not producer.is_connected()
        assert len(channels) == 1
        assert [message.content for message in producer.pending()] == [b"a"], "what may not be stored is still known"
        await producer.close()
        assert producer.stats().messages_failed == 1

    run(scenario)


def test_a_message_that_the_topic_had_already_says_so() -> None:
    async def scenario(producer: Producer, channels: list[HandChannel]) -> None:
        first, second = producer.enqueue(b"a", sequence_id=3), producer.enqueue(b"b", sequence_id=9)
        channels[0].events.on_receipts([1], [DUPLICATE])
        channels[0].events.on_receipts([2], [Position(1, 5)])
        assert (await first).is_duplicate()
        assert not (await second).is_duplicate()
        stats = producer.stats()
        assert (stats.messages_confirmed, stats.messages_duplicate) == (2, 1)

    run(scenario)


def test_a_message_for_later_is_an_entry_of_its_own_between_the_batches() -> None:
    async def scenario(producer: Producer, channels: list[HandChannel]) -> None:
        producer.enqueue(b"a")
        producer.enqueue(b"later", deliver_at=5_000)
        producer.enqueue(b"b")
        producer.enqueue(b"in an hour", deliver_after=timedelta(hours=1))
        read = _sent(channels[0])
        assert [contents for _, contents in read] == [[b"a"], [b"later"], [b"b"], [b"in an hour"]]
        batched = [metadata.HasField("num_messages_in_batch") for metadata, _ in read]
        assert batched == [True, False, True, False]
        assert read[1][0].deliver_at_time == 5_000
        assert read[3][0].deliver_at_time - read[3][0].publish_time in range(3_599_000, 3_600_001)

    run(scenario, batching=BatchLimits(publish_delay_ms=60_000))


def test_with_batches_by_key_each_message_gets_the_place_in_its_own_batch() -> None:
    async def scenario(producer: Producer, channels: list[HandChannel]) -> None:
        sent = {key + str(n): producer.enqueue(b"", partition_key=key) for n in range(2) for key in ("A", "B", "C")}
        assert [metadata.partition_key for metadata, _ in _sent(channels[0])] == ["A", "B", "C"]
        channels[0].events.on_receipts([1], [Position(1, 10)])
        channels[0].events.on_refused(2, ProducerBlockedQuotaExceededError("full"))
        channels[0].events.on_receipts([3], [Position(1, 11)])
        places = {}
        for name, confirmation in sent.items():
            if confirmation.exception() is None:
                message_id = await confirmation
                places[name] = (message_id.entry_id(), message_id.batch_index(), message_id.batch_size())
        assert places == {"A0": (10, 0, 2), "A1": (10, 1, 2), "C0": (11, 0, 2), "C1": (11, 1, 2)}

    run(scenario, batching=BatchLimits(messages_max=6), batching_type=BatchingType.KeyBased)


CHUNKING: dict[str, Any] = {"chunk_message_bytes": 1_000}


def test_a_message_in_chunks_is_confirmed_with_the_positions_of_all_when_the_last_one_is_durable() -> None:
    async def scenario(producer: Producer, channels: list[HandChannel]) -> None:
        big, small = producer.enqueue(b"x" * 2_500), producer.enqueue(b"small")
        read = _sent(channels[0])
        assert [metadata.sequence_id for metadata, _ in read] == [0, 0, 0, 1]
        assert [metadata.num_chunks_from_msg for metadata, _ in read] == [3, 3, 3, 0]
        assert len({metadata.uuid for metadata, _ in read[:3]}) == 1
        for entry_id in (1, 2):
            channels[0].events.on_receipts([entry_id], [Position(1, entry_id)])
        assert not big.done()
        for entry_id in (3, 4):
            channels[0].events.on_receipts([entry_id], [Position(1, entry_id)])
        message_id = await big
        assert isinstance(message_id, ChunkMessageId)
        assert message_id.chunk_positions() == (Position(1, 1), Position(1, 2), Position(1, 3))
        assert not isinstance(await small, ChunkMessageId)
        assert producer.pending() == []

    run(scenario, **CHUNKING)


def test_a_refused_chunk_fails_its_message_and_the_other_chunks_with_it() -> None:
    async def scenario(producer: Producer, channels: list[HandChannel]) -> None:
        big, small = producer.enqueue(b"x" * 2_500), producer.enqueue(b"small")
        channels[0].events.on_receipts([1], [Position(1, 1)])
        channels[0].events.on_refused(2, ProducerBlockedQuotaExceededError("full"))
        with pytest.raises(ProducerBlockedQuotaExceededError):
            await big
        assert [message.content for message in producer.pending()] == [b"small"]
        channels[0].events.on_receipts([3], [Position(1, 3)])
        channels[0].events.on_receipts([4], [Position(1, 4)])
        assert (await small).entry_id() == 4
        assert producer.stats().messages_failed == 1

    run(scenario, **CHUNKING)


def test_after_a_loss_the_unconfirmed_chunks_are_sent_again_and_the_id_has_all_positions() -> None:
    async def scenario(producer: Producer, channels: list[HandChannel]) -> None:
        big = producer.enqueue(b"x" * 2_500)
        channels[0].events.on_receipts([1], [Position(1, 1)])
        channels[0].events.on_lost(ConnectError("cut"))
        await until(lambda: len(channels) == 2 and len(channels[1].entries) == 2)
        assert channels[1].entries == channels[0].entries[1:]
        channels[1].events.on_receipts([2], [Position(1, 7)])
        channels[1].events.on_receipts([3], [Position(1, 8)])
        message_id = await big
        assert isinstance(message_id, ChunkMessageId)
        assert message_id.chunk_positions() == (Position(1, 1), Position(1, 7), Position(1, 8))

    run(scenario, **CHUNKING)


def test_a_message_in_chunks_counts_once_against_the_limit() -> None:
    async def scenario(producer: Producer, channels: list[HandChannel]) -> None:
        producer.enqueue(b"x" * 2_500)
        producer.enqueue(b"y" * 2_500)
        with pytest.raises(ProducerQueueIsFull):
            producer.enqueue(b"z")

    run(scenario, max_pending_messages=2, **CHUNKING)


def test_a_waiter_for_room_that_is_cancelled_hands_its_turn_on() -> None:
    async def scenario(producer: Producer, channels: list[HandChannel]) -> None:
        producer.enqueue(b"a")
        first, second = (asyncio.create_task(producer.wait_for_room()) for _ in range(2))
        await asyncio.sleep(0)
        channels[0].events.on_receipts([1], [Position(1, 0)])
        first.cancel()
        await second
        assert first.cancelled()

    run(scenario, max_pending_messages=1)


def test_a_value_that_does_not_fit_the_schema_names_the_topic_and_takes_no_place() -> None:
    async def scenario(producer: Producer, channels: list[HandChannel]) -> None:
        with pytest.raises(SchemaError, match=f"{TOPIC}: StringSchema: the value is bytes"):
            await producer.send(b"bytes")
        with pytest.raises(SchemaError, match=TOPIC):
            await producer.send_many([5])
        assert producer.stats().messages_pending == 0
        producer.enqueue("text")
        assert _sent(channels[0])[0][1] == [b"text"]

    run(scenario, schema=StringSchema())


def test_keys_and_properties_may_be_as_large_as_the_cluster_takes_an_entry() -> None:
    ready = [ProducerReady("p", -1, None, message_bytes_max=size) for size in (8 * 1024 * 1024, 1_000)]
    large, small = {"k": "v" * 6 * 1024 * 1024}, {"k": "v" * 2_000}

    async def scenario(producer: Producer, channels: list[HandChannel]) -> None:
        producer.enqueue(b"x", properties=large)
        channels[0].events.on_receipts([1], [Position(1, 0)])
        channels[0].events.on_lost(ConnectError("cut"))
        await until(lambda: len(channels) == 2 and producer.is_connected())
        with pytest.raises(MessageTooBig, match="keys and properties"):
            producer.enqueue(b"x", properties=large)
        producer.enqueue(b"x", properties=small)  # beside the payload there is always some room

    run(scenario, readies=ready)


@pytest.mark.parametrize(
    ("arguments", "kind", "named"),
    [
        ({"content": "text"}, InvalidMessage, "bytes"),
        ({"content": b"", "partition_key": "\ud800"}, InvalidMessage, "UTF-8"),
        ({"content": b"", "ordering_key": "\ud800"}, InvalidMessage, "UTF-8"),
        ({"content": b"", "ordering_key": 5}, InvalidMessage, "text"),
        ({"content": b"", "sequence_id": -1}, InvalidMessage, "sequence_id"),
        ({"content": b"", "sequence_id": True}, InvalidMessage, "sequence_id"),
        ({"content": b"", "deliver_at": -1}, InvalidMessage, "deliver_at"),
        ({"content": b"", "deliver_at": 1, "deliver_after": timedelta()}, InvalidMessage, "not both"),
        ({"content": b"", "deliver_after": 5}, InvalidMessage, "timedelta"),
        ({"content": b"", "deliver_after": timedelta(seconds=-1)}, InvalidMessage, "timedelta"),
        ({"content": b"", "replication_clusters": "eu"}, InvalidMessage, "replication_clusters"),
        ({"content": b"", "replication_clusters": ["\ud800"]}, InvalidMessage, "replication_clusters"),
        ({"content": bytes(5 * 1024 * 1024 + 1)}, MessageTooBig, "limit"),
    ],
)
def test_a_message_that_cannot_be_sent_says_why_and_nothing_is_sent(
    arguments: dict[str, Any], kind: type[PulsarException], named: str
) -> None:
    async def scenario(producer: Producer, channels: list[HandChannel]) -> None:
        with pytest.raises(kind, match=named):
            await producer.send(**arguments)
        assert channels[0].entries == []
        assert producer.stats().messages_pending == 0

    run(scenario)


def test_statistics_are_logged_at_the_interval_that_was_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(producer: Producer, channels: list[HandChannel]) -> None:
        producer.enqueue(b"a")
        await until(lambda: bool(caplog.records))
        assert not producer.is_full()

    caplog.set_level("INFO", logger="replicator.client.producing.producer")
    run(scenario, stats_interval_seconds=1)
    assert "1 pending" in caplog.records[0].getMessage()
