"""Cases that users of replicated subscriptions meet upstream (docs/compared.md), one by one, on real engines and
links."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from duplicates_support import ON, numbered
from engine_support import CuttingProxy, batch, eventually, message, settled, subscribed
from sync_node_support import TOPIC, agree, backlog
from sync_support import acknowledged, cluster, clusters, having, in_step, payload, quiet, taking

from replicator.engine.engine import EngineSettings
from replicator.engine.log.entry import decode_entry, encode_entry
from replicator.engine.policies import PolicyOverrides
from replicator.engine.topics.namespace_policies import NamespacePolicies
from replicator.engine.types import Ack, ProducerOptions, SubscriptionType
from replicator.metadata.metadata_pb2 import MessageMetadata
from snapshots.position import BEFORE_ALL, Position

pytestmark = pytest.mark.usefixtures("short_link_pauses")


def numbers(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last)]


def messages(first: int, last: int) -> list[bytes]:
    return [message(each) for each in numbers(first, last)]


# Consumers that move.


@pytest.mark.parametrize("unused", [False, True], ids=["at-once", "after-a-while"])
def test_half_is_consumed_here_and_half_there_and_nothing_twice(tmp_path: Path, unused: bool) -> None:
    async def main() -> None:
        async with clusters(tmp_path, "us-east", "eu-west") as (us, eu):
            topic = await us.engine.topic(TOPIC)
            await topic.publish(messages(0, 100))
            consumer, inbox = await taking(us, 100)
            await consumer.acknowledge([Ack(position) for position in inbox.positions[61:100:2]])  # out of order
            seen = numbers(61, 100)[::2] + await acknowledged(consumer, inbox, slice(30))
            await in_step(us, eu, 50)
            if unused:
                # 25 snapshot intervals, in which an unused topic gets no markers
                await settled(lambda: [node.topic().log.entries for node in (us, eu)], 0.5)
            consumer, inbox = await taking(eu, 50)
            seen += await acknowledged(consumer, inbox)
            assert sorted(seen) == sorted(numbers(0, 100))
            await in_step(us, eu, 0)
            for node in (us, eu):
                consumer, inbox = await taking(node, 0)
                await node.topic().publish([message(b"last")])
                await inbox.holds(1)
                assert [payload(each.entry) for each in inbox.deliveries] == [b"last"]
                await acknowledged(consumer, inbox)
                await in_step(us, eu, 0)

    asyncio.run(main())


def test_consumers_and_producers_go_over_and_back_and_over_again_and_nothing_comes_twice(tmp_path: Path) -> None:
    async def main() -> None:
        async with clusters(tmp_path, "us-east", "eu-west") as (us, eu):
            seen: list[bytes] = []
            for round_, node in enumerate((us, eu, us, eu, us)):
                topic = await node.engine.topic(TOPIC)
                await topic.publish(messages(20 * round_, 20 * (round_ + 1)))
                consumer, inbox = await taking(node, 20 if round_ == 0 else 30)
                seen += await acknowledged(consumer, inbox, slice(None, None, 2) if round_ == 0 else slice(20))
                await in_step(us, eu, 10)
            consumer, inbox = await taking(eu, 10)
            seen += await acknowledged(consumer, inbox)
            assert sorted(seen) == sorted(numbers(0, 100))

    asyncio.run(main())


def test_of_three_clusters_one_is_restarted_and_has_then_what_the_others_consumed_meanwhile(tmp_path: Path) -> None:
    async def main() -> None:
        names = ("us-east", "eu-west", "ap-south")
        async with cluster(tmp_path, "us-east", names) as us, cluster(tmp_path, "eu-west", names) as eu:
            async with cluster(tmp_path, "ap-south", names) as ap:
                for one, other in ((us, eu), (eu, us), (us, ap), (eu, ap), (ap, us), (ap, eu)):
                    one.link_to(other)
                topic = await us.engine.topic(TOPIC)
                await topic.publish(messages(0, 60))
                consumer, inbox = await taking(us, 60)
                await consumer.acknowledge([Ack(position) for position in inbox.positions[:40:2]])
                await in_step(us, eu, 40)
                await in_step(us, ap, 40)
            await acknowledged(consumer, inbox, slice(1, 40, 2))
            await in_step(us, eu, 20)  # without the third
            async with cluster(tmp_path, "ap-south", names, port=ap.server.port) as ap:
                for other in (us, eu):
                    ap.link_to(other)
                await in_step(us, ap, 20)
                consumer, inbox = await taking(ap, 20)
                assert await acknowledged(consumer, inbox) == numbers(40, 60)
                for other in (us, eu):
                    await in_step(ap, other, 0)

    asyncio.run(main())


# What is replicated, and from when on.


@pytest.mark.parametrize("who", ["consumer", "subscription", "namespace", "nobody"])
def test_a_consumer_a_subscription_or_a_namespace_says_what_is_replicated(tmp_path: Path, who: str) -> None:
    async def main() -> None:
        async with clusters(tmp_path, "us-east", "eu-west") as (us, eu):
            topic = await us.engine.topic(TOPIC)
            if who == "namespace":
                on = PolicyOverrides({"replicate_subscription_state": True})
                await us.engine.catalog.set_namespace("public/default", NamespacePolicies(topic_policies=on))
            await topic.publish(messages(0, 10))
            consumer, inbox = await subscribed(topic, replicated=True if who == "consumer" else None)
            if who == "subscription":
                await topic.subscriptions["sub"].set_replicated(True)
            await topic.subscriptions.create("another", BEFORE_ALL, replicated=True)
            await inbox.holds(10)
            await acknowledged(consumer, inbox, slice(3, 7))
            if who != "nobody":
                await in_step(us, eu, 6)
                return
            await having(eu, 10, "another")
            assert eu.subscription() is None

    asyncio.run(main())


def test_a_subscription_that_is_made_after_messages_exist_has_its_place_everywhere(tmp_path: Path) -> None:
    """A subscription at the very first message, with nothing consumed, has its place everywhere, too."""

    async def main() -> None:
        async with clusters(tmp_path, "us-east", "eu-west") as (us, eu):
            topic = await us.engine.topic(TOPIC)
            positions = await topic.publish(messages(0, 20))
            await eu.engine.topic(TOPIC)
            await having(eu, 20, "")
            await topic.subscriptions.create("first", BEFORE_ALL, replicated=True)
            await topic.subscriptions.create("middle", positions[9], replicated=True)
            await topic.subscriptions.create("last", positions[19], replicated=True)
            for name, left in (("first", 20), ("middle", 10), ("last", 0)):
                await in_step(us, eu, left, name)
                _, inbox = await taking(eu, left, name=name)
                assert [payload(each.entry) for each in inbox.deliveries] == numbers(20 - left, 20)
            # The place of who consumed the one at entry 0, and no more, is kept too.
            await topic.subscriptions["first"].acknowledge([Ack(positions[0])])
            await in_step(us, eu, 19, "first")

    asyncio.run(main())


def test_what_is_switched_off_for_a_while_is_brought_up_to_date_by_a_consumer_that_asks(tmp_path: Path) -> None:
    async def main() -> None:
        async with clusters(tmp_path, "us-east", "eu-west") as (us, eu):
            topic = await us.engine.topic(TOPIC)
            await topic.publish(messages(0, 10))
            consumer, inbox = await taking(us, 10)
            await consumer.acknowledge([Ack(inbox.positions[0])])
            await in_step(us, eu, 9)
            for node in (us, eu):
                await node.topic().subscriptions["sub"].set_replicated(False)
            await acknowledged(consumer, inbox, slice(5, 10))
            await topic.subscriptions.create("another", BEFORE_ALL, replicated=True)
            await having(eu, 10, "another")
            assert (backlog(us), backlog(eu)) == (4, 9)
            for node in (us, eu):
                (await taking(node, 0))[0].close()  # as consumers do that are started with the flag
            await in_step(us, eu, 4)

    asyncio.run(main())


def test_a_namespace_is_copied_to_other_clusters_from_now_on_and_its_subscriptions_with_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with clusters(tmp_path, "us-east", "eu-west") as (us, eu):
            topic = await us.engine.topic(TOPIC)
            await topic.publish(messages(0, 10))
            consumer, inbox = await taking(us, 10)
            await consumer.acknowledge([Ack(inbox.positions[9])])
            await in_step(us, eu, 9)
            await us.engine.catalog.set_namespace("public/default", NamespacePolicies(replication_clusters=()))
            await topic.publish(messages(10, 20))
            await inbox.holds(20)
            await acknowledged(consumer, inbox, slice(0, 20, 2))
            told = us.sync.counters()["updates_sent"]
            await asyncio.sleep(0.3)  # nothing is to happen
            assert (eu.topic().log.messages, backlog(eu), us.sync.counters()["updates_sent"]) == (10, 9, told)
            await us.engine.catalog.set_namespace("public/default", NamespacePolicies())
            await having(eu, 20)
            await in_step(us, eu, 9)

    asyncio.run(main())


# Topics of every kind.


def test_each_partition_is_kept_in_step_by_itself(tmp_path: Path) -> None:
    async def main() -> None:
        async with clusters(tmp_path, "us-east", "eu-west") as (us, eu):
            await us.engine.partitioned.create(TOPIC, 3)
            partitions = [f"{TOPIC}-partition-{index}" for index in range(3)]
            for index, name in enumerate(partitions):
                topic = await us.engine.topic(name)
                await topic.publish(messages(0, 10))
                consumer, inbox = await taking(us, 10, topic=name)
                await acknowledged(consumer, inbox, slice(index, 10 - index))

            def left() -> list[int]:
                found = [eu.engine.find(name) for name in partitions]
                return [
                    each.subscriptions["sub"].cursor.backlog_entries()
                    for each in found
                    if each is not None and "sub" in each.subscriptions
                ]

            await eventually(lambda: left() == [0, 2, 4], "the state of each partition")
            for index, name in enumerate(partitions):
                _, inbox = await taking(eu, 2 * index, topic=name)
                assert [payload(each.entry) for each in inbox.deliveries] == [
                    *numbers(0, index),
                    *numbers(10 - index, 10),
                ]

    asyncio.run(main())


def test_markers_are_no_duplicates_and_messages_are_where_deduplication_is_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with clusters(tmp_path, "us-east", "eu-west", settings=ON) as (us, eu):
            topic = await us.engine.topic(TOPIC)
            producer = await topic.producers.create(ProducerOptions(name="p"))
            for _ in range(3):  # the same ones again and again, as after lost receipts
                for sequence_id in range(20):
                    await producer.publish([numbered(sequence_id)])
                    await asyncio.sleep(0)
            consumer, inbox = await taking(us, 20)
            await consumer.acknowledge([Ack(position) for position in inbox.positions[1::2]])
            await in_step(us, eu, 10)
            # The producer moves, sends the last five again and five new ones; what is consumed stays so.
            moved = await eu.topic().producers.create(ProducerOptions(name="p"))
            for sequence_id in range(15, 25):
                await moved.publish([numbered(sequence_id)])
            await inbox.holds(25)
            await acknowledged(consumer, inbox, slice(20, 25))
            await in_step(us, eu, 10)
            _, inbox = await taking(eu, 10)
            ids = [decode_entry(each.entry)[0].sequence_id for each in inbox.deliveries]
            assert ids == list(range(0, 20, 2))
            assert all(node.topic().log.markers for node in (us, eu))

    asyncio.run(main())


def test_a_message_that_is_consumed_before_its_time_elsewhere_is_not_delivered_when_it_is_due(tmp_path: Path) -> None:
    def delayed(number: int, deliver_at_ms: int) -> bytes:
        metadata = MessageMetadata(producer_name="p", sequence_id=number, publish_time=1, deliver_at_time=deliver_at_ms)
        return encode_entry(metadata, b"%d" % number)

    async def main() -> None:
        now_ms = 1_000_000
        settings = EngineSettings(wall_clock_ms=lambda: now_ms)
        async with clusters(tmp_path, "us-east", "eu-west", settings=settings) as (us, eu):
            topic = await us.engine.topic(TOPIC)
            positions = await topic.publish([delayed(number, now_ms + 60_000) for number in range(10)])
            held, inbox = await taking(us, 0)
            await having(eu, 10)
            waiting, arrived = await taking(eu, 0)
            await held.subscription.acknowledge([Ack(position) for position in positions[::2]])
            await in_step(us, eu, 5)
            assert not inbox.deliveries
            assert not arrived.deliveries
            now_ms += 61_000
            await eu.topic().publish([message(b"now")])  # who waits looks at the clock
            await arrived.holds(6)
            assert sorted(payload(each.entry) for each in arrived.deliveries) == sorted([*numbers(0, 10)[1::2], b"now"])
            waiting.close()

    asyncio.run(main())


def test_a_message_keeps_its_schema_and_is_consumed_as_any_other(tmp_path: Path) -> None:
    def typed(number: int) -> bytes:
        metadata = MessageMetadata(
            producer_name="p", sequence_id=number, publish_time=1, schema_version=number.to_bytes(8, "big")
        )
        return encode_entry(metadata, b"%d" % number)

    async def main() -> None:
        async with clusters(tmp_path, "us-east", "eu-west") as (us, eu):
            topic = await us.engine.topic(TOPIC)
            await topic.publish([typed(number) for number in range(10)])
            consumer, inbox = await taking(us, 10)
            await acknowledged(consumer, inbox, slice(0, 10, 3))
            await in_step(us, eu, 6)
            _, inbox = await taking(eu, 6)
            assert [decode_entry(each.entry)[0].schema_version for each in inbox.deliveries] == [
                number.to_bytes(8, "big") for number in range(10) if number % 3
            ]

    asyncio.run(main())


# Markers, backlogs and lags.


def test_when_all_is_acknowledged_nothing_is_left_in_any_backlog_though_there_are_markers(tmp_path: Path) -> None:
    async def main() -> None:
        async with clusters(tmp_path, "us-east", "eu-west", "ap-south") as nodes:
            us = nodes[0]
            await (await us.engine.topic(TOPIC)).subscriptions.create("sub", BEFORE_ALL, replicated=True)
            for node in nodes:
                await having(node, 0)
            for start in range(0, 50, 10):
                for node in nodes:
                    topic = await node.engine.topic(TOPIC)
                    known = len(topic.log.markers)
                    await topic.publish(messages(start, start + 10))
                    await eventually(lambda: len(topic.log.markers) > known, "markers between the messages")  # noqa: B023
            for node in nodes:
                await having(node, 150, "")
            consumer, inbox = await taking(us, 150)
            await acknowledged(consumer, inbox)
            for node in nodes[1:]:
                await in_step(us, node, 0)
            for node in nodes:
                subscription = node.topic().subscriptions["sub"]
                assert len(node.topic().log.markers) > 10
                assert subscription.backlog_messages() == 0
                await eventually(
                    lambda: subscription.cursor.mark_delete == node.topic().log.last,  # noqa: B023
                    "a mark-delete position at the end, over all markers",
                )
                assert not subscription.cursor.state.individually_deleted

    asyncio.run(main())


def test_a_subscription_without_consumers_has_the_messages_as_its_backlog_and_no_marker(tmp_path: Path) -> None:
    async def main() -> None:
        async with clusters(tmp_path, "us-east", "eu-west") as (us, eu):
            topic = await us.engine.topic(TOPIC)
            await topic.subscriptions.create("idle", BEFORE_ALL, replicated=True)
            for start in range(0, 50, 10):
                known = len(topic.log.markers)
                await topic.publish(messages(start, start + 10))
                await eventually(lambda: len(topic.log.markers) > known, "markers")  # noqa: B023
            await having(eu, 50, "idle")
            await quiet(us, eu)
            for node in (us, eu):
                assert len(node.topic().log.markers) >= 5
                assert node.topic().subscriptions["idle"].backlog_messages() == 50 == backlog(node, "idle")

    asyncio.run(main())


def test_an_unused_topic_with_replicated_subscriptions_does_not_grow_and_can_be_deleted(tmp_path: Path) -> None:
    async def main() -> None:
        async with clusters(tmp_path, "us-east", "eu-west") as (us, eu):
            topic = await us.engine.topic(TOPIC)
            await topic.publish(messages(0, 5))
            (await taking(us, 5))[0].close()
            await in_step(us, eu, 5)
            await eventually(lambda: us.index.mappings and eu.index.mappings)
            await settled(lambda: [node.topic().log.entries for node in (us, eu)])
            for node in (us, eu):
                await node.engine.deleting.delete(TOPIC)  # without force: nobody is connected
            assert us.engine.find(TOPIC) is None
            assert eu.engine.find(TOPIC) is None

    asyncio.run(main())


def test_an_update_is_sent_once_and_not_again_while_nothing_changes(tmp_path: Path) -> None:
    """Also when messages and mappings come that say nothing new of a subscription that stands still."""

    async def main() -> None:
        async with clusters(tmp_path, "us-east", "eu-west") as (us, eu):
            topic = await us.engine.topic(TOPIC)
            await topic.subscriptions.create("sub", BEFORE_ALL, replicated=True)
            await topic.publish(messages(0, 5))
            await eventually(lambda: us.index.mappings, "a mapping below its place, which is told too")
            await topic.publish(messages(5, 10))
            consumer, inbox = await taking(us, 10)
            await consumer.acknowledge([Ack(position) for position in inbox.positions[:7]])
            await in_step(us, eu, 3)
            consumer.close()
            await quiet(us, eu)  # mappings that were asked for before have come
            told = us.sync.counters()["updates_sent"]
            for start in range(10, 60, 10):
                known = us.sync.counters()["mappings"]
                await topic.publish(messages(start, start + 10))
                await eventually(lambda: us.sync.counters()["mappings"] > known, "a mapping")  # noqa: B023
            await asyncio.sleep(0.1)
            assert us.sync.counters()["updates_sent"] == told

    asyncio.run(main())


def test_a_lag_is_never_negative_and_no_position_is_past_what_was_copied(tmp_path: Path) -> None:
    """us-east consumes all that it publishes at once, while eu-west gets it over a link that is cut all the time."""

    async def main() -> None:
        names = ("us-east", "eu-west")
        async with (
            cluster(tmp_path, "us-east", names) as us,
            cluster(tmp_path, "eu-west", names) as eu,
            CuttingProxy(eu.server.port, seed=1, bytes_max=20_000) as proxy,
        ):
            us.link_to(eu, proxy.address)
            topic = await us.engine.topic(TOPIC)
            made = await topic.subscriptions.create("sub", BEFORE_ALL, replicated=True)
            looked = 0

            def look() -> None:
                nonlocal looked
                there = eu.subscription()
                if there is not None:
                    looked += 1
                    assert there.cursor.backlog_entries() >= 0
                    assert there.backlog_messages() >= 0
                    assert there.cursor.mark_delete <= eu.topic().log.last

            for _ in range(40):
                positions = await topic.publish([message(b"x" * 200) for _ in range(10)])
                await made.acknowledge([Ack(position) for position in positions])
                look()
                await asyncio.sleep(0.005)
                look()
            proxy.cutting = False
            await having(eu, 400)
            await in_step(us, eu, 0)
            assert proxy.cuts > 3
            assert looked > 10

    asyncio.run(main())


def test_a_link_that_is_cut_and_started_again_loses_no_part_of_a_batchs_acknowledgements(tmp_path: Path) -> None:
    async def main() -> None:
        names = ("us-east", "eu-west")
        async with (
            cluster(tmp_path, "us-east", names) as us,
            cluster(tmp_path, "eu-west", names) as eu,
            CuttingProxy(eu.server.port, seed=2, bytes_max=6_000) as proxy,
        ):
            link = us.link_to(eu, proxy.address)
            topic = await us.engine.topic(TOPIC)
            made = await topic.subscriptions.create("sub", BEFORE_ALL, replicated=True)
            positions: list[Position] = []
            for number in range(40):
                positions += await topic.publish([batch([b"x" * 50] * 10)])
                await made.acknowledge([Ack(positions[-1], tuple(range(number % 10)))])
                if number == 20:
                    await link.stop()
                    us.links.remove(link)
                    link.detach()
                    link = us.link_to(eu, proxy.address)
            proxy.cutting = False
            await eventually(lambda: agree(us, eu) and eu.topic().log.messages == 400, "the same state in eu-west")
            there = eu.subscription()
            assert there is not None
            assert sorted(map(list, there.cursor.state.batch_acks.values())) == sorted(
                list(range(number % 10)) for number in range(40) if number % 10
            )
            assert proxy.cuts > 1

    asyncio.run(main())


# What operators do on one side.


def test_a_forced_unsubscribe_on_one_side_takes_the_subscription_from_those_of_the_other(tmp_path: Path) -> None:
    async def main() -> None:
        async with clusters(tmp_path, "us-east", "eu-west") as (us, eu):
            topic = await us.engine.topic(TOPIC)
            await topic.publish(messages(0, 10))
            here, inbox = await taking(us, 10)
            await having(eu, 10)
            there, _ = await taking(eu, 10)
            closed: list[Any] = []
            there.on_closed = lambda *reason: closed.append(reason)
            await here.acknowledge([Ack(inbox.positions[0])])
            await here.unsubscribe(force=True)
            await eventually(lambda: eu.subscription() is None, "deleted in eu-west")
            assert closed
            await topic.publish(messages(10, 11))
            await having(eu, 11, "")
            assert us.subscription() is None
            assert eu.subscription() is None

    asyncio.run(main())


def test_a_seek_on_one_side_gives_the_consumers_of_the_other_everything_from_there(tmp_path: Path) -> None:
    async def main() -> None:
        async with clusters(tmp_path, "us-east", "eu-west") as (us, eu):
            topic = await us.engine.topic(TOPIC)
            positions = await topic.publish(messages(0, 20))
            await having(eu, 20, "")
            there, inbox = await taking(eu, 20, SubscriptionType.EXCLUSIVE)
            await there.acknowledge_cumulative(inbox.positions[-1])
            await in_step(us, eu, 0)
            await us.topic().subscriptions["sub"].moves.seek(positions[12])
            await inbox.holds(28)
            assert [payload(each.entry) for each in inbox.deliveries[20:]] == numbers(12, 20)
            await in_step(us, eu, 8)
            await there.acknowledge_cumulative(inbox.positions[23])
            await in_step(us, eu, 4)

    asyncio.run(main())


# Where the field's translations fail.


def test_a_subscription_that_lags_far_is_kept_in_step_also_after_everybody_was_restarted(tmp_path: Path) -> None:
    """No message has come since the restart, and its place is far below all that is new."""

    async def main() -> None:
        async with clusters(tmp_path, "us-east", "eu-west") as (us, eu):
            topic = await us.engine.topic(TOPIC)
            await topic.subscriptions.create("sub", BEFORE_ALL, replicated=True)
            positions = [position for _ in range(50) for position in await topic.publish(messages(0, 100))]
            await having(eu, 5_000)
        async with clusters(tmp_path, "us-east", "eu-west") as (us, eu):
            made = us.topic().subscriptions["sub"]
            await made.acknowledge([Ack(position) for position in positions[10:20]])
            await in_step(us, eu, 4_990)
            await made.acknowledge_cumulative(positions[100], None)
            await in_step(us, eu, 4_899)

    asyncio.run(main())


def test_of_a_topic_without_messages_no_position_is_told_and_its_first_message_is_delivered(tmp_path: Path) -> None:
    async def main() -> None:
        async with clusters(tmp_path, "us-east", "eu-west") as (us, eu):
            topic = await us.engine.topic(TOPIC)
            await topic.subscriptions.create("sub", BEFORE_ALL, replicated=True)
            await having(eu, 0)
            await quiet(us, eu)
            there = eu.subscription()
            assert there is not None
            assert there.backlog_messages() == 0
            assert not us.index.mappings
            assert not eu.index.mappings
            _, inbox = await taking(eu, 0)
            await topic.publish(messages(0, 1))
            await inbox.holds(1)
            await in_step(us, eu, 1)

    asyncio.run(main())


def test_clocks_that_are_hours_apart_and_messages_with_wrong_times_change_nothing(tmp_path: Path) -> None:
    def dated(number: int) -> bytes:
        metadata = MessageMetadata(producer_name="p", sequence_id=number, publish_time=10**12 - number * 3_600_000)
        return encode_entry(metadata, b"%d" % number)

    async def main() -> None:
        names = ("us-east", "eu-west")
        hours = {"us-east": 0, "eu-west": -5}
        settings = {
            name: EngineSettings(wall_clock_ms=lambda name=name: 10**12 + 3_600_000 * hours[name])  # type: ignore[misc]
            for name in names
        }
        async with (
            cluster(tmp_path, "us-east", names, settings=settings["us-east"]) as us,
            cluster(tmp_path, "eu-west", names, settings=settings["eu-west"]) as eu,
        ):
            us.link_to(eu)
            eu.link_to(us)
            topic = await us.engine.topic(TOPIC)
            await topic.subscriptions.create("sub", BEFORE_ALL, replicated=True)
            await having(eu, 0)
            for start in range(0, 60, 20):
                await topic.publish([dated(number) for number in range(start, start + 10)])
                await eu.topic().publish([dated(number) for number in range(start + 10, start + 20)])
                for node in (us, eu):
                    await having(node, start + 20)
                hours["us-east"] -= 2  # set back while they run
            consumer, inbox = await taking(us, 60)
            seen = await acknowledged(consumer, inbox, slice(0, 60, 2))
            await in_step(us, eu, 30)
            consumer, inbox = await taking(eu, 30)
            seen += await acknowledged(consumer, inbox)
            assert sorted(seen) == sorted(numbers(0, 60))
            await in_step(us, eu, 0)

    asyncio.run(main())


def test_a_slow_subscription_that_acknowledges_one_by_one_is_up_to_date_after_hundreds_of_snapshots(
    tmp_path: Path,
) -> None:
    """Its oldest message is never acknowledged, so its mark-delete position stands below every snapshot."""

    async def main() -> None:
        async with clusters(tmp_path, "us-east", "eu-west") as (us, eu):
            topic = await us.engine.topic(TOPIC)
            made = await topic.subscriptions.create("sub", BEFORE_ALL, replicated=True)
            positions: list[Position] = []
            for number in range(100):
                known = us.sync.counters()["mappings"]
                positions += await topic.publish(messages(0, 5))
                await eventually(lambda: us.sync.counters()["mappings"] > known, f"mapping {number}")  # noqa: B023
            await having(eu, 500)
            for number in range(499, 399, -7):
                await made.acknowledge([Ack(positions[number])])
            await in_step(us, eu, 500 - len(range(499, 399, -7)))
            assert made.cursor.mark_delete < positions[0]

    asyncio.run(main())
