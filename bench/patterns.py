"""Group ``patterns``: how soon a pattern consumer has a new topic's first message, and what watching costs on the wire.

* ``discovery``: two real workers, linked; a topic is made by its first producer, which sends one message at once. The
  time is from before it is made until the message is at a pattern consumer, in the same cluster and in the other one.
* ``discovery/dropped``: every notification is dropped, so that only polls find the topic; by the period of the polls.
* ``unchanged``: five thousand topics, a hundred pattern consumers with a connection each, nothing changing; all bytes
  of TCP payload in both directions through a period of :data:`POLL_SECONDS` with its poll and its heartbeats, for each
  consumer. The peer are full lists: every poll is answered with all names, as before Pulsar 2.11.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from bench.cases import RUNS
from bench.clusters import DESTINATION, SOURCE, TwoClusters
from bench.measurement import Measurement, percentile
from replicator.client import Client, ConsumerType, PatternConsumer
from replicator.client.errors import PulsarException
from replicator.client.wire.connector import BrokerConnector
from replicator.engine.engine import Engine
from replicator.engine.topics.topic_list import topic_list_hash

DISCOVERIES: Final = 100
DROPPED: Final = 10
DROPPED_PERIOD_SECONDS: Final = 2.0
TOPICS: Final = 5_000
CONSUMERS: Final = 100
POLL_SECONDS: Final = 60.0
ANSWERS_SECONDS_MAX: Final = 60.0
PEER: Final = "full lists"


async def measure_patterns(directory: Path) -> list[Measurement]:
    """Return all figures of group ``patterns``, with the workers' stores in ``directory``."""
    async with TwoClusters(directory) as clusters:
        await clusters.start(SOURCE, DESTINATION)
        measured = [
            *await _measure_discovery(clusters, "same-cluster", SOURCE, "a"),
            *await _measure_discovery(clusters, "other-cluster", DESTINATION, "b"),
            await _measure_dropped(clusters),
        ]
        await clusters.stop(DESTINATION)
        await clusters.stop(SOURCE)
        engine = await Engine.open(clusters.data(SOURCE), cluster=SOURCE)
        await asyncio.gather(*(engine.making.create(_name(number)) for number in range(TOPICS)))
        await engine.close()
        await clusters.start(SOURCE)
        return [*measured, *await _measure_unchanged(clusters)]


# Discovery.


async def _measure_discovery(clusters: TwoClusters, label: str, consumed_at: str, prefix: str) -> list[Measurement]:
    async with Client(clusters.client_url(SOURCE)) as here, Client(clusters.client_url(consumed_at)) as there:
        consumer = await _subscribed(there, prefix)
        latencies_ms = [await _discovery_ms(here, consumer, f"{prefix}-{number}") for number in range(DISCOVERIES)]
    return [
        Measurement(f"patterns/discovery/{label}/p{percent}", "ms", (percentile(latencies_ms, percent),))
        for percent in (50, 99)
    ]


async def _measure_dropped(clusters: TwoClusters) -> Measurement:
    async with Client(clusters.client_url(SOURCE)) as client:
        consumer = await _subscribed(client, "c", DROPPED_PERIOD_SECONDS)
        consumer.on_topics_changed = lambda *_: None  # type: ignore[method-assign]
        latencies_ms = [await _discovery_ms(client, consumer, f"c-{number}") for number in range(DROPPED)]
    name = f"patterns/discovery/dropped/period-{DROPPED_PERIOD_SECONDS:g}s/max"
    return Measurement(name, "ms", (max(latencies_ms),))


async def _subscribed(client: Client, prefix: str, period_seconds: float = POLL_SECONDS) -> PatternConsumer:
    consumer = await client.subscribe(
        f"bench/patterns/{prefix}-.*",
        "bench",
        ConsumerType.Shared,
        is_pattern_topic=True,
        pattern_auto_discovery_period=period_seconds,
    )
    assert isinstance(consumer, PatternConsumer)
    return consumer


