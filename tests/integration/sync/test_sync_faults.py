"""Subscription sync when both sides consume at once, subscriptions vanish, and the store refuses writes."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from engine_support import HeldClock, Inbox, eventually, make_block, message, opened, settled
from restored_support import acked, entry_of, started
from sync_node_support import TOPIC, Node, backlog, consuming, mesh, synced

from replicator.engine.engine import Engine
from replicator.engine.errors import StoreFull, SubscriptionNotFound
from replicator.engine.log.block import BlockKind
from replicator.engine.log.requests import CopiedBlock
from replicator.engine.subscriptions.cursor_rows import load_cursors
from replicator.engine.topic import Topic
from replicator.engine.topics.topic_deletion import MARKERS_HANDLED
from replicator.engine.types import Ack, SubscribeOptions, SubscriptionType
from snapshots.actions import ApplyUpdate
from snapshots.position import BEFORE_ALL, Position


def test_what_both_sides_acknowledged_together_is_consumed_in_both(tmp_path: Path) -> None:
    """us-east acknowledged the second half, eu-west then the first: us-east alone knows that all is consumed."""

    async def main() -> None:
        async with mesh(tmp_path, "us-east", "eu-west") as nodes:
            us, eu = nodes["us-east"], nodes["eu-west"]
            topic = await us.engine.topic(TOPIC)
            await topic.subscriptions.create("sub", BEFORE_ALL, replicated=True)
            await synced(eu, 0, "sub")
            for _ in range(4):
                # A mapping between each five, in both: coarse state moves from one to the next.
                known = {name: len(node.index.mappings) for name, node in nodes.items()}
                await topic.publish([message() for _ in range(5)])
                await eventually(
                    lambda: all(len(node.index.mappings) > known[name] for name, node in nodes.items()),  # noqa: B023
                    "a mapping in both",
                )
            here, arrived = await consuming(topic, 20)
            await synced(eu, 20, "sub")
            await here.acknowledge([Ack(position) for position in arrived.positions[10:]])
            there, arrived = await consuming(eu.topic(), 20)
            await there.acknowledge([Ack(position) for position in arrived.positions[:10]])
            await eventually(lambda: backlog(us) == 0, "an empty backlog in us-east")
            await eventually(lambda: backlog(eu) == 0, "an empty backlog in eu-west")

    asyncio.run(main())


def test_an_update_of_a_subscription_that_is_being_deleted_waits_for_that_and_then_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with mesh(tmp_path, "us-east", "eu-west") as nodes:
            us, eu = nodes["us-east"], nodes["eu-west"]
            topic = await us.engine.topic(TOPIC)
            await topic.publish([message() for _ in range(10)])
            consumers = [await consuming(topic, 10, name) for name in ("doomed", "kept")]
            await synced(eu, 10, "doomed", "kept")
            release = asyncio.Event()
            put_many = eu.engine.writer.put_many

            async def slow_delete(writes: Sequence[Any], **cleared: Any) -> None:
                if tuple(table for table, *_ in sorted(writes, reverse=True)) == ("tombstones", "cursors"):
                    await release.wait()
                await put_many(writes, **cleared)

            monkeypatch.setattr(eu.engine.writer, "put_many", slow_delete)
            deleting = asyncio.ensure_future(eu.topic().subscriptions.delete("doomed"))
            await asyncio.gather(*(c.acknowledge([Ack(p) for p in inbox.positions]) for c, inbox in consumers))
            updates = eu.sync._topics[TOPIC]._queue
            await eventually(lambda: not updates.is_empty, "an update that waits for the deletion")
            release.set()
            await deleting
            await eventually(lambda: backlog(eu, "kept") == 0, "an empty backlog of the other subscription")
            await eventually(lambda: "doomed" in eu.topic().subscriptions, "the subscription that us-east uses is back")

    asyncio.run(main())


def test_a_store_that_was_full_for_a_while_makes_no_update_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both in the cluster that tells (its marker is refused), and in the one that is told (its cursor is)."""

    async def main() -> None:
        async with mesh(tmp_path, "us-east", "eu-west") as nodes:
            us, eu = nodes["us-east"], nodes["eu-west"]
            topic = await us.engine.topic(TOPIC)
            await topic.publish([message() for _ in range(10)])
            consumer, inbox = await consuming(topic, 10)
            await synced(eu, 10, "sub")
            refused: set[str] = set()
            saved: set[str] = set()

            def refusing(node: Node, method: str) -> None:
                writer = node.engine.writer
                real = getattr(writer, method)

                async def refuse(*arguments: Any, **named: Any) -> Any:
                    if node.engine.cluster in full:
                        refused.add(node.engine.cluster)
                        raise StoreFull("full")
                    result = await real(*arguments, **named)
                    if node.engine.cluster in refused and method == "put_many":
                        saved.update(node.engine.cluster for table, *_ in arguments[0] if table.startswith("cursor"))
                    return result

                monkeypatch.setattr(writer, method, refuse)

            full = {"us-east", "eu-west"}
            refusing(us, "publish")
            refusing(eu, "put_many")  # how cursors are saved
            await consumer.acknowledge([Ack(position) for position in inbox.positions])
            await eventually(lambda: "us-east" in refused, "a marker that us-east could not write")
            full.discard("us-east")
            await eventually(lambda: "eu-west" in refused, "an update that eu-west could not save")
            full.discard("eu-west")
            await eventually(lambda: backlog(eu) == 0, "an empty backlog in eu-west")
            await eventually(lambda: "eu-west" in saved, "the update saved after all")
        async with opened(tmp_path / "eu-west", "eu-west") as engine:
            found = engine.find(TOPIC)
            assert found is not None
            assert found.subscriptions["sub"].cursor.backlog_entries() == 0, "the update was not saved"

    asyncio.run(main())


