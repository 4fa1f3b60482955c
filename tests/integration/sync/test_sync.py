"""Subscription sync between engines over real HTTP links: DESIGN §4.2, §4.3; invariants 5, 7, 8, 9."""

from __future__ import annotations

import asyncio
from pathlib import Path

from engine_support import eventually, message, settled, subscribed
from sync_node_support import TOPIC, consume_all, mesh

from replicator.engine.types import InitialPosition, SubscribeOptions, SubscriptionType
from snapshots.position import BEFORE_ALL, Position


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
