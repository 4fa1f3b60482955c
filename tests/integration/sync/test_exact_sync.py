"""The exact state over real HTTP links: out of order, in parts of batches, one-way, both sides at once, put elsewhere,
deleted, switched off and on (DESIGN 4.4; invariants 5 and 6)."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from engine_support import batch, eventually, make_block, message, opened, serving, settled
from sync_node_support import TOPIC, Node, agree, backlog, consuming, mesh, synced

from replicator.engine.errors import StoreFull
from replicator.engine.log.block import BlockKind
from replicator.engine.log.entry import encode_entry
from replicator.engine.log.requests import CopiedBlock
from replicator.engine.subscriptions.cursor_rows import RowWrite
from replicator.engine.topic import Topic
from replicator.engine.topics.topic_deletion import MARKERS_HANDLED
from replicator.engine.types import Ack
from replicator.metadata.metadata_pb2 import MessageMetadata
from snapshots.ack_vector import AckVector, OriginAcks
from snapshots.actions import ApplyUpdate
from snapshots.markers import SubscriptionsUpdate, SubscriptionUpdate, encode_marker
from snapshots.pacing import UpdateBudget
from snapshots.position import BEFORE_ALL, Position
from snapshots.position_set import PositionSet


@asynccontextmanager
async def one_way(path: Path) -> AsyncIterator[tuple[Node, Node]]:
    """Yield clusters with a link from us-east to eu-west, and none back."""
    async with AsyncExitStack() as stack:
        nodes: dict[str, Node] = {}
        for name in ("us-east", "eu-west"):
            engine = await stack.enter_async_context(opened(path / name, name))
            server = await stack.enter_async_context(serving(engine, ["us-east"]))
            nodes[name] = Node(engine, server, ["us-east", "eu-west"])
        us, eu = nodes["us-east"], nodes["eu-west"]
        await us.start({"eu-west": eu.server.address})
        await eu.start({})
        for node in nodes.values():
            stack.push_async_callback(node.stop)
        yield us, eu


def test_what_is_acknowledged_out_of_order_and_in_parts_of_batches_is_so_elsewhere_over_a_one_way_link(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with one_way(tmp_path) as (us, eu):
            topic = await us.engine.topic(TOPIC)
            await topic.publish([batch([b"1", b"2", b"3"]) for _ in range(10)])
            consumer, inbox = await consuming(topic, 10)
            await synced(eu, 30, "sub")
            await consumer.acknowledge([Ack(position) for position in inbox.positions[5:]])
            await consumer.acknowledge([Ack(position, (0, 2)) for position in inbox.positions[1:4]])
            await eventually(lambda: agree(us, eu), "the same state in eu-west")
            there = eu.subscription()
            assert there is not None
            assert there.cursor.mark_delete < min(eu.topic().log.messages_of(there.cursor.state.individually_deleted))
            assert len(there.cursor.state.individually_deleted) == 5
            assert sorted(map(list, there.cursor.state.batch_acks.values())) == [[0, 2]] * 3
            other, arrived = await consuming(eu.topic(), 5)
            await asyncio.gather(*(consumer.acknowledge([Ack(p) for p in inbox.positions[:5]]),))
            await eventually(lambda: backlog(eu) == 0, "an empty backlog in eu-west")
            assert len(arrived.positions) == 5, "what was acknowledged in us-east is not delivered in eu-west"
            other.close()

    asyncio.run(main())


def test_both_sides_consume_the_same_shared_subscription_at_once_and_agree_at_the_end(tmp_path: Path) -> None:
    async def main() -> None:
        async with mesh(tmp_path, "us-east", "eu-west") as nodes:
            us, eu = nodes["us-east"], nodes["eu-west"]
            topic = await us.engine.topic(TOPIC)
            await topic.subscriptions.create("sub", BEFORE_ALL, replicated=True)
            await synced(eu, 0, "sub")
            for node in nodes.values():
                await node.topic().publish([message(node.engine.cluster.encode()) for _ in range(50)])
            for node in nodes.values():
                await synced(node, 100)
            here, arrived = await consuming(us.topic(), 100)
            there, arrived_there = await consuming(eu.topic(), 100)
            await here.acknowledge([Ack(position) for position in arrived.positions[::2]])
            await there.acknowledge([Ack(position) for position in arrived_there.positions[::3]])
            await eventually(lambda: agree(us, eu), "the same state")
            assert 0 < backlog(us) == backlog(eu) < 50
            await here.acknowledge([Ack(position) for position in arrived.positions[:50]])
            await there.acknowledge([Ack(position) for position in arrived_there.positions])
            await eventually(lambda: backlog(us) == 0 and backlog(eu) == 0, "empty backlogs on both sides")
            # The last change may still have to be told, and heard; then there is nothing more to say.
            await settled(lambda: [len(node.topic().log.markers) for node in nodes.values()])

    asyncio.run(main())


def test_a_seek_in_one_cluster_holds_in_the_other_with_what_is_acknowledged_after_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with mesh(tmp_path, "us-east", "eu-west") as nodes:
            us, eu = nodes["us-east"], nodes["eu-west"]
            topic = await us.engine.topic(TOPIC)
            positions = await topic.publish([message() for _ in range(20)])
            consumer, inbox = await consuming(topic, 20)
            await consumer.acknowledge([Ack(position) for position in inbox.positions])
            await eventually(lambda: agree(us, eu) and backlog(eu) == 0, "all consumed in eu-west")
            subscription = us.subscription()
            assert subscription is not None
            await subscription.moves.seek(positions[5])
            await eventually(lambda: agree(us, eu) and backlog(eu) == 15, "the place of the seek in eu-west")
            await subscription.acknowledge([Ack(positions[7]), Ack(positions[19])])
            await eventually(lambda: agree(us, eu) and backlog(eu) == 13, "what was acknowledged after the seek")

    asyncio.run(main())


def test_a_subscription_made_at_the_latest_message_begins_there_in_the_other_cluster(tmp_path: Path) -> None:
    async def main() -> None:
        async with mesh(tmp_path, "us-east", "eu-west") as nodes:
            us, eu = nodes["us-east"], nodes["eu-west"]
            topic = await us.engine.topic(TOPIC)
            await topic.publish([message() for _ in range(10)])
            await eventually(lambda: eu.engine.find(TOPIC) and eu.topic().log.messages == 10, "the messages in eu-west")
            await eu.topic().publish([message() for _ in range(3)])
            await eventually(lambda: topic.log.messages == 13, "those of eu-west in us-east")
            await topic.subscriptions.create("late", topic.log.last, replicated=True)
            await topic.subscriptions.create("early", BEFORE_ALL, replicated=True, properties={"team": "billing"})
            await eventually(lambda: agree(us, eu, "late") and agree(us, eu, "early"), "both in eu-west")
            assert (backlog(eu, "late"), backlog(eu, "early")) == (0, 13)
            early = eu.subscription("early")
            assert early is not None
            assert early.cursor.state.properties == {"team": "billing"}

    asyncio.run(main())


def test_a_deleted_subscription_is_deleted_in_the_other_cluster_and_can_be_made_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with mesh(tmp_path, "us-east", "eu-west") as nodes:
            us, eu = nodes["us-east"], nodes["eu-west"]
            topic = await us.engine.topic(TOPIC)
            await topic.publish([message() for _ in range(10)])
            consumer, inbox = await consuming(topic, 10)
            await consumer.acknowledge([Ack(position) for position in inbox.positions[:4]])
            await eventually(lambda: agree(us, eu) and backlog(eu) == 6, "the state in eu-west")
            consumer.close()
            await eu.topic().subscriptions.delete("sub")
            await eventually(lambda: us.subscription() is None, "deleted in us-east as well")
            made = await us.topic().subscriptions.create("sub", BEFORE_ALL, replicated=True)
            assert made.cursor.generation > 1
            await eventually(lambda: agree(us, eu) and backlog(eu) == 10, "made again in eu-west, from the start")

    asyncio.run(main())


def test_a_subscription_that_is_switched_off_and_on_again_is_brought_up_to_date_in_both(tmp_path: Path) -> None:
    async def main() -> None:
        async with mesh(tmp_path, "us-east", "eu-west") as nodes:
            us, eu = nodes["us-east"], nodes["eu-west"]
            topic = await us.engine.topic(TOPIC)
            await topic.publish([message() for _ in range(10)])
            consumer, inbox = await consuming(topic, 10)
            await synced(eu, 10, "sub")
            here, there = us.subscription(), eu.subscription()
            assert here is not None
            assert there is not None
            await here.set_replicated(False)
            await consumer.acknowledge([Ack(position) for position in inbox.positions[::2]])
            other, arrived = await consuming(eu.topic(), 10)
            await other.acknowledge([Ack(position) for position in arrived.positions[:3]])
            await eventually(lambda: us.sync.counted.updates_ignored > 0, "an update that us-east ignores")
            assert (backlog(us), backlog(eu)) == (5, 7)
            await here.set_replicated(True)
            await eventually(lambda: agree(us, eu) and backlog(us) == 4, "both brought together")

    asyncio.run(main())


def test_an_acknowledgement_is_seen_in_the_other_cluster_and_updates_do_not_grow_with_acknowledgements(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with mesh(tmp_path, "us-east", "eu-west") as nodes:
            us, eu = nodes["us-east"], nodes["eu-west"]
            topic = await us.engine.topic(TOPIC)
            await topic.publish([message() for _ in range(2000)])
            consumer, inbox = await consuming(topic, 2000)
            await synced(eu, 2000, "sub")
            await eventually(lambda: agree(us, eu), "the subscription in eu-west")
            told, started = us.sync.counters()["updates_sent"], time.monotonic()
            for position in inbox.positions[::-1]:
                await consumer.acknowledge([Ack(position)])
            await eventually(lambda: backlog(eu) == 0, "all of it in eu-west")
            intervals = (time.monotonic() - started) * 1000 / us.sync.settings.update_interval_ms
            assert us.sync.counters()["updates_sent"] - told <= intervals + 2

    asyncio.run(main())


def test_acknowledgements_of_a_third_clusters_messages_wait_for_them_also_over_a_restart(tmp_path: Path) -> None:
    """us-east acknowledges what came from ap-south; eu-west hears of it, is stopped, and gets the messages later."""

    async def main() -> None:
        async with AsyncExitStack() as stack:
            nodes: dict[str, Node] = {}
            for name in ("us-east", "ap-south"):
                engine = await stack.enter_async_context(opened(tmp_path / name, name))
                server = await stack.enter_async_context(serving(engine, ["us-east", "ap-south", "eu-west"]))
                nodes[name] = Node(engine, server, ["us-east", "ap-south", "eu-west"])
            us, ap = nodes["us-east"], nodes["ap-south"]
            async with opened(tmp_path / "eu-west", "eu-west") as engine, serving(engine, ["us-east"]) as server:
                eu = Node(engine, server, ["us-east", "ap-south", "eu-west"])
                await eu.start({})
                await us.start({"eu-west": server.address})
                await ap.start({"us-east": us.server.address})
                topic = await ap.engine.topic(TOPIC)
                await topic.publish([message() for _ in range(10)])
                await eventually(
                    lambda: us.engine.find(TOPIC) and us.topic().log.messages == 10, "the messages in us-east"
                )
                consumer, inbox = await consuming(us.topic(), 10)
                await consumer.acknowledge([Ack(position) for position in inbox.positions[::2]])
                await eventually(lambda: eu.subscription() is not None, "the subscription in eu-west")
                await eventually(
                    lambda: eu.engine.store.pending_acks(eu.topic().topic_id), "acknowledgements that wait, stored"
                )
                await us.links[0].stop()
                await eu.stop()
            async with opened(tmp_path / "eu-west", "eu-west") as engine, serving(engine, ["ap-south"]) as server:
                eu = Node(engine, server, ["us-east", "ap-south", "eu-west"])
                await eu.start({})
                await ap.stop()
                await ap.start({"eu-west": server.address})
                await eventually(lambda: eu.topic().log.messages == 10, "the messages of ap-south in eu-west")
                await eventually(lambda: agree(us, eu), "the acknowledgements of us-east on them")
                assert backlog(eu) == 5
                await eventually(lambda: not eu.engine.store.pending_acks(eu.topic().topic_id), "nothing that waits")
                await eu.stop()
            for node in (us, ap):
                await node.stop()

    asyncio.run(main())


@asynccontextmanager
async def alone(path: Path) -> AsyncIterator[Node]:
    """Yield cluster ``b`` alone. The test plays its peers ``a`` and ``c``."""
    async with opened(path, "b") as engine, serving(engine, ["a"]) as server:
        node = Node(engine, server, ["a", "b", "c"])
        await node.start({})
        yield node
        await node.stop()


def told(*entries: int) -> ApplyUpdate:
    """Return an update of ``a`` which says that these entries of ``c`` are acknowledged."""
    places = PositionSet(Position(1, entry) for entry in entries)
    return ApplyUpdate("sub", 1, None, "a", AckVector({"c": OriginAcks(7, [], places)}))


async def five_came(topic: Topic) -> None:
    """Copy the first five messages of ``c`` into the log."""
    block = make_block(Position(1, 0), [message()] * 5, origin="c")
    await topic.writing.copy([CopiedBlock(BEFORE_ALL, block)])


def test_invariant_6_waiting_acknowledgements_are_in_the_stored_cursor_before_their_own_row_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cursor that is being saved anyway takes longer; a worker that is killed then must know them all the same."""

    async def main() -> None:
        async with alone(tmp_path / "b") as node:
            engine = node.engine
            topic = await engine.topic(TOPIC)
            own = await topic.publish([message() for _ in range(3)])
            consumer, _ = await consuming(topic, 3)
            await node.sync.merge_told(topic, told(*range(5)))
            assert engine.store.pending_acks(topic.topic_id), "what was told is durable, also where it waits"
            saved, copied, put_many = asyncio.Event(), tmp_path / "killed", engine.writer.put_many

            async def slow_cursors(writes: Sequence[RowWrite], **options: Any) -> None:
                tables = {table for table, _, _ in writes}
                if "cursors" in tables:
                    await saved.wait()
                await put_many(writes, **options)
                if "pending_acks" in tables and not copied.exists():
                    shutil.copytree(tmp_path / "b", copied)

            monkeypatch.setattr(engine.writer, "put_many", slow_cursors)
            saving = consumer.begin_acknowledge([Ack(own[1])])
            await five_came(topic)
            for _ in range(50):  # turns in which the row would go
                await asyncio.sleep(0.002)
            saved.set()
            await saving
            await eventually(copied.exists, "the row of what waited is gone")
            await eventually(lambda: backlog(node) == 2, "what waited is acknowledged")
        async with opened(copied, "b") as engine:
            subscription = (await engine.topic(TOPIC)).subscriptions["sub"]
            assert subscription.backlog_messages() == 2

    asyncio.run(main())