def test_what_was_acknowledged_while_a_subscription_was_to_be_deleted_is_stored_when_it_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with opened(tmp_path, "a") as engine:
            topic = await engine.topic(TOPIC)
            await topic.publish([message() for _ in range(3)])
            _, inbox = await consuming(topic, 3)
            full, put_many = asyncio.Event(), engine.writer.put_many

            async def refuse(writes: Sequence[Any], **cleared: Any) -> None:
                if cleared.get("cleared"):  # a deletion
                    await full.wait()
                    raise StoreFull("full")
                await put_many(writes, **cleared)

            monkeypatch.setattr(engine.writer, "put_many", refuse)
            subscription = topic.subscriptions["sub"]
            deleting = asyncio.ensure_future(subscription.deleting.delete(force=True))
            await eventually(lambda: subscription._saver._deleting is not None, "a deletion that has begun")
            subscription.cursor.acknowledge(inbox.positions[1], None, 1)
            with pytest.raises(SubscriptionNotFound):
                await subscription.saved()
            full.set()
            with pytest.raises(StoreFull):
                await deleting
            await eventually(lambda: stored(engine, topic) == 1, "the acknowledgement in the store")

    asyncio.run(main())


def test_the_last_markers_that_a_topic_writes_are_stored_as_handled(tmp_path: Path) -> None:
    """No later event follows these markers, so they must have the checkpoint saved themselves."""

    async def main() -> None:
        async with opened(tmp_path, "a") as engine:
            topic, sync = await started(engine)
            await topic.subscriptions.create("sub", BEFORE_ALL, replicated=True)
            await eventually(lambda: topic.log.markers, "a marker that announces the subscription")
            await eventually(lambda: handled(topic, engine) == topic.log.last, "a checkpoint at the last marker")
            await sync.stop()

    asyncio.run(main())


