"""Rates of outgoing messages: deliveries to official consumers count in the statistics over REST, also after they
leave."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from admin_support import Admin, administered
from gateway_support import serving_clients

from replicator.client import Client, InitialPosition

pulsar = pytest.importorskip("pulsar")

TOPIC = "persistent/public/default/rates"
WAIT_MS = 10_000


def consumed(url: str) -> tuple[Any, Any]:
    """Ten messages by themselves and ten in a batch; all are received, and half of them acknowledged."""
    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    consumer = client.subscribe(f"persistent://{TOPIC[11:]}", "s", consumer_type=pulsar.ConsumerType.Shared)
    for batched in (False, True):
        producer = client.create_producer(
            f"persistent://{TOPIC[11:]}",
            producer_name=f"batched-{batched}",
            batching_enabled=batched,
            batching_max_publish_delay_ms=5_000,
        )
        for _ in range(10):
            producer.send_async(b"x" * 100, None)
        producer.flush()
    for number in range(20):
        message = consumer.receive(WAIT_MS)
        if number < 10:
            consumer.acknowledge(message)
    return client, consumer


async def until(admin: Admin, holds: Any) -> dict[str, Any]:
    for _ in range(1_000):
        stats: dict[str, Any] = await admin.get(f"{TOPIC}/stats")
        if holds(stats):
            return stats
        await asyncio.sleep(0.01)
    raise AssertionError(stats)


def test_what_goes_out_and_comes_in_is_counted(tmp_path: Path) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin, serving_clients(admin.engine) as served:
            client, consumer = await asyncio.to_thread(consumed, served.url)
            stats = await until(admin, lambda found: found["subscriptions"]["s"]["messageAckRate"] > 0)
            subscription = stats["subscriptions"]["s"]
            (one,) = subscription["consumers"]
            for each in (stats, subscription, one):
                assert each["msgOutCounter"] == 20
                assert each["bytesOutCounter"] > 2_000
                assert 0 < each["msgRateOut"] <= 20
                assert each["msgThroughputOut"] > 100 * each["msgRateOut"]
            assert 0 < one["messageAckRate"] <= 10
            by_name = {each["producerName"]: each for each in stats["publishers"]}
            assert sorted(by_name) == ["batched-False", "batched-True"]
            for each in by_name.values():
                assert 0 < each["msgRateIn"] <= 10
                assert each["msgThroughputIn"] > 100 * each["msgRateIn"]
                assert each["averageMsgSize"] > 100
            await asyncio.to_thread(consumer.redeliver_unacknowledged_messages)
            await until(admin, lambda found: found["subscriptions"]["s"]["msgRateRedeliver"] > 0)
            await asyncio.to_thread(client.close)
            left = await until(admin, lambda found: not found["subscriptions"]["s"]["consumers"])
            assert left["msgOutCounter"] == left["subscriptions"]["s"]["msgOutCounter"] >= 30
            assert left["msgRateOut"] == 0
            assert left["publishers"] == []

    asyncio.run(main())


def test_consumers_in_the_worker_itself_are_counted_too(tmp_path: Path) -> None:
    """Consumers over WebSockets are of this kind."""

    async def main() -> None:
        async with administered(tmp_path) as admin, Client(engine=admin.engine) as client:
            producer = await client.create_producer(f"persistent://{TOPIC[11:]}")
            await producer.send(b"x" * 100)
            consumer = await client.subscribe(
                f"persistent://{TOPIC[11:]}", "s", initial_position=InitialPosition.Earliest
            )
            await consumer.acknowledge(await consumer.receive())
            stats = await until(admin, lambda found: found["subscriptions"]["s"]["messageAckRate"] > 0)
            assert stats["msgOutCounter"] == 1
            assert stats["msgThroughputOut"] > 100 * stats["msgRateOut"] > 0

    asyncio.run(main())
