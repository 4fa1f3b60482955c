"""Compacting a topic: the view and the log as one, trimming, passes that are cut off, and when a pass is due."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from compaction_support import chunk, keyed, keyed_batch, messages_in
from engine_support import TOPIC, eventually, marker, message, opened

from replicator.engine.compaction import compaction as module
from replicator.engine.compaction.compactor import Compactor
from replicator.engine.engine import Engine, EngineSettings
from replicator.engine.errors import InvalidAck, NotAllowedError, StoreFull
from replicator.engine.policies import Retention, TopicPolicies
from replicator.engine.topic import Topic
from snapshots.position import BEFORE_ALL, Position


def newest(topic: Topic, after: Position = BEFORE_ALL) -> list[tuple[str | None, bytes]]:
    return [(key, payload) for key, payload, _, _ in messages_in(topic.compaction.read(after, None, 10**6, 10**9))]


def held(monkeypatch: pytest.MonkeyPatch, engine: Engine, *, after: int) -> asyncio.Event:
    """Let ``after`` steps of passes be written; those that follow wait for the event."""
    put_view, release = engine.writer.put_view, asyncio.Event()
    written = 0

    async def put_held(rows: Sequence[tuple[str, bytes, bytes]]) -> None:
        nonlocal written
        written += 1
        if written > after:
            await release.wait()
        await put_view(rows)

    monkeypatch.setattr(engine.writer, "put_view", put_held)
    return release


def view_rows(engine: Engine) -> int:
    with engine.store.env.begin() as txn:
        return int(txn.stat(engine.store.tables["compacted"])["entries"])


async def published(topic: Topic, *contents: bytes) -> list[Position]:
    """Publish each entry in a block of its own."""
    return [(await topic.publish([content]))[0] for content in contents]


def test_without_a_pass_the_log_is_read(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            await published(topic, keyed("a", b"1"), keyed("a", b"2"), message(b"no key"))
            assert newest(topic) == [("a", b"1"), ("a", b"2"), (None, b"no key")]

    asyncio.run(main())


def test_the_view_comes_first_and_then_what_was_published_since(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            await published(topic, keyed("a", b"1"), keyed("b", b"1"), keyed("a", b"2"))
            await topic.writing.marker(marker())
            await topic.compaction.run()
            assert newest(topic) == [("b", b"1"), ("a", b"2")]
            await published(topic, keyed("b", b"2"), message(b"no key"))
            assert newest(topic) == [("b", b"1"), ("a", b"2"), ("b", b"2"), (None, b"no key")]
            await topic.compaction.run()
            assert newest(topic) == [("a", b"2"), ("b", b"2")]
            assert topic.compaction.state.horizon == topic.log.last
        async with opened(tmp_path) as engine:
            assert newest(await engine.topic(TOPIC)) == [("a", b"2"), ("b", b"2")]

    asyncio.run(main())


def test_positions_batch_indexes_and_origins_are_those_of_the_log(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            first, second = await published(topic, keyed_batch([("a", b"1"), ("b", b"1")]), keyed("a", b"2"))
            in_log = {entry.position: entry for entry in topic.reading.entries(BEFORE_ALL, None, 100, 10**6)}
            await topic.compaction.run()
            entries = topic.compaction.read(BEFORE_ALL, None, 100, 10**6)
            assert messages_in(entries) == [("b", b"1", first, 1), ("a", b"2", second, 0)]
            assert [entry._replace(entry=b"", compacted_out=None) for entry in entries] == [  # type: ignore[arg-type]
                in_log[position]._replace(entry=b"")  # type: ignore[arg-type]
                for position in (first, second)
            ]

    asyncio.run(main())


def test_reading_goes_on_from_any_position_in_pages_of_any_size(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            await published(topic, *(keyed(f"{number % 7}", b"%d" % number) for number in range(20)))
            await topic.compaction.run()
            await published(topic, keyed("x", b"after"))
            whole = topic.compaction.read(BEFORE_ALL, None, 100, 10**6)
            assert len(whole) == 8
            for entries_max, bytes_max in ((1, 10**6), (3, 10**6), (100, 1)):
                paged, at = [], BEFORE_ALL
                while page := topic.compaction.read(at, None, entries_max, bytes_max):
                    assert len(page) <= entries_max
                    paged += page
                    at = page[-1].position
                assert paged == whole
            for upto, count in ((whole[2].position, 3), (whole[-1].position, 8), (BEFORE_ALL, 0)):
                assert topic.compaction.read(BEFORE_ALL, upto, 100, 10**6) == whole[:count]

    asyncio.run(main())


def test_the_view_outlives_the_log_that_it_was_made_from(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            positions = await published(
                topic, keyed_batch([("a", b"1"), ("b", b"1")]), keyed("a", b"2"), keyed("c", b"1")
            )
            await topic.compaction.run()
            await published(topic, keyed("d", b"1"))
            await topic.trimming.trim(topic.log.last)
            assert topic.log.first == topic.log.last
            expected = [("b", b"1"), ("a", b"2"), ("c", b"1"), ("d", b"1")]
            assert newest(topic) == expected
            assert topic.reading.has_position(positions[0])
            assert topic.reading.batch_size(positions[0]) == 2
            with pytest.raises(InvalidAck):
                topic.reading.batch_size(Position(positions[0].ledger, 99))
            await topic.compaction.run()
            assert newest(topic) == expected
        async with opened(tmp_path) as engine:
            assert newest(await engine.topic(TOPIC)) == expected

    asyncio.run(main())


def test_what_is_still_to_be_compacted_is_not_trimmed(tmp_path: Path) -> None:
    async def main() -> None:
        policies = TopicPolicies(compaction_threshold_bytes=10**9, retention=Retention(0, 0))
        async with opened(tmp_path, settings=EngineSettings(policies=policies)) as engine:
            topic = await engine.topic(TOPIC)
            positions = await published(topic, keyed("a", b"1"), keyed("b", b"1"), keyed("c", b"1"))
            await engine.maintenance.run_once()
            assert topic.log.first == positions[0]
            await topic.compaction.run()
            await published(topic, keyed("a", b"2"), keyed("b", b"2"))
            await engine.maintenance.run_once()
            assert topic.log.first == Position(positions[-1].ledger, positions[-1].entry + 1)
            await topic.compaction.run()
            assert newest(topic) == [("c", b"1"), ("a", b"2"), ("b", b"2")]
            await topic.policies.set(TopicPolicies(retention=Retention(0, 0)))
            above = await published(topic, keyed("a", b"3"), keyed("b", b"3"))
            await published(topic, keyed("c", b"3"))
            await engine.maintenance.run_once()
            assert topic.log.first == above[0], "no policy compacts it now, and the next pass still needs these"

    asyncio.run(main())


def test_a_topic_that_is_not_compacted_holds_nothing_back(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            assert topic.holds.positions == {}
            await topic.policies.set(TopicPolicies(compaction_threshold_bytes=1))
            assert topic.holds.positions == {"compaction": BEFORE_ALL}
            await topic.policies.set(None)
            assert topic.holds.positions == {}

    asyncio.run(main())


def test_a_pass_that_fails_in_the_middle_leaves_the_old_view_and_no_rows_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STEP_ENTRIES", 2)

    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            await published(topic, *(keyed(f"{number}", b"1") for number in range(5)))
            await topic.compaction.run()
            before = newest(topic)
            await published(topic, keyed("0", b"2"))
            put_view = engine.writer.put_view
            calls = 0

            async def put_some(rows: Sequence[tuple[str, bytes, bytes]]) -> None:
                nonlocal calls
                calls += 1
                if calls == 3:
                    assert view_rows(engine) > 5
                    raise StoreFull("no room")
                await put_view(rows)

            monkeypatch.setattr(engine.writer, "put_view", put_some)
            with pytest.raises(StoreFull):
                await topic.compaction.run()
            monkeypatch.setattr(engine.writer, "put_view", put_view)
            assert newest(topic) == [*before, ("0", b"2")]
            assert calls == 3
            assert view_rows(engine) == 5
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            assert newest(topic) == [*before, ("0", b"2")]
            await published(topic, keyed("1", b"2"))  # the pass that failed had written its old message
            await topic.compaction.run()
            assert newest(topic) == [*before[2:], ("0", b"2"), ("1", b"2")]
            assert view_rows(engine) == 5

    asyncio.run(main())


def test_a_pass_is_shared_by_all_who_ask_for_one_and_one_of_them_may_give_up(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            await published(topic, keyed("a", b"1"), keyed("a", b"2"))
            asked = [asyncio.ensure_future(topic.compaction.run()) for _ in range(3)]
            await asyncio.sleep(0)
            assert topic.compaction.running
            asked[0].cancel()
            await asyncio.gather(*asked[1:])
            assert topic.compaction.state.generation == 1
            assert not topic.compaction.running

    asyncio.run(main())


def test_the_engine_stops_in_the_middle_of_a_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STEP_BYTES", 1)

    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            await published(topic, *(keyed(f"{number}", b"1") for number in range(30)))
            held(monkeypatch, engine, after=4)
            asked = asyncio.ensure_future(topic.compaction.run())
            await eventually(lambda: view_rows(engine) == 4)
        assert asked.cancelled()
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            assert topic.compaction.state.generation == 0
            await topic.compaction.run()
            assert len(newest(topic)) == view_rows(engine) == 30

    asyncio.run(main())


def test_two_topics_have_views_of_their_own(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            one, two = await engine.topic("one"), await engine.topic("two")
            await published(one, keyed("a", b"one"))
            await published(two, keyed("a", b"two"))
            await two.compaction.run()
            await one.compaction.run()
            assert (newest(one), newest(two)) == ([("a", b"one")], [("a", b"two")])
            await published(one, keyed("a", b""))
            await one.compaction.run()
            assert (newest(one), newest(two), view_rows(engine)) == ([], [("a", b"two")], 1)

    asyncio.run(main())


def test_a_message_that_is_cut_in_two_by_a_pass_comes_out_whole(tmp_path: Path) -> None:
    async def main() -> None:
        now_ms = 10**12
        async with opened(tmp_path, settings=EngineSettings(wall_clock_ms=lambda: now_ms)) as engine:
            topic = await engine.topic(TOPIC)
            parts = [chunk("a", b"%d" % number, number, 3, "u", published_at_ms=now_ms) for number in range(3)]
            await published(topic, keyed("a", b"old"), parts[0], keyed("b", b"1"), parts[1])
            await topic.compaction.run()
            assert newest(topic) == [("a", b"old"), ("a", b"0"), ("b", b"1"), ("a", b"1")]
            await published(topic, parts[2])
            await topic.compaction.run()
            assert newest(topic) == [("a", b"0"), ("b", b"1"), ("a", b"1"), ("a", b"2")]

    asyncio.run(main())


def test_a_pass_is_due_when_the_log_above_the_horizon_is_over_the_threshold(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            await published(topic, keyed("a", b"x" * 5000))
            assert not await topic.compaction.is_due()
            await topic.policies.set(TopicPolicies(compaction_threshold_bytes=9000))
            assert not await topic.compaction.is_due()
            await published(topic, keyed("a", b"x" * 5000))
            assert await topic.compaction.is_due()
            await topic.compaction.run()
            assert not await topic.compaction.is_due()
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            assert not await topic.compaction.is_due()
            await published(topic, keyed("a", b"x" * 5000), keyed("a", b"x" * 5000))
            assert await topic.compaction.is_due()

    asyncio.run(main())


def test_a_pass_that_is_due_is_run_by_the_engines_maintenance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        settings = EngineSettings(policies=TopicPolicies(compaction_threshold_bytes=1))
        async with opened(tmp_path, settings=settings) as engine:
            topics = [await engine.topic(name) for name in ("one", "two")]
            for topic in topics:
                await published(topic, keyed("a", b"1"), keyed("a", b"2"))
            release = held(monkeypatch, engine, after=0)
            await engine.maintenance.run_once()
            assert [topic.compaction.running for topic in topics] == [True, False]  # one at a time
            release.set()
            await eventually(lambda: not topics[0].compaction.running)
            await engine.maintenance.run_once()
            await eventually(lambda: [newest(topic) for topic in topics] == [[("a", b"2")]] * 2)

    asyncio.run(main())


def test_others_have_their_turn_while_the_log_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COUNT_BLOCKS", 10)

    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            await topic.policies.set(TopicPolicies(compaction_threshold_bytes=10**9))
            await published(topic, *(keyed("a", b"1") for _ in range(50)))
            asked = asyncio.create_task(topic.compaction.is_due())
            turns = 0
            while not asked.done():
                turns += 1
                await asyncio.sleep(0)
            assert not await asked
            assert turns >= 5

    asyncio.run(main())


def test_one_topic_is_compacted_at_a_time_and_the_others_count_as_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []
    write_next = module.Compaction._write_next

    async def noted(compaction: module.Compaction, *arguments: Any) -> module.ViewState:
        begun.append(compaction._topic.name)
        return await write_next(compaction, *arguments)

    monkeypatch.setattr(module.Compaction, "_write_next", noted)

    async def main() -> None:
        async with opened(tmp_path) as engine:
            one, two, three = [await engine.topic(name) for name in ("one", "two", "three")]
            for topic in (one, two, three):
                await published(topic, keyed("a", b"1"), keyed("a", b"2"))
            release = held(monkeypatch, engine, after=0)
            passes = [topic.compaction.start() for topic in (one, two, three)]
            await eventually(lambda: bool(begun), "the first pass")
            await published(two, keyed("a", b"3"))
            await engine.deleting.delete(three.name)  # one that waits
            assert passes[2].cancelled()
            assert begun == [one.name]
            assert two.compaction.running
            release.set()
            await asyncio.gather(*passes[:2])
            assert begun == [one.name, two.name]
            assert (newest(one), newest(two)) == ([("a", b"2")], [("a", b"3")])

    asyncio.run(main())


def test_maintenance_starts_no_pass_on_a_topic_that_is_deleted_during_its_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "COUNT_BLOCKS", 1)

    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            await topic.policies.set(TopicPolicies(compaction_threshold_bytes=1))
            await published(topic, keyed("a", b"1"), keyed("a", b"2"))
            is_due = topic.compaction.is_due

            async def deleted_meanwhile() -> bool:
                due = await is_due()
                await engine.deleting.delete(topic.name)
                return due

            monkeypatch.setattr(topic.compaction, "is_due", deleted_meanwhile)
            await engine.maintenance.run_once()
            assert topic.deleted is not None
            assert not topic.compaction.running
            assert view_rows(engine) == 0

    asyncio.run(main())


def test_a_pass_that_failed_is_not_run_again_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            await topic.policies.set(TopicPolicies(compaction_threshold_bytes=1000))
            await published(topic, keyed("a", b"x" * 2000))
            monkeypatch.setattr(module, "Compactor", lambda: Compactor(keys_max=0))
            with pytest.raises(NotAllowedError):
                await topic.compaction.run()
            assert not await topic.compaction.is_due()
            await published(topic, keyed("a", b"x" * 2000))
            assert await topic.compaction.is_due()

    asyncio.run(main())


def test_an_empty_topic_can_be_compacted(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            await topic.compaction.run()
            assert newest(topic) == []
            await topic.policies.set(TopicPolicies(compaction_threshold_bytes=0))
            assert not await topic.compaction.is_due()

    asyncio.run(main())
