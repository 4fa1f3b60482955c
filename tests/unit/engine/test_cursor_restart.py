"""Cursors of a real store over restarts: every kind of acknowledgement, seeks, failed saves, deletion."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from engine_support import PUBLISH_TIME_MS, TOPIC, batch, eventually, message, opened, subscribed

from replicator.engine.engine import Engine, EngineSettings
from replicator.engine.errors import InvalidSeek, StoreFull
from replicator.engine.subscriptions.cursor_rows import load_cursors
from replicator.engine.subscriptions.dispatching import Dispatching
from replicator.engine.subscriptions.subscription import Subscription
from replicator.engine.types import Ack, SubscriptionType
from snapshots.position import BEFORE_ALL, Position

LATEST = Position(2**63 - 1, 2**63 - 1)


async def subscription_of(engine: Engine, name: str = "sub") -> Subscription:
    return (await engine.topic(TOPIC)).subscriptions[name]


def rows(engine: Engine) -> int:
    with engine.store.env.begin(db=engine.store.tables["cursor_rows"]) as txn:
        return int(txn.stat()["entries"])


def test_holes_and_open_batches_are_as_they_were_after_a_restart_at_every_state(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            positions = await topic.publish([batch([b"a", b"b", b"c"]) for _ in range(8)])
            await topic.subscriptions.create("sub", BEFORE_ALL, replicated=True, properties={"owner": "tests"})
        steps: list[Ack | Position] = [
            Ack(positions[3]),
            Ack(positions[5], (0, 2)),
            Ack(positions[0], (1,)),
            positions[1],
            Ack(positions[5], (1,)),
            Ack(positions[2]),
            Ack(positions[7], (2,)),
            positions[6],
        ]
        for step in steps:
            async with opened(tmp_path) as engine:
                subscription = await subscription_of(engine)
                if isinstance(step, Ack):
                    await subscription.acknowledge([step])
                else:
                    await subscription.acknowledge_cumulative(step, None)
                expected = subscription.cursor.state
            async with opened(tmp_path) as engine:
                found = await subscription_of(engine)
                assert found.cursor.state == expected
                assert found.cursor.state.properties == {"owner": "tests"}
                assert found.replicated
        async with opened(tmp_path) as engine:
            subscription = await subscription_of(engine)
            assert subscription.cursor.mark_delete == positions[6]
            assert list(subscription.cursor.state.batch_acks) == [positions[7]]

    asyncio.run(main())


@pytest.mark.parametrize("restart_between", [False, True])
def test_seeks_back_and_forth_by_position_time_earliest_and_latest(tmp_path: Path, restart_between: bool) -> None:
    async def main() -> None:
        now = [PUBLISH_TIME_MS]
        settings = EngineSettings(wall_clock_ms=lambda: now[0])
        async with opened(tmp_path, settings=settings) as engine:
            topic, positions = await engine.topic(TOPIC), list[Position]()
            await topic.subscriptions.create("sub", BEFORE_ALL, replicated=False)
            for _ in range(6):  # all say that they were published when the first was
                positions += await topic.publish([message()])
                now[0] += 1000
            subscription = await subscription_of(engine)
            await subscription.acknowledge([Ack(positions[index]) for index in (0, 2, 4)])
        places: list[tuple[Any, Position]] = [
            (positions[3], positions[2]),
            (BEFORE_ALL, BEFORE_ALL),
            (LATEST, positions[5]),
            (PUBLISH_TIME_MS, BEFORE_ALL),
            (positions[0], BEFORE_ALL),
            (PUBLISH_TIME_MS + 10**6, positions[5]),
            (positions[5], positions[4]),
        ]
        engine = await Engine.open(tmp_path, cluster="us-east", settings=settings)
        for generation, (target, mark_delete) in enumerate(places, 2):
            subscription = await subscription_of(engine)
            await subscription.moves.seek(target)
            if restart_between:
                await engine.close()
                engine = await Engine.open(tmp_path, cluster="us-east", settings=settings)
            cursor = (await subscription_of(engine)).cursor
            assert (cursor.mark_delete, cursor.generation) == (mark_delete, generation)
            assert not cursor.state.individually_deleted
            assert rows(engine) == 0
        subscription = await subscription_of(engine)
        with pytest.raises(InvalidSeek):
            await subscription.moves.seek(Position(positions[5].ledger, positions[5].entry + 2))
        assert (subscription.cursor.mark_delete, subscription.cursor.generation) == (positions[4], 8)
        await engine.close()

    asyncio.run(main())


def test_an_acknowledgement_that_could_not_be_saved_is_saved_with_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            consumer, _ = await subscribed(topic)
            positions = await topic.publish([message()] * 6)

            async def full(*_: Any, **__: Any) -> None:
                raise StoreFull("in this test")

            with monkeypatch.context() as patch:
                patch.setattr(engine.writer, "put_many", full)
                for position in (positions[1], positions[3]):
                    with pytest.raises(StoreFull):
                        await consumer.acknowledge([Ack(position)])
            await consumer.acknowledge([Ack(positions[5])])
        async with opened(tmp_path) as engine:
            found = (await subscription_of(engine)).cursor.state.individually_deleted
            assert list(found) == [positions[1], positions[3], positions[5]]

    asyncio.run(main())


@pytest.mark.parametrize("ends", [True, False], ids=["refused", "accepted"])
def test_a_seek_moves_nothing_before_it_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: bool) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            consumer, inbox = await subscribed(topic)
            positions = await topic.publish([message()] * 6)
            await inbox.holds(6)
            await consumer.acknowledge([Ack(positions[1]), Ack(positions[3])])
            subscription, put_many = topic.subscriptions["sub"], engine.writer.put_many
            generation, held = subscription.cursor.generation, asyncio.Event()

            async def full(*writes: Any, **cleared: Any) -> None:
                await held.wait()
                if ends:
                    raise StoreFull("in this test")
                await put_many(*writes, **cleared)

            with monkeypatch.context() as patch:
                patch.setattr(engine.writer, "put_many", full)
                seeking = asyncio.create_task(subscription.moves.seek(positions[2]))
                await asyncio.sleep(0)
                acknowledging = asyncio.create_task(consumer.acknowledge([Ack(positions[5])]))
                await asyncio.sleep(0)
                assert subscription.cursor.generation == generation
                held.set()
                outcomes = await asyncio.gather(seeking, acknowledging, return_exceptions=True)
            assert [isinstance(each, StoreFull) for each in outcomes] == [ends, ends]
            consumed = (1, 3, 5) if ends else (0, 1)
            assert [at for at in range(6) if subscription.cursor.is_consumed(positions[at])] == list(consumed)
            await consumer.acknowledge([Ack(positions[4])])
            assert len(inbox.positions) == (6 if ends else 10)
        async with opened(tmp_path) as engine:
            cursor = (await subscription_of(engine)).cursor
            assert cursor.generation == (generation if ends else generation + 1)
            assert [at for at in range(6) if cursor.is_consumed(positions[at])] == sorted((*consumed, 4))

    asyncio.run(main())


def hold_writes(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Let the engine's writes of rows wait for the returned event."""
    put_many, held = engine.writer.put_many, asyncio.Event()

    async def slow(*writes: Any, **cleared: Any) -> None:
        await held.wait()
        await put_many(*writes, **cleared)

    monkeypatch.setattr(engine.writer, "put_many", slow)
    return held


