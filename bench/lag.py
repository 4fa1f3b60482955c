"""Group ``lag``: from a message's confirmation at the source to its arrival at a consumer of the destination.

Producer and consumer are in this process, so one clock serves both. Each message carries its number.

1. Find what the path sustains: publish as fast as is confirmed, and see at what rate it arrives.
2. Publish at half of that rate, evenly, and measure each message.

Both workers, the producer and the consumer share this machine's cores, so the sustained rate is lower than that of
``copy`` or ``publish`` alone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from bench.clusters import DESTINATION, SOURCE, TwoClusters
from bench.collector import without_collector
from bench.measurement import Measurement, percentile
from bench.network import publish
from replicator.client import (
    Client,
    Consumer,
    InitialPosition,
    Message,
    MessageId,
    MultiTopicsConsumer,
    PartitionedProducer,
    Producer,
    ProducerQueueIsFull,
)

MESSAGE_BYTES: Final = 100
PROBE_MESSAGES: Final = 150_000
HALF_LOAD_SECONDS: Final = 3.0
RUNS: Final = 3
QUEUE_MESSAGES: Final = 20_000
BATCH_DELAY_MS: Final = 1
TICK_SECONDS: Final = 0.002
"""Pause between the groups in which messages are published: the shortest that the event loop keeps reliably."""
TOPIC: Final = "persistent://bench/default/lag"
ARRIVAL_SECONDS_MAX: Final = 60.0
_NUMBER_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class Lag:
    """Rate that a path sustains, in messages a second, and each message's lag at half that rate, run by run."""

    sustained: float
    runs_ms: tuple[tuple[float, ...], ...]

    def percentiles(self, percent: float) -> tuple[float, ...]:
        """Return the percentile ``percent`` of the lag of each run, in milliseconds."""
        return tuple(percentile(run, percent) for run in self.runs_ms)


async def measure_lag(directory: Path) -> list[Measurement]:
    """Return the sustained rate of 100 B messages in producer batches, and p50 and p99 of the lag at half of it."""
    async with TwoClusters(directory) as clusters:
        await clusters.start(SOURCE, DESTINATION)
        return await measure_lag_between(clusters, "lag/100B/batched")


async def measure_lag_between(clusters: TwoClusters, name: str) -> list[Measurement]:
    """Return figures as :func:`measure_lag` does, between clusters that run. ``name`` begins the figures' names."""
    lag = await lag_between(clusters.client_url(SOURCE), clusters.client_url(DESTINATION), TOPIC)
    return [
        Measurement(f"{name}/sustained", "msg/s", (lag.sustained,)),
        Measurement(f"{name}/p50", "ms", lag.percentiles(50)),
        Measurement(f"{name}/p99", "ms", lag.percentiles(99)),
    ]


async def lag_between(source_url: str, destination_url: str, topic: str) -> Lag:
    """Return the sustained rate and the lag of ``topic``, which one running broker copies to another."""
    async with Client(source_url) as source, Client(destination_url) as destination:
        producer = await source.create_producer(
            topic, max_pending_messages=QUEUE_MESSAGES, batching_max_publish_delay_ms=BATCH_DELAY_MS
        )
        consumer = await destination.subscribe(
            topic, "lag", initial_position=InitialPosition.Earliest, receiver_queue_size=QUEUE_MESSAGES
        )
        rate = await _sustained_rate(producer, consumer)
        with without_collector():
            return Lag(rate, tuple([tuple(await _lags_ms(producer, consumer, rate / 2)) for _ in range(RUNS)]))


async def _sustained_rate(producer: Producer | PartitionedProducer, consumer: Consumer | MultiTopicsConsumer) -> float:
    began = time.monotonic()
    consuming = asyncio.create_task(_consume(consumer, PROBE_MESSAGES, lambda message: None))
    await publish(producer, bytes(MESSAGE_BYTES), PROBE_MESSAGES)
    async with asyncio.timeout(ARRIVAL_SECONDS_MAX):
        await consuming
    return PROBE_MESSAGES / (time.monotonic() - began)


async def _lags_ms(
    producer: Producer | PartitionedProducer, consumer: Consumer | MultiTopicsConsumer, rate: float
) -> list[float]:
    """Publish ``rate`` messages a second; return each message's ms from its confirmation to its arrival."""
    count = int(rate * HALF_LOAD_SECONDS)
    confirmed = [0.0] * count
    arrived = [0.0] * count

    def on_confirmed(number: int, _: asyncio.Future[MessageId]) -> None:
        confirmed[number] = time.monotonic()

    def on_arrived(message: Message) -> None:
        arrived[int.from_bytes(message.data()[:_NUMBER_BYTES], "big")] = time.monotonic()

    consuming = asyncio.create_task(_consume(consumer, count, on_arrived))
    filling = bytes(MESSAGE_BYTES - _NUMBER_BYTES)
    began = time.monotonic()
    number = 0
    while number < count:
        due = min(count, int((time.monotonic() - began) * rate))
        while number < due:
            payload = number.to_bytes(_NUMBER_BYTES, "big") + filling
            try:
                confirmation = producer.enqueue(payload)
            except ProducerQueueIsFull:  # the source stood still: the rest is late, and counts from its confirmation
                await producer.wait_for_room()
                confirmation = producer.enqueue(payload)
            confirmation.add_done_callback(partial(on_confirmed, number))
            number += 1
        await asyncio.sleep(TICK_SECONDS)
    await producer.flush()
    async with asyncio.timeout(ARRIVAL_SECONDS_MAX):
        await consuming
    return [(there - here) * 1000 for here, there in zip(confirmed, arrived, strict=True)]


async def _consume(consumer: Consumer | MultiTopicsConsumer, count: int, on_message: Callable[[Message], None]) -> None:
    consumed = 0
    while consumed < count:
        messages = await consumer.receive_many()
        for message in messages:
            on_message(message)
        consumed += len(messages)
        await consumer.acknowledge_cumulative(messages[-1])
