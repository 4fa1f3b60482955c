"""Groups ``publish``, ``copy`` and ``consume``: one backlog for each case, over the network, between two workers.

1. The source's worker runs alone; its link finds no destination. The backlog is published there by the client, in
   parts: each is a run of ``publish``. A message counts when it is confirmed, so synced.
2. Before each run of ``copy`` the disk has written all that it was given. Then an empty destination is started; the
   link connects, and the backlog is on its way.
3. For each run of ``consume`` a new subscription reads from the source's first message, and acknowledges.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Final

import aiohttp

from bench.arrival import LOOK_EVERY_SECONDS, Arrival, arrival_during
from bench.cases import RUNS, Case
from bench.clusters import DESTINATION, SOURCE, TwoClusters
from bench.disk import settle
from replicator.client import Client, ConsumerType, InitialPosition, PartitionedProducer, Producer, ProducerQueueIsFull

ENQUEUED_AT_ONCE: Final = 256
"""Messages enqueued before the event loop looks at its sockets again; both loop and connection stay busy."""
CONSUMED_MESSAGES_MAX: Final = 120_000
"""Messages that one run consumes of a backlog: a second or two."""
RECEIVE_QUEUE_MESSAGES: Final = 20_000
RECEIVE_MANY_MESSAGES: Final = 1_000


async def measure_case(case: Case, groups: Collection[str], directory: Path) -> dict[str, list[float]]:
    """Measure a case, and return the rates of its runs by group, for those of ``groups`` that this module has."""
    measured: dict[str, list[float]] = {}
    async with TwoClusters(directory) as clusters:
        await clusters.start(SOURCE)
        measured["publish"] = await publish_rates(clusters.client_url(SOURCE), case)
        if "copy" in groups:
            measured["copy"] = await copy_rates(clusters, case.of_copies(), published=case.messages)
        if "consume" in groups:
            measured["consume"] = await consume_rates(clusters.client_url(SOURCE), case)
    return {group: runs for group, runs in measured.items() if group in groups}


async def publish_rates(url: str, case: Case) -> list[float]:
    """Publish the whole backlog of ``case`` in :data:`RUNS` parts to the broker at ``url``; return each part's rate."""
    rates = []
    payload = bytes(case.size_bytes)
    async with Client(url) as client:
        producer = await client.create_producer(
            case.topic, batching_enabled=case.batched, max_pending_messages=case.pending_messages_max
        )
        for _ in range(RUNS):
            count = case.messages // RUNS
            began = time.monotonic()
            await publish(producer, payload, count)
            rates.append(case.rate(count, time.monotonic() - began))
    return rates


async def publish(producer: Producer | PartitionedProducer, payload: bytes, count: int) -> None:
    """Publish ``count`` messages without waiting for each confirmation; return when all are confirmed."""
    for index in range(count):
        try:
            producer.enqueue(payload)
        except ProducerQueueIsFull:
            await producer.wait_for_room()
            producer.enqueue(payload)
        if index % ENQUEUED_AT_ONCE == 0:
            await asyncio.sleep(0)
    await producer.flush()


async def copy_rates(clusters: TwoClusters, case: Case, *, published: int) -> list[float]:
    """Copy the case's backlog into an empty destination :data:`RUNS` times, and return the rate of each run.

    ``published`` messages of it stand at the source already; the others are published first.
    """
    await publish_rates(clusters.client_url(SOURCE), replace(case, messages=case.messages - published))
    rates = []
    for _ in range(RUNS):
        await settle()
        rates.append(case.rate(case.messages, (await copy_once(clusters, case)).seconds))
    await clusters.stop(DESTINATION)
    return rates


async def copy_once(clusters: TwoClusters, case: Case) -> Arrival:
    """Copy the whole backlog into an empty destination, which runs afterwards; return the times of its arrival.

    It is looked at while it starts, and has nothing until it answers: a link may be faster than whoever waits for its
    destination to be ready.
    """
    await clusters.empty(DESTINATION)

    async def messages() -> int:
        try:
            return await clusters.messages(DESTINATION, case.topic)
        except aiohttp.ClientError:
            return 0

    return await arrival_during(clusters.start(DESTINATION), messages, case.messages, LOOK_EVERY_SECONDS)


async def consume_rates(url: str, case: Case) -> list[float]:
    """Consume a topic in :data:`RUNS` runs, each with a new subscription; return the rate of each run.

    A run begins with the first message, and ends after :data:`CONSUMED_MESSAGES_MAX` if there are more.
    """
    rates = []
    wanted = min(case.messages, CONSUMED_MESSAGES_MAX)
    queue = min(RECEIVE_QUEUE_MESSAGES, case.pending_messages_max)
    async with Client(url) as client:
        for run in range(RUNS):
            consumer = await client.subscribe(
                case.topic,
                f"run-{run}",
                ConsumerType.Exclusive,
                initial_position=InitialPosition.Earliest,
                receiver_queue_size=queue,
            )
            began = time.monotonic()
            consumed = 0
            while consumed < wanted:
                messages = await consumer.receive_many(RECEIVE_MANY_MESSAGES)
                consumed += len(messages)
                await consumer.acknowledge_cumulative(messages[-1])
            rates.append(case.rate(consumed, time.monotonic() - began))
            await consumer.close()
    return rates
