"""A message that came to a cluster by two ways: told to its producer, delivered once, acknowledged as one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from duplicates_support import ON, chunks_of, copy, ids_of, numbered, numbered_batch
from engine_support import eventually, logged, marker, opened, subscribed
from pyroaring import BitMap

from replicator.engine.engine import EngineSettings
from replicator.engine.errors import NotAllowedError
from replicator.engine.log import duplicates as duplicates_module
from replicator.engine.policies import TopicPolicies
from replicator.engine.producing import duplicate_chains
from replicator.engine.topic import Topic
from replicator.engine.types import DUPLICATE, Ack, InitialPosition, ProducerOptions, SubscriptionType
from snapshots.position import BEFORE_ALL, Position
from snapshots.position_set import PositionSet

TOPIC = "orders"


@asynccontextmanager
async def two(path: Path, settings: EngineSettings = ON) -> AsyncIterator[tuple[Topic, Topic]]:
    async with opened(path / "a", "us-east", settings) as a, opened(path / "b", "eu-west", settings) as b:
        yield await a.topic(TOPIC), await b.topic(TOPIC)


async def both_ways(a: Topic, b: Topic) -> None:
    await copy(a, b)
    await copy(b, a)


async def sent_to_both(a: Topic, b: Topic, *entries: bytes) -> None:
    """Publish at A, lose the confirmation, and send again to B; then the links come back."""
    for entry in entries:
        await a.publish([entry])
        await b.publish([entry])
    await both_ways(a, b)


def backlogs(topic: Topic) -> list[int]:
    return [subscription.backlog_messages() for subscription in topic.subscriptions.values()]


# What the producer is told.


def test_a_producer_that_moves_is_told_duplicate_of_what_was_copied_before_it_came(tmp_path: Path) -> None:
    async def main() -> None:
        async with two(tmp_path) as (a, b):
            await a.publish([numbered(5), numbered(6)])
            await copy(a, b)
            producer = await b.producers.create(ProducerOptions(name="p"))
            assert producer.last_sequence_id == 6
            receipts = await producer.publish([numbered(5), numbered(6), numbered(7)])
            assert receipts[:2] == [DUPLICATE, DUPLICATE]
            assert receipts[2] != DUPLICATE
            assert len(logged(b)) == 3
        async with two(tmp_path) as (a, b):
            producer = await b.producers.create(ProducerOptions(name="p"))
            assert producer.last_sequence_id == 7
            assert await producer.publish([numbered(6)]) == [DUPLICATE]

    asyncio.run(main())


def test_a_lower_sequence_id_that_is_not_here_is_stored(tmp_path: Path) -> None:
    """Comparing with the highest id would lose entry 6, which the link had left out."""

    async def main() -> None:
        async with two(tmp_path) as (a, b):
            await a.publish([numbered(5)])
            await a.publish([numbered(7)])
            await copy(a, b)
            (receipt,) = await b.publish([numbered(6)])
            assert receipt != DUPLICATE

    asyncio.run(main())


def test_batches_of_which_a_part_was_copied_are_refused_and_whole_ones_are_duplicates(tmp_path: Path) -> None:
    async def main() -> None:
        async with two(tmp_path) as (a, b):
            await a.publish([numbered_batch(3, 6), numbered(7)])
            await copy(a, b)
            assert await b.publish([numbered_batch(3, 6), numbered(4), numbered_batch(5, 7)]) == [DUPLICATE] * 3
            with pytest.raises(NotAllowedError, match="from another cluster"):
                await b.publish([numbered_batch(7, 9)])
            (receipt,) = await b.publish([numbered_batch(8, 9)])
            assert receipt != DUPLICATE

    asyncio.run(main())


def test_chunks_go_on_after_those_that_were_copied(tmp_path: Path) -> None:
    async def main() -> None:
        async with two(tmp_path) as (a, b):
            chunks = chunks_of(4, 3)
            await a.publish(chunks[:2])
            await copy(a, b)
            producer = await b.producers.create(ProducerOptions(name="p"))
            assert producer.last_sequence_id == -1, "an incomplete message is not there"
            receipts = await producer.publish(chunks)
            assert receipts[:2] == [DUPLICATE, DUPLICATE]
            assert receipts[2] != DUPLICATE
            assert await producer.publish(chunks) == [DUPLICATE] * 3

    asyncio.run(main())


def test_chunks_of_the_message_made_anew_start_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with two(tmp_path) as (a, b):
            await a.publish(chunks_of(4, 3)[:2])
            await copy(a, b)
            assert DUPLICATE not in await b.publish(chunks_of(4, 3))

    asyncio.run(main())


# Duplicates in the log.


def test_invariant_2_and_3_both_logs_keep_both_entries_and_know_that_they_are_duplicates(tmp_path: Path) -> None:
    async def main() -> None:
        async with two(tmp_path) as (a, b):
            await sent_to_both(a, b, numbered(6))
            for topic in (a, b):
                first, later = (entry.position for entry in topic.reading.entries(BEFORE_ALL, None, 10, 10**6))
                assert topic.log.has_duplicates
                assert (topic.log.duplicate_of(first), topic.log.duplicate_of(later)) == (later, first)
                assert topic.log.with_duplicates(PositionSet([first])) == PositionSet([first, later])
        async with two(tmp_path) as (a, b):
            assert a.log.has_duplicates
            assert a.log.duplicate_of(first) is None, "positions of another cluster"

    asyncio.run(main())


def test_what_comes_later_with_a_lower_sequence_id_is_new(tmp_path: Path) -> None:
    """The producer sent 6 only to A, lost it, and sent 7 to B: 6 is new to B whenever it comes."""

    async def main() -> None:
        async with two(tmp_path) as (a, b):
            await a.publish([numbered(6)])
            await b.publish([numbered(7)])
            await both_ways(a, b)
            assert not a.log.has_duplicates
            assert not b.log.has_duplicates
            for topic in (a, b):
                _, inbox = await subscribed(topic)
                await inbox.holds(2)

    asyncio.run(main())


def test_entries_that_differ_in_what_they_hold_are_no_duplicates(tmp_path: Path) -> None:
    async def main() -> None:
        async with two(tmp_path) as (a, b):
            await a.publish([numbered_batch(3, 6)])
            await b.publish([numbered_batch(3, 5), numbered(6), numbered(3, producer="q")])
            await both_ways(a, b)
            assert not a.log.has_duplicates
            assert not b.log.has_duplicates

    asyncio.run(main())


def test_a_message_in_chunks_is_one_message_once_all_of_it_came_by_both_ways(tmp_path: Path) -> None:
    """Under whatever uuid: a consumer puts the first one together, and gets none of the other one after its last."""

    async def main() -> None:
        async with two(tmp_path) as (a, b):
            theirs, ours = chunks_of(4, 3), chunks_of(4, 3, publish_time=2)
            await a.publish(theirs)
            for chunk in ours[:2]:
                await b.publish([chunk])
            await copy(b, a)
            assert not a.log.has_duplicates, "nobody knows yet how it ends"
            await b.publish(ours[2:])
            await both_ways(a, b)
            for topic, chunks in ((a, theirs), (b, ours)):
                _, inbox = await subscribed(topic)
                await inbox.holds(3)
                assert [bytes(each.entry) for each in inbox.deliveries] == chunks
                assert len(topic.log.duplicates.members if topic.log.duplicates else ()) == 6

    asyncio.run(main())


@pytest.mark.parametrize("differs", [0, 1, 2])
def test_messages_in_chunks_that_differ_in_one_are_both_delivered_whole(tmp_path: Path, differs: int) -> None:
    async def main() -> None:
        async with two(tmp_path) as (a, b):
            contents = [b"0", b"1", b"2"]
            here = chunks_of(4, 3, uuid="p-4", contents=contents)
            contents[differs] = b"x"
            there = chunks_of(4, 3, uuid="p-4", contents=contents)
            await a.publish(here)
            await b.publish(there)
            await both_ways(a, b)
            for topic, chunks in ((a, here + there), (b, there + here)):
                assert not topic.log.has_duplicates
                _, inbox = await subscribed(topic)
                await inbox.holds(6)
                assert [bytes(each.entry) for each in inbox.deliveries] == chunks

    asyncio.run(main())


def test_two_entries_of_one_origin_are_never_duplicates(tmp_path: Path) -> None:
    """Deduplication is off at A, and its producer has used an id twice: which of the two B's was, nobody knows."""

    async def main() -> None:
        async with opened(tmp_path / "a", "us-east") as east, opened(tmp_path / "b", "eu-west", ON) as west:
            a, b = await east.topic(TOPIC), await west.topic(TOPIC)
            await b.publish([numbered(6)])
            await a.publish([numbered(6)])
            await a.publish([numbered(6)])
            await copy(a, b)
            _, inbox = await subscribed(b)
            await inbox.holds(2)
            assert len(b.log.duplicates.members if b.log.duplicates else ()) == 2

    asyncio.run(main())


