"""The producer when a cluster answers late, refuses, or answers nothing: a channel driven by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from replicator.client.channel import ProducerEvents, ProducerReady
from replicator.client.errors import ConnectError, ProducerBlockedQuotaExceededError, Timeout
from replicator.client.producer import Producer
from replicator.client.settings import BatchLimits, ProducerSettings
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
    opened_with: list[tuple[str | None, int | None]] | None = None,
    **settings: Any,
) -> None:
    async def main() -> None:
        channels: list[HandChannel] = []

        async def open_channel(settings: ProducerSettings, topic_epoch: int | None) -> HandChannel:
            if opened_with is not None:
                opened_with.append((settings.producer_name, topic_epoch))
            channels.append(HandChannel(ready))
            return channels[-1]

        producer = Producer(
            ProducerSettings(TOPIC, **{"producer_name": "p", "batching": None, **settings}),
            open_channel,
            reconnect=reconnect,
            operation_timeout_seconds=5,
            on_close=lambda _: None,
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
        channels[0].events.on_receipt(1, Position(1, 0))
        assert producer.pending() == []
        assert producer.last_sequence_id() == -1
        in_time = producer.enqueue(b"in time")
        channels[0].events.on_receipt(2, Position(1, 1))
        assert (await in_time).entry_id() == 1

    run(scenario, send_timeout_ms=20)


def test_a_refused_entry_fails_its_own_messages_and_flush_tells() -> None:
    async def scenario(producer: Producer, channels: list[HandChannel]) -> None:
        first, second, third = (producer.enqueue(b"%d" % index) for index in range(3))
        flushing = asyncio.create_task(producer.flush())
        await asyncio.sleep(0)
        channels[0].events.on_receipt(1, Position(1, 0))
        channels[0].events.on_refused(2, ProducerBlockedQuotaExceededError("full"))
        channels[0].events.on_receipt(3, Position(1, 1))
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
        channels[0].events.on_receipt(1, Position(1, 0))
        await flushing
        assert len(producer.pending()) == 1

    run(scenario)


def test_after_a_loss_only_the_unconfirmed_entries_are_sent_again_as_they_were_before_newer_ones() -> None:
    async def scenario(producer: Producer, channels: list[HandChannel]) -> None:
        for index in range(3):
            producer.enqueue(b"%d" % index)
        channels[0].events.on_receipt(1, Position(1, 0))
        channels[0].events.on_lost(ConnectError("cut"))
        producer.enqueue(b"3")
        await until(lambda: len(channels) == 2 and len(channels[1].entries) == 3)
        producer.enqueue(b"4")
        assert channels[1].entries[:2] == channels[0].entries[1:]
        assert [entry_id for entry_id, _ in channels[1].entries] == [2, 3, 4, 5]

    run(scenario)


def test_sequence_ids_go_on_from_the_initial_one_and_the_batch_has_its_first_and_last() -> None:
    async def scenario(producer: Producer, channels: list[HandChannel]) -> None:
        assert producer.last_sequence_id() == 41
        confirmations = [producer.enqueue(b"%d" % index) for index in range(3)]
        channels[0].events.on_receipt(1, Position(1, 0))
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
        channels[0].events.on_receipt(1, Position(1, 0))
        channels[0].events.on_lost(ConnectError("cut"))
        assert [message.content for message in producer.pending()] == [b"2", b"3", b"4"]
        assert confirmations[1].exception() is None
        assert isinstance(confirmations[2].exception(), ConnectError)

    run(scenario, reconnect=False, batching=BatchLimits(messages_max=2))
