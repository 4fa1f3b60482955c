"""Changes by operators and policies to topics with replicated subscriptions: TTL, compaction, deletion, late links."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
from compaction_support import keyed
from engine_support import PUBLISH_TIME_MS, Inbox, eventually, message, subscribed
from sync_node_support import TOPIC, agree, backlog
from sync_support import acknowledged, cluster, clusters, having, in_step, payload, quiet, taking

from replicator.engine.engine import EngineSettings
from replicator.engine.log.entry import encode_entry
from replicator.engine.policies import TopicPolicies
from replicator.engine.types import Ack, SubscribeOptions, SubscriptionType
from replicator.metadata.metadata_pb2 import MessageMetadata
from snapshots.position import BEFORE_ALL

pytestmark = pytest.mark.usefixtures("shortest_link_pauses")

NAMES = ("us-east", "eu-west")


def messages(first: int, last: int) -> list[bytes]:
    return [message(b"%d" % number) for number in range(first, last)]


def numbers(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last)]


def test_what_expires_in_one_cluster_counts_as_consumed_in_the_other(tmp_path: Path) -> None:
    """Younger messages stay, with their acknowledgements."""

    async def main() -> None:
        now_ms = PUBLISH_TIME_MS
        with_ttl = EngineSettings(policies=TopicPolicies(message_ttl_seconds=30), wall_clock_ms=lambda: now_ms)
        async with (
            cluster(tmp_path, "us-east", NAMES, settings=with_ttl) as us,
            cluster(tmp_path, "eu-west", NAMES) as eu,
        ):
            us.link_to(eu)
            topic = await us.engine.topic(TOPIC)
            await topic.publish(messages(0, 10))
            consumer, inbox = await taking(us, 10)
            await consumer.acknowledge([Ack(inbox.positions[9])])
            await in_step(us, eu, 9)
            _, arrived = await taking(eu, 9)
            now_ms += 31_000
            young = MessageMetadata(producer_name="p", sequence_id=10, publish_time=now_ms)
            (position,) = await topic.publish([encode_entry(young, b"young")])
            await us.engine.maintenance.run_once()
            await in_step(us, eu, 1)
            assert eu.subscription().dispatching.held_entries == 1
            assert [payload(each.entry) for each in arrived.deliveries] == [*numbers(0, 9), b"young"]
            await topic.subscriptions["sub"].acknowledge([Ack(position)])
            await in_step(us, eu, 0)

    asyncio.run(main())


def test_a_subscription_that_reads_compacted_goes_on_with_the_newest_of_each_key_that_was_not_consumed(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with clusters(tmp_path, *NAMES) as (us, eu):
            topic = await us.engine.topic(TOPIC)
            for version in (b"old", b"new"):
                await topic.publish([keyed(f"k{number}", b"%s %d" % (version, number)) for number in range(10)])
            await having(eu, 20, "")
            await topic.compaction.run()
            await eu.topic().compaction.run()
            await topic.trimming.trim(topic.log.last)
            consumer, inbox = await subscribed(
                topic, subscription_type=SubscriptionType.EXCLUSIVE, read_compacted=True, replicated=True
            )
            await inbox.holds(10)
            await acknowledged(consumer, inbox, slice(0, 10, 2))
            await eventually(lambda: agree(us, eu), "the same state in eu-west")
            consumer, arrived = await subscribed(
                eu.topic(), subscription_type=SubscriptionType.EXCLUSIVE, read_compacted=True, replicated=True
            )
            await arrived.holds(5)
            await topic.publish([keyed("k1", b"newest 1")])
            await arrived.holds(6)
            assert [payload(each.entry) for each in arrived.deliveries] == [
                *(b"new %d" % number for number in range(1, 10, 2)),
                b"newest 1",
            ]
            await acknowledged(consumer, arrived)
            await eventually(lambda: backlog(us) == 0 == backlog(eu), "empty backlogs")

    asyncio.run(main())


def test_invariant_5_who_reads_compacted_claims_nothing_that_was_trimmed_above_its_place(tmp_path: Path) -> None:
    """Messages that eu-west trimmed came from us-east, and the subscription begins below them."""

    async def main() -> None:
        async with clusters(tmp_path, *NAMES) as (us, eu):
            topic = await us.engine.topic(TOPIC)
            for version in (b"old", b"new"):
                await topic.publish([keyed(f"k{number}", b"%s %d" % (version, number)) for number in range(10)])
            there = await having(eu, 20, "")
            await there.publish([keyed("eu", b"of eu-west")])
            await having(us, 21, "")
            await topic.publish([keyed("us", b"of us-east")])
            await having(eu, 22, "")
            for node in (us, eu):
                await node.topic().compaction.run()
            await quiet(us, eu)
            await there.trimming.trim(there.log.last)
            assert there.log.entries_between(BEFORE_ALL, there.log.last) == 1, "only the last block is left"
            newest = [*(b"new %d" % number for number in range(10)), b"of eu-west", b"of us-east"]
            consumers = []
            for node in (eu, us):
                consumer, inbox = await subscribed(
                    node.topic(), subscription_type=SubscriptionType.EXCLUSIVE, read_compacted=True, replicated=True
                )
                await inbox.holds(12)
                assert [payload(each.entry) for each in inbox.deliveries] == newest
                consumers.append((consumer, inbox))
                await having(us, 22)
                await quiet(us, eu)
            consumer, inbox = consumers[0]
            await consumer.acknowledge([Ack(inbox.positions[-1])])
            eu.sync.announce_all()  # as happens once a minute with a change
            await quiet(us, eu)
            assert backlog(us) == 11 == backlog(eu)
            await acknowledged(consumer, inbox)
            await eventually(lambda: backlog(us) == 0 == backlog(eu), "empty backlogs")

    asyncio.run(main())


def test_who_reads_compacted_from_a_trimmed_position_begins_no_later_in_other_clusters(tmp_path: Path) -> None:
    async def main() -> None:
        async with clusters(tmp_path, *NAMES) as (us, eu):
            topic = await us.engine.topic(TOPIC)
            await topic.publish([keyed(f"k{number}", b"%d" % number) for number in range(10)])
            there = await having(eu, 10, "")
            await there.publish([keyed("eu", b"of eu-west")])
            await having(us, 11, "")
            await there.compaction.run()
            await there.trimming.trim(there.log.last)
            # As a client does that goes on behind a message that it has seen.
            fifth = list(there.log.view.positions)[4]
            assert fifth < there.log.trimmed
            options = SubscribeOptions(
                SubscriptionType.EXCLUSIVE, "c", start=fifth, read_compacted=True, replicated=True
            )
            inbox = Inbox()
            consumer = await there.subscribe("sub", options, inbox)
            consumer.flow(100)
            await inbox.holds(6)
            await having(us, 11)
            _, arrived = await subscribed(us.topic(), subscription_type=SubscriptionType.EXCLUSIVE, replicated=True)
            await arrived.holds(6)
            left = [payload(each.entry) for each in inbox.deliveries]
            assert left == [b"5", b"6", b"7", b"8", b"9", b"of eu-west"]
            assert [payload(each.entry) for each in arrived.deliveries][-6:] == left
            await acknowledged(consumer, inbox)
            eu.sync.announce_all()  # as happens once a minute with a change
            await eventually(lambda: backlog(us) == 0 == backlog(eu), "empty backlogs")

    asyncio.run(main())


def test_of_a_key_that_two_clusters_wrote_at_once_each_delivers_its_newest_and_who_consumed_it_consumed_the_key(
    tmp_path: Path,
) -> None:
    """Both logs have both messages, in another order: what one compacts away, the other keeps."""

    async def main() -> None:
        async with clusters(tmp_path, *NAMES, links=()) as (us, eu):
            for node in (us, eu):
                topic = await node.engine.topic(TOPIC)
                await topic.publish([keyed("k", node.engine.cluster.encode())])
            us.link_to(eu)
            eu.link_to(us)
            for node in (us, eu):
                await having(node, 2, "")
                await node.topic().compaction.run()
            await us.topic().subscriptions.create("sub", BEFORE_ALL, replicated=True, read_compacted=True)
            await having(eu, 2)
            consumers = []
            for node, newest in ((us, b"eu-west"), (eu, b"us-east")):
                node.sync.announce_all()
                await quiet(us, eu)
                consumer, inbox = await subscribed(
                    node.topic(), subscription_type=SubscriptionType.EXCLUSIVE, read_compacted=True, replicated=True
                )
                await inbox.holds(1)
                assert [payload(each.entry) for each in inbox.deliveries] == [newest]
                consumers.append((consumer, inbox))
            await acknowledged(*consumers[0])
            us.sync.announce_all()  # as happens once a minute with a change
            await eventually(lambda: backlog(us) == 0 == backlog(eu), "the key consumed in both")

    asyncio.run(main())


def test_a_large_backlog_from_before_the_link_has_its_exact_place_in_the_other_cluster(tmp_path: Path) -> None:
    async def main() -> None:
        async with clusters(tmp_path, *NAMES, links=()) as (us, eu):
            topic = await us.engine.topic(TOPIC)
            entries = [message() for _ in range(10_000)]
            positions = [position for _ in range(10) for position in await topic.publish(entries)]
            made = await topic.subscriptions.create("sub", BEFORE_ALL, replicated=True)
            await made.acknowledge_cumulative(positions[29_999], None)
            await made.acknowledge([Ack(position) for position in positions[30_001:40_000:3]])
            us.link_to(eu)
            eu.link_to(us)
            await having(eu, 100_000)
            left = 70_000 - len(range(30_001, 40_000, 3))
            await in_step(us, eu, left)
            there = eu.subscription()
            assert there is not None
            before = there.cursor.mark_delete
            assert (
                eu.topic().log.entries_between(BEFORE_ALL, before)
                - eu.topic().log.markers.count_between(BEFORE_ALL, before)
                == 30_000
            )
            for upto in (49_999, 79_999):
                await made.acknowledge_cumulative(positions[upto], None)
                await in_step(us, eu, 99_999 - upto)
                assert there.cursor.mark_delete > before
                before = there.cursor.mark_delete
            # What a consumer there takes on goes back.
            await there.moves.clear_backlog()
            await in_step(us, eu, 0)

    asyncio.run(main())


def test_with_mark_delete_positions_only_a_subscription_that_lags_far_finds_a_mapping_too(tmp_path: Path) -> None:
    """Hundreds of snapshots later, the mapping near its position is still there, or one not far below."""

    async def main() -> None:
        async with clusters(tmp_path, *NAMES, exact=False) as (us, eu):
            topic = await us.engine.topic(TOPIC)
            made = await topic.subscriptions.create("sub", BEFORE_ALL, replicated=True)
            positions = []
            for number in range(200):
                known = us.sync.counters()["mappings"]
                positions += await topic.publish([message() for _ in range(50)])
                await eventually(lambda: us.sync.counters()["mappings"] > known, f"mapping {number}")  # noqa: B023
            await having(eu, 10_000)
            there = eu.subscription()
            assert there is not None
            assert len(us.sync.mappings_of(TOPIC, "eu-west")) < 100, "thinned"
            for upto in (2_500, 5_000, 7_500):
                await made.acknowledge_cumulative(positions[upto - 1], None)
                behind = (10_000 - upto) // 7 + 50
                await eventually(
                    lambda: 10_000 - upto <= there.cursor.backlog_entries() <= 10_000 - upto + behind,  # noqa: B023
                    f"a mark-delete position in eu-west not far below {upto}",
                )
            await made.acknowledge_cumulative(positions[-1], None)
            await eventually(lambda: there.cursor.backlog_entries() == 0, "the end in eu-west")

    asyncio.run(main())


def test_a_topic_that_is_deleted_in_one_cluster_comes_back_there_with_what_was_consumed(tmp_path: Path) -> None:
    """Consumers of both clusters consumed messages."""

    async def main() -> None:
        async with clusters(tmp_path, *NAMES) as (us, eu):
            topic = await us.engine.topic(TOPIC)
            await topic.publish(messages(0, 20))
            here, inbox = await taking(us, 20)
            await here.acknowledge([Ack(position) for position in inbox.positions[:5]])
            await in_step(us, eu, 15)
            there, arrived = await taking(eu, 15)
            await acknowledged(there, arrived, slice(5))
            await in_step(us, eu, 10)
            await eu.engine.deleting.delete(TOPIC, force=True)
            await topic.publish(messages(20, 21))
            await having(eu, 21)
            await eventually(lambda: backlog(eu) == 11 == backlog(us), "what was consumed in either, in both")
            _, arrived = await taking(eu, 11)
            assert sorted(payload(each.entry) for each in arrived.deliveries) == sorted(numbers(10, 21))

    asyncio.run(main())


def test_a_cluster_that_lost_its_disk_gets_what_was_consumed_by_its_own_consumers_too(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, "us-east", NAMES) as us:
            async with cluster(tmp_path, "eu-west", NAMES) as eu:
                us.link_to(eu)
                eu.link_to(us)
                topic = await us.engine.topic(TOPIC)
                await topic.publish(messages(0, 20))
                here, inbox = await taking(us, 20)
                await here.acknowledge([Ack(position) for position in inbox.positions[:5]])
                await in_step(us, eu, 15)
                there, arrived = await taking(eu, 15)
                await acknowledged(there, arrived, slice(5))
                await in_step(us, eu, 10)
            shutil.rmtree(tmp_path / "eu-west")
            async with cluster(tmp_path, "eu-west", NAMES, port=eu.server.port) as eu:
                eu.link_to(us)
                await having(eu, 20)
                await eventually(lambda: backlog(eu) == 10, "what was consumed in either, in eu-west")
                _, arrived = await taking(eu, 10)
                assert sorted(payload(each.entry) for each in arrived.deliveries) == sorted(numbers(10, 20))

    asyncio.run(main())


def test_a_cluster_that_is_restored_from_an_old_copy_gets_what_its_own_consumers_acknowledged_since(
    tmp_path: Path,
) -> None:
    """It publishes nothing, so that no history is in the way; who lost nothing is told nothing."""

    async def main() -> None:
        async with cluster(tmp_path, "us-east", NAMES) as us:
            async with cluster(tmp_path, "eu-west", NAMES) as eu:
                us.link_to(eu)
                eu.link_to(us)
                topic = await us.engine.topic(TOPIC)
                await topic.publish(messages(0, 10))
                await topic.subscriptions.create("sub", BEFORE_ALL, replicated=True)
                await having(eu, 10)
                await in_step(us, eu, 10)
                await quiet(us, eu)
            shutil.copytree(tmp_path / "eu-west", tmp_path / "copy")
            told = us.sync.counters()["updates_sent"]
            async with cluster(tmp_path, "eu-west", NAMES, port=eu.server.port) as eu:
                eu.link_to(us)
                await eventually(lambda: us.links[0].state == "idle", "the link to be back")
                await topic.publish(messages(10, 20))
                there, arrived = await taking(eu, 20)
                await acknowledged(there, arrived, slice(0, 20, 2))
                await in_step(us, eu, 10)
                await quiet(us, eu)
                assert us.sync.counters()["updates_sent"] == told, "eu-west had lost nothing"
            shutil.rmtree(tmp_path / "eu-west")
            shutil.copytree(tmp_path / "copy", tmp_path / "eu-west")
            async with cluster(tmp_path, "eu-west", NAMES, port=eu.server.port) as eu:
                eu.link_to(us)
                await having(eu, 20)
                await eventually(lambda: backlog(eu) == 10, "what eu-west had acknowledged itself")
                assert us.sync.counters()["updates_sent"] > told

    asyncio.run(main())


def test_a_topic_that_is_made_anew_and_copied_anew_begins_with_nothing_consumed(tmp_path: Path) -> None:
    async def main() -> None:
        async with clusters(tmp_path, *NAMES, links=[("us-east", "eu-west")]) as (us, eu):
            topic = await us.engine.topic(TOPIC)
            await topic.publish(messages(0, 20))
            consumer, inbox = await taking(us, 20)
            await consumer.acknowledge([Ack(position) for position in inbox.positions])
            await in_step(us, eu, 0)
            await us.engine.deleting.delete(TOPIC, force=True)
            topic = await us.engine.topic(TOPIC)
            await topic.publish(messages(20, 30))
            link = us.links[0]
            await eventually(lambda: link.status()["gaps"], "a gap, instead of two topics in one")
            assert eu.topic().log.messages == 20
            consumer, inbox = await taking(us, 10)
            await acknowledged(consumer, inbox, slice(3, 5))
            await link.resolve(TOPIC, "copy-anew")
            await having(eu, 10)
            await in_step(us, eu, 8)
            _, arrived = await taking(eu, 8)
            assert sorted(payload(each.entry) for each in arrived.deliveries) == numbers(20, 23) + numbers(25, 30)

    asyncio.run(main())