def test_three_clusters_have_three_entries_of_one_message(tmp_path: Path) -> None:
    async def main() -> None:
        async with two(tmp_path) as (a, b), opened(tmp_path / "c", "ap-south", ON) as engine:
            c = await engine.topic(TOPIC)
            for topic in (a, b, c):
                await topic.publish([numbered(6)])
            for source in (a, b, c):
                for destination in (a, b, c):
                    if source is not destination:
                        await copy(source, destination)
            for topic in (a, b, c):
                entries = [entry.position for entry in topic.reading.entries(BEFORE_ALL, None, 10, 10**6)]
                assert topic.log.with_duplicates(PositionSet(entries[1:2])) == PositionSet(entries)
                consumer, inbox = await subscribed(topic)
                await consumer.acknowledge([Ack(entries[1])])
                assert backlogs(topic) == [0]
                assert len(inbox.deliveries) <= 1

    asyncio.run(main())


def test_ids_that_were_used_while_deduplication_was_off_prove_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with two(tmp_path) as (a, b):
            await b.publish([numbered(6)])
            await b.policies.set(TopicPolicies(deduplication=False))
            await b.publish([numbered(0)])
            await b.policies.set(TopicPolicies(deduplication=True))
            await b.publish([numbered(1)])
            await a.publish([numbered(6)])
            await a.publish([numbered(7)])
            await copy(a, b)
            assert not b.log.has_duplicates
            (receipt,) = await b.publish([numbered(7)])
            assert receipt == DUPLICATE

    asyncio.run(main())


