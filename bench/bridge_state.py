"""Group ``bridge-state``: the state of a thousand subscriptions of an Apache Pulsar cluster, seen at another one.

A worker of ours is beside each (``kind: pulsar``).

1. A hundred topics with ten subscriptions each are made at A, and are at B. In each round what the last one left is
   acknowledged, and some messages come, which are copied.
2. Then all subscriptions acknowledge at once. The Shared ones every other message, the Failover ones all up to one.
3. B's broker is asked for the cursors of one topic after another, each until it says the same. So few look at once, and
   take little from brokers and workers. Looks make the time longer, never shorter.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.clusters import DESTINATION, SOURCE, TwoClusters
from bench.collector import without_collector
from bench.measurement import Measurement
from bench.pulsar_pair import BACKLOG_NAMESPACE, JAVA, SETTINGS, missing
from replicator.apache.admin import BrokerAdmin, TopicInternals
from replicator.apache.broker_cursor import parse_cursor
from replicator.apache.errors import AdminFailed
from replicator.client import Client, Consumer, ConsumerType, InitialPosition, Message, Producer
from replicator.drills.peers.pulsar.broker import PulsarBroker
from replicator.topology.apache import ApacheSettings
from snapshots.position import Position

TOPICS: Final = 100
SUBSCRIPTIONS: Final = 10
"""Subscriptions of each topic."""
NAMES: Final = tuple(f"s{number}" for number in range(SUBSCRIPTIONS))
SHARED: Final = frozenset(NAMES[::2])
"""Subscriptions of type Shared; the others are Failover."""
ROUNDS: Final = 15
UNCOUNTED: Final = 10
"""Brokers compile their code as they run: for the first minute that takes half of their time."""
MESSAGES: Final = 10
"""Messages of each topic in a round."""
MESSAGE_BYTES: Final = 100
AT_ONCE: Final = 50
LOOKERS: Final = 4
"""Number of tasks that ask B's broker for cursors; each asks for one topic at a time."""
LOOK_EVERY_SECONDS: Final = 0.1
"""Pause between two looks at a topic. A hundred looks cost the broker about 0.1 s; more would distort the figure."""
SEEN_SECONDS_MAX: Final = 120.0
NAME: Final = "bridge-state"

Say = Callable[[str], None]


@dataclass(slots=True)
class _Topic:
    """Topic at A, with the numbers of the messages that each subscription has not acknowledged."""

    name: str
    producer: Producer
    consumers: Mapping[str, Consumer]
    open: dict[str, set[int]]
    messages: int = 0
    received: dict[str, list[Message]] = field(default_factory=dict)


async def measure_bridge_state(directory: Path, say: Say) -> list[Measurement]:
    """Return seconds from the last confirmed acknowledgement at A until B shows all; empty if no broker can run."""
    if (why := missing()) is not None:
        say(f"{NAME} is left out: {why}")
        return []
    rounds: list[float] = []
    with _brokers(directory) as brokers:
        beside = {
            name: ApacheSettings(service_url=broker.url, admin_url=broker.admin_url) for name, broker in brokers.items()
        }
        async with AsyncExitStack() as stack:
            clusters = await stack.enter_async_context(TwoClusters(directory, beside=beside))
            await clusters.start(SOURCE, DESTINATION)
            client = await stack.enter_async_context(Client(brokers[SOURCE].url))
            admin = {name: BrokerAdmin(settings) for name, settings in beside.items()}
            for each in admin.values():
                stack.push_async_callback(each.close)
            topics = await _made(client)
            for number in range(UNCOUNTED + ROUNDS):
                await _publish(topics)
                await _seen(admin[DESTINATION], topics)  # the messages; and what was acknowledged before
                load = os.getloadavg()[0]
                with without_collector():
                    acknowledged = await _acknowledge(topics)
                    after = await _seen(admin[DESTINATION], topics) - max(acknowledged)
                await _seen(admin[SOURCE], topics)
                counted = "" if number >= UNCOUNTED else ", not counted"
                say(
                    f"  all {len(acknowledged)} acknowledged within {max(acknowledged) - min(acknowledged):.2f} s, "
                    f"seen {after:.2f} s after that; load {load:.1f}{counted}"
                )
                if number >= UNCOUNTED:
                    rounds.append(after)
    return [Measurement(f"{NAME}/{TOPICS}x{SUBSCRIPTIONS}/all", "s", tuple(rounds))]