def test_an_update_that_came_while_its_topic_was_to_be_deleted_is_stored_when_the_topic_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts as handled only then."""

    async def main() -> None:
        clock = HeldClock()
        async with opened(tmp_path, "a", clock.settings()) as engine:
            topic, sync = await started(engine)
            messages = make_block(Position(9, 0), [message()] * 3, origin="b")
            await topic.writing.copy([CopiedBlock(BEFORE_ALL, messages)])
            subscription = await topic.subscriptions.create("sub", BEFORE_ALL, replicated=True)
            queue = sync._topics[TOPIC]._queue
            await eventually(lambda: queue.is_idle and handled(topic, engine) == topic.log.last, "what is written here")
            full = held_deletions(engine, monkeypatch)
            clock.free.clear()
            said = entry_of(acked("sub", 1, subscription.cursor.generation))
            marker = make_block(Position(9, 3), [said], origin="b", kind=BlockKind.MARKERS)
            copying = asyncio.ensure_future(topic.writing.copy([CopiedBlock(Position(9, 2), marker)]))
            await asyncio.sleep(0)
            deleting = asyncio.ensure_future(engine.deleting.delete(TOPIC, force=True))
            await eventually(lambda: topic.deleted is not None, "a deletion that has begun")
            clock.free.set()
            await copying
            await eventually(
                lambda: (
                    subscription.cursor.backlog_entries() == 2 and queue._task is not None and not queue._task.running
                ),
                "an update that is merged, and not saved",
            )
            assert stored(engine, topic) == 0
            full.set()
            with pytest.raises(StoreFull):
                await deleting
            await eventually(lambda: handled(topic, engine) == topic.log.last, "markers that were handled")
            assert stored(engine, topic) == 1
            await sync.stop()

    asyncio.run(main())


def test_a_subscription_that_is_made_while_its_topic_is_to_be_deleted_is_told_when_the_topic_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        clock = HeldClock()
        async with opened(tmp_path, "a", clock.settings()) as engine:
            topic, sync = await started(engine)
            full = held_deletions(engine, monkeypatch)
            clock.free.clear()
            creating = asyncio.ensure_future(topic.subscriptions.create("sub", BEFORE_ALL, replicated=True))
            await eventually(
                lambda: (made := topic.subscriptions.get("sub")) is not None and made._saver._being_saved is not None,
                "a subscription that is on its way to the store",
            )
            deleting = asyncio.ensure_future(engine.deleting.delete(TOPIC, force=True))
            await eventually(lambda: topic.deleted is not None, "a deletion that has begun")
            clock.free.set()
            await creating
            full.set()
            with pytest.raises(StoreFull):
                await deleting
            assert "sub" in sync._topics[TOPIC].controller.updates._subscriptions
            await eventually(lambda: len(topic.log.markers) > 0, "a marker about the subscription")
            await sync.stop()

    asyncio.run(main())


def held_deletions(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Hold deletions of topics until the event that is returned is set. Then the store refuses them."""
    full = asyncio.Event()

    async def refuse(*_: Any, **__: Any) -> None:
        await full.wait()
        raise StoreFull("full")

    monkeypatch.setattr(engine.writer, "delete_topics", refuse)
    return full


def handled(topic: Topic, engine: Engine) -> Position:
    """Return up to where the store says that markers were handled."""
    return Position(*(engine.store.meta(f"{MARKERS_HANDLED} {topic.topic_id}") or BEFORE_ALL))


def stored(engine: Engine, topic: Topic) -> int:
    """Return how many single acknowledgements of ``sub`` the store has."""
    state, _ = load_cursors(engine.store, topic.topic_id)["sub"]
    return len(state.individually_deleted)


def test_a_state_that_was_told_while_the_store_was_full_is_stored_when_it_is_told_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with opened(tmp_path, "a") as engine:
            topic, sync = await started(engine)
            messages = make_block(Position(9, 0), [message()] * 3, origin="b")
            await topic.writing.copy([CopiedBlock(BEFORE_ALL, messages)])
            subscription = await topic.subscriptions.create("sub", BEFORE_ALL, replicated=True)
            queue = sync._topics[TOPIC]._queue
            await eventually(lambda: queue.is_idle and handled(topic, engine) == topic.log.last, "what is written here")
            acks = acked("sub", 1).acks
            told = ApplyUpdate("sub", subscription.cursor.generation, None, "b", acks=acks, whole=True)

            async def refuse(*_: Any, **__: Any) -> None:
                raise StoreFull("full")

            with monkeypatch.context() as patched:
                patched.setattr(engine.writer, "put_many", refuse)
                with pytest.raises(StoreFull):
                    await sync.merge_told(topic, told)
            assert stored(engine, topic) == 0
            await sync.merge_told(topic, told)
            assert stored(engine, topic) == 1
            await sync.stop()

    asyncio.run(main())


