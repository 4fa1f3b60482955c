"""Segments on a disk that fails: short writes, errors of writes, syncs and reads, and a disk that is full."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import duplicates_support
import pytest
from engine_support import HeldClock, eventually, logged, message, one_group, opened
from segment_support import (
    AS_USUAL,
    SMALL,
    FaultyDisk,
    check_no_segment_leaks,
    check_places,
    failing,
    faulty_disk,
    path_of,
    segments_of,
    small_segments,
)

from replicator.engine.engine import Engine, EngineSettings
from replicator.engine.errors import BlockCorrupt, StoreFailed, StoreFull
from replicator.engine.log.block import build_block
from replicator.engine.log.segments.files import segment_name
from replicator.engine.log.segments.places import read_placed
from replicator.engine.log.segments.settings import SegmentSettings
from replicator.engine.log.store_tables import BLOCK_KEY
from replicator.engine.topic import Topic
from replicator.engine.types import DUPLICATE
from snapshots.position import BEFORE_ALL, Position

LARGE_ONES = SegmentSettings(segment_bytes=64 * 1024, body_bytes_min=8 * 1024, group_bytes_min=1, recent_bytes_max=1)
"""Settings by which small bodies lie in the table and only large ones in segments."""


@pytest.fixture
def disk() -> Iterator[FaultyDisk]:
    with faulty_disk() as found:
        yield found


def content(size: int, seed: int = 0) -> bytes:
    return message(random.Random(seed).randbytes(size))


async def published(topic: Topic, count: int, size: int = 20_000) -> list[bytes]:
    entries = [content(size, seed) for seed in range(count)]
    for entry in entries:
        await topic.publish([entry])
    return entries


def entries_of(topic: Topic) -> list[bytes]:
    return [entry for _, _, entry in logged(topic)]


# Writes.


@pytest.mark.parametrize("pages", [1, 3])
def test_short_writes_are_gone_on_with(tmp_path: Path, disk: FaultyDisk, pages: int) -> None:
    def short(file: int, buffer: memoryview, offset: int) -> Any:
        return AS_USUAL if len(buffer) <= pages * 4096 else os.pwrite(file, buffer[: pages * 4096], offset)

    async def main() -> None:
        settings = EngineSettings(segments=LARGE_ONES)
        async with opened(tmp_path, settings=settings) as engine:
            disk.faults["pwrite"] = short
            entries = await published(await engine.topic("a"), 4, 40_000)
            assert disk.calls["pwrite"] > 12 // pages
        async with opened(tmp_path, settings=settings) as engine:
            assert entries_of(await engine.topic("a")) == entries

    asyncio.run(main())


@pytest.mark.parametrize("call", ["pwrite", "fdatasync"])
def test_invariant_1_after_an_error_of_a_write_or_a_sync_nothing_is_confirmed_and_it_is_not_tried_again(
    tmp_path: Path, disk: FaultyDisk, call: str
) -> None:
    async def main() -> None:
        settings = EngineSettings(segments=LARGE_ONES)
        async with opened(tmp_path, settings=settings) as engine:
            topic = await engine.topic("a")
            entries = await published(topic, 2)
            disk.faults[call] = failing(errno.EIO)
            with pytest.raises(StoreFailed, match=r"confirms nothing more until a restart: .*Input/output error"):
                await topic.publish([content(20_000)])
            del disk.faults[call]
            before = disk.calls["fdatasync"], disk.calls["pwrite"]
            for entry in (content(20_000), message(b"small")):
                with pytest.raises(StoreFailed):
                    await topic.publish([entry])
            with pytest.raises(StoreFailed):
                await engine.remember("a", 1)
            assert (disk.calls["fdatasync"], disk.calls["pwrite"]) == before, "the disk was tried again"
            assert entries_of(topic) == entries, "what was confirmed is served"
        async with opened(tmp_path, settings=settings) as engine:
            check_places(engine.store)
            topic = await engine.topic("a")
            assert entries_of(topic) == entries
            await topic.publish([content(20_000)])

    asyncio.run(main())


# Reads.


def test_an_error_of_a_read_names_topic_position_and_file_and_other_topics_go_on(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    async def main() -> None:
        settings = small_segments()
        async with opened(tmp_path, settings=settings) as engine:
            await published(await engine.topic("a"), 4)
            other = await published(await engine.topic("b"), 8)
        async with opened(tmp_path, settings=settings) as engine:
            a, b = await engine.topic("a"), await engine.topic("b")
            number = next(place.segment for place, _ in placed(engine))

            def unreadable(file: int, *_: Any) -> Any:
                if path_of(file).name == segment_name(number):
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
                return AS_USUAL

            disk.faults["preadv"] = unreadable
            first = a.log.next_after(BEFORE_ALL)
            with pytest.raises(BlockCorrupt) as raised:
                engine.store.read_blocks(a.topic_id, BEFORE_ALL, a.log.last, bytes_max=1)
            for part in (f"topic {a.topic_id} at {first}", segment_name(number), "Input/output error"):
                assert part in str(raised.value)
            assert entries_of(b) == other
            await a.publish([content(100)])
            del disk.faults["preadv"]
            assert len(entries_of(a)) == 5, "an error that passed is forgotten"

    asyncio.run(main())


def placed(engine: Engine) -> list[Any]:
    with engine.store.env.begin() as txn:
        return list(read_placed(txn, engine.store.tables["placed"]))


def test_a_publish_that_deduplication_cannot_decide_is_refused_and_other_topics_go_on(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    """A copy may lie in the block that cannot be read: whether it is there already is not known."""

    async def main() -> None:
        settings = replace(duplicates_support.ON, segments=SMALL)
        sent = [duplicates_support.numbered(number) for number in (5, 6)]
        async with opened(tmp_path / "a", "us-east", settings) as a, opened(tmp_path / "b", "eu-west", settings) as b:
            await (await a.topic("orders")).publish(sent)
            await duplicates_support.copy(await a.topic("orders"), await b.topic("orders"))
        async with opened(tmp_path / "b", "eu-west", settings) as b:
            orders, others = await b.topic("orders"), await b.topic("others")
            disk.faults["preadv"] = failing(errno.EIO)
            more = [duplicates_support.numbered(number, producer="q") for number in (1, 2)]
            results = await asyncio.gather(
                orders.publish([more[0], *sent]), others.publish([message(b"x")]), return_exceptions=True
            )
            assert isinstance(results[0], BlockCorrupt)
            assert str(orders.topic_id) in str(results[0])
            assert isinstance(results[1], list)
            await others.publish([message(b"y")])
            del disk.faults["preadv"]
            positions = await orders.publish([more[0], *sent, more[1]])
            assert [each is DUPLICATE for each in positions] == [False, True, True, False], "what was refused is noted"

    asyncio.run(main())


# A full disk.


def test_a_segment_that_cannot_be_made_refuses_what_is_large_and_nothing_else(tmp_path: Path, disk: FaultyDisk) -> None:
    async def main() -> None:
        async with opened(tmp_path, settings=EngineSettings(segments=LARGE_ONES)) as engine:
            topic = await engine.topic("a")
            disk.faults["posix_fallocate"] = failing(errno.ENOSPC)
            await check_full(engine, topic)
            del disk.faults["posix_fallocate"]
            await published(topic, 8)
            check_places(engine.store)

    asyncio.run(main())


def test_a_segment_that_cannot_be_written_refuses_what_is_large_and_nothing_else(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    async def main() -> None:
        async with opened(tmp_path, settings=EngineSettings(segments=LARGE_ONES)) as engine:
            topic = await engine.topic("a")
            entries = await published(topic, 1)
            disk.faults["pwrite"] = failing(errno.ENOSPC)
            await check_full(engine, topic)
            del disk.faults["pwrite"]
            entries += await published(topic, 8)
            assert [entry for entry in entries_of(topic) if len(entry) > 1_000] == entries
            await topic.trimming.trim(topic.log.last)
            check_places(engine.store)
            check_no_segment_leaks(engine.store)

    asyncio.run(main())


async def check_full(engine: Engine, topic: Topic) -> None:
    before = len(entries_of(topic)), placed(engine)
    for _ in range(3):
        with pytest.raises(StoreFull, match="make room on it, or trim topics"):
            await topic.publish([content(20_000)])
    assert (len(entries_of(topic)), placed(engine)) == before, "something of it is there"
    check_places(engine.store)
    await topic.publish([message(b"small")])
    await engine.deleting.delete((await engine.topic("gone")).name)


def test_of_a_group_that_does_not_fit_what_is_small_is_taken(tmp_path: Path, disk: FaultyDisk) -> None:
    async def main() -> None:
        clock = HeldClock()
        async with opened(tmp_path, settings=EngineSettings(wall_clock_ms=clock, segments=LARGE_ONES)) as engine:
            topics = [await engine.topic(name) for name in "abcd"]
            disk.faults["posix_fallocate"] = failing(errno.ENOSPC)
            small, large = message(b"small"), content(20_000)
            results = await one_group(
                engine,
                clock,
                *(topic.publish([entry]) for topic, entry in zip(topics, [small, large] * 2, strict=True)),
            )
            assert [isinstance(each, StoreFull) for each in results] == [False, True, False, True]
            assert [entries_of(topic) for topic in topics] == [[small], [], [small], []]

    asyncio.run(main())


def test_a_segment_that_could_not_be_made_ahead_is_made_when_it_is_needed(tmp_path: Path, disk: FaultyDisk) -> None:
    """There is room again by then: nothing is refused for what was."""

    async def main() -> None:
        async with opened(tmp_path, settings=EngineSettings(segments=LARGE_ONES)) as engine:
            topic = await engine.topic("a")
            await published(topic, 1)
            disk.faults["posix_fallocate"] = failing(errno.ENOSPC)
            await published(topic, 1)  # more than half of the segment is used: the next one is made
            making = engine.store.segments._making
            assert making is not None
            await eventually(making.done, "it failed")
            del disk.faults["posix_fallocate"]
            await published(topic, 4)

    asyncio.run(main())


def test_a_worker_that_starts_on_a_full_disk_writes_past_the_page_cache_later(tmp_path: Path, disk: FaultyDisk) -> None:
    async def main() -> None:
        settings = EngineSettings(segments=LARGE_ONES)
        async with opened(tmp_path, settings=settings) as engine:
            await published(await engine.topic("a"), 1)
            direct = engine.store.segments.medium
        disk.faults["pwrite"] = failing(errno.ENOSPC)
        async with opened(tmp_path, settings=settings) as engine:
            assert engine.store.segments.medium == direct
            del disk.faults["pwrite"]
            await published(await engine.topic("a"), 4)

    asyncio.run(main())


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Yield a file system of its own, of 80 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=80m", "segments", place], check=False, capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", place], check=True)


def test_a_disk_that_is_full_of_segments_has_room_for_what_is_small_and_for_making_room(small_disk: Path) -> None:
    segments = SegmentSettings(segment_bytes=1 << 20, body_bytes_min=8 * 1024, group_bytes_min=1, recent_bytes_max=1)

    async def main() -> None:
        async with opened(small_disk / "store", settings=EngineSettings(segments=segments)) as engine:
            topic = await engine.topic("a")
            with pytest.raises(StoreFull, match="make room on it, or trim topics"):
                await published(topic, 80, 1_000_000)
            for number in range(800):
                await topic.publish([content(3_000)])
                await engine.remember("number", number)
            with pytest.raises(StoreFull):
                await topic.publish([content(1_000_000)])
            await topic.trimming.trim(topic.log.last)
            check_places(engine.store)
            check_no_segment_leaks(engine.store)
            await published(topic, 5, 1_000_000)

    asyncio.run(main())


# A segment's file that is deleted or replaced while the worker has it open.


def delete(file: Path) -> None:
    file.unlink()


def replace_by_a_copy(file: Path) -> None:
    copy = file.with_suffix(".copy")
    shutil.copy(file, copy)
    copy.rename(file)


@pytest.mark.parametrize(("harm", "how"), [(delete, "deleted"), (replace_by_a_copy, "replaced")])
def test_invariant_1_nothing_is_confirmed_that_was_written_to_a_segment_which_no_restart_finds(
    tmp_path: Path, harm: Callable[[Path], None], how: str
) -> None:
    async def main() -> None:
        settings = EngineSettings(segments=replace(LARGE_ONES, segment_bytes=1 << 20))
        async with opened(tmp_path, settings=settings) as engine:
            topic, other = await engine.topic("a"), await engine.topic("b")
            await other.publish([message(b"small")])
            entries = await published(topic, 3)
            (file,) = sorted(segments_of(tmp_path).glob("*.segment"))
            harm(file)
            with pytest.raises(StoreFailed, match=rf"{file.name}, a segment .*, was {how} while the worker runs"):
                await topic.publish([content(20_000, 3)])
            with pytest.raises(StoreFailed):
                await topic.publish([message(b"small")])
            assert how in str(engine.writer.failed), "so /readyz says it"
            assert entries_of(topic) == entries, "what is there still is served"
        async with opened(tmp_path, settings=settings) as engine:
            check_places(engine.store)
            topic, other = await engine.topic("a"), await engine.topic("b")
            assert topic.log.entries == 3, "what was refused is not half there"
            assert entries_of(other) == [message(b"small")]
            if harm is replace_by_a_copy:
                assert entries_of(topic) == entries
            else:
                with pytest.raises(BlockCorrupt):
                    entries_of(topic)
            await topic.publish([content(20_000, 4)])

    asyncio.run(main())


def test_invariant_1_what_lives_in_a_segment_that_was_deleted_is_moved_while_it_can_be_read(tmp_path: Path) -> None:
    async def main() -> None:
        settings = EngineSettings(segments=LARGE_ONES)
        async with opened(tmp_path, settings=settings) as engine:
            topic = await engine.topic("a")
            entries = await published(topic, 8)
            first, *_, last = sorted(segments_of(tmp_path).glob("*.segment"))
            assert first != last
            assert entries_of(topic) == entries, "it is open"
            delete(first)
            await engine.maintenance.run_once()
            check_places(engine.store)
            entries += await published(topic, 8)
        async with opened(tmp_path, settings=settings) as engine:
            check_places(engine.store)
            check_no_segment_leaks(engine.store)
            assert entries_of(await engine.topic("a")) == entries

    asyncio.run(main())


def test_the_blocks_of_a_deleted_segment_that_nobody_can_read_are_reported_and_the_worker_goes_on(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        settings = EngineSettings(segments=LARGE_ONES)
        async with opened(tmp_path, settings=settings) as engine:
            entries = await published(await engine.topic("a"), 8)
        async with opened(tmp_path, settings=settings) as engine:
            topic = await engine.topic("a")
            reported: list[Any] = []
            engine.store.on_damaged = lambda *found: reported.append(found)
            first = sorted(segments_of(tmp_path).glob("*.segment"))[0]
            delete(first)
            lost = [key for place, key in placed(engine) if segment_name(place.segment) == first.name]
            await engine.maintenance.run_once()
            assert [BLOCK_KEY.pack(topic_id, *at) for topic_id, at in reported] == lost
            assert lost
            for _ in range(2):
                await engine.maintenance.run_once()
            assert len(reported) == len(lost), "once is enough"
            await topic.publish([message(b"goes on")])
            for (topic_id, at), entry in zip(list(reported), entries, strict=False):
                with pytest.raises(BlockCorrupt):
                    engine.store.read_blocks(topic_id, Position(at.ledger, at.entry - 1), at, bytes_max=1)
                block = build_like(engine, topic_id, at, entry)
                await engine.writer.replace_block(topic_id, at, block)
            assert entries_of(topic)[:8] == entries, "what another cluster had is in its place"
        async with opened(tmp_path, settings=settings) as engine:
            assert entries_of(await engine.topic("a"))[:8] == entries
            check_places(engine.store)

    asyncio.run(main())


def build_like(engine: Engine, topic_id: int, at: Position, entry: bytes) -> bytes:
    """The block at a position, as another cluster has it."""
    (header,) = engine.store.read_headers(
        topic_id, Position(at.ledger, at.entry - 1), at, bytes_max=1, blocks_max=1, origins={engine.cluster}
    )[0]
    return build_block(
        kind=header.header.kind,
        origin=header.header.origin,
        incarnation=header.header.incarnation,
        origin_first=header.header.origin_first,
        publish_time_ms=header.header.publish_time_ms,
        entries=[entry],
        batch_sizes=[1],
    )