def test_without_deduplication_nothing_is_noted(tmp_path: Path) -> None:
    async def main() -> None:
        async with two(tmp_path, EngineSettings()) as (a, b):
            await sent_to_both(a, b, numbered(6))
            assert not a.log.has_duplicates
            for table in ("numbered", "numbered_blocks", "numbering", "twins", "sequences"):
                assert not a.reading._store.has_rows(table, a.topic_id)

    asyncio.run(main())


def test_invariant_7_markers_are_never_duplicates_and_never_noted(tmp_path: Path) -> None:
    async def main() -> None:
        async with two(tmp_path) as (a, b):
            for topic in (a, b):
                for _ in range(2):
                    assert await topic.writing.marker(marker()) != DUPLICATE
                    assert await topic.writing.marker(marker(), local=True) != DUPLICATE
            await both_ways(a, b)
            for topic in (a, b):
                assert not topic.log.has_duplicates
                assert not topic.reading._store.has_rows("numbered", topic.topic_id)
            await a.publish([numbered(0)])
            await a.writing.marker(marker())
            await copy(a, b)
            producer = await b.producers.create(ProducerOptions(name="w"))
            assert producer.last_sequence_id == -1

    asyncio.run(main())


def test_what_is_trimmed_has_no_duplicate_and_leaves_no_row(tmp_path: Path) -> None:
    async def main() -> None:
        async with two(tmp_path) as (a, b):
            await sent_to_both(a, b, *(numbered(number) for number in range(20)))
            await b.publish([numbered(99)])
            assert len(b.log.duplicates.members if b.log.duplicates else ()) == 40
            cut = [entry.position for entry in b.reading.entries(BEFORE_ALL, None, 100, 10**6)]
            await b.trimming.trim(cut[19])
            assert not b.log.has_duplicates
            assert not b.reading._store.has_rows("twins", b.topic_id)
            await b.trimming.trim(cut[-1])
            store = b.reading._store
            with store.env.begin() as txn:
                left = {table: txn.stat(store.tables[table])["entries"] for table in ("numbered", "numbered_blocks")}
            assert left == {"numbered": 1, "numbered_blocks": 1}, "the last block stays"
            _, inbox = await subscribed(b)
            await inbox.holds(1)
        async with two(tmp_path) as (a, b):
            assert not b.log.has_duplicates
            assert a.log.has_duplicates
            assert await b.publish([numbered(100, producer="q")]) != [DUPLICATE]

    asyncio.run(main())


