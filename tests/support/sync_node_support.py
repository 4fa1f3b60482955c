"""Clusters with links and subscription sync in one process, and questions about their acknowledgements."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from engine_support import DataPlaneServer, Inbox, eventually, opened, serving

from replicator.engine.engine import Engine
from replicator.engine.subscriptions.consumer import EngineConsumer
from replicator.engine.subscriptions.subscription import Subscription
from replicator.engine.topic import Topic
from replicator.engine.types import InitialPosition, SubscribeOptions, SubscriptionType
from replicator.links.link import Link
from replicator.sync.service import SubscriptionSync
from snapshots.ack_vector import as_data
from snapshots.actions import ControllerSettings
from snapshots.mapping import SnapshotMapping
from snapshots.position import Position

FAST = ControllerSettings(snapshot_interval_ms=20, update_interval_ms=10)


TOPIC = "persistent://public/default/orders"


class RecordingIndex:
    """An index that keeps what it is given."""

    def __init__(self) -> None:
        self.mappings: list[SnapshotMapping] = []
        self.mark_deletes: dict[str, Position] = {}

    def mapping_recorded(self, topic: str, mapping: SnapshotMapping) -> None:
        self.mappings.append(mapping)

    def subscription_moved(
        self, topic: str, name: str, generation: int, mark_delete: Position, *, replicated: bool
    ) -> None:
        self.mark_deletes[name] = mark_delete

    def subscription_deleted(self, topic: str, name: str, generation: int | None = None) -> None:
        self.mark_deletes.pop(name, None)

    def topic_deleted(self, topic: str) -> None:
        self.mappings.clear()
        self.mark_deletes.clear()

    def extents_recorded(
        self, topic: str, origin: str, incarnation: int, origin_first: Position, local_first: Position, entries: int
    ) -> None:
        """Do nothing: tests look at extents where they are stored."""

    def extents_trimmed(self, topic: str, local_through: Position) -> None:
        """Do nothing, like :meth:`extents_recorded`."""


class Node:
    """One cluster: engine, data plane, sync, and links to its peers."""

    def __init__(
        self, engine: Engine, server: DataPlaneServer, names: list[str], settings: ControllerSettings = FAST
    ) -> None:
        self.engine = engine
        self.server = server
        self.index = RecordingIndex()
        peers = [name for name in names if name != engine.cluster]
        self.sync = SubscriptionSync(engine, peers=peers, reachable_origins=peers, settings=settings, index=self.index)
        self.links: list[Link] = []

    async def start(self, addresses: dict[str, str]) -> None:
        await self.sync.start()
        self.links = [
            Link(self.engine, name, address) for name, address in addresses.items() if name != self.engine.cluster
        ]
        for link in self.links:
            link.start()

    async def stop(self) -> None:
        for link in self.links:
            await link.stop()
        await self.sync.stop()

    def topic(self) -> Topic:
        topic = self.engine.find(TOPIC)
        assert topic is not None
        return topic

    def subscription(self, name: str = "sub") -> Subscription | None:
        topic = self.engine.find(TOPIC)
        return None if topic is None else topic.subscriptions.get(name)


@asynccontextmanager
async def mesh(
    path: Path, *names: str, down: tuple[str, ...] = (), settings: ControllerSettings = FAST
) -> AsyncIterator[dict[str, Node]]:
    """Yield clusters linked each with each; nobody answers at the addresses of those in ``down``."""
    async with AsyncExitStack() as stack:
        nodes: dict[str, Node] = {}
        for name in names:
            engine = await stack.enter_async_context(opened(path / name, name))
            server = await stack.enter_async_context(serving(engine, names))
            nodes[name] = Node(engine, server, [*names, *down], settings)
        addresses = {name: node.server.address for name, node in nodes.items()} | dict.fromkeys(down, "127.0.0.1:9")
        for node in nodes.values():
            await node.start(addresses)
            stack.push_async_callback(node.stop)
        yield nodes


async def consume_all(topic: Topic, count: int, kind: SubscriptionType = SubscriptionType.EXCLUSIVE) -> None:
    """Subscribe as ``sub``, replicated, take ``count`` entries and acknowledge them all."""
    received: list[Position] = []
    consumer = await topic.subscribe(
        "sub",
        SubscribeOptions(kind, "c", initial=InitialPosition.EARLIEST, replicated=True),
        lambda deliveries: received.extend(delivery.position for delivery in deliveries),
    )
    consumer.flow(100_000)
    await eventually(lambda: len(received) >= count, f"{count} deliveries")
    await consumer.acknowledge_cumulative(received[-1])
    consumer.close()


async def consuming(topic: Topic, count: int, name: str = "sub") -> tuple[EngineConsumer, Inbox]:
    """Return a Shared consumer of a replicated subscription that has received ``count`` entries."""
    inbox = Inbox()
    consumer = await topic.subscribe(
        name,
        SubscribeOptions(SubscriptionType.SHARED, "c", initial=InitialPosition.EARLIEST, replicated=True),
        inbox,
    )
    consumer.flow(10_000)
    await inbox.holds(count)
    return consumer, inbox


async def synced(node: Node, messages: int, *names: str) -> None:
    await eventually(
        lambda: (
            (t := node.engine.find(TOPIC)) is not None
            and t.log.messages == messages
            and all(name in t.subscriptions and t.subscriptions[name].stored for name in names)
        ),
        f"{messages} messages and {names} in {node.engine.cluster}",
    )


def backlog(node: Node, name: str = "sub") -> int:
    subscription = node.subscription(name)
    assert subscription is not None
    return subscription.cursor.backlog_entries()


def agree(one: Node, other: Node, name: str = "sub") -> bool:
    """Return whether both clusters have the same exact state of the subscription, for the origins that both have
    messages of."""
    here, there = one.subscription(name), other.subscription(name)
    if here is None or there is None or here.cursor.generation != there.cursor.generation:
        return False
    left = as_data(one.sync.unconsumed(one.topic(), here))
    left_there = as_data(other.sync.unconsumed(other.topic(), there))
    return all(left[origin] == left_there[origin] for origin in left.keys() & left_there.keys())