def test_acknowledgements_that_waited_are_placed_at_a_start_if_a_worker_ended_right_after_their_messages_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The messages and the row of waiting acknowledgements are durable. No block or update comes after the start."""

    async def main() -> None:
        copied = tmp_path / "killed"
        async with alone(tmp_path / "b") as node:
            engine = node.engine
            topic = await engine.topic(TOPIC)
            await topic.publish([message() for _ in range(3)])
            consumer, _ = await consuming(topic, 3)
            await node.sync.merge_told(topic, told(*range(5)))
            held, put_many = asyncio.Event(), engine.writer.put_many

            async def held_rows(writes: Sequence[RowWrite], **options: Any) -> None:
                if {"cursors", "pending_acks"} & {table for table, _, _ in writes}:
                    await held.wait()
                await put_many(writes, **options)

            monkeypatch.setattr(engine.writer, "put_many", held_rows)
            await five_came(topic)
            await eventually(lambda: backlog(node) == 3, "what waited is acknowledged")
            shutil.copytree(tmp_path / "b", copied)
            held.set()
            consumer.close()
        async with opened(copied, "b") as engine, serving(engine, ["a"]) as server:
            node = Node(engine, server, ["a", "b", "c"])
            assert engine.store.pending_acks((await engine.topic(TOPIC)).topic_id)
            await node.start({})
            assert backlog(node) == 3, "known before any consumer comes"
            await eventually(lambda: not engine.store.pending_acks(node.topic().topic_id), "nothing that waits")
            await node.stop()

    asyncio.run(main())


def test_acknowledgements_whose_messages_came_while_the_subscription_was_not_replicated_are_placed_later(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with alone(tmp_path / "b") as node:
            topic = await node.engine.topic(TOPIC)
            made = await topic.subscriptions.create("sub", BEFORE_ALL, replicated=True)
            await node.sync.merge_told(topic, told(*range(5)))
            await made.set_replicated(False)
            await five_came(topic)
            assert backlog(node) == 5
            await made.set_replicated(True)
            await eventually(lambda: backlog(node) == 0, "what waited is acknowledged")

    asyncio.run(main())


def test_invariant_6_a_row_of_what_waited_goes_after_the_cursor_also_while_another_row_is_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The messages come while an update that waits is being saved. That save must not take the row away as well."""

    async def main() -> None:
        copied = tmp_path / "killed"
        async with alone(tmp_path / "b") as node:
            engine = node.engine
            topic = await engine.topic(TOPIC)
            await topic.publish([message() for _ in range(3)])
            await topic.subscriptions.create("sub", BEFORE_ALL, replicated=True)

            await node.sync.merge_told(topic, told(0, 1, 2))
            begun, row, cursor, put_many = asyncio.Event(), asyncio.Event(), asyncio.Event(), engine.writer.put_many

            async def held_rows(writes: Sequence[RowWrite], **options: Any) -> None:
                pending = [value for table, _, value in writes if table == "pending_acks"]
                if begun.is_set() and any(table == "cursors" for table, _, _ in writes):
                    await cursor.wait()
                if pending:
                    begun.set()
                    await row.wait()
                await put_many(writes, **options)
                if None in pending and not copied.exists():
                    shutil.copytree(tmp_path / "b", copied)

            monkeypatch.setattr(engine.writer, "put_many", held_rows)
            merging = asyncio.ensure_future(node.sync.merge_told(topic, told(3, 4)))
            await begun.wait()
            await five_came(topic)
            await eventually(lambda: backlog(node) == 3, "what waited is acknowledged")
            row.set()
            for _ in range(50):  # turns in which the row would go
                await asyncio.sleep(0.002)
            cursor.set()
            await merging
            await eventually(copied.exists, "the row of what waited is gone")
        async with opened(copied, "b") as engine:
            subscription = (await engine.topic(TOPIC)).subscriptions["sub"]
            assert subscription.backlog_messages() == 3

    asyncio.run(main())