def test_a_producer_that_moves_is_told_what_it_sent_last_though_that_is_trimmed(tmp_path: Path) -> None:
    async def main() -> None:
        async with two(tmp_path) as (a, b):
            await a.publish([numbered(6)])
            await copy(a, b)
            await b.publish([numbered(0, producer="q")])
            await b.trimming.trim(b.log.last)
            assert len(logged(b)) == 1
        async with two(tmp_path) as (a, b):
            assert (await b.producers.create(ProducerOptions(name="p"))).last_sequence_id == 6
            await b.policies.set(TopicPolicies(deduplication=False))
            await b.publish([numbered(7)])
            await b.policies.set(TopicPolicies(deduplication=True))
            assert (await b.producers.create(ProducerOptions(name="r"))).last_sequence_id == -1
        async with two(tmp_path) as (a, b):
            assert (await b.producers.create(ProducerOptions(name="p"))).last_sequence_id == -1

    asyncio.run(main())


def test_invariant_11_past_the_limit_a_message_is_delivered_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duplicate_chains, "DUPLICATES_MAX", 4)

    async def main() -> None:
        async with two(tmp_path) as (a, b):
            await sent_to_both(a, b, *(numbered(number) for number in range(5)))
            assert len(b.log.duplicates.members if b.log.duplicates else ()) == 4
            _, inbox = await subscribed(b)
            await inbox.holds(8)

    asyncio.run(main())
    assert duplicates_module.DUPLICATES_MAX == 100_000


# Subscriptions.


@pytest.mark.parametrize("kind", list(SubscriptionType))
def test_a_message_is_delivered_once_whatever_the_subscription(tmp_path: Path, kind: SubscriptionType) -> None:
    async def main() -> None:
        async with two(tmp_path) as (a, b):
            before, before_inbox = await subscribed(b, "before", kind)
            await sent_to_both(a, b, *(numbered(number) for number in range(4)))
            await b.publish([numbered(9)])
            after, after_inbox = await subscribed(b, "after", kind)
            for consumer, inbox in ((before, before_inbox), (after, after_inbox)):
                await inbox.holds(5)
                assert [each[1] for each in ids_of(inbox.deliveries)] == [0, 1, 2, 3, 9]
                await consumer.acknowledge([Ack(position) for position in inbox.positions])
            assert backlogs(b) == [0, 0]
            for name, consumer in (("before", before), ("after", after)):
                assert b.subscriptions[name].cursor.mark_delete == b.log.last
                consumer.close()
            await b.subscriptions["after"].moves.seek(Position(1, 0))
            consumer, inbox = await subscribed(b, "after", kind)
            await inbox.holds(5)
            assert [each[1] for each in ids_of(inbox.deliveries)] == [0, 1, 2, 3, 9]

    asyncio.run(main())


def test_a_consumer_that_holds_the_first_entry_does_not_get_the_later_one(tmp_path: Path) -> None:
    async def main() -> None:
        async with two(tmp_path) as (a, b):
            await a.publish([numbered(6)])
            await b.publish([numbered(6)])
            consumer, inbox = await subscribed(b)
            other, other_inbox = await subscribed(b)
            await eventually(lambda: len(inbox.deliveries) + len(other_inbox.deliveries) == 1)
            await both_ways(a, b)
            await b.publish([numbered(7)])
            await eventually(lambda: len(inbox.deliveries) + len(other_inbox.deliveries) == 2)
            consumer.redeliver(None)
            other.redeliver(None)
            await eventually(lambda: len(inbox.deliveries) + len(other_inbox.deliveries) == 4)
            assert set(ids_of(inbox.deliveries + other_inbox.deliveries)) == {("p", 6, 0), ("p", 7, 0)}

    asyncio.run(main())


