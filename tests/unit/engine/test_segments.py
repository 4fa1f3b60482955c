"""Large bodies in segments: read back from memory and from the disk, room that is used again, what is refused, said."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import random
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from engine_support import TOPIC, entries_of, eventually, logged, message, opened

from replicator.engine.engine import EngineSettings
from replicator.engine.errors import BlockCorrupt, StoreFull
from replicator.engine.log import writer
from replicator.engine.log.block import BlockHeader, BlockKind, build_block, head_bytes, read_head, read_header
from replicator.engine.log.segments import files
from replicator.engine.log.segments.segments import Segments
from replicator.engine.log.segments.settings import FIRST_BYTES, FREE_KEPT, SegmentSettings
from replicator.engine.log.segments.space import DENSEST_SHARE
from replicator.engine.log.store_copy import copy_pieces
from replicator.engine.log.store_files import SEGMENTS
from replicator.engine.topic import Topic
from snapshots.position import BEFORE_ALL, Position

KIB = 1024
SMALL = SegmentSettings(segment_bytes=64 * KIB, body_bytes_min=KIB, group_bytes_min=0, recent_bytes_max=0)
"""Memory for one buffer alone, so that nearly all is read from the disk."""
ENGINE = EngineSettings(segments=SMALL)
OTHER = "persistent://public/default/other"


def body(number: int, size: int = 10 * KIB) -> bytes:
    return random.Random(number).randbytes(size)


async def publish(topic: Topic, numbers: Sequence[int], size: int = 10 * KIB) -> list[Position]:
    """Publish each message as a block of its own."""
    return [(await topic.publish([message(body(number, size))]))[0] for number in numbers]


def segments_of(path: Path) -> list[str]:
    directory = path / "log" / SEGMENTS
    return sorted(each.name for each in directory.iterdir()) if directory.is_dir() else []


def published(topic: Topic) -> list[bytes]:
    return [bytes(entry) for _, _, entry in logged(topic)]


def test_what_lies_in_segments_is_read_back_now_and_after_a_start(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, settings=ENGINE) as live:
            topic = await live.topic(TOPIC)
            await publish(topic, range(40))
            await topic.publish([message(b"small")])
            assert published(topic) == [*(message(body(number)) for number in range(40)), message(b"small")]
            assert len(segments_of(tmp_path)) >= 40 // 6
            assert live.store.segments.status()["live_bytes"] > 40 * 10 * KIB
        async with opened(tmp_path, settings=ENGINE) as live:
            topic = await live.topic(TOPIC)
            assert published(topic) == [*(message(body(number)) for number in range(40)), message(b"small")]
            await publish(topic, range(40, 45))
            assert published(topic)[-5:] == [message(body(number)) for number in range(40, 45)]

    asyncio.run(main())


def test_nothing_is_preallocated_before_the_first_large_body(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as live:
            topic = await live.topic(TOPIC)
            await topic.publish([message(b"x" * 10 * KIB)])
            assert segments_of(tmp_path) == []
            assert live.store.head["format"] == 1, "the version before may still open it"
            await topic.publish([message(body(1, 100 * KIB))])
            assert segments_of(tmp_path) == [], "one alone is faster in the table"
            await topic.publish([message(body(1, 600 * KIB))])
            (name,) = segments_of(tmp_path)
            assert (tmp_path / "log" / SEGMENTS / name).stat().st_size == FIRST_BYTES
            assert live.store.meta("store")["format"] == 2

    asyncio.run(main())


def test_a_segment_is_used_again_when_what_it_held_is_trimmed_and_not_before_its_readers_are_done(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with opened(tmp_path, settings=ENGINE) as live:
            topic = await live.topic(TOPIC)
            positions = await publish(topic, range(24))
            before = segments_of(tmp_path)
            reading = live.store.segments.readers.begin()
            await live.writer.trim(topic.topic_id, positions[-7])
            await publish(topic, range(24, 48))
            assert len(segments_of(tmp_path)) > len(before), "a reader may still read what was trimmed"
            live.store.segments.readers.end(reading)
            most = len(segments_of(tmp_path))
            for number in range(50, 110):
                positions = await publish(topic, [number])
                await live.writer.trim(topic.topic_id, Position(positions[0].ledger, positions[0].entry - 5))
            live.store.segments.wait_for_deleted()
            assert len(segments_of(tmp_path)) <= most
            last = topic.reading.entries(topic.reading.position_before(positions[0]), None, 9, 10**9)
            assert [bytes(each.entry) for each in last] == [message(body(109))]

    asyncio.run(main())


def test_what_is_deleted_leaves_no_more_than_a_few_free_segments(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, settings=ENGINE) as live:
            topic, other = await live.topic(TOPIC), await live.topic(OTHER)
            await publish(topic, range(60))
            await publish(other, [1])
            await live.deleting.delete(TOPIC, force=True)
            await eventually(lambda: not live.store.deleted_topics(), "it is swept")
            await publish(other, [2])
            status = live.store.segments.status()
            assert status["segments"] <= FREE_KEPT + 2
            assert status["live_bytes"] < 3 * 10 * KIB
            assert published(other) == [message(body(1)), message(body(2))]

    asyncio.run(main())


def test_a_sparse_segment_is_compacted_and_what_lived_in_it_stays(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, settings=ENGINE) as live:
            kept, gone = await live.topic(TOPIC), await live.topic(OTHER)
            for number in range(30):
                await publish(kept, [number], KIB)
                await publish(gone, range(5))
            await live.deleting.delete(OTHER, force=True)
            await eventually(lambda: not live.store.deleted_topics(), "it is swept")
            many = len(segments_of(tmp_path))
            await live.writer.compact_segments()
            assert len(segments_of(tmp_path)) == many, "what has just changed is left alone"
            await live.writer.compact_segments()
            await publish(kept, [30], KIB)
            live.store.segments.wait_for_deleted()
            assert len(segments_of(tmp_path)) <= 3 + FREE_KEPT < many
            assert published(kept) == [message(body(number, KIB)) for number in range(31)]
        async with opened(tmp_path, settings=ENGINE) as live:
            assert published(await live.topic(TOPIC)) == [message(body(number, KIB)) for number in range(31)]

    asyncio.run(main())


def test_nobody_waits_until_the_file_system_has_deleted_a_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_delete, deleting = threading.Event(), files.delete

    def delete(path: Path) -> None:
        assert may_delete.wait(30)
        deleting(path)

    monkeypatch.setattr(files, "delete", delete)

    async def main() -> None:
        async with opened(tmp_path, settings=ENGINE) as live:
            topic = await live.topic(TOPIC)
            await publish(topic, range(40))
            many = len(segments_of(tmp_path))
            await topic.trimming.trim(topic.log.last)
            await publish(topic, range(40, 42))
            assert len(segments_of(tmp_path)) >= many
            may_delete.set()
            live.store.segments.wait_for_deleted()
            assert len(segments_of(tmp_path)) <= FREE_KEPT + 2 < many
            assert published(topic)[-2:] == [message(body(number)) for number in (40, 41)]

    asyncio.run(main())


@pytest.mark.parametrize(("limit", "compacted"), [(64 * KIB * KIB, False), (1450 * KIB, True)])
def test_near_the_limit_what_is_half_dead_is_compacted_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int, compacted: bool
) -> None:
    """Every second of 120 bodies of 10 KiB is deleted: no segment is sparse, and half of the room is dead."""
    monkeypatch.setattr(writer, "COMPACTION_PAUSE_SECONDS", 0)

    async def main() -> None:
        settings = EngineSettings(segments=SMALL, store_bytes_max=limit)
        async with opened(tmp_path, settings=settings) as live:
            kept, gone = await live.topic(TOPIC), await live.topic(OTHER)
            for number in range(60):
                await asyncio.gather(publish(kept, [number]), publish(gone, [number]))
            before = live.store.pressure()
            await live.deleting.delete(OTHER, force=True)
            await eventually(lambda: not live.store.deleted_topics(), "it is swept")
            space = live.store.segments.space
            for _ in range(3):
                await live.writer.compact_segments()
            least = 60 * 10 * KIB
            if compacted:
                assert space.taken_bytes() <= least / DENSEST_SHARE + 3 * 64 * KIB
                assert live.store.pressure() < 0.75 < 0.9 < before
            else:
                assert space.taken_bytes() > 1.8 * least
            assert published(kept) == [message(body(number)) for number in range(60)]
        async with opened(tmp_path, settings=settings) as live:
            assert published(await live.topic(TOPIC)) == [message(body(number)) for number in range(60)]

    asyncio.run(main())


def test_compaction_at_the_limit_ends_where_it_gains_nothing(tmp_path: Path) -> None:
    """Each body fills more than a half of its segment: moved or not, as much is taken."""

    async def main() -> None:
        settings = EngineSettings(segments=SMALL, store_bytes_max=KIB * KIB)
        async with opened(tmp_path, settings=settings) as live:
            topic = await live.topic(TOPIC)
            await publish(topic, range(12), 40 * KIB)
            places = [*live.store.segments.space.segments]
            commits = live.writer.commits
            await live.writer.compact_segments()
            assert live.writer.commits == commits + 1
            assert [*live.store.segments.space.segments] == places

    asyncio.run(main())


def test_a_store_without_segments_stays_one_and_reads_those_that_it_has(tmp_path: Path) -> None:
    async def main() -> None:
        off = EngineSettings(segments=SegmentSettings(segment_bytes=0))
        async with opened(tmp_path, settings=off) as live:
            await publish(await live.topic(TOPIC), [1], 600 * KIB)
            assert (segments_of(tmp_path), live.store.head["format"]) == ([], 1)
        async with opened(tmp_path) as live:
            await publish(await live.topic(TOPIC), [2], 600 * KIB)
            assert len(segments_of(tmp_path)) == 1
        async with opened(tmp_path, settings=off) as live:
            topic = await live.topic(TOPIC)
            await publish(topic, [3], 600 * KIB)
            assert published(topic) == [message(body(number, 600 * KIB)) for number in (1, 2, 3)]
            assert live.store.segments.status()["live_bytes"] < 610 * KIB

    asyncio.run(main())


def test_where_o_direct_is_refused_it_goes_through_the_page_cache_and_the_status_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening = os.open

    def refusing(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return opening(path, flags, mode)

    monkeypatch.setattr(files.os, "open", refusing)

    async def main() -> None:
        async with opened(tmp_path, settings=ENGINE) as live:
            topic = await live.topic(TOPIC)
            await publish(topic, range(10))
            status = live.store.segments.status()
            assert (status["direct"], status["reason"]) == (False, "O_DIRECT is refused: Invalid argument")
            assert len(published(topic)) == 10

    asyncio.run(main())


def test_a_full_disk_refuses_large_bodies_alone_and_takes_them_again_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = True
    allocating = os.posix_fallocate

    def allocate(file: int, offset: int, length: int) -> None:
        if full and Path(f"/proc/self/fd/{file}").readlink().suffix == ".segment":
            raise OSError(errno.ENOSPC, "No space left on device")
        allocating(file, offset, length)

    monkeypatch.setattr(files.os, "posix_fallocate", allocate)

    async def main() -> None:
        nonlocal full
        async with opened(tmp_path, settings=ENGINE) as live:
            topic = await live.topic(TOPIC)
            with pytest.raises(StoreFull, match=r"disk below .* is full"):
                await publish(topic, [1])
            await topic.publish([message(b"small")])
            assert segments_of(tmp_path) == [], "nothing half made stays"
            full = False
            await publish(topic, [2])
            assert published(topic) == [message(b"small"), message(body(2))]

    asyncio.run(main())


def test_a_store_that_has_reached_its_limit_counts_what_lives_in_segments(tmp_path: Path) -> None:
    async def main() -> None:
        limited = EngineSettings(store_bytes_max=20_000_000, segments=SMALL)
        async with opened(tmp_path, settings=limited) as live:
            topic = await live.topic(TOPIC)
            positions: list[Position] = []

            async def fill() -> None:
                for number in range(1000):
                    positions.extend(await publish(topic, [number], 60 * KIB))

            with pytest.raises(StoreFull, match=r"limit of 20000000 bytes"):
                await fill()
            assert len(positions) * 60 * KIB > 10_000_000
            await live.writer.trim(topic.topic_id, positions[-10])
            await publish(topic, [1], 60 * KIB)

    asyncio.run(main())


def test_a_block_whose_segment_is_gone_is_named_and_others_are_served(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, settings=ENGINE) as live:
            topic, other = await live.topic(TOPIC), await live.topic(OTHER)
            await publish(topic, range(20))
            await other.publish([message(b"small")])
        (tmp_path / "log" / SEGMENTS / segments_of(tmp_path)[1]).unlink()
        async with opened(tmp_path, settings=ENGINE) as live:
            topic = await live.topic(TOPIC)
            with pytest.raises(
                BlockCorrupt, match=r"topic \d+ at .*: the segment .*0000000002.segment, which holds messages, "
            ):
                topic.reading.blocks(BEFORE_ALL, bytes_max=10**9)
            assert entries_of(await live.topic(OTHER), "us-east") == [message(b"small")]
            await publish(topic, [21])
            assert segments_of(tmp_path)[-1] != "0000000002.segment", "its number is not given out again"

    asyncio.run(main())


@pytest.mark.parametrize("size", [100, 10 * KIB], ids=["in the table", "in a segment"])
def test_a_block_takes_the_place_of_the_same_one_alone(tmp_path: Path, size: int) -> None:
    async def main() -> None:
        async with opened(tmp_path, settings=ENGINE) as live:
            topic = await live.topic(TOPIC)
            first, second = await publish(topic, range(2), size)
            blocks, _ = topic.reading.blocks(BEFORE_ALL, bytes_max=10**9)
            same, other = (bytes(each.block) for each in blocks)
            await live.writer.replace_block(topic.topic_id, first, same)
            with pytest.raises(BlockCorrupt, match="is of another block"):
                await live.writer.replace_block(topic.topic_id, first, other)
            with pytest.raises(BlockCorrupt, match="no block at"):
                await live.writer.replace_block(topic.topic_id, Position(second.ledger, 77), other)
            assert [bytes(each.block) for each in topic.reading.blocks(BEFORE_ALL, bytes_max=10**9)[0]] == [same, other]
            assert live.store.segments.status()["live_bytes"] == (len(same) + len(other) if size > KIB else 0)

    asyncio.run(main())


def test_no_deleted_byte_is_in_a_backup(tmp_path: Path) -> None:
    async def main() -> None:
        secret = b"deleted long ago" * 100
        async with opened(tmp_path, settings=ENGINE) as live:
            topic, gone = await live.topic(TOPIC), await live.topic(OTHER)
            await publish(topic, range(3))
            await gone.publish([message(secret)])
            await publish(topic, range(3, 6))
            assert any(secret in (piece.content or b"") for piece in copy_pieces(live.store, ()))
            await live.deleting.delete(OTHER, force=True)
            await eventually(lambda: not live.store.deleted_topics(), "it is swept")
            pieces = list(copy_pieces(live.store, ()))
            assert not any(secret in (piece.content or b"") for piece in pieces)
            assert any(body(4)[:100] in (piece.content or b"") for piece in pieces)
            names = [piece.file for piece in pieces]
            assert names == sorted(names), "the files follow one another"
            assert json.dumps(names).count("segment")

    asyncio.run(main())


def header_and_block() -> tuple[BlockHeader, bytes]:
    block = build_block(
        kind=BlockKind.MESSAGES,
        origin="us-east",
        incarnation=3,
        origin_first=Position(5, 6),
        publish_time_ms=7,
        entries=[b"a" * 100, b"b" * 200],
        batch_sizes=[1, 2],
        only=frozenset({"eu-west"}),
    )
    return read_header(block), block


def test_the_head_of_a_block_is_all_that_stands_before_its_entries_and_is_checked_alone() -> None:
    header, block = header_and_block()
    end = head_bytes(block, header.entries)
    assert block[end : end + 100] == b"a" * 100
    assert read_head(block[:end], len(block)) == header
    for size in (len(block) - 1, len(block) + 1):
        with pytest.raises(BlockCorrupt):
            read_head(block[:end], size)
    with pytest.raises(BlockCorrupt):
        read_head(block[: end - 1], len(block))


def test_a_body_is_copied_once_and_read_back_without_a_copy(tmp_path: Path) -> None:
    segments = Segments(tmp_path / "segments", SegmentSettings(segment_bytes=1 << 20, body_bytes_min=1), ())
    try:
        _, block = header_and_block()
        places = [segments.put(block) for _ in range(3)]
        segments.flush()
        segments.commit(())
        found = [segments.read(place, memoryview(block)[:50]) for place in places]
        assert [bytes(each) for each in found] == [block] * 3
        assert len({id(each.obj) for each in found}) == 1, "they are slices of one buffer"
        with pytest.raises(BlockCorrupt, match="has other bytes than the store wrote there"):
            segments.read(places[0], memoryview(b"x" * 50))
    finally:
        segments.close()


def test_segments_grow_with_what_is_in_them_up_to_the_setting(tmp_path: Path) -> None:
    mib = 1024 * KIB
    segments = Segments(tmp_path / "segments", SegmentSettings(segment_bytes=50 * mib, body_bytes_min=1), ())
    try:
        block, sizes = b"x" * 8 * mib, []
        for _ in range(24):
            segments.put(block)
            segments.flush()
            segments.commit(())
            sizes.append(segments.status()["bytes"] // mib)
        assert sorted(set(sizes)) == [16, 32, 64, 114, 164, 214], "the whole of the segments, each time one came"
    finally:
        segments.close()


def test_the_next_segment_is_made_at_once_where_one_transaction_fills_more_than_one(tmp_path: Path) -> None:
    segments = Segments(tmp_path / "segments", SegmentSettings(segment_bytes=64 * KIB, body_bytes_min=1), ())
    try:
        segments.put(b"a" * 60 * KIB)
        assert segments._making is None, "little may come: the disk is not taken for it"
        places = [segments.put(bytes([number]) * 40 * KIB) for number in range(6)]
        making = segments._making
        assert making is not None
        ahead = making.result(30)
        assert ahead.number > places[-1].segment
        segments.flush()
        segments.commit(())
        assert segments.put(b"b" * 40 * KIB).segment == ahead.number
        assert [bytes(segments.read(place, memoryview(b"")))[:1] for place in places] == [
            bytes([number]) for number in range(6)
        ]
    finally:
        segments.close()


def test_what_failed_gives_its_room_back(tmp_path: Path) -> None:
    segments = Segments(tmp_path / "segments", SegmentSettings(segment_bytes=64 * KIB, body_bytes_min=1), ())
    try:
        first = segments.put(b"a" * 1000)
        segments.flush()
        segments.commit(())
        failed = [segments.put(b"b" * 20_000) for _ in range(10)]
        segments.roll_back()
        again = [segments.put(b"c" * 20_000) for _ in range(3)]
        assert again[0] == failed[0]
        segments.flush()
        segments.commit(())
        for place, content in ((first, b"a" * 1000), *((each, b"c" * 20_000) for each in again)):
            assert bytes(segments.read(place, memoryview(b""))) == content
        assert segments.status()["live_bytes"] == 61_000
    finally:
        segments.close()
