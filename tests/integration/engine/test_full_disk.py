"""A worker's store on file systems that are really full: what is refused, what goes on, and that it goes on by itself.

Each disk is a file system of its own, of 96 MiB: in memory, and ext4 in a file.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import duplicates_support
import pytest
from compaction_support import keyed
from engine_support import (
    TOPIC,
    HeldClock,
    entries_of,
    eventually,
    make_block,
    message,
    one_group,
    opened,
    serving,
    subscribed,
)
from segment_support import FaultyDisk, failing
from small_disk import DISK_BYTES, Disk, small_disk

from replicator.engine.engine import Engine, EngineSettings
from replicator.engine.errors import StoreFull
from replicator.engine.log import room
from replicator.engine.log.block import verify_block
from replicator.engine.log.commit.filling import FILLED_MAX, filler_blocks
from replicator.engine.log.disk_room import RESERVE_BYTES
from replicator.engine.log.requests import CopiedBlock, CopyRequest, PutManyRequest, ReclaimRequest
from replicator.engine.log.room import most_bytes
from replicator.engine.log.segments.settings import SegmentSettings
from replicator.engine.log.store_files import READERS_MAX
from replicator.engine.topic import Topic
from replicator.engine.types import Ack
from replicator.links.link import Link
from snapshots.position import BEFORE_ALL, Position

FULL = "make room on it, or trim topics"


@pytest.fixture(params=["tmpfs", "ext4"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    with small_disk(request.param, tmp_path) as made:
        yield made


def numbered(first: int, count: int, size: int) -> list[bytes]:
    return [message(b"%d" % number + b"x" * size) for number in range(first, first + count)]


def full_of(engine: Engine) -> Any:
    return engine.writer.disk_status()["full"]


async def filled(engine: Engine, disk: Disk) -> None:
    """Fill the disk after the reserve is written."""
    await engine.remember("anything", 1)
    assert engine.writer.disk_room.status()["reserve_bytes"] >= DISK_BYTES // 12
    disk.fill()


async def until_refused(write: Callable[[int], Awaitable[object]], because: str = FULL) -> int:
    """Repeat an action until it is refused by name; return how often it was done."""
    refusals: list[StoreFull] = []
    for number in range(100_000):
        try:
            await write(number)
        except StoreFull as error:
            refusals.append(error)
            break
    assert because in str(refusals[0])
    return number


def test_invariant_11_a_full_disk_refuses_publishes_and_takes_what_makes_room_and_all_goes_on_with_room(
    disk: Disk,
) -> None:
    async def main() -> None:
        async with opened(disk.path / "store") as engine:
            topic, other = await engine.topic(TOPIC), await engine.topic("other")
            consumer, _ = await subscribed(topic)
            entries = numbered(0, 300, size=1_000)
            positions = [position for entry in entries for position in await topic.publish([entry])]
            await other.publish([message(b"x" * 1_000)])
            await filled(engine, disk)
            for entry in (message(b"small"), message(b"x" * 2_000_000)):
                with pytest.raises(StoreFull, match=FULL):
                    await topic.publish([entry])
            assert FULL in str(full_of(engine)), "the status says so"
            for position in positions[1::2]:
                await consumer.acknowledge([Ack(position)])
            await topic.subscriptions.create("late", BEFORE_ALL, replicated=False)
            await topic.subscriptions.delete("late")
            await engine.remember("number", 7)
            await other.trimming.trim(other.log.last)
            await engine.deleting.delete(other.name)
            assert engine.writer.failed is None
            disk.make_room()
            await topic.publish([message(b"after")])
            assert full_of(engine) is None
        async with opened(disk.path / "store") as engine:
            topic = await engine.topic(TOPIC)
            assert entries_of(topic, "us-east") == [*entries, message(b"after")], "nothing refused is half there"
            subscription = topic.subscriptions["sub"]
            assert list(subscription.cursor.state.individually_deleted) == positions[1::2]
            assert engine.store.meta("number") == 7
            assert not engine.store.deleted_topics()

    asyncio.run(main())


def test_a_pass_of_compaction_leaves_the_reserve_to_acknowledgements_and_leaves_no_rows_behind(disk: Disk) -> None:
    """The keyed messages are larger than the reserve, and the file has no free pages."""

    async def main() -> None:
        async with opened(disk.path / "store") as engine:
            topic = await engine.topic(TOPIC)
            consumer, _ = await subscribed(topic, permits=0)
            entries = [keyed(f"{number}", os.urandom(20_000)) for number in range(800)]
            positions = await topic.publish(entries[:1])
            for first in range(1, len(entries), 50):
                positions += await topic.publish(entries[first : first + 50])
            await filled(engine, disk)
            reserve = engine.writer.disk_status()["reserve_bytes"]
            with pytest.raises(StoreFull, match=FULL):
                await topic.compaction.run()
            assert engine.writer.disk_status()["reserve_bytes"] > reserve - 500_000
            await consumer.acknowledge([Ack(positions[0])])
            with engine.store.env.begin() as txn:
                assert txn.stat(engine.store.tables["compacted"])["entries"] == 0
            await topic.trimming.trim(positions[0])
            disk.make_room()
            await topic.compaction.run()
            assert topic.compaction.state.entries == len(entries) - 1

    asyncio.run(main())


def test_invariant_1_when_the_reserve_is_used_up_all_is_refused_by_name_and_what_was_confirmed_is_there(
    disk: Disk,
) -> None:
    async def main() -> None:
        async with opened(disk.path / "store") as engine:
            topic = await engine.topic(TOPIC)
            consumer, _ = await subscribed(topic)
            (position,) = await topic.publish([message()])
            await filled(engine, disk)
            value = b'"' + b"x" * 200_000 + b'"'

            async def put(number: int) -> None:
                await engine.writer.put("meta", b"large %d" % number, value)

            async def put_small(number: int) -> None:
                await engine.writer.put("meta", b"small %d" % number, value[:2000])

            kept, small = await until_refused(put), await until_refused(put_small)
            assert kept > 10
            with pytest.raises(StoreFull, match=FULL):
                await consumer.acknowledge([Ack(position)])
            with pytest.raises(StoreFull, match=FULL):
                await topic.publish([message()])
            assert engine.writer.failed is None
            disk.make_room()
            await consumer.acknowledge([Ack(position)])
            await topic.publish([message(b"after")])
            await put(-1)
            reserve = engine.writer.disk_room.status()["reserve_bytes"]
            assert reserve >= DISK_BYTES // 12, "it is made again"
        async with opened(disk.path / "store") as engine:
            with engine.store.env.begin(db=engine.store.tables["meta"]) as txn:
                keys = [bytes(key) for key, _ in txn.cursor()]
            assert {key for key in keys if key.startswith(b"large")} == {b"large %d" % each for each in range(-1, kept)}
            assert sum(key.startswith(b"small") for key in keys) == small
            topic = await engine.topic(TOPIC)
            assert entries_of(topic, "us-east") == [message(), message(b"after")]
            assert topic.subscriptions["sub"].cursor.mark_delete == position

    asyncio.run(main())


def test_a_worker_starts_on_a_full_disk_and_takes_acknowledgements(disk: Disk) -> None:
    async def main() -> None:
        async with opened(disk.path / "store") as engine:
            topic = await engine.topic(TOPIC)
            await subscribed(topic)
            positions = await topic.publish([message()] * 100)
            await filled(engine, disk)
        async with opened(disk.path / "store") as engine:
            topic = await engine.topic(TOPIC)
            consumer, _ = await subscribed(topic)
            with pytest.raises(StoreFull, match=FULL):
                await topic.publish([message()])
            for position in positions[1::2]:
                await consumer.acknowledge([Ack(position)])
            disk.make_room()
            await topic.publish([message()])

    asyncio.run(main())


def test_on_a_full_disk_trimming_topics_lets_publishes_go_on(disk: Disk) -> None:
    """Their pages are free then; the disk itself has as little room as before."""

    async def main() -> None:
        async with opened(disk.path / "store") as engine:
            topic = await engine.topic(TOPIC)
            for number in range(16):
                await topic.publish(numbered(number, 4, size=100_000))
            await filled(engine, disk)
            with pytest.raises(StoreFull, match=FULL):
                await topic.publish([message(b"x" * 100_000)])
            await topic.trimming.trim(topic.log.last)
            published = await until_refused(lambda _: topic.publish([message(b"x" * 100_000)]))
            assert published >= 10
            assert engine.writer.disk_room.status()["reserve_bytes"] >= DISK_BYTES // 32, "a half of it stays"
            assert engine.writer.failed is None

    asyncio.run(main())


def test_invariant_11_thousands_of_publishes_are_refused_at_once_and_acknowledgements_in_their_group_are_not(
    disk: Disk,
) -> None:
    async def main() -> None:
        clock = HeldClock()
        async with opened(disk.path / "store", settings=clock.settings()) as engine:
            topic = await engine.topic(TOPIC)
            await filled(engine, disk)
            publishes = [topic.publish([message(b"%d" % number)]) for number in range(2_000)]
            facts = [engine.remember(f"fact {number}", number) for number in range(50)]
            results = await one_group(engine, clock, *publishes[:1_000], *facts, *publishes[1_000:])
            refused = results[:1_000] + results[1_050:]
            assert {type(each) for each in refused} == {StoreFull}
            assert results[1_000:1_050] == [None] * 50
            assert [engine.store.meta(f"fact {number}") for number in range(50)] == list(range(50))
            disk.make_room()
            assert await topic.publish([message()])

    asyncio.run(main())


def test_invariants_8_and_11_a_link_waits_for_a_full_destination_says_so_and_goes_on(
    tmp_path: Path, disk: Disk
) -> None:
    async def main() -> None:
        async with (
            opened(tmp_path / "us-east") as east,
            opened(disk.path / "store", "eu-west") as west,
            serving(west, {"us-east"}) as server,
        ):
            link = Link(east, "eu-west", server.address)
            link.start()
            topic = await east.topic(TOPIC)
            entries = numbered(0, 20, size=50_000)
            for entry in entries[:10]:
                await topic.publish([entry])
            await eventually(lambda: west.find(TOPIC) and entries_of(west.find(TOPIC), "us-east") == entries[:10])
            await filled(west, disk)
            for entry in entries[10:]:
                await topic.publish([entry])
            await eventually(lambda: link.state == "failed" and FULL in link.detail)
            assert "StoreFull" in link.status()["detail"]
            await west.remember("goes on", 1)
            disk.make_room()
            await eventually(lambda: entries_of(west.find(TOPIC), "us-east") == entries)
            assert link.figures.reconnects < 50, "it tries again at growing intervals"
            await link.stop()

    asyncio.run(main())


KIB, MIB = 1024, 1024 * 1024
SIZES = (10, 40 * KIB, 300 * KIB, 1 * MIB, 3 * MIB)
STORES = {
    "bodies in the table": EngineSettings(segments=SegmentSettings(segment_bytes=0)),
    "bodies in segments": EngineSettings(segments=SegmentSettings(segment_bytes=8 * MIB)),
}


async def is_refused(topic: Topic, size: int) -> bool:
    try:
        await topic.publish([message(os.urandom(size))])
    except StoreFull:
        return True
    return False


@pytest.mark.parametrize("store", STORES)
def test_a_publish_is_refused_exactly_if_the_status_says_so(disk: Disk, store: str) -> None:
    """At each amount of free room, messages of all sizes; and each that is refused is refused and reported until there
    is room."""

    async def main() -> None:
        refusals = 0
        async with opened(disk.path / "store", settings=STORES[store]) as engine:
            topic = await engine.topic(TOPIC)
            for free in (60 * MIB, 16 * MIB, 14 * MIB, 13 * MIB, 12 * MIB, 11 * MIB, 0, 30 * MIB, 14 * MIB, 0):
                disk.leave(free)
                for size in (*SIZES * 4, *reversed(SIZES)):
                    if await is_refused(topic, size):
                        refusals += 1
                        assert FULL in str(full_of(engine)), f"{size} bytes are refused with {free} free, and not said"
                        assert await is_refused(topic, size), f"{size} bytes with {free} free: is said, and is not so"
                    elif full_of(engine) is not None:
                        assert any([await is_refused(topic, each) for each in SIZES]), (size, free)
                if free == 0:
                    await topic.trimming.trim(topic.log.last)
            assert refusals > 3
            disk.make_room()
            assert full_of(engine) is None, "nobody has to publish for that"
            assert not await is_refused(topic, SIZES[-1])
            assert full_of(engine) is None

    asyncio.run(main())


def test_a_full_disk_is_said_before_anybody_publishes(disk: Disk) -> None:
    async def main() -> None:
        async with opened(disk.path / "store") as engine:
            await engine.topic(TOPIC)
            assert full_of(engine) is None
        disk.fill()
        async with opened(disk.path / "store") as engine:
            assert FULL in str(full_of(engine))
            assert await is_refused(await engine.topic(TOPIC), 10)

    asyncio.run(main())


def test_a_store_that_has_reached_its_limit_says_so_until_there_is_room(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, settings=EngineSettings(store_bytes_max=4 * MIB)) as engine:
            topic = await engine.topic(TOPIC)
            while not await is_refused(topic, 60 * KIB):
                assert engine.writer.beyond_limit() is None
            assert "limit of" in str(engine.writer.beyond_limit())
            await topic.trimming.trim(topic.log.last)
            assert engine.writer.beyond_limit() is None
            assert not await is_refused(topic, 60 * KIB)

    asyncio.run(main())


# What the disk is asked for.


def test_invariant_1_no_transaction_grows_the_file_by_more_than_the_room_that_it_has_taken(tmp_path: Path) -> None:
    """Somebody reads all the time, so that no page is used again: that is the worst case."""
    taken: list[tuple[str, int, int]] = []

    async def main() -> None:
        clock = HeldClock()
        async with opened(tmp_path, settings=replace(duplicates_support.ON, wall_clock_ms=clock)) as engine:
            take, what = engine.writer.disk_room.take, ["topics"]

            def taking(used: int, need: int, *, appends: bool) -> str | None:
                taken.append((what[0], used, need))
                return take(used, need, appends=appends)

            engine.writer.disk_room.take = taking  # type: ignore[method-assign]
            topics = [await engine.topic(f"t{number}") for number in range(300)]
            trimmed = await engine.topic("trimmed")
            with engine.store.env.begin():
                for size in (10, 4_000, 30_000):
                    what[0] = f"{size} bytes to each of many topics"
                    entries = [duplicates_support.numbered(size), message(b"x" * size)]
                    await one_group(engine, clock, *(topic.publish(entries) for topic in topics))
                what[0] = "one by one"
                for number in range(1_200):
                    entry = duplicates_support.numbered(number, producer=f"p{number % 50}")
                    await trimmed.publish([entry, message(b"x" * 1_000)])
                what[0] = "cursors"
                made = (each.subscriptions.create("sub", BEFORE_ALL, replicated=False) for each in topics)
                await one_group(engine, clock, *made, queued=1)
                what[0] = "rows"
                for seed in range(3):
                    keys = [b"%d %d" % (row * 7919 % 4001, seed) for row in range(4000)]
                    await engine.writer.put_many([("meta", key, b"y" * 300) for key in keys])
                what[0] = "trim"
                await trimmed.trimming.trim(trimmed.log.last)
                what[0] = "delete"
                await asyncio.gather(*(engine.deleting.delete(topic.name) for topic in topics))
                await eventually(lambda: not engine.store.deleted_topics(), "all is swept")
                await engine.remember("last", 1)

    asyncio.run(main())
    growths = [(what, after - used, need) for (what, used, need), (_, after, _) in pairwise(taken)]
    assert not [each for each in growths if each[1] > each[2]]
    grown = {what for what, growth, _ in growths if growth > 64 * 1024}
    assert grown >= {"4000 bytes to each of many topics", "rows", "trim", "delete"}, "nothing was tried"


def test_where_room_cannot_be_allocated_ahead_the_free_room_of_the_disk_decides(tmp_path: Path) -> None:
    faulty = FaultyDisk()
    free = [1 << 30]

    def free_room(*_: Any) -> Any:
        values = list(os.statvfs(tmp_path))
        values[0] = values[1] = 4096
        values[2], values[3], values[4] = 1 << 20, free[0] // 4096, free[0] // 4096
        return os.statvfs_result(values)

    async def main() -> None:
        faulty.faults["posix_fallocate"] = failing(errno.EOPNOTSUPP)
        faulty.faults["fstatvfs"] = free_room
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            await topic.publish([message()])
            free[0] = 16 << 20
            with pytest.raises(StoreFull, match=FULL):
                await topic.publish([message()])
            await engine.remember("number", 1)
            free[0] = 0
            with pytest.raises(StoreFull, match=FULL):
                await engine.remember("number", 2)
            free[0] = 1 << 30
            await topic.publish([message()])
            assert engine.store.meta("number") == 1

    with patch.object(room, "os", faulty):
        asyncio.run(main())


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_gives_no_room_is_full_whatever_it_says(tmp_path: Path, number: int) -> None:
    """Others were quicker, or a quota is used up."""
    faulty = FaultyDisk()

    async def main() -> None:
        async with opened(tmp_path) as engine:
            await engine.topic(TOPIC)
        faulty.faults["posix_fallocate"] = failing(number)
        (tmp_path / "log" / "data.mdb").open("r+b").truncate(200_000)
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            with pytest.raises(StoreFull, match=FULL):
                await topic.publish([message()])
            with pytest.raises(StoreFull, match=FULL):
                await engine.remember("number", 1)
            assert engine.store.meta("number") is None
            del faulty.faults["posix_fallocate"]
            await engine.remember("number", 2)
            assert engine.writer.disk_room.status()["reserve_bytes"] >= RESERVE_BYTES

    with patch.object(room, "os", faulty):
        asyncio.run(main())


def test_what_goes_to_segments_needs_little_room_in_the_table() -> None:
    request = CopyRequest(None, 1 << 20, blocks=[CopiedBlock(BEFORE_ALL, bytes(1 << 20))])  # type: ignore[arg-type]
    assert most_bytes([request], range(1 << 16, 1 << 25)) < (1 << 20) + (1 << 18)
    assert most_bytes([request], range(0)) >= 3 << 20


def test_rows_need_room_in_the_table_whatever_their_size() -> None:
    request = PutManyRequest(None, 1 << 20, writes=[("compacted", b"key", bytes(1 << 20))])  # type: ignore[arg-type]
    assert most_bytes([request], range(1 << 16, 1 << 25)) == most_bytes([request], range(0)) >= 3 << 20


def test_a_reclaim_gets_room_for_each_of_its_small_blocks_and_for_fillers() -> None:
    """They lie in the table, also where the request as a whole has the size of a body in a segment."""
    at = Position(1, 0)
    block = make_block(at, [message()])
    rows = [(verify_block(block), block)] * 10_000
    in_segments = range(1 << 16, 1 << 25)
    request = ReclaimRequest(None, 10_000 * len(block), blocks=rows, upto=at)  # type: ignore[arg-type]
    without = most_bytes([request], in_segments)
    assert without >= 2 * request.bytes
    fillers = sum(len(filler) for _, filler in filler_blocks("us-east", 1, at, FILLED_MAX, 0))
    assert most_bytes([replace(request, fillers=FILLED_MAX)], in_segments) - without >= fillers


def test_a_full_disk_does_not_end_the_process_that_reads_much_at_once(disk: Disk) -> None:
    """LMDB's table of readers is mapped: a hole in it would be a bus error."""

    async def main() -> None:
        async with opened(disk.path / "store") as engine:
            await (await engine.topic(TOPIC)).publish([message()])
            lock = (disk.path / "store" / "log" / "lock.mdb").stat()
            assert lock.st_blocks * 512 >= lock.st_size - 4096
            await filled(engine, disk)
            with ExitStack() as reading:
                for _ in range(READERS_MAX - 10):
                    reading.enter_context(engine.store.env.begin())

    asyncio.run(main())