async def _discovery_ms(client: Client, consumer: PatternConsumer, topic: str) -> float:
    """Return the milliseconds from before a topic is made until its first message is received."""
    began = time.monotonic()
    producer = await client.create_producer(f"bench/patterns/{topic}", batching_enabled=False)
    sending = asyncio.create_task(producer.send(topic.encode()))
    message = await consumer.receive(30_000)
    elapsed_ms = (time.monotonic() - began) * 1e3
    assert message.data() == topic.encode()
    await sending
    await producer.close()
    await consumer.acknowledge(message)
    return elapsed_ms


# Bytes.


class _Polls:
    """Listener of one topic watch: counts the answers to polls. The channel polls, when the benchmark tells it to."""

    def __init__(self) -> None:
        self.answers = 0

    def on_topics(self, names: object, names_hash: str) -> None:
        self.answers += 1

    def on_topics_changed(self, added: object, deleted: object, names_hash: str) -> None:
        raise AssertionError("nothing changes")

    def on_poll_refused(self, error: PulsarException) -> None:
        raise error

    def on_lost(self, error: PulsarException) -> None:
        """Ignore the loss of the connection at the end."""


async def _measure_unchanged(clusters: TwoClusters) -> list[Measurement]:
    known = topic_list_hash(_name(number) for number in range(TOPICS))
    async with AsyncExitStack() as stack:
        counted = await stack.enter_async_context(_counting(clusters.client_url(SOURCE)))
        watchers = []
        for _ in range(CONSUMERS):
            connector = BrokerConnector(counted.url, connection_timeout_seconds=10, operation_timeout_seconds=30)
            stack.push_async_callback(connector.close)
            channel = await connector.open_topic_watch("bench/many/topic-.*", known)
            channel.start(polls := _Polls())
            watchers.append((channel, polls))

        async def poll(known_hash: str) -> None:
            expected = [polls.answers + 1 for _, polls in watchers]
            for channel, _ in watchers:
                channel.poll(known_hash)
            async with asyncio.timeout(ANSWERS_SECONDS_MAX):
                while [polls.answers for _, polls in watchers] != expected:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)

        unchanged: list[float] = []
        full: list[float] = []
        for _ in range(RUNS):
            counted.payload_bytes = 0
            began = time.monotonic()
            await poll(known)
            await asyncio.sleep(POLL_SECONDS - (time.monotonic() - began))
            heartbeats_and_poll = counted.payload_bytes
            counted.payload_bytes = 0
            await poll(topic_list_hash(()))
            full_lists = counted.payload_bytes
            counted.payload_bytes = 0
            await poll(known)
            # A poll with full lists has the same heartbeats.
            full.append((full_lists + heartbeats_and_poll - counted.payload_bytes) / CONSUMERS)
            unchanged.append(heartbeats_and_poll / CONSUMERS)
    fewer = tuple(lists / ours for lists, ours in zip(full, unchanged, strict=True))
    name = "patterns/5k-topics/100-consumers"
    return [
        Measurement(f"{name}/unchanged", "B/period", tuple(unchanged), PEER, tuple(full)),
        Measurement(f"{name}/fewer", "times", fewer),
    ]


class _Counter:
    """TCP proxy that counts the bytes through it, both ways, in ``payload_bytes``."""

    def __init__(self, target: str) -> None:
        self._target = urlsplit(target)
        self._connections: set[asyncio.Task[None]] = set()
        self.payload_bytes = 0
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        out_reader, out_writer = await asyncio.open_connection(self._target.hostname, self._target.port)
        try:
            await asyncio.gather(self._pump(reader, out_writer), self._pump(out_reader, writer))
        except (OSError, asyncio.CancelledError):
            pass  # the end of the connection, or of the benchmark
        finally:
            writer.close()
            out_writer.close()
            self._connections.discard(task)

    async def stop(self) -> None:
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(64 * 1024):
            self.payload_bytes += len(piece)
            writer.write(piece)
            await writer.drain()
        writer.close()


@asynccontextmanager
async def _counting(target: str) -> AsyncIterator[_Counter]:
    counter = _Counter(target)
    server = await asyncio.start_server(counter.serve, "127.0.0.1", 0)
    counter.url = f"pulsar://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield counter
    finally:
        server.close()
        await counter.stop()


def _name(number: int) -> str:
    return f"persistent://bench/many/topic-{number:05d}"
