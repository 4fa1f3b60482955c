"""Group ``sync``: from an acknowledgement at the source to its being seen at the destination, and its cost in markers.

A Shared subscription is replicated. Its consumer at the source acknowledges single messages, out of order, at an even
rate. The destination is asked for the subscription's backlog again and again: the k-th acknowledgement is seen there
when k messages count as consumed, as changes travel in the order of their time.
"""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path
from typing import Any, Final

import aiohttp

from bench.clusters import DESTINATION, SOURCE, TwoClusters
from bench.collector import without_collector
from bench.measurement import Measurement, percentile
from bench.network import publish
from replicator.client import Client, ConsumerType, InitialPosition, Message

TOPIC: Final = "persistent://bench/default/sync"
STATS: Final = "/admin/v2/persistent/bench/default/sync/stats"
SUBSCRIPTION: Final = "sync"
MESSAGE_BYTES: Final = 100
MESSAGES: Final = 3_000
ACKS_A_SECOND: Final = 500
TICK_SECONDS: Final = 0.005
LOOK_EVERY_SECONDS: Final = 0.003
"""Pause between looks at the destination. A look takes its event loop up to 1 ms; more would distort the figure."""
RUNS: Final = 3
SEEN_SECONDS_MAX: Final = 30.0


async def measure_sync(directory: Path) -> list[Measurement]:
    """Return p50 and p99 from an acknowledgement until the destination shows it, and the update markers a second."""
    async with TwoClusters(directory) as clusters:
        await clusters.start(SOURCE, DESTINATION)
        return await measure_acknowledgements(clusters, "sync")


async def measure_acknowledgements(clusters: TwoClusters, name: str) -> list[Measurement]:
    """Return the figures of :func:`measure_sync` for clusters that run, with any carrier of the links.

    ``name`` begins the figures' names.
    """
    async with aiohttp.ClientSession() as session, Client(clusters.client_url(SOURCE)) as client:
        producer = await client.create_producer(TOPIC, batching_enabled=False)
        consumer = await client.subscribe(
            TOPIC,
            SUBSCRIPTION,
            ConsumerType.Shared,
            initial_position=InitialPosition.Earliest,
            replicate_subscription_state_enabled=True,
            receiver_queue_size=2 * MESSAGES,
            acknowledgement_group_time_ms=0,
        )
        lags: list[list[float]] = []
        updates: list[float] = []
        for run in range(RUNS):
            await publish(producer, bytes(MESSAGE_BYTES), MESSAGES)
            messages: list[Message] = []
            while len(messages) < MESSAGES:
                messages += await consumer.receive_many()
            await _backlog_is(session, clusters.url(DESTINATION), MESSAGES)
            random.Random(run).shuffle(messages)
            before = await _updates_sent(session, clusters.url(SOURCE))
            with without_collector():
                acknowledged, seen = await asyncio.gather(
                    _acknowledge(consumer, messages), _watch(session, clusters.url(DESTINATION))
                )
            seconds = acknowledged[-1] - acknowledged[0]
            updates.append((await _updates_sent(session, clusters.url(SOURCE)) - before) / seconds)
            lags.append([(there - here) * 1000 for here, there in zip(acknowledged, seen, strict=True)])
    return [
        Measurement(f"{name}/acknowledgement/p50", "ms", tuple(percentile(run, 50) for run in lags)),
        Measurement(f"{name}/acknowledgement/p99", "ms", tuple(percentile(run, 99) for run in lags)),
        Measurement(f"{name}/updates", "updates/s", tuple(updates)),
    ]


async def _acknowledge(consumer: Any, messages: list[Message]) -> list[float]:
    """Acknowledge messages in order, evenly at :data:`ACKS_A_SECOND`; return the time at which each was confirmed."""
    times: list[float] = []
    began = time.monotonic()
    for number, message in enumerate(messages):
        while (time.monotonic() - began) * ACKS_A_SECOND < number:  # noqa: ASYNC110 - it waits for the time
            await asyncio.sleep(TICK_SECONDS)
        await consumer.acknowledge(message)
        times.append(time.monotonic())
    return times


async def _watch(session: aiohttp.ClientSession, url: str) -> list[float]:
    """Watch the destination's backlog; return the times at which 1, 2, 3 … messages were seen to be consumed."""
    times: list[float] = []
    async with asyncio.timeout(MESSAGES / ACKS_A_SECOND + SEEN_SECONDS_MAX):
        while len(times) < MESSAGES:
            consumed = MESSAGES - await _backlog(session, url)
            now = time.monotonic()
            times += [now] * (consumed - len(times))
            await asyncio.sleep(LOOK_EVERY_SECONDS)
    return times


async def _backlog_is(session: aiohttp.ClientSession, url: str, messages: int) -> None:
    async with asyncio.timeout(SEEN_SECONDS_MAX):
        while await _backlog(session, url) != messages:  # noqa: ASYNC110 - another process tells when it is asked
            await asyncio.sleep(TICK_SECONDS)


async def _backlog(session: aiohttp.ClientSession, url: str) -> int:
    """Return the subscription's backlog in messages at the cluster of ``url``; -1 while it has no such subscription."""
    async with session.get(url + STATS) as response:
        if response.status != 200:
            return -1
        subscription = (await response.json())["subscriptions"].get(SUBSCRIPTION)
    return -1 if subscription is None else int(subscription["msgBacklog"])


async def _updates_sent(session: aiohttp.ClientSession, url: str) -> int:
    async with session.get(url + "/replication/v1/status") as response:
        return int((await response.json())["counters"]["updates_sent"])