def test_holes_in_the_file_of_an_older_version_are_filled_before_anything_is_written(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            for number in range(20):
                await topic.publish(numbered(number, 1, size=100_000))
            await topic.trimming.trim(topic.log.last)
            used = engine.store.table_bytes()
        file = tmp_path / "log" / "data.mdb"
        with file.open("r+b") as data:
            data.truncate(used)
            data.truncate(used + (64 << 20))
        assert file.stat().st_blocks * 512 < file.stat().st_size
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            await topic.publish([message()])
            status = file.stat()
            assert status.st_blocks * 512 >= used + RESERVE_BYTES
            assert engine.writer.disk_room.status()["reserve_bytes"] >= RESERVE_BYTES

    asyncio.run(main())


def test_at_the_end_of_its_address_space_the_store_is_full_and_the_disk_is_not(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, settings=EngineSettings(store_bytes_max=1 << 20)) as engine:
            topic = await engine.topic(TOPIC)

            async def put(number: int) -> None:
                await engine.writer.put("meta", b"large %d" % number, b'"' + b"x" * 400_000 + b'"')

            assert await until_refused(put, because="limit of 1048576 bytes") > 10
            assert engine.writer.disk_room._allocates, "it can allocate: there is nothing to be allocated"
            assert full_of(engine) is None
            await engine.remember("small", 1)
            with pytest.raises(StoreFull, match="limit of 1048576 bytes"):
                await topic.publish([message()])

    asyncio.run(main())
