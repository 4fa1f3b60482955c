"""Readers in threads beside the writer, the thread that writes aside and the one that makes segments."""

from __future__ import annotations

import asyncio
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from engine_support import logged, message, opened
from segment_support import check_no_segment_leaks, check_places

from replicator.engine.engine import Engine, EngineSettings
from replicator.engine.errors import StoreFailed
from replicator.engine.log.segments import segments
from replicator.engine.log.segments.settings import SegmentSettings
from replicator.engine.topic import Topic
from snapshots.position import BEFORE_ALL, Position

END = Position(2**62, 0)
ROUNDS = 40


@pytest.mark.parametrize("recent_bytes", [1, 1 << 20])
def test_invariant_1_what_readers_see_is_whole_while_segments_are_used_again(
    tmp_path: Path, recent_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block is verified whenever it is read: bytes of another one would be found."""
    monkeypatch.setattr("replicator.engine.log.writer.COMPACTION_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(segments, "ASIDE_BYTES_MIN", 4096)
    monkeypatch.setattr(segments, "WRITE_BYTES", 8192)
    settings = EngineSettings(
        segments=SegmentSettings(
            segment_bytes=128 * 1024, body_bytes_min=1, group_bytes_min=1, recent_bytes_max=recent_bytes
        )
    )
    stop = threading.Event()

    def read(engine: Engine, topic: Topic) -> int:
        count, after = 0, BEFORE_ALL
        while not stop.is_set():
            found, after = engine.store.read_blocks(topic.topic_id, after, END, bytes_max=200_000)
            count += len(found)
            if not found:
                after = BEFORE_ALL
        return count

    async def main() -> None:
        chance = random.Random(9)
        async with opened(tmp_path, settings=settings) as engine:
            topic, kept = await engine.topic("a"), await engine.topic("kept")
            loop = asyncio.get_running_loop()
            with ThreadPoolExecutor(2) as threads:
                reading = [loop.run_in_executor(threads, read, engine, topic) for _ in range(2)]
                try:
                    for number in range(ROUNDS):
                        sizes = [chance.randrange(1, 30_000) for _ in range(4)]
                        await asyncio.gather(*(topic.publish([message(chance.randbytes(size))]) for size in sizes))
                        if number % 10 == 0:
                            await kept.publish([message(chance.randbytes(5_000))])
                        if number % 2 == 0:
                            await topic.trimming.trim(topic.log.last)
                        if number % 20 == 0:
                            await engine.writer.compact_segments()
                finally:
                    stop.set()
                assert min(await asyncio.gather(*reading)) > 0
            made = engine.store.segments._last_number
            for _ in range(ROUNDS):  # nobody reads any more: what is trimmed is free at once
                await asyncio.gather(*(topic.publish([message(chance.randbytes(15_000))]) for _ in range(4)))
                await topic.trimming.trim(topic.log.last)
            assert engine.store.segments._last_number <= made + 2, "segments are used again"
            await topic.publish([message(b"x")])
            await topic.trimming.trim(topic.log.last)
            await engine.writer.put("meta", b"a", b"1")
            check_places(engine.store)
            check_no_segment_leaks(engine.store)

    asyncio.run(main())


def test_invariant_1_what_is_confirmed_while_the_store_closes_is_there(tmp_path: Path) -> None:
    settings = EngineSettings(
        segments=SegmentSettings(segment_bytes=1 << 20, body_bytes_min=1, group_bytes_min=1, recent_bytes_max=1)
    )

    async def main() -> None:
        entries = [message(random.Random(number).randbytes(50_000)) for number in range(60)]
        async with opened(tmp_path, settings=settings) as engine:
            topic = await engine.topic("a")
            publishes = [asyncio.ensure_future(topic.publish([entry])) for entry in entries]
            await publishes[3]
        results = await asyncio.gather(*publishes, return_exceptions=True)
        assert not [each for each in results if isinstance(each, BaseException) and not isinstance(each, StoreFailed)]
        confirmed = {entry for entry, each in zip(entries, results, strict=True) if isinstance(each, list)}
        async with opened(tmp_path, settings=settings) as engine:
            assert confirmed == {entry for _, _, entry in logged(await engine.topic("a"))}

    asyncio.run(main())