@contextmanager
def _brokers(directory: Path) -> Iterator[Mapping[str, PulsarBroker]]:
    made = {name: PulsarBroker(directory / f"broker-{name}", name, SETTINGS, JAVA) for name in (SOURCE, DESTINATION)}
    try:
        for broker in made.values():
            broker.start()  # in between nothing else runs in this loop
            broker.admin("PUT", "tenants/bench", {"adminRoles": [], "allowedClusters": [broker.cluster]})
            broker.admin("PUT", f"namespaces/{BACKLOG_NAMESPACE}", {"replication_clusters": [broker.cluster]})
            kept = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
            broker.admin("POST", f"namespaces/{BACKLOG_NAMESPACE}/retention", kept)
        yield made
    finally:
        for broker in made.values():
            broker.stop()


async def _made(client: Client) -> list[_Topic]:
    room = asyncio.Semaphore(AT_ONCE)

    async def make(number: int) -> _Topic:
        name = f"persistent://{BACKLOG_NAMESPACE}/state-{number}"
        async with room:
            consumers = {
                which: await client.subscribe(
                    name,
                    which,
                    ConsumerType.Shared if which in SHARED else ConsumerType.Failover,
                    initial_position=InitialPosition.Earliest,
                    acknowledgement_group_time_ms=0,
                )
                for which in NAMES
            }
            producer = await client.create_producer(name, batching_enabled=False)
        return _Topic(name, producer, consumers, {each: set() for each in consumers})

    return list(await asyncio.gather(*map(make, range(TOPICS))))


async def _publish(topics: Collection[_Topic]) -> None:
    """Acknowledge what the last round left, and publish :data:`MESSAGES` to each topic.

    Receive them in each subscription, without acknowledging them.
    """

    async def publish(topic: _Topic) -> None:
        for name, consumer in topic.consumers.items():
            left = [topic.received[name][number % MESSAGES] for number in sorted(topic.open[name])]
            await asyncio.gather(*map(consumer.acknowledge, left))
            topic.open[name].clear()
        for _ in range(MESSAGES):
            await topic.producer.send(bytes(MESSAGE_BYTES))
        for name, consumer in topic.consumers.items():
            topic.received[name] = [await consumer.receive() for _ in range(MESSAGES)]
            topic.open[name].update(range(topic.messages, topic.messages + MESSAGES))
        topic.messages += MESSAGES

    await asyncio.gather(*map(publish, topics))


async def _acknowledge(topics: Collection[_Topic]) -> list[float]:
    """Acknowledge in all subscriptions of all topics; return when each had its acknowledgements confirmed."""

    async def acknowledge(topic: _Topic, name: str, consumer: Consumer) -> float:
        received, first = topic.received[name], topic.messages - MESSAGES
        if name in SHARED:
            chosen = range(0, MESSAGES, 2)
            await asyncio.gather(*(consumer.acknowledge(received[each]) for each in chosen))
            topic.open[name].difference_update(first + each for each in chosen)
        else:
            await consumer.acknowledge_cumulative(received[MESSAGES // 2])
            topic.open[name].difference_update(range(first + MESSAGES // 2 + 1))
        return time.monotonic()

    each = [acknowledge(topic, name, consumer) for topic in topics for name, consumer in topic.consumers.items()]
    return list(await asyncio.gather(*each))


async def _seen(admin: BrokerAdmin, topics: Collection[_Topic]) -> float:
    """Wait until the brokers of ``admin`` show every subscription as expected; return the time of the last one."""
    left = list(topics)

    async def look() -> None:
        while left:
            topic = left.pop()
            while True:
                if await _as_it_is_to_be(admin, topic):
                    break
                await asyncio.sleep(LOOK_EVERY_SECONDS)

    try:
        async with asyncio.timeout(SEEN_SECONDS_MAX):
            await asyncio.gather(*(look() for _ in range(LOOKERS)))
    except TimeoutError:
        raise AssertionError(
            f"after {SEEN_SECONDS_MAX:g} s some are not as they are to be; {len(left)} topics were not looked at"
        ) from None
    return time.monotonic()


async def _as_it_is_to_be(admin: BrokerAdmin, topic: _Topic) -> bool:
    """Return whether the brokers show all messages of a topic, and exactly those in ``topic.open`` unacknowledged."""
    try:
        internals = await admin.internals(topic.name)
    except AdminFailed as error:
        if error.status not in (0, 404):  # it did not answer in time, or has not got the topic yet
            raise
        return False
    return all(_open(internals, name) == (topic.messages, opened) for name, opened in topic.open.items())


def _open(internals: TopicInternals, name: str) -> tuple[int, set[int]]:
    """Return the topic's number of messages, and which of them (from 0) subscription ``name`` has not acknowledged.

    Return 0 and an empty set if the brokers do not have the subscription.
    """
    shown = internals.cursors.get(name)
    if shown is None:
        return 0, set()
    cursor = parse_cursor(shown, internals.last_entries)
    entries = [
        Position(ledger, entry) for ledger, last in sorted(internals.last_entries.items()) for entry in range(last + 1)
    ]
    return len(entries), {number for number, position in enumerate(entries) if position not in cursor}