def test_an_orderly_stop_saves_what_waits_before_the_marker_that_brought_it_counts_as_handled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with alone(tmp_path / "b") as node:
            engine = node.engine
            topic = await engine.topic(TOPIC)
            await topic.subscriptions.create("sub", BEFORE_ALL, replicated=True)
            begun, never, put_many = asyncio.Event(), asyncio.Event(), engine.writer.put_many

            async def first_held(writes: Sequence[RowWrite], **options: Any) -> None:
                if any(table == "pending_acks" for table, _, _ in writes) and not begun.is_set():
                    begun.set()
                    await never.wait()
                await put_many(writes, **options)

            monkeypatch.setattr(engine.writer, "put_many", first_held)
            places = PositionSet(Position(1, entry) for entry in range(5))
            vector = AckVector({"c": OriginAcks(7, [], places)})
            await topic.writing.copy([sent(SubscriptionUpdate("sub", {}, 1, vector))])
            await begun.wait()
        async with alone(tmp_path / "b") as node:
            await five_came(node.topic())
            await eventually(lambda: backlog(node) == 0, "what waited is acknowledged")

    asyncio.run(main())


def sent(update: SubscriptionUpdate) -> CopiedBlock:
    """Return a block of ``a`` with a marker that announces ``update``."""
    marker_type, payload = encode_marker(SubscriptionsUpdate((update,)))
    metadata = MessageMetadata(producer_name="a", sequence_id=0, publish_time=1, marker_type=int(marker_type))
    entry = encode_entry(metadata, payload)
    return CopiedBlock(BEFORE_ALL, make_block(Position(1, 0), [entry], origin="a", kind=BlockKind.MARKERS))


