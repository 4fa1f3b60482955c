from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import lmdb
import pytest
from engine_support import (
    TOPIC,
    HeldClock,
    entries_of,
    logged,
    make_block,
    marker,
    message,
    one_group,
    opened,
)

from replicator.engine.engine import EngineSettings
from replicator.engine.errors import (
    EntryCorrupt,
    MessageTooLarge,
    NotAllowedError,
    StoreFailed,
    StoreFull,
)
from replicator.engine.log.block import BLOCK_BYTES_MAX
from replicator.engine.log.commit import request_queue
from replicator.engine.log.entry import encode_entry
from replicator.engine.log.writer import CopiedBlock
from replicator.engine.topic import Topic
from replicator.engine.topic_listener import TopicListener
from replicator.metadata.metadata_pb2 import LZ4, MessageMetadata
from snapshots.position import BEFORE_ALL, Position


def test_invariant_11_publishes_past_the_queue_limit_wait_and_keep_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_queue, "QUEUE_BYTES_MAX", 200)

    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            tasks: list[asyncio.Task[list[Position]]] = []
            largest = 0
            for number in range(400):
                tasks.append(asyncio.ensure_future(topic.publish([message(b"%d" % number)])))
                await asyncio.sleep(0)
                largest = max(largest, engine.writer._requests.size_bytes)
            await asyncio.gather(*tasks)
            assert largest <= 200 + len(message(b"100"))
            assert entries_of(topic, "us-east") == [message(b"%d" % number) for number in range(400)]

    asyncio.run(main())