def test_what_was_acknowledged_before_the_later_entry_came_stays_so_and_is_told(tmp_path: Path) -> None:
    async def main() -> None:
        async with two(tmp_path) as (a, b):
            await a.publish([numbered(6)])
            await b.publish([numbered(5), numbered(6)])
            consumer, inbox = await subscribed(b, replicated=True)
            await inbox.holds(2)
            await consumer.acknowledge([Ack(inbox.positions[1])])
            cursor = b.subscriptions["sub"].cursor
            cursor.state.take_unannounced()
            await copy(a, b)
            later = b.log.duplicate_of(inbox.positions[1])
            assert later is not None
            assert cursor.is_consumed(later)
            assert later in cursor.state.take_unannounced().positions
            await consumer.acknowledge([Ack(inbox.positions[0])])
            assert cursor.mark_delete == later
        async with two(tmp_path) as (a, b):
            assert backlogs(b) == [0]

    asyncio.run(main())


@pytest.mark.parametrize("indexes", [None, (0, 2)])
def test_a_crash_before_the_later_entry_is_saved_as_acknowledged_changes_nothing(
    tmp_path: Path, indexes: tuple[int, ...] | None
) -> None:
    async def main() -> None:
        async with two(tmp_path) as (a, b):
            await a.publish([numbered_batch(6, 9)])
            await b.publish([numbered(5), numbered_batch(6, 9)])
            consumer, inbox = await subscribed(b)
            await inbox.holds(2)
            await consumer.acknowledge([Ack(inbox.positions[1], indexes)])
            await copy(a, b)
            (tmp_path / "crashed" / "log").mkdir(parents=True)
            # What is on disk now:
            b.reading._store.env.copy(str(tmp_path / "crashed" / "log"))
        async with opened(tmp_path / "crashed", "eu-west", ON) as engine:
            topic = await engine.topic(TOPIC)
            cursor = topic.subscriptions["sub"].cursor
            later = topic.log.duplicate_of(inbox.positions[1])
            assert later is not None
            assert cursor.is_consumed(later) is (indexes is None)
            assert tuple(cursor.acked_indexes(later) or ()) == (indexes or ())

    asyncio.run(main())


def test_what_another_cluster_says_of_one_entry_releases_the_consumer_that_holds_the_other(tmp_path: Path) -> None:
    async def main() -> None:
        async with two(tmp_path) as (a, b):
            await sent_to_both(a, b, numbered(3), numbered(6), numbered_batch(7, 9))
            consumer, inbox = await subscribed(b, replicated=True, permits=100)
            await inbox.holds(3)
            subscription = b.subscriptions["sub"]
            subscription.cursor.state.take_unannounced()
            held_on, single, batched = inbox.positions
            duplicate, batch_duplicate = b.log.duplicate_of(single), b.log.duplicate_of(batched)
            assert duplicate is not None
            assert batch_duplicate is not None
            assert subscription.dispatching.dispatcher is not None
            (held,) = subscription.dispatching.dispatcher.consumers.values()
            assert held.unacked_messages == 5
            subscription.merging.acks(PositionSet([duplicate]), {batch_duplicate: BitMap([1])}, announce=False)
            assert held.unacked_messages == 3
            assert subscription.cursor.is_consumed(single)
            assert subscription.cursor.acked_indexes(batched) == BitMap([1])
            unannounced = subscription.cursor.state.take_unannounced()
            assert single in unannounced.positions
            assert batched in unannounced.batches
            assert duplicate not in unannounced.positions
            consumer.redeliver(None)
            await inbox.holds(5)
            assert inbox.positions[3:] == [held_on, batched]
            assert inbox.deliveries[4].acked == BitMap([1]).serialize()
            await consumer.acknowledge([Ack(held_on), Ack(batched, (0, 2))])
            assert backlogs(b) == [0]

    asyncio.run(main())