def test_invariant_7_a_restart_writes_no_markers_into_a_topic_where_all_was_told(tmp_path: Path) -> None:
    async def main() -> None:
        async with mesh(tmp_path, "us-east", "eu-west") as nodes:
            topic = await nodes["us-east"].engine.topic(TOPIC)
            await topic.publish([message() for _ in range(5)])
            consumer, inbox = await consuming(topic, 5)
            await consumer.acknowledge([Ack(position) for position in inbox.positions])
            await synced(nodes["eu-west"], 5, "sub")
            await eventually(lambda: backlog(nodes["eu-west"]) == 0)
            await settled(lambda: [node.topic().log.entries for node in nodes.values()], 0.5)  # 25 snapshot intervals
        entries: list[list[int]] = []
        for _ in range(3):
            async with mesh(tmp_path, "us-east", "eu-west") as nodes:
                await settled(lambda: [node.topic().log.entries for node in nodes.values()], 0.5)
                entries.append([node.topic().log.entries for node in nodes.values()])
        assert entries[1] == entries[2]

    asyncio.run(main())


def test_invariant_5_a_cluster_restored_from_an_old_copy_calls_nothing_consumed_that_it_lost(tmp_path: Path) -> None:
    """eu-west has messages of us-east that us-east lost: whoever consumes all that us-east has, did not see those."""

    async def main() -> None:
        async with mesh(tmp_path, "us-east", "eu-west") as nodes:
            topic = await nodes["us-east"].engine.topic(TOPIC)
            await topic.publish([message(b"old") for _ in range(10)])
            await topic.subscriptions.create("sub", BEFORE_ALL, replicated=True)
            await synced(nodes["eu-west"], 10, "sub")
        shutil.copytree(tmp_path / "us-east", tmp_path / "copy")
        async with mesh(tmp_path, "us-east", "eu-west") as nodes:
            await nodes["us-east"].topic().publish([message(b"lost") for _ in range(10)])
            await synced(nodes["eu-west"], 20)
        shutil.rmtree(tmp_path / "us-east")
        shutil.copytree(tmp_path / "copy", tmp_path / "us-east")
        async with mesh(tmp_path, "us-east", "eu-west") as nodes:
            us, eu = nodes["us-east"], nodes["eu-west"]
            consumer, inbox = await consuming(us.topic(), 10)
            await us.topic().publish([message(b"new") for _ in range(5)])
            await inbox.holds(15)
            await consumer.acknowledge([Ack(position) for position in inbox.positions])
            link = us.links[0]
            await eventually(lambda: backlog(eu) == 0 or link.status()["halted"], "an update, or a halt that says why")
            assert backlog(eu) >= 10
            assert TOPIC in link.status()["halted"]

    asyncio.run(main())


def test_an_answer_of_a_peer_that_has_what_this_log_lost_makes_no_mapping(tmp_path: Path) -> None:
    """It came over the link from eu-west before the one to eu-west was up, and noticed."""

    async def main() -> None:
        async with mesh(tmp_path, "us-east", "eu-west") as nodes:
            topic = await nodes["us-east"].engine.topic(TOPIC)
            await topic.publish([message(b"old")])
            await topic.subscriptions.create("sub", BEFORE_ALL, replicated=True)
            await synced(nodes["eu-west"], 1, "sub")
        shutil.copytree(tmp_path / "us-east", tmp_path / "copy")
        async with mesh(tmp_path, "us-east", "eu-west") as nodes:
            known = len(nodes["us-east"].index.mappings)
            await nodes["us-east"].topic().publish([message(b"lost")])
            await eventually(lambda: len(nodes["us-east"].index.mappings) > known, "an answer")
        shutil.rmtree(tmp_path / "us-east")
        shutil.copytree(tmp_path / "copy", tmp_path / "us-east")
        async with mesh(tmp_path, "us-east", "eu-west") as nodes:
            us = nodes["us-east"]
            await eventually(lambda: us.sync.counters()["answers_unprovable"] > 0, "the answer, copied again")

    asyncio.run(main())


def test_of_two_who_make_a_subscription_at_once_one_can_ask_for_replication(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            await asyncio.gather(
                topic.subscribe("sub", SubscribeOptions(SubscriptionType.SHARED, "plain"), Inbox()),
                topic.subscribe("sub", SubscribeOptions(SubscriptionType.SHARED, "asks", replicated=True), Inbox()),
            )
            assert topic.subscriptions["sub"].replicated
        async with opened(tmp_path) as engine:
            again = engine.find(TOPIC)
            assert again is not None
            assert again.subscriptions["sub"].replicated

    asyncio.run(main())
