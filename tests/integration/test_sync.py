"""Subscription sync between engines over real HTTP links: DESIGN §4.2, §4.3; invariants 5, 7, 8, 9."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from engine_support import DataPlaneServer, eventually, message, opened, serving, settled, subscribed

from replicator.engine.engine import Engine
from replicator.engine.subscriptions.subscription import Subscription
from replicator.engine.topic import Topic
from replicator.engine.types import InitialPosition, SubscribeOptions, SubscriptionType
from replicator.links.link import Link
from replicator.sync.service import SubscriptionSync
from snapshots.actions import ControllerSettings
from snapshots.mapping import SnapshotMapping
from snapshots.position import BEFORE_ALL, Position

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
        """Extents are looked at where they are stored."""

    def extents_trimmed(self, topic: str, local_through: Position) -> None:
        """See :meth:`extents_recorded`."""


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

    def start(self, addresses: dict[str, str]) -> None:
        self.sync.start()
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
    """Clusters linked each with each; those in ``down`` have an address where nobody answers."""
    async with AsyncExitStack() as stack:
        nodes: dict[str, Node] = {}
        for name in names:
            engine = await stack.enter_async_context(opened(path / name, name))
            server = await stack.enter_async_context(serving(engine, names))
            nodes[name] = Node(engine, server, [*names, *down], settings)
        addresses = {name: node.server.address for name, node in nodes.items()} | dict.fromkeys(down, "127.0.0.1:9")
        for node in nodes.values():
            node.start(addresses)
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


def test_what_is_consumed_in_one_cluster_is_consumed_in_the_other(tmp_path: Path) -> None:
    async def main() -> None:
        async with mesh(tmp_path, "us-east", "eu-west") as nodes:
            us, eu = nodes["us-east"], nodes["eu-west"]
            topic = await us.engine.topic(TOPIC)
            await topic.publish([message(b"%d" % n) for n in range(50)])
            await consume_all(topic, 50)
            await eventually(lambda: eu.subscription() is not None, "the subscription in eu-west")
            there = eu.subscription()
            assert there is not None
            await eventually(lambda: there.cursor.backlog_entries() == 0, "an empty backlog in eu-west")
            assert there.replicated
            await eventually(lambda: bool(us.index.mappings), "a mapping")  # the exact state may be there before one

            # Consumers move: nothing that was acknowledged comes again, what is published there comes.
            consumer, inbox = await subscribed(eu.topic(), subscription_type=SubscriptionType.EXCLUSIVE)
            await eu.topic().publish([message(b"new")])
            await inbox.holds(1)
            assert inbox.deliveries[0].origin == "eu-west"
            await consumer.acknowledge_cumulative(inbox.positions[-1])
            back = us.subscription()
            assert back is not None
            await eventually(
                lambda: us.topic().log.messages == 51 and back.cursor.backlog_entries() == 0,
                "an empty backlog in us-east",
            )

    asyncio.run(main())


def test_what_is_not_consumed_is_not_taken_for_consumed_elsewhere(tmp_path: Path) -> None:
    """Invariant 5: the mark-delete of the other cluster never passes an unacknowledged message."""

    async def main() -> None:
        async with mesh(tmp_path, "us-east", "eu-west") as nodes:
            us, eu = nodes["us-east"], nodes["eu-west"]
            topic = await us.engine.topic(TOPIC)
            received: list[Position] = []
            consumer = await topic.subscribe(
                "sub",
                SubscribeOptions(consumer_name="c", initial=InitialPosition.EARLIEST, replicated=True),
                lambda deliveries: received.extend(delivery.position for delivery in deliveries),
            )
            consumer.flow(1000)
            for _ in range(10):
                await topic.publish([message() for _ in range(10)])
                mapped = len(us.index.mappings)
                await eventually(lambda: len(us.index.mappings) > mapped, "a mapping")  # noqa: B023 - awaited here
            await eventually(lambda: len(received) == 100, "100 deliveries")
            await consumer.acknowledge_cumulative(received[44])
            await topic.publish([message()])
            await eventually(
                lambda: (s := eu.subscription()) is not None and s.cursor.mark_delete > BEFORE_ALL, "an update"
            )
            there = eu.subscription()
            assert there is not None
            assert there.cursor.backlog_entries() >= 100 - 45

    asyncio.run(main())


def test_an_idle_topic_gets_no_markers(tmp_path: Path) -> None:
    """Invariant 7."""

    async def main() -> None:
        async with mesh(tmp_path, "us-east", "eu-west") as nodes:
            us, eu = nodes["us-east"], nodes["eu-west"]
            topic = await us.engine.topic(TOPIC)
            await topic.publish([message()])
            await consume_all(topic, 1)
            await eventually(lambda: (s := eu.subscription()) is not None and s.cursor.backlog_entries() == 0)
            # 25 snapshot intervals: what a busy topic would have filled with markers
            await settled(lambda: [node.topic().log.entries for node in nodes.values()], 0.5)

    asyncio.run(main())


def test_a_dead_cluster_does_not_delay_the_others(tmp_path: Path) -> None:
    """Invariant 8: of three clusters one is away for the whole time."""

    async def main() -> None:
        async with mesh(tmp_path, "us-east", "eu-west", down=("ap-south",)) as nodes:
            us, eu = nodes["us-east"], nodes["eu-west"]
            topic = await us.engine.topic(TOPIC)
            await topic.publish([message() for _ in range(20)])
            await consume_all(topic, 20)
            await eventually(lambda: (s := eu.subscription()) is not None and s.cursor.backlog_entries() == 0)
            await eventually(lambda: us.index.mappings, "a mapping")  # the exact state may be there before one
            assert {mapping.peer for mapping in us.index.mappings} == {"eu-west"}

    asyncio.run(main())


def test_mappings_and_unhandled_markers_come_back_from_the_log(tmp_path: Path) -> None:
    """Invariant 9: nothing but the log is needed to go on after a restart."""

    async def main() -> None:
        async with mesh(tmp_path, "us-east", "eu-west") as nodes:
            topic = await nodes["us-east"].engine.topic(TOPIC)
            await topic.publish([message() for _ in range(20)])
            await consume_all(topic, 20)
            await eventually(lambda: nodes["us-east"].index.mappings)
            await eventually(
                lambda: (s := nodes["eu-west"].subscription()) is not None and s.cursor.backlog_entries() == 0
            )
            known = set(nodes["us-east"].sync.mappings())
            assert known
        async with mesh(tmp_path, "us-east", "eu-west") as nodes:
            assert known <= set(nodes["us-east"].sync.mappings())
            # eu-west forgets the update that it applied, as if it had died in between, and finds it again.
            there = nodes["eu-west"].subscription()
            assert there is not None
            assert there.cursor.backlog_entries() == 0

    asyncio.run(main())


def test_an_update_that_was_not_applied_before_a_crash_is_applied_after_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with mesh(tmp_path, "us-east", "eu-west") as nodes:
            topic = await nodes["us-east"].engine.topic(TOPIC)
            # eu-west stores the markers but, as if it died at once, does not handle them.
            await nodes["eu-west"].sync.stop()
            nodes["eu-west"].sync.on_appended = lambda topic, blocks: None  # type: ignore[method-assign]
            await topic.publish([message()])
            await topic.subscriptions.create("sub", BEFORE_ALL, replicated=True)
            await eventually(
                lambda: (t := nodes["eu-west"].engine.find(TOPIC)) is not None and len(t.log.markers) >= 2,
                "request and announcement in eu-west",
            )
            assert nodes["eu-west"].subscription() is None
        async with mesh(tmp_path, "us-east", "eu-west") as nodes:
            await eventually(lambda: nodes["eu-west"].subscription() is not None, "the subscription in eu-west")

    asyncio.run(main())


def test_a_subscription_that_is_not_replicated_stays_as_it_is(tmp_path: Path) -> None:
    async def main() -> None:
        async with mesh(tmp_path, "us-east", "eu-west") as nodes:
            us, eu = nodes["us-east"], nodes["eu-west"]
            there = await eu.engine.topic(TOPIC)
            mine = await there.subscriptions.create("sub", BEFORE_ALL, replicated=False)
            topic = await us.engine.topic(TOPIC)
            await topic.publish([message() for _ in range(5)])
            await consume_all(topic, 5)
            await eventually(lambda: eu.sync.counted.updates_ignored > 0, "an update that eu-west ignores")
            assert mine.cursor.backlog_entries() == 5
            assert not mine.replicated

    asyncio.run(main())