@pytest.mark.parametrize("known", [True, False], ids=["asked", "asking"])
def test_a_whole_state_that_a_cluster_lacks_is_announced_or_asked_for_also_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    """Another cluster asked for it, or this one learned of the subscription by a change. The checkpoint is durable, and
    its own marker is not yet, when the worker is killed."""

    async def main() -> None:
        copied = tmp_path / "killed"
        async with alone(tmp_path / "b") as node:
            engine = node.engine
            topic = await engine.topic(TOPIC)
            await topic.publish([message()])
            if known:
                subscription = await topic.subscriptions.create("sub", BEFORE_ALL, replicated=True)
                await eventually(lambda: not subscription.cursor.state.to_announce, "the first announcement")
                await subscription.saved()

            # Many topics announce something, so this one waits for its turn.
            monkeypatch.setattr(UpdateBudget, "reserve", lambda _, earliest_ms, __: earliest_ms + 600_000)
            # A question, or a change of a subscription that is not here.
            acks = AckVector() if known else AckVector({"c": OriginAcks(7, [], PositionSet([Position(1, 0)]))})
            update = SubscriptionUpdate("sub", {}, 1, acks, asks=known)
            await topic.writing.copy([sent(update)])
            name, came = f"{MARKERS_HANDLED} {topic.topic_id}", topic.log.last
            await eventually(lambda: Position(*(engine.store.meta(name) or BEFORE_ALL)) >= came, "the checkpoint")
            shutil.copytree(tmp_path / "b", copied)
        monkeypatch.undo()
        async with alone(copied) as node:
            await eventually(lambda: node.sync.counters()["updates_sent"] == 1, "the announcement")

    asyncio.run(main())


