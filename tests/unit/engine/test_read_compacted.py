"""Subscriptions that read compacted see the view from its start, even after trims, new compactions and restarts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from compaction_support import keyed, keyed_batch
from engine_support import TOPIC, Inbox, eventually, marker, opened, subscribed
from pyroaring import BitMap

from replicator.client.message import messages_of
from replicator.engine.compaction.compacted_view import STATE_TABLE, CompactedView
from replicator.engine.compaction.compactor import Retained
from replicator.engine.engine import Engine, EngineSettings
from replicator.engine.errors import InvalidAck, InvalidSeek, NotAllowedError
from replicator.engine.log import topic_reading
from replicator.engine.log.entry import encode_entry
from replicator.engine.log.log_index import LogIndex, ViewIndex
from replicator.engine.log.store_tables import TOPIC_KEY
from replicator.engine.policies import BacklogQuota, QuotaPolicy, Retention, TopicPolicies
from replicator.engine.subscriptions.consumer import EngineConsumer
from replicator.engine.subscriptions.cursor import Cursor
from replicator.engine.subscriptions.cursor_rows import CursorRows, load_cursors
from replicator.engine.subscriptions.cursor_state import CursorState
from replicator.engine.subscriptions.subscription import Subscription
from replicator.engine.topic import Topic
from replicator.engine.types import Ack, InitialPosition, LoggedEntry, SubscriptionType
from replicator.metadata.metadata_pb2 import MessageMetadata
from snapshots.position import BEFORE_ALL, Position
from snapshots.position_set import PositionSet


async def published(topic: Topic, *contents: bytes) -> list[Position]:
    """Publish each entry in a block of its own."""
    return [(await topic.publish([content]))[0] for content in contents]


async def reading(topic: Topic, name: str = "sub", **options: Any) -> tuple[EngineConsumer, Inbox]:
    return await subscribed(topic, name, SubscriptionType.EXCLUSIVE, read_compacted=True, **options)


def shown(inbox: Inbox) -> list[tuple[str | None, bytes]]:
    """Key and payload of every message that a client would show."""
    return [
        (message.partition_key(), message.data())
        for delivery in inbox.deliveries
        for message in messages_of(delivery, TOPIC, -1)
    ]


def sub(topic: Topic, name: str = "sub") -> Subscription:
    return topic.subscriptions[name]


async def trimmed(topic: Topic) -> None:
    await topic.trimming.trim(topic.log.last)


def timed(key: str, payload: bytes, publish_time: int) -> bytes:
    return encode_entry(
        MessageMetadata(producer_name="p", sequence_id=0, publish_time=publish_time, partition_key=key), payload
    )


# From the start, though the log is trimmed.


@pytest.mark.parametrize("durable", [True, False])
def test_a_subscription_from_the_earliest_gets_the_view_of_a_log_that_is_trimmed(tmp_path: Path, durable: bool) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            await published(topic, keyed("a", b"1"), keyed("b", b"1"), keyed("a", b"2"), keyed("c", b"1"))
            await topic.compaction.run()
            await published(topic, keyed("c", b"2"), keyed("d", b"1"))
            await trimmed(topic)
            assert topic.log.trimmed > BEFORE_ALL
            _, inbox = await reading(topic, durable=durable)
            await inbox.holds(5)
            assert shown(inbox) == [("b", b"1"), ("a", b"2"), ("c", b"1"), ("c", b"2"), ("d", b"1")]

    asyncio.run(main())


@pytest.mark.parametrize("durable", [True, False])
def test_trimming_in_the_middle_takes_nothing_away_that_the_view_has(tmp_path: Path, durable: bool) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            positions = await published(topic, *(keyed(f"{number}", b"1") for number in range(6)))
            await topic.compaction.run()
            consumer, inbox = await reading(topic, durable=durable, permits=2)
            await inbox.holds(2)
            await consumer.acknowledge([Ack(positions[0])])
            await published(topic, keyed("0", b"2"))
            await trimmed(topic)
            assert topic.log.trimmed == positions[-1]
            assert sub(topic).cursor.mark_delete == positions[0]
            consumer.flow(100)
            await inbox.holds(7)
            assert [payload for _, payload in shown(inbox)] == [b"1"] * 6 + [b"2"]

    asyncio.run(main())


def test_a_durable_subscription_holds_trimming_back_above_the_horizon_only(tmp_path: Path) -> None:
    async def main() -> None:
        policies = TopicPolicies(retention=Retention(0, 0))
        async with opened(tmp_path, settings=EngineSettings(policies=policies)) as engine:
            topic = await engine.topic(TOPIC)
            positions = await published(topic, keyed("a", b"1"), keyed("b", b"1"), keyed("a", b"2"))
            await reading(topic, permits=0)
            await engine.maintenance.run_once()
            assert topic.log.trimmed == BEFORE_ALL
            await topic.compaction.run()
            await published(topic, keyed("d", b"1"), keyed("e", b"1"))
            await engine.maintenance.run_once()
            assert topic.log.trimmed == positions[-1]  # nothing of it was read
            await trimmed(topic)
            assert topic.log.trimmed == positions[-1]

    asyncio.run(main())


def test_a_backlog_quota_counts_and_evicts_what_is_above_the_horizon(tmp_path: Path) -> None:
    async def main() -> None:
        quota = BacklogQuota(bytes_max=3000, policy=QuotaPolicy.CONSUMER_BACKLOG_EVICTION)
        async with opened(tmp_path, settings=EngineSettings(policies=TopicPolicies(backlog_quota=quota))) as engine:
            topic = await engine.topic(TOPIC)
            await published(topic, *(keyed(f"{number}", b"x" * 1000) for number in range(10)))
            await reading(topic, permits=0)
            await topic.compaction.run()
            await engine.maintenance.run_once()
            assert sub(topic).cursor.backlog_entries() == 10
            positions = await published(topic, *(keyed(f"{number}", b"x" * 1000) for number in range(10, 15)))
            await engine.maintenance.run_once()
            assert sub(topic).cursor.mark_delete == positions[2]  # nine tenths of the quota are left

    asyncio.run(main())


def test_a_plain_subscription_is_moved_to_where_the_log_is_trimmed_as_ever(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            await published(topic, keyed("a", b"1"), keyed("b", b"1"))
            await subscribed(topic, "passing", SubscriptionType.EXCLUSIVE, durable=False, permits=0)
            await topic.compaction.run()
            await published(topic, keyed("c", b"1"))
            await trimmed(topic)
            assert sub(topic, "passing").cursor.mark_delete == topic.log.trimmed
            _, inbox = await subscribed(topic, "new", SubscriptionType.EXCLUSIVE)
            await inbox.holds(1)
            assert shown(inbox) == [("c", b"1")]

    asyncio.run(main())


def test_of_a_topic_that_was_never_compacted_a_subscription_reads_the_log_that_is_left(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            await published(topic, keyed("a", b"1"), keyed("a", b"2"))
            _, passing = await reading(topic, "passing", durable=False, permits=0)
            await trimmed(topic)
            _, inbox = await reading(topic)
            await inbox.holds(1)
            assert shown(inbox) == [("a", b"2")]
            assert {each.cursor.mark_delete for each in topic.subscriptions.values()} == {topic.log.trimmed}
            assert not passing.deliveries

    asyncio.run(main())


# What is compacted away is in nobody's way.


@pytest.mark.parametrize("cumulative", [False, True])
def test_mark_delete_reaches_the_lac_when_everything_that_was_shown_is_acknowledged(
    tmp_path: Path, cumulative: bool
) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            await published(topic, keyed("a", b"1"), keyed("b", b"1"))
            await topic.writing.marker(marker())
            await published(topic, keyed("a", b"2"), keyed("b", b""), message_without_key())
            await topic.compaction.run()
            await published(topic, keyed("c", b"1"))
            consumer, inbox = await reading(topic)
            await inbox.holds(2)
            assert shown(inbox) == [("a", b"2"), ("c", b"1")]
            if cumulative:
                await consumer.acknowledge_cumulative(inbox.positions[0])
                assert sub(topic).cursor.mark_delete == topic.log.view.horizon
                await consumer.acknowledge_cumulative(inbox.positions[1])
            else:
                await consumer.acknowledge([Ack(inbox.positions[1])])
                assert sub(topic).cursor.mark_delete < inbox.positions[0]
                await consumer.acknowledge([Ack(inbox.positions[0])])
            assert sub(topic).cursor.mark_delete == topic.log.last
            assert sub(topic).backlog_messages() == sub(topic).cursor.backlog_entries() == 0
            assert not sub(topic).cursor.state.individually_deleted

    asyncio.run(main())


def message_without_key() -> bytes:
    return keyed(None, b"no key")


def test_a_view_with_nothing_in_it_is_passed_by_itself(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            _, inbox = await reading(topic, permits=0)
            await published(topic, keyed("a", b"1"), keyed("a", b""))
            await topic.compaction.run()
            assert sub(topic).cursor.mark_delete == topic.log.last
            assert not inbox.deliveries

    asyncio.run(main())


def test_a_million_entries_that_are_compacted_away_are_passed_at_once() -> None:
    log = LogIndex()
    log.append(Position(1, 0), 1_000_000, marker=False)
    log.append(Position(1, 1_000_000), 10, marker=True)
    log.append(Position(2, 0), 1_000_000, marker=False)
    log.view = ViewIndex(Position(2, 999_999), PositionSet([Position(1, 5), Position(2, 999_990)]))
    cursor = Cursor(log, CursorState(read_compacted=True))
    started = time.thread_time()
    cursor.acknowledge(Position(1, 5), None, 1)
    cursor.acknowledge(Position(2, 999_990), None, 1)
    assert time.thread_time() - started < 0.01
    assert cursor.mark_delete == log.last
    assert not cursor.state.individually_deleted
    assert cursor.backlog_entries() == 0


def test_a_million_acknowledged_entries_of_the_view_are_passed_at_once() -> None:
    log = LogIndex()
    log.append(Position(1, 0), 2_000_000, marker=False)
    positions = PositionSet()
    positions.add_range(1, 0, 1_999_999)
    log.view = ViewIndex(Position(1, 1_999_998), positions)
    state = CursorState(read_compacted=True)
    state.individually_deleted.add_range(1, 1, 1_999_997)
    cursor = Cursor(log, state)
    started = time.thread_time()
    cursor.acknowledge(Position(1, 0), None, 1)
    assert time.thread_time() - started < 0.5  # one by one, they take seconds
    assert cursor.mark_delete == Position(1, 1_999_997)
    assert cursor.backlog_entries() == 2


def test_an_acknowledgement_of_what_is_compacted_away_since_it_was_sent_is_late_and_harmless(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            await published(topic, keyed("z", b"1"), keyed_batch([("a", b"1"), ("b", b"1")]), keyed("c", b"1"))
            consumer, inbox = await reading(topic)
            await inbox.holds(3)
            _, gone, last = inbox.positions
            await published(topic, keyed("a", b"2"), keyed("b", b"2"))
            await topic.compaction.run()
            await published(topic, keyed("d", b"1"))
            await trimmed(topic)
            await consumer.acknowledge([Ack(gone, (0,)), Ack(gone, (1,)), Ack(gone)])
            assert not sub(topic).cursor.state.individually_deleted
            dispatcher = sub(topic).dispatching.dispatcher
            assert dispatcher is not None
            assert gone not in dispatcher.held()
            assert last in dispatcher.held()
            await consumer.acknowledge_cumulative(gone, 0)
            assert sub(topic).cursor.mark_delete < last
            with pytest.raises(InvalidAck):
                await consumer.acknowledge([Ack(Position(gone.ledger, 999))])

    asyncio.run(main())


def test_what_is_redelivered_is_what_the_view_has_now(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            await published(topic, keyed("a", b"1"), keyed("b", b"1"))
            consumer, inbox = await reading(topic)
            await inbox.holds(2)
            await published(topic, keyed("a", b"2"))
            await inbox.holds(3)
            await topic.compaction.run()
            consumer.redeliver(None)
            await inbox.holds(5)
            assert shown(inbox)[3:] == [("b", b"1"), ("a", b"2")]
            await consumer.acknowledge([Ack(position) for position in inbox.positions[3:]])
            assert sub(topic).cursor.mark_delete == topic.log.last

    asyncio.run(main())


@pytest.mark.parametrize("restart", [False, True])
def test_a_second_pass_while_a_subscription_is_in_the_middle_repeats_and_loses_nothing(
    tmp_path: Path, restart: bool
) -> None:
    async def main() -> None:
        seen: list[tuple[str | None, bytes]] = []
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            await published(topic, *(keyed(f"{number}", b"1") for number in range(6)))
            await topic.compaction.run()
            consumer, inbox = await reading(topic, permits=3)
            await inbox.holds(3)
            seen += shown(inbox)
            await consumer.acknowledge([Ack(position) for position in inbox.positions])
            await published(topic, keyed("1", b"2"), keyed("4", b"2"), keyed("6", b"1"))
            await topic.compaction.run()
            await published(topic, keyed("7", b"1"))
            await trimmed(topic)
            if not restart:
                consumer.flow(100)
                await inbox.holds(9)
                seen = shown(inbox)
        if restart:
            async with opened(tmp_path) as engine:
                topic = await engine.topic(TOPIC)
                _, inbox = await reading(topic)
                await inbox.holds(6)
                seen += shown(inbox)
        assert seen == [
            *((f"{number}", b"1") for number in (0, 1, 2, 3, 5)),
            ("1", b"2"),
            ("4", b"2"),
            ("6", b"1"),
            ("7", b"1"),
        ]

    asyncio.run(main())


# Restarts.


def test_after_a_restart_in_the_middle_the_rest_of_the_view_follows(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            await published(topic, *(keyed(f"{number}", b"1") for number in range(6)))
            await topic.compaction.run()
            await published(topic, keyed("6", b"1"))
            await trimmed(topic)
            consumer, inbox = await reading(topic)
            await inbox.holds(7)
            await consumer.acknowledge([Ack(inbox.positions[index]) for index in (0, 2, 3)])
            mark_delete = sub(topic).cursor.mark_delete
            assert mark_delete == inbox.positions[0]
            backlog = sub(topic).cursor.backlog_entries(), sub(topic).backlog_messages()
            assert backlog == (4, 4)
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            assert sub(topic).cursor.state.read_compacted
            assert sub(topic).cursor.mark_delete == mark_delete
            assert (sub(topic).cursor.backlog_entries(), sub(topic).backlog_messages()) == backlog
            consumer, inbox = await reading(topic)
            await inbox.holds(4)
            assert [key for key, _ in shown(inbox)] == ["1", "4", "5", "6"]
            await consumer.acknowledge([Ack(position) for position in inbox.positions])
            assert sub(topic).cursor.mark_delete == topic.log.last

    asyncio.run(main())


def test_the_row_of_a_cursor_says_that_it_reads_compacted_and_old_rows_do_not() -> None:
    heads: dict[str, bytes] = {}
    for name, read_compacted in (("compacted", True), ("plain", False)):
        ((_, _, head),) = CursorRows(1, name).changes(CursorState(read_compacted=read_compacted)).writes
        assert head is not None
        heads[name] = head
    assert b"read_compacted" not in heads["plain"]  # as rows were written before

    class Tables:
        def cursors(self, topic_id: int) -> dict[str, bytes]:
            return heads

        def cursor_rows(self, topic_id: int) -> Any:
            return iter(())

    loaded = load_cursors(Tables(), 1)
    assert {name: state.read_compacted for name, (state, _) in loaded.items()} == {"compacted": True, "plain": False}


@pytest.mark.parametrize("stored", ["none", "of another generation"])
def test_a_view_whose_positions_were_not_stored_is_read_all_the_same(tmp_path: Path, stored: str) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            await published(topic, keyed("a", b"1"), keyed("b", b"1"), keyed("a", b"2"))
            await topic.compaction.run()
            positions = topic.log.view.positions
            other = (
                None if stored == "none" else bytes(CompactedView(engine.store, 1).positions_row(7, PositionSet())[2])
            )
            await engine.writer.put_many([(STATE_TABLE, TOPIC_KEY.pack(topic.topic_id) + b"p", other)])
            assert len(positions) == 2
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            assert topic.log.view.positions == positions
            await topic.compaction.run()

    asyncio.run(main())


# Batches.


def batches() -> list[bytes]:
    """Return two batches. Compaction leaves messages 1 and 3 of the first, and all but the tombstone of the second."""
    return [
        keyed_batch([("a", b"1"), ("b", b"1"), ("c", b"1"), ("d", b"1")]),
        keyed_batch([("a", b"2"), ("e", b"1"), ("c", b"")]),
    ]


@pytest.mark.parametrize("restart", [False, True])
def test_a_batch_is_consumed_when_what_is_left_of_it_is_acknowledged(tmp_path: Path, restart: bool) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            await published(topic, *batches())
            await topic.compaction.run()
            await published(topic, keyed("z", b"1"))
            await trimmed(topic)
            consumer, inbox = await reading(topic)
            await inbox.holds(3)
            assert shown(inbox) == [("b", b"1"), ("d", b"1"), ("a", b"2"), ("e", b"1"), ("z", b"1")]
            first, second, last = inbox.positions
            assert [BitMap.deserialize(each.acked) if each.acked else None for each in inbox.deliveries] == [
                BitMap([0, 2]),
                BitMap([2]),
                None,
            ]
            await consumer.acknowledge([Ack(second, (0,)), Ack(second, (1,)), Ack(first, (1,))])
            assert sub(topic).cursor.mark_delete < first
            if not restart:
                await consumer.acknowledge([Ack(first, (3,)), Ack(last)])
                assert sub(topic).cursor.mark_delete == topic.log.last
        if restart:
            async with opened(tmp_path) as engine:
                topic = await engine.topic(TOPIC)
                consumer, inbox = await reading(topic)
                await inbox.holds(2)
                assert shown(inbox) == [("d", b"1"), ("z", b"1")]
                await consumer.acknowledge([Ack(first, (3,)), Ack(last)])
                assert sub(topic).cursor.mark_delete == topic.log.last

    asyncio.run(main())


def test_a_cumulative_acknowledgement_up_to_the_last_message_that_is_left_consumes_the_batch(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            await published(topic, *batches())
            await topic.compaction.run()
            await published(topic, keyed("z", b"1"))
            await trimmed(topic)
            consumer, inbox = await reading(topic)
            await inbox.holds(3)
            first, second, last = inbox.positions
            await consumer.acknowledge_cumulative(first, 1)
            assert sub(topic).cursor.mark_delete < first
            await consumer.acknowledge_cumulative(second, 0)
            assert sub(topic).cursor.mark_delete == first
            await consumer.acknowledge_cumulative(second, 1)
            assert sub(topic).cursor.mark_delete == topic.log.view.horizon
            await consumer.acknowledge_cumulative(last)
            assert sub(topic).cursor.mark_delete == topic.log.last

    asyncio.run(main())


def test_a_batch_of_which_the_unacknowledged_rest_is_compacted_out_is_consumed_and_not_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            told: list[Position] = []
            monkeypatch.setattr(
                engine.maintenance,
                "on_mark_delete",
                lambda topic, subscription, *, local: told.append(subscription.cursor.mark_delete),
            )
            consumer, inbox = await reading(topic)
            (position,) = await published(topic, keyed_batch([("a", b"1"), ("b", b"1")]))
            await inbox.holds(1)
            await consumer.acknowledge([Ack(position, (0,))])
            consumer.close()
            await published(topic, keyed("b", b"2"))
            await topic.compaction.run()
            _, inbox = await reading(topic)
            await inbox.holds(1)
            assert shown(inbox) == [("b", b"2")]
            await eventually(lambda: told == [position], "others hear that the batch is consumed")

    asyncio.run(main())


def test_rows_of_the_view_without_a_bitmap_are_read_as_having_nothing_left_out(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            view = CompactedView(engine.store, topic.topic_id)
            entry = LoggedEntry(Position(1, 0), 3, False, memoryview(b"content"), "us-east", Position(1, 0))
            old = view.row(1, entry, Retained(b"content"))[2]
            new = view.row(1, entry, Retained(b"content", BitMap([1])))[2]
            assert old.endswith(b"us-eastcontent")  # as they were written before there were bitmaps
            await engine.writer.put_many(
                [
                    ("compacted", view.row(1, entry, Retained(b""))[1], old),
                    ("compacted", view.row(1, entry._replace(position=Position(1, 1)), Retained(b""))[1], new),
                    view.state_row(view.state.__class__(1, Position(1, 1), 2)),
                ]
            )
            read = CompactedView(engine.store, topic.topic_id).read(BEFORE_ALL, 10, 10**6)
            assert [(bytes(each.entry), each.origin) for each in read] == [(b"content", "us-east")] * 2
            assert read[0].compacted_out is None
            assert read[1].compacted_out is not None
            assert BitMap.deserialize(read[1].compacted_out) == BitMap([1])

    asyncio.run(main())


# Figures.


@pytest.mark.parametrize("trim", [False, True])
def test_the_backlog_counts_what_is_left_of_the_view_and_the_log(tmp_path: Path, trim: bool) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            await published(topic, *batches())
            await topic.writing.marker(marker())
            await published(topic, *(keyed("k", b"%d" % number) for number in range(20)))
            await topic.compaction.run()
            await published(topic, keyed("x", b"1"), keyed_batch([("y", b"1"), ("y", b"2")]))
            if trim:
                await trimmed(topic)
            consumer, inbox = await reading(topic)
            figures = []
            await inbox.holds(5)
            figures.append((sub(topic).cursor.backlog_entries(), sub(topic).backlog_messages()))
            for position in (inbox.positions[index] for index in (1, 4, 0, 2, 3)):
                await consumer.acknowledge([Ack(position)])
                figures.append((sub(topic).cursor.backlog_entries(), sub(topic).backlog_messages()))
            # The view has 3 entries with 5 messages: what is left of it is taken in that proportion, rounded up.
            assert figures == [(5, 8), (4, 7), (3, 5), (2, 3), (1, 1), (0, 0)]
            assert sub(topic).status()["backlog_messages"] == 0

    asyncio.run(main())


def test_the_last_message_is_the_last_that_is_shown(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            compacted, _ = await reading(topic, "compacted")
            plain, _ = await subscribed(topic, "plain", SubscriptionType.EXCLUSIVE)
            assert compacted.last_message().position == plain.last_message().position == BEFORE_ALL
            first, last = await published(topic, keyed("a", b"1"), message_without_key())
            await topic.writing.marker(marker())
            assert compacted.last_message().position == plain.last_message().position == last
            await topic.compaction.run()
            assert (compacted.last_message().position, plain.last_message().position) == (first, last)
            await published(topic, keyed("a", b""))
            await topic.compaction.run()
            assert compacted.last_message().position == BEFORE_ALL
            (last,) = await published(topic, keyed("b", b"1"))
            assert compacted.last_message().position == plain.last_message().position == last

    asyncio.run(main())


def test_the_last_message_is_that_of_the_view_when_the_log_has_markers_alone_left(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            _, last = await published(topic, keyed("a", b"1"), keyed("b", b"1"))
            await topic.compaction.run()
            await topic.writing.marker(marker())
            await trimmed(topic)
            assert topic.log.first == topic.log.last > last
            compacted, inbox = await reading(topic, "compacted")
            assert compacted.last_message().position == last
            compacted.flow(10)
            await eventually(lambda: len(inbox.deliveries) == 2, "both keys")
            plain, _ = await subscribed(topic, "plain", SubscriptionType.EXCLUSIVE)
            assert plain.last_message().position == BEFORE_ALL

    asyncio.run(main())


# Seeking, skipping, expiring.


async def seeking(engine: Engine) -> tuple[Topic, EngineConsumer, Inbox, Sequence[Position]]:
    """Ten keys published at 1,000 and on; the even ones were replaced at 2,000 and on, the last one is above."""
    topic = await engine.topic(TOPIC)
    positions = await published(topic, *(timed(f"{number}", b"1", 1000 + number) for number in range(10)))
    positions += await published(topic, *(timed(f"{number}", b"2", 2000 + number) for number in range(0, 10, 2)))
    await topic.compaction.run()
    positions += await published(topic, timed("1", b"3", 3000))
    await trimmed(topic)
    assert topic.log.first == positions[-1]
    consumer, inbox = await reading(topic)
    await inbox.holds(11)
    await consumer.acknowledge_cumulative(positions[-1])
    inbox.deliveries.clear()
    return topic, consumer, inbox, positions


ALL = ["1", "3", "5", "7", "9", "0", "2", "4", "6", "8", "1"]


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (None, ALL),  # the earliest
        (0, ALL),
        (3, ALL[1:]),
        (4, ALL[2:]),  # one that is compacted away
        (14, ALL[9:]),
        (15, ALL[10:]),  # the first that is not trimmed
        ("1000", ALL),
        ("1004", ALL[2:]),
        ("1999", ALL[5:]),
        ("2008", ALL[9:]),
        ("2009", ALL[10:]),
        ("3000", ALL[10:]),
    ],
)
def test_seeking_works_on_the_view(tmp_path: Path, target: int | str | None, expected: list[str]) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic, consumer, inbox, positions = await seeking(engine)
            if isinstance(target, str):
                await consumer.seek(int(target))
            else:
                await consumer.seek(BEFORE_ALL if target is None else positions[target])
            await inbox.holds(len(expected))
            assert [key for key, _ in shown(inbox)] == expected
            assert sub(topic).cursor.backlog_entries() == len(expected)
            await consumer.acknowledge([Ack(position) for position in inbox.positions])
            assert sub(topic).cursor.mark_delete == topic.log.last

    asyncio.run(main())


def test_others_have_their_turn_while_a_time_is_sought_above_the_view(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_reading, "SEARCH_BLOCKS", 10)

    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            await published(topic, keyed("a", b"1"))
            await topic.compaction.run()
            positions = await published(topic, *(keyed("b", b"1") for _ in range(50)))
            asked = asyncio.create_task(topic.compaction.position_at_time(2**50))
            turns = 0
            while not asked.done():
                turns += 1
                await asyncio.sleep(0)
            assert await asked == positions[-1]
            assert turns >= 5

    asyncio.run(main())


def test_seeking_beyond_the_end_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic, consumer, _, positions = await seeking(engine)
            with pytest.raises(InvalidSeek):
                await consumer.seek(Position(positions[-1].ledger, positions[-1].entry + 2))
            assert sub(topic).cursor.mark_delete == topic.log.last

    asyncio.run(main())


def test_a_seek_into_the_trimmed_part_is_still_there_after_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            _, consumer, _, positions = await seeking(engine)
            await consumer.seek(positions[9])
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            _, inbox = await reading(topic)
            await inbox.holds(7)
            assert [key for key, _ in shown(inbox)] == ALL[4:]

    asyncio.run(main())


def test_a_subscription_is_made_at_a_position_that_is_trimmed(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic, _, _, positions = await seeking(engine)
            _, inbox = await reading(topic, "other", start=positions[4])
            await inbox.holds(9)
            assert [key for key, _ in shown(inbox)] == ALL[2:]
            _, latest = await reading(topic, "latest", initial=InitialPosition.LATEST)
            assert sub(topic, "latest").cursor.mark_delete == topic.log.last
            assert not latest.deliveries

    asyncio.run(main())


def test_skipping_and_expiring_go_through_the_view(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic, _, _, positions = await seeking(engine)
            _, inbox = await reading(topic, "other", permits=0)
            assert await sub(topic, "other").moves.skip(2) == 2
            assert sub(topic, "other").cursor.mark_delete == positions[3]
            await sub(topic, "other").moves.expire(1006)
            assert sub(topic, "other").cursor.mark_delete == positions[5]
            assert await sub(topic, "other").moves.skip(100) == 8
            assert sub(topic, "other").cursor.mark_delete == topic.log.last
            assert not inbox.deliveries

    asyncio.run(main())


# Who makes it one.


def test_a_subscription_becomes_one_that_reads_compacted_with_its_first_consumer_that_does(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            plain, _ = await subscribed(topic, "sub", SubscriptionType.EXCLUSIVE, permits=0)
            plain.close()
            await published(topic, keyed("a", b"1"), keyed("a", b"2"), keyed("b", b"1"))
            await topic.compaction.run()
            with pytest.raises(NotAllowedError):
                await subscribed(topic, "sub", SubscriptionType.SHARED, read_compacted=True)
            assert not sub(topic).cursor.state.read_compacted
            await reading(topic, permits=0)
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            await published(topic, keyed("c", b"1"))
            await trimmed(topic)
            _, inbox = await subscribed(topic, "sub", SubscriptionType.EXCLUSIVE)
            await inbox.holds(3)
            assert shown(inbox) == [("a", b"2"), ("b", b"1"), ("c", b"1")]  # also for one that did not ask for it

    asyncio.run(main())