@pytest.mark.parametrize("cut", range(9))
def test_a_cumulative_acknowledgement_settles_the_duplicates_of_all_that_it_covers(tmp_path: Path, cut: int) -> None:
    async def main() -> None:
        async with two(tmp_path) as (a, b):
            await sent_to_both(a, b, *(numbered(number) for number in range(4)))
            await b.publish([numbered(9)])
            entries = [entry.position for entry in b.reading.entries(BEFORE_ALL, None, 100, 10**6)]
            consumer, inbox = await subscribed(b, subscription_type=SubscriptionType.EXCLUSIVE)
            await inbox.holds(5)
            await consumer.acknowledge_cumulative(entries[cut])
            cursor = b.subscriptions["sub"].cursor
            duplicates = b.log.with_duplicates(PositionSet(entries[: cut + 1]))
            assert {position for position in entries if cursor.is_consumed(position)} == set(duplicates)

    asyncio.run(main())


def test_a_batch_cut_in_its_middle_is_cut_in_both_its_entries(tmp_path: Path) -> None:
    async def main() -> None:
        async with two(tmp_path) as (a, b):
            consumer, inbox = await subscribed(b)
            await a.publish([numbered_batch(0, 3)])
            await b.publish([numbered_batch(0, 3)])
            await inbox.holds(1)
            await consumer.acknowledge([Ack(inbox.positions[0], (0, 2))])
            await copy(a, b)
            cursor = b.subscriptions["sub"].cursor
            later = b.log.duplicate_of(inbox.positions[0])
            assert later is not None
            assert list(cursor.acked_indexes(later) or ()) == [0, 2]
            await consumer.acknowledge([Ack(inbox.positions[0], (1,))])
            assert list(cursor.acked_indexes(later) or ()) == [0, 1, 2]
            await consumer.acknowledge([Ack(inbox.positions[0], (3,))])
            assert cursor.is_consumed(later)
            assert backlogs(b) == [0]

    asyncio.run(main())


def test_skip_and_expiry_count_a_message_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with two(tmp_path) as (a, b):
            await sent_to_both(a, b, *(numbered(number) for number in range(4)))
            subscription = await b.subscriptions.create("sub", BEFORE_ALL, replicated=False)
            assert await subscription.moves.skip(3) == 3
            _, inbox = await subscribed(b)
            await inbox.holds(1)
            assert ids_of(inbox.deliveries) == [("p", 3, 0)]
            await subscription.moves.clear_backlog()
            assert subscription.backlog_messages() == 0

    asyncio.run(main())


def test_a_subscription_from_latest_on_has_what_came_before_it_behind_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with two(tmp_path) as (a, b):
            await a.publish([numbered(6)])
            await b.publish([numbered(6)])
            _, inbox = await subscribed(b, initial=InitialPosition.LATEST)
            await copy(a, b)
            assert backlogs(b) == [0]
            await b.publish([numbered(7)])
            await inbox.holds(1)
            assert ids_of(inbox.deliveries) == [("p", 7, 0)]
            assert b.subscriptions["sub"].last_position() == inbox.positions[0]

    asyncio.run(main())


def test_a_reader_is_at_the_end_when_only_later_entries_of_duplicates_follow(tmp_path: Path) -> None:
    async def main() -> None:
        async with two(tmp_path) as (a, b):
            await sent_to_both(a, b, numbered(6))
            _, inbox = await subscribed(b)
            await inbox.holds(1)
            assert b.subscriptions["sub"].last_position() == inbox.positions[0]

    asyncio.run(main())


def test_the_compacted_view_has_the_newest_message_of_a_key_though_an_old_one_came_again(tmp_path: Path) -> None:
    settings = EngineSettings(policies=TopicPolicies(deduplication=True, compaction_threshold_bytes=0))

    async def main() -> None:
        async with two(tmp_path, settings) as (a, b):
            await a.publish([numbered(6, key="k")])
            await b.publish([numbered(6, key="k")])
            await b.publish([numbered(7, key="k")])
            await copy(a, b)
            await b.compaction.run()
            _, inbox = await subscribed(b, subscription_type=SubscriptionType.EXCLUSIVE, read_compacted=True)
            await inbox.holds(1)
            assert ids_of(inbox.deliveries) == [("p", 7, 0)]

    asyncio.run(main())
