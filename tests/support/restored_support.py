"""Clusters that tests stop and set back, and between which tests carry markers by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine_support import TOPIC, eventually, message

from replicator.engine.engine import Engine
from replicator.engine.log.entry import encode_entry
from replicator.engine.log.writer import CopiedBlock
from replicator.engine.subscriptions.subscription import Subscription
from replicator.engine.topic import Topic
from replicator.engine.types import Ack, LoggedEntry
from replicator.metadata.metadata_pb2 import MessageMetadata
from replicator.sync.routes import DirectRoutes, TopologyRoutes
from replicator.sync.service import SubscriptionSync
from replicator.topology import Topology
from snapshots.ack_vector import AckVector, OriginAcks
from snapshots.actions import ControllerSettings
from snapshots.markers import SubscriptionsUpdate, SubscriptionUpdate, encode_marker
from snapshots.position import BEFORE_ALL, Position
from snapshots.position_set import PositionSet

FAST = ControllerSettings(snapshot_interval_ms=5, update_interval_ms=2, whole_interval_ms=0)
"""Settings by which every update carries the whole state."""


class NoIndex:
    """Index that nobody reads."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


class Cluster:
    """One of three clusters, with links to the others, or with the links of a topology."""

    def __init__(self, name: str, path: Path, *, exact: bool = True, topology: Topology | None = None) -> None:
        self.name = name
        self.path = path / name
        self._exact = exact
        others = {"a", "b", "c"} - {name}
        self._routes = DirectRoutes(others, others) if topology is None else TopologyRoutes(topology, name)
        self.engine: Engine
        self.sync: SubscriptionSync

    async def start(self) -> Topic:
        self.engine = await Engine.open(self.path, cluster=self.name)
        self.sync = SubscriptionSync(
            self.engine, routes=self._routes, settings=FAST, index=NoIndex(), exact=self._exact
        )
        await self.sync.start()
        return await self.engine.topic(TOPIC)

    async def stop(self) -> None:
        await self.sync.stop()
        await self.engine.close()

    @property
    def topic(self) -> Topic:
        topic = self.engine.find(TOPIC)
        assert topic is not None
        return topic

    @property
    def subscription(self) -> Subscription:
        return self.topic.subscriptions["sub"]

    @property
    def backlog(self) -> int:
        return self.subscription.cursor.backlog_entries()

    def messages(self) -> list[LoggedEntry]:
        return [each for each in self.topic.reading.entries(BEFORE_ALL, None, 100_000, 1 << 30) if not each.marker]


async def carry(source: Cluster, destination: Cluster) -> None:
    """Copy everything that the destination lacks of the source's messages, as a link does."""
    topic = await destination.engine.topic(TOPIC, by_link=True)
    before = topic.origins.vector().get(source.name, BEFORE_ALL)
    blocks, _ = source.topic.reading.blocks(BEFORE_ALL, bytes_max=1 << 30, origins={source.name})
    copied = []
    for stored in blocks:
        if stored.header.origin_last > before:
            copied.append(CopiedBlock(before, stored.block))
            before = stored.header.origin_last
    await topic.writing.copy(copied)


async def carry_until(condition: Callable[[], bool], *links: tuple[Cluster, Cluster]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            for source, destination in links:
                await carry(source, destination)
            await asyncio.sleep(0.005)


async def consume_all(cluster: Cluster) -> None:
    await cluster.subscription.acknowledge([Ack(entry.position) for entry in cluster.messages()])


def acked(name: str, entry: int, generation: int = 1) -> SubscriptionUpdate:
    """Return what ``b`` tells of a subscription in which it acknowledged one message."""
    acks = OriginAcks(7, [], PositionSet([Position(9, entry)]))
    return SubscriptionUpdate(name, {}, generation, AckVector({"b": acks}))


def entry_of(update: SubscriptionUpdate) -> bytes:
    """Return the marker with which ``b`` tells an update."""
    marker_type, payload = encode_marker(SubscriptionsUpdate((update,)))
    metadata = MessageMetadata(producer_name="b", sequence_id=0, publish_time=1, marker_type=int(marker_type))
    return encode_entry(metadata, payload)


async def started(engine: Engine) -> tuple[Topic, SubscriptionSync]:
    """Start the sync of an engine whose only peer is ``b``; return it with a topic."""
    sync = SubscriptionSync(engine, peers=["b"], reachable_origins=["b"], settings=FAST, index=NoIndex())
    await sync.start()
    return await engine.topic(TOPIC), sync


async def trim(cluster: Cluster) -> None:
    """Trim all but the last block."""
    topic = cluster.topic
    await eventually(lambda: not cluster.subscription.cursor.state.to_announce)
    (last,) = await topic.publish([message(b"last")])  # a marker of the sync may stand after it
    await cluster.subscription.acknowledge([Ack(last)])
    await topic.trimming.trim(last)
    assert topic.log.trimmed > BEFORE_ALL