def test_a_seek_during_which_another_cluster_seeks_comes_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            positions = await topic.publish([message()] * 6)
            subscription = await topic.subscriptions.create("sub", BEFORE_ALL, replicated=True)
            held = hold_writes(engine, monkeypatch)
            seeks = [asyncio.create_task(subscription.moves.seek(positions[at])) for at in (1, 4)]
            await asyncio.sleep(0)
            generation = subscription.cursor.generation + 7
            subscription.merging.adopt_generation(generation)
            held.set()
            await asyncio.gather(*seeks)
            assert (subscription.cursor.generation, subscription.mark_delete) == (generation + 2, positions[3])
            await subscription.acknowledge([Ack(positions[5])])
        async with opened(tmp_path) as engine:
            cursor = (await subscription_of(engine)).cursor
            assert cursor.generation == generation + 2
            assert [at for at in range(6) if cursor.is_consumed(positions[at])] == [0, 1, 2, 3, 5]

    asyncio.run(main())


def test_invariant_1_what_changes_while_a_seek_waits_for_its_save_is_durable_when_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            positions = await topic.publish([message()] * 6)
            subscription = await topic.subscriptions.create("sub", BEFORE_ALL, replicated=False)
            held = hold_writes(engine, monkeypatch)
            acknowledging = asyncio.create_task(subscription.acknowledge([Ack(positions[1])]))
            await eventually(lambda: subscription._saver._being_saved is not None, "an earlier save")
            seeking = asyncio.create_task(subscription.moves.seek(positions[3]))
            await eventually(lambda: subscription._saver._next is not None, "a seek that waits for its save")
            changing = asyncio.gather(subscription.set_properties({"owner": "me"}), subscription.set_replicated(True))
            await asyncio.sleep(0)
            held.set()
            await changing
            state, _ = load_cursors(engine.store, topic.topic_id)["sub"]
            assert (state.properties, state.replicated) == ({"owner": "me"}, True)
            await asyncio.gather(acknowledging, seeking)
            assert (state.mark_delete, subscription.mark_delete) == (positions[2], positions[2])

    asyncio.run(main())


def test_a_seek_ends_though_the_dispatching_fails_to_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            positions = await topic.publish([message()] * 2)
            subscription = await topic.subscriptions.create("sub", BEFORE_ALL, replicated=False)
            generation = subscription.cursor.generation

            def failing(_: Dispatching) -> None:
                if subscription.cursor.generation > generation + 10:  # else it would go on for ever
                    return
                raise ValueError("in this test")

            monkeypatch.setattr(Dispatching, "restart", failing)
            await subscription.moves.seek(positions[1])
            assert (subscription.cursor.generation, subscription.mark_delete) == (generation + 1, positions[0])

    asyncio.run(main())


def test_a_subscription_that_is_deleted_and_made_again_starts_with_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            positions = await topic.publish([message()] * 6)
            for name in ("sub", "sub2"):
                subscription = await topic.subscriptions.create(name, BEFORE_ALL, replicated=False)
                await subscription.acknowledge([Ack(positions[3]), Ack(positions[5])])
            await topic.subscriptions.delete("sub")
            assert rows(engine) == 1
            await topic.subscriptions.create("sub", BEFORE_ALL, replicated=False)
        async with opened(tmp_path) as engine:
            assert not (await subscription_of(engine)).cursor.state.individually_deleted
            assert len((await subscription_of(engine, "sub2")).cursor.state.individually_deleted) == 2

    asyncio.run(main())


def test_a_subscription_that_is_not_durable_leaves_nothing_in_the_store(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            consumer, inbox = await subscribed(topic, "reader", SubscriptionType.SHARED, durable=False)
            positions = await topic.publish([message()] * 3)
            await inbox.holds(3)
            await consumer.acknowledge([Ack(positions[2])])
            assert rows(engine) == 0
            assert engine.store.cursors(topic.topic_id) == {}
        async with opened(tmp_path) as engine:
            assert (await engine.topic(TOPIC)).subscriptions == {}

    asyncio.run(main())