def test_invariant_1_a_store_syncs_every_commit(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            flags = engine.store.env.flags()
            assert flags["sync"]
            assert flags["metasync"]
            assert not flags["map_async"]

    asyncio.run(main())


def test_a_failed_publish_appends_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            with pytest.raises(EntryCorrupt):
                await topic.publish([message(), b"junk"])
            with pytest.raises(EntryCorrupt, match="marker"):
                await topic.publish([marker()])
            for wrong in ([], [message()] * 10_001):
                with pytest.raises(NotAllowedError):
                    await topic.publish(wrong)
            assert topic.log.last == BEFORE_ALL

    asyncio.run(main())


def test_invariant_11_a_publish_too_large_for_a_block_is_refused_and_the_store_goes_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            entry = message(b"x" * 5_000_000)
            with pytest.raises(MessageTooLarge):
                await topic.publish([entry] * (BLOCK_BYTES_MAX // len(entry) + 1))
            assert await topic.publish([message()]) == [topic.log.last]

    asyncio.run(main())


def test_entries_that_claim_the_largest_batches_do_not_break_the_store(tmp_path: Path) -> None:
    """Their sum in one merged block must not outgrow its header's field."""

    async def main() -> None:
        clock = HeldClock()
        async with opened(tmp_path, settings=clock.settings()) as engine:
            topic = await engine.topic(TOPIC)
            claim = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, num_messages_in_batch=100_000)
            claim.compression, claim.uncompressed_size = LZ4, 2**31  # so that nobody can see that it holds nothing
            entry = encode_entry(claim, b"")
            results = await one_group(engine, clock, *(topic.publish([entry] * 10_000) for _ in range(5)))
            assert [len(positions) for positions in results] == [10_000] * 5
            assert topic.log.messages == 5 * 10_000 * 100_000

    asyncio.run(main())


def test_many_rows_are_put_and_cleared_in_one_transaction_and_neighbours_are_left(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            table = engine.store.tables["cursor_rows"]

            def rows() -> dict[bytes, bytes]:
                with engine.store.env.begin(db=table) as txn:
                    return dict(txn.cursor())

            put = engine.writer.put_many
            await put([("cursor_rows", key, key) for key in (b"a", b"b", b"b1", b"b2", b"c")])
            await put([("cursor_rows", b"b3", b"new"), ("cursor_rows", b"a", None)], cleared=[("cursor_rows", b"b")])
            assert rows() == {b"b3": b"new", b"c": b"c"}
            await put([], cleared=[("cursor_rows", b"c"), ("cursor_rows", b"x")])
            await put([], cleared=[("cursor_rows", b"b")])
            assert rows() == {}
            await put([("cursor_rows", b"never there", None)], cleared=[("cursor_rows", b"b")])

    asyncio.run(main())


# When the store is full or fails.


def test_what_is_appended_right_after_a_cursor_was_saved_shares_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_queue, "ROWS_WAIT_SECONDS", 30.0)

    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            before = engine.store.env.info()["last_txnid"]
            async with asyncio.TaskGroup() as tasks:
                for number in range(3):
                    tasks.create_task(engine.writer.put_many([("cursors", b"%d" % number, b"x")]))
                await asyncio.sleep(0.2)  # a writer that does not wait commits them now
                tasks.create_task(topic.publish([message()]))
            assert engine.store.env.info()["last_txnid"] == before + 1

    asyncio.run(main())


def test_a_full_store_refuses_cleanly_and_takes_what_still_fits(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, settings=EngineSettings(store_bytes_max=1024 * 1024)) as engine:
            topic = await engine.topic(TOPIC)
            confirmed: list[tuple[Position, bytes]] = []

            async def publish_until_it_fails(size: int) -> None:
                while True:
                    entry = message(b"%d" % len(confirmed) + b"x" * size)
                    (position,) = await topic.publish([entry])
                    confirmed.append((position, entry))

            for size in (200_000, 2_000):
                before = len(confirmed)
                with pytest.raises(StoreFull):
                    await publish_until_it_fails(size)
                assert len(confirmed) > before
            first = confirmed[0][0]
            expected = [Position(first.ledger, entry) for entry in range(len(confirmed))]
            assert [position for position, _ in confirmed] == expected
            assert topic.log.last == expected[-1]
        async with opened(tmp_path, settings=EngineSettings(store_bytes_max=64 * 1024 * 1024)) as engine:
            topic = await engine.topic(TOPIC)
            assert [(at, entry) for _, at, entry in logged(topic)] == confirmed
            assert await topic.publish([message()])

    asyncio.run(main())


def test_a_request_that_does_not_fit_does_not_take_its_group_with_it(tmp_path: Path) -> None:
    async def main() -> None:
        clock = HeldClock()
        async with opened(tmp_path, settings=clock.settings(store_bytes_max=1024 * 1024)) as engine:
            topic = await engine.topic(TOPIC)
            small = [topic.publish([message(b"%d" % number)]) for number in range(6)]
            large = topic.publish([message(b"x" * 2_000_000)])
            results = await one_group(engine, clock, *small[:3], large, *small[3:])
            assert isinstance(results.pop(3), StoreFull)
            ledger = topic.log.last.ledger
            assert results == [[Position(ledger, number)] for number in range(6)]
            assert entries_of(topic, "us-east") == [message(b"%d" % number) for number in range(6)]

    asyncio.run(main())


def test_a_refused_copy_in_a_full_store_can_be_sent_again(tmp_path: Path) -> None:
    async def main() -> None:
        small, large = EngineSettings(store_bytes_max=1024 * 1024), EngineSettings()
        block = CopiedBlock(BEFORE_ALL, make_block(Position(9, 0), [b"x" * 2_000_000]))
        async with opened(tmp_path, "eu-west", small) as engine:
            topic = await engine.topic(TOPIC)
            with pytest.raises(StoreFull):
                await topic.writing.copy([block])
            assert topic.origins.vector() == {}
        async with opened(tmp_path, "eu-west", large) as engine:
            topic = await engine.topic(TOPIC)
            assert len(await topic.writing.copy([block])) == 1

    asyncio.run(main())


def test_invariant_1_after_a_failed_commit_nothing_is_confirmed_any_more(tmp_path: Path) -> None:
    class FailingEnvironment:
        def __init__(self, env: lmdb.Environment) -> None:
            self._env = env

        def begin(self, write: bool = False, **options: Any) -> Any:
            if write:
                raise lmdb.DiskError("input/output error")
            return self._env.begin(**options)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._env, name)

    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            (position,) = await topic.publish([message(b"kept")])
            sound = engine.store.env
            engine.store.env = FailingEnvironment(sound)
            with pytest.raises(StoreFailed, match="input/output error"):
                await topic.publish([message()])
            engine.store.env = sound
            with pytest.raises(StoreFailed):
                await topic.publish([message()])
            assert engine.writer.failed
            assert topic.log.last == position
            assert entries_of(topic, "us-east") == [message(b"kept")]
        async with opened(tmp_path) as engine:
            assert entries_of(await engine.topic(TOPIC), "us-east") == [message(b"kept")]

    asyncio.run(main())


def test_a_listener_that_fails_leaves_no_publisher_waiting(tmp_path: Path) -> None:
    class Failing(TopicListener[Topic]):
        def on_appended(self, *_: object) -> None:
            raise ZeroDivisionError

    async def main() -> None:
        reported: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            engine.add_listener(Failing())
            async with asyncio.timeout(10):
                assert await topic.publish([message()]) == [topic.log.last]
        assert isinstance(reported[0]["exception"], ZeroDivisionError)

    asyncio.run(main())


def test_a_listener_that_fails_in_one_topic_keeps_no_other_from_hearing_of_its_own(tmp_path: Path) -> None:
    class Failing(TopicListener[Topic]):
        def on_appended(self, topic: Topic, blocks: object) -> None:
            if topic.name == TOPIC:
                raise ZeroDivisionError

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        async with opened(tmp_path) as engine:
            topics = [await engine.topic(name) for name in (TOPIC, "other")]
            engine.add_listener(Failing())
            for _ in range(5):  # together, so that they share commits
                await asyncio.gather(*(topic.publish([message()]) for _ in range(10) for topic in topics))
            assert [topic.log.entries for topic in topics] == [50, 50]

    asyncio.run(main())


def test_a_closed_store_takes_nothing_and_leaves_nobody_waiting(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            last = asyncio.ensure_future(topic.publish([message(b"last")]))
            await asyncio.sleep(0)
        assert await last
        with pytest.raises(StoreFailed, match="closed"):
            await topic.publish([message()])

    asyncio.run(main())


def test_a_store_that_cannot_be_looked_at_fails_the_writer_and_leaves_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:

            def unreadable() -> str | None:
                raise OSError("Input/output error")

            monkeypatch.setattr(engine.store, "replaced_reason", unreadable)
            for _ in range(2):
                with pytest.raises(StoreFailed, match="Input/output error"):
                    async with asyncio.timeout(10):
                        await engine.writer.put("meta", b"key", b"{}")
            assert engine.writer.failed is not None, "so /readyz says it"

    asyncio.run(main())