def test_invariant_12_a_question_outlives_an_orderly_stop_while_the_store_refuses_to_note_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with alone(tmp_path / "b") as node:
            topic = await node.engine.topic(TOPIC)
            await topic.publish([message()])
            subscription = await topic.subscriptions.create("sub", BEFORE_ALL, replicated=True)
            await eventually(lambda: not subscription.cursor.state.to_announce, "the first announcement")
        async with alone(tmp_path / "b") as node:  # which announces nothing before it is asked
            topic, full = node.topic(), asyncio.Event()
            put_many, queue = node.engine.writer.put_many, node.sync._topics[TOPIC]._queue
            await eventually(lambda: queue.is_idle, "the end of the start")
            assert node.sync.counters()["updates_sent"] == 0

            async def refusing(writes: Sequence[RowWrite], **options: Any) -> None:
                if full.is_set() and any(table == "cursors" for table, _, _ in writes):
                    raise StoreFull("in this test")
                await put_many(writes, **options)

            monkeypatch.setattr(node.engine.writer, "put_many", refusing)
            # Many topics announce something, so this one waits for its turn.
            monkeypatch.setattr(UpdateBudget, "reserve", lambda _, earliest_ms, __: earliest_ms + 600_000)
            full.set()
            await topic.writing.copy([sent(SubscriptionUpdate("sub", {}, 1, AckVector(), asks=True))])
            await eventually(lambda: queue.is_paused, "a store that refuses")
            full.clear()
        monkeypatch.undo()
        async with alone(tmp_path / "b") as node:
            await eventually(lambda: node.sync.counters()["updates_sent"] == 1, "the answer")

    asyncio.run(main())


