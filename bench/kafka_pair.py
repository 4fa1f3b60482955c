"""Two Apache Kafka clusters of a broker each, and MirrorMaker 2 between them, for group ``peers``.

1. For each copy, the backlog is written to a new topic at A within one transaction. MirrorMaker reads committed
   messages only; it notices the topic, makes its copy at B, and waits. So the whole backlog stands when the transaction
   is committed, and MirrorMaker, which runs since the first copy, is warm.
2. What B has is asked of its high watermark, which a synced topic's messages pass after their sync.
3. Both topics are deleted.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import ExitStack, asynccontextmanager, closing
from functools import partial
from pathlib import Path
from typing import Final

from bench.arrival import Arrival, NotArrived, arrival_during
from bench.cases import Case
from bench.disk import settle
from bench.kafka_client import KafkaClient
from bench.lag import Lag
from bench.pairs import Pair, System
from replicator.drills.peers.jvm import PeerFailed
from replicator.drills.peers.kafka.cluster import KafkaBroker, MirrorMaker, missing

SOURCE: Final = "a"
DESTINATION: Final = "b"
LAG_TOPIC: Final = "bench-lag"
LOOK_EVERY_SECONDS: Final = 0.02
"""Time between two looks, the same as for Pulsar: copies take seconds."""
MIRRORED_SECONDS_MAX: Final = 120.0
"""Limit of the time in which MirrorMaker starts, which takes some ten seconds, and notices a topic."""

BROKER_SETTINGS: Final[Mapping[str, str]] = {
    # A batch of MirrorMaker's is written, and synced, at once: see below.
    "message.max.bytes": str(8 * 1024 * 1024),
    "replica.fetch.max.bytes": str(8 * 1024 * 1024),
    "socket.send.buffer.bytes": "1048576",
    "socket.receive.buffer.bytes": "1048576",
    # Topics are deleted between copies: their files go at once.
    "log.segment.delete.delay.ms": "1000",
}
"""Broker settings beyond those of ``replicator/drills/peers/kafka/cluster.py``."""
MIRROR_SETTINGS: Final[Mapping[str, str]] = {
    f"{SOURCE}->{DESTINATION}.topics": "bench-.*",
    "tasks.max": "1",  # a topic has one partition, which is one task's
    "refresh.topics.interval.seconds": "1",
    # Reading: as much at once as one partition gives. The default of 500 messages is a round trip of Connect's each.
    f"{SOURCE}.consumer.isolation.level": "read_committed",
    f"{SOURCE}.consumer.max.poll.records": "10000",
    f"{SOURCE}.consumer.max.partition.fetch.bytes": str(16 * 1024 * 1024),
    f"{SOURCE}.consumer.fetch.max.bytes": str(64 * 1024 * 1024),
    f"{SOURCE}.consumer.receive.buffer.bytes": str(1024 * 1024),
    # Writing: large batches, several on their way. Idempotence keeps their order, where Connect allows one only.
    f"{DESTINATION}.producer.batch.size": str(1024 * 1024),
    f"{DESTINATION}.producer.max.request.size": str(8 * 1024 * 1024),
    f"{DESTINATION}.producer.buffer.memory": str(128 * 1024 * 1024),
    f"{DESTINATION}.producer.send.buffer.bytes": str(1024 * 1024),
    f"{DESTINATION}.producer.enable.idempotence": "true",
    f"{DESTINATION}.producer.max.in.flight.requests.per.connection": "5",
    f"{DESTINATION}.producer.acks": "all",
}


class KafkaPair:
    """:class:`bench.pairs.Pair` of two Kafka clusters with MirrorMaker 2 between them."""

    def __init__(
        self, brokers: tuple[KafkaBroker, KafkaBroker], mirror: MirrorMaker, clients: tuple[KafkaClient, KafkaClient]
    ) -> None:
        self._brokers = brokers
        self._mirror = mirror
        self._source, self._destination = clients
        self._topics = (f"bench-{number}" for number in itertools.count())

    def pids(self) -> Iterable[int]:
        return [each.pid for each in (*self._brokers, self._mirror) if each.pid is not None]

    async def fill(self, case: Case) -> None:
        """Do nothing: each copy publishes a backlog of its own."""

    async def copy(self, case: Case) -> Arrival:
        topic = next(self._topics)
        copied = _copied(topic)
        self._source.make_topic(topic)
        backlog = await asyncio.to_thread(self._source.publish_uncommitted, topic, case.size_bytes, case.messages)

        async def messages() -> int:
            return self._destination.messages(copied)

        with closing(backlog):
            await self._mirrored(copied)
            await settle()
            committing = asyncio.to_thread(backlog.commit_transaction)
            arrived = await arrival_during(committing, messages, case.messages, LOOK_EVERY_SECONDS)
        self._source.delete_topic(topic)
        self._destination.delete_topic(copied)
        return arrived

    async def lag(self) -> Lag:
        self._source.make_topic(LAG_TOPIC)
        await self._mirrored(_copied(LAG_TOPIC))
        return await asyncio.to_thread(self._source.lag, LAG_TOPIC, self._destination, _copied(LAG_TOPIC))

    async def _mirrored(self, copied: str) -> None:
        """Wait until MirrorMaker has made the topic ``copied`` at B. Raise :class:`PeerFailed` if it does not.

        Raise it also if the topic syncs at B otherwise than at A, and :class:`NotArrived` if B already has messages.
        """
        try:
            async with asyncio.timeout(MIRRORED_SECONDS_MAX):
                while not self._destination.has_topic(copied):
                    self._mirror.check_alive()
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise PeerFailed(f"MirrorMaker 2 did not make {copied}:\n{self._mirror.log_tail()}") from None
        here, there = self._source.flush_messages(copied.partition(".")[2]), self._destination.flush_messages(copied)
        if here != there:
            raise PeerFailed(f"flush.messages is {here} at the source, and {there} of its copy")
        if self._destination.messages(copied):
            raise NotArrived("MirrorMaker 2 has copied what was not committed")


def _copied(topic: str) -> str:
    """Return MirrorMaker's name for the copy of a topic."""
    return f"{SOURCE}.{topic}"


@asynccontextmanager
async def _started(directory: Path, *, synced: bool) -> AsyncIterator[Pair]:
    with ExitStack() as started:  # in between nothing else runs in this loop
        source = started.enter_context(KafkaBroker(directory / SOURCE, BROKER_SETTINGS))
        destination = started.enter_context(KafkaBroker(directory / DESTINATION, BROKER_SETTINGS))
        mirror = started.enter_context(
            MirrorMaker(directory / "mirror", (SOURCE, source), (DESTINATION, destination), MIRROR_SETTINGS)
        )
        clients = tuple(
            started.enter_context(KafkaClient(broker.address, synced=synced)) for broker in (source, destination)
        )
        yield KafkaPair((source, destination), mirror, clients)


SYSTEMS: Final = (
    System(
        "mirrormaker-synced",
        "Apache Kafka 4.1.0, MirrorMaker 2, flush.messages=1",
        "synced in both clusters: each batch",
        missing,
        partial(_started, synced=True),
    ),
    System(
        "mirrormaker",
        "Apache Kafka 4.1.0, MirrorMaker 2, as it comes",
        "in the page cache of both clusters: a power cut loses it",
        missing,
        partial(_started, synced=False),
    ),
)
