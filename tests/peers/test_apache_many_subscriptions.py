"""Workers beside two Apache Pulsar clusters, where many subscriptions acknowledge at the same time: each is exact at
the other one. With real brokers, and with workers of ours in their place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

import pytest
from gateway_broker import gateways_of
from peers.apache_support import Beside, beside, brokers_of

from replicator.apache.admin import BrokerAdmin
from replicator.apache.broker_cursor import parse_cursor
from replicator.apache.errors import AdminFailed
from replicator.client import Client, ConsumerType, InitialPosition
from replicator.running.timeouts import timeout
from replicator.topology.apache import ApacheSettings
from snapshots.position import Position

TOPICS: Final = tuple(f"persistent://public/default/many-{number}" for number in range(20))
LEFT: Final = {
    "whole": frozenset[int](),
    "through-3": frozenset(range(4, 8)),
    "through-6": frozenset({7}),
    "holes": frozenset({1, 3, 5, 7}),
    "one-hole": frozenset({0}),
}
"""Numbers of the messages that each subscription does not acknowledge."""
CUMULATIVE: Final = frozenset({"whole", "through-3", "through-6"})
MESSAGES: Final = 8
SEEN_SECONDS_MAX: Final = 120.0


@pytest.fixture(params=[brokers_of, gateways_of], ids=["brokers", "gateways"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Beside]:
    path = tmp_path_factory.mktemp("many")
    with request.param(path, "A", "B") as brokers, beside(path, "AB", brokers, "[{between: [A, B]}]") as made:
        yield made


async def _acknowledge_all(url: str) -> None:
    """Publish and acknowledge in all subscriptions of all topics, at the same time."""
    async with Client(url) as client:

        async def consume(topic: str, name: str, published: asyncio.Event, received: asyncio.Barrier) -> None:
            kind = ConsumerType.Failover if name in CUMULATIVE else ConsumerType.Shared
            consumer = await client.subscribe(topic, name, kind, initial_position=InitialPosition.Earliest)
            await published.wait()
            got = [await consumer.receive() for _ in range(MESSAGES)]
            await received.wait()
            chosen = [each for number, each in enumerate(got) if number not in LEFT[name]]
            if name in CUMULATIVE:
                await consumer.acknowledge_cumulative(chosen[-1])
            else:
                await asyncio.gather(*map(consumer.acknowledge, chosen))

        async def publish(topic: str) -> None:
            producer = await client.create_producer(topic, batching_enabled=False)
            for number in range(MESSAGES):
                await producer.send(str(number).encode())

        published, received = asyncio.Event(), asyncio.Barrier(len(TOPICS) * len(LEFT))
        async with asyncio.TaskGroup() as group:
            for topic in TOPICS:
                for name in LEFT:
                    group.create_task(consume(topic, name, published, received))
            await asyncio.gather(*map(publish, TOPICS))
            published.set()


async def _left(admin: BrokerAdmin, topic: str) -> dict[str, frozenset[int]]:
    """Return by subscription the numbers of the messages that are not acknowledged at the brokers."""
    try:
        internals = await admin.internals(topic)
    except AdminFailed as error:
        if error.status != 404:
            raise
        return {}
    entries = [
        Position(ledger, entry) for ledger, last in sorted(internals.last_entries.items()) for entry in range(last + 1)
    ]
    found = {
        name: parse_cursor(internals.cursors[name], internals.last_entries)
        for name in LEFT
        if name in internals.cursors
    }
    if len(entries) != MESSAGES:
        return {}
    return {
        name: frozenset(number for number, position in enumerate(entries) if position not in cursor)
        for name, cursor in found.items()
    }


async def _seen(broker: ApacheSettings) -> dict[str, dict[str, frozenset[int]]]:
    """Wait until each topic's subscriptions have :data:`LEFT` at the brokers, or time is up; return what they have."""
    admin = BrokerAdmin(broker)
    left: dict[str, dict[str, frozenset[int]]] = {}
    try:
        async with timeout(SEEN_SECONDS_MAX):
            while True:
                left.update({topic: await _left(admin, topic) for topic in TOPICS if left.get(topic) != LEFT})
                if all(left[topic] == LEFT for topic in TOPICS):
                    return left
                await asyncio.sleep(0.2)
    except TimeoutError:
        return left
    finally:
        await admin.close()


def test_what_a_hundred_subscriptions_acknowledge_at_once_is_exact_at_the_other_brokers(pair: Beside) -> None:
    asyncio.run(_acknowledge_all(pair.brokers["A"].url))
    for name in ("B", "A"):  # B gets it, and nothing of it comes back to A
        broker = pair.brokers[name]
        seen = asyncio.run(_seen(ApacheSettings(service_url=broker.url, admin_url=broker.admin_url)))
        assert seen == dict.fromkeys(TOPICS, LEFT), (pair.log("A"), pair.log("B"))
        shown = {each["topic"]: each["state"] for each in pair.apache(name)["topics"]}
        assert [shown[topic]["resets"] for topic in TOPICS] == [0] * len(TOPICS)