def test_a_consumer_that_acknowledges_cumulatively_in_the_middle_of_a_batch_goes_on_there_elsewhere(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with one_way(tmp_path) as (us, eu):
            topic = await us.engine.topic(TOPIC)
            positions: list[Position] = await topic.publish([batch([b"1", b"2", b"3", b"4"]) for _ in range(3)])
            made = await topic.subscriptions.create("sub", BEFORE_ALL, replicated=True)
            await made.acknowledge_cumulative(positions[1], 1)
            await eventually(lambda: agree(us, eu), "the same state in eu-west")
            there = eu.subscription()
            assert there is not None
            assert [list(indexes) for indexes in there.cursor.state.batch_acks.values()] == [[0, 1]]
            assert backlog(eu) == 2

    asyncio.run(main())


def test_a_subscription_switched_on_again_hears_what_was_told_meanwhile_by_who_cannot_be_asked(tmp_path: Path) -> None:
    async def main() -> None:
        async with one_way(tmp_path) as (us, eu):
            topic = await us.engine.topic(TOPIC)
            positions = await topic.publish([message() for _ in range(10)])
            consumer, _ = await consuming(topic, 10)
            await synced(eu, 10, "sub")
            there = eu.subscription()
            assert there is not None
            await there.set_replicated(False)
            here = us.subscription()
            assert here is not None
            await here.moves.seek(positions[2])
            await here.acknowledge([Ack(position) for position in positions[5:]])
            await eventually(lambda: eu.sync.counted.updates_ignored > 0, "updates that eu-west ignores")
            consumer.close()
            await there.set_replicated(True)
            await eventually(lambda: agree(us, eu) and backlog(eu) == 3, "what was told meanwhile")
            assert there.cursor.generation == 2

    asyncio.run(main())
