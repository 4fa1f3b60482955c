"""A store whose settings of segments change between two starts, and what it says of itself."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from engine_support import logged, message, opened
from segment_support import SMALL, check_no_segment_leaks, check_places, segments_of

from replicator import __version__
from replicator.engine.engine import EngineSettings
from replicator.engine.log.segments.files import listed, segment_name
from replicator.engine.log.segments.settings import SegmentSettings
from replicator.engine.log.store_tables import FORMATS

LARGE = EngineSettings(
    segments=SegmentSettings(segment_bytes=1 << 20, body_bytes_min=1, group_bytes_min=1, recent_bytes_max=1)
)
AFTER = {
    "none": SegmentSettings(segment_bytes=0),
    "smaller": SMALL,
    "larger bodies": SegmentSettings(
        segment_bytes=1 << 20, body_bytes_min=1 << 19, group_bytes_min=1, recent_bytes_max=1
    ),
    "larger": SegmentSettings(segment_bytes=2 << 20, body_bytes_min=1, group_bytes_min=1, recent_bytes_max=1),
}


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replicator.engine.log.writer.COMPACTION_PAUSE_SECONDS", 0.001)


@pytest.mark.parametrize("after", AFTER)
def test_what_lies_in_segments_is_read_trimmed_and_compacted_whatever_they_are_from_now_on(
    tmp_path: Path, after: str
) -> None:
    async def main() -> None:
        chance = random.Random(1)
        kept: list[bytes] = []
        async with opened(tmp_path, settings=LARGE) as engine:
            for number in range(121):  # eleven segments that are full, in each of which little is kept
                entry = message(chance.randbytes(90_000))
                if number % 10 == 0:
                    await (await engine.topic("kept")).publish([entry])
                    kept.append(entry)
                else:
                    await (await engine.topic("gone")).publish([entry])
            making = engine.store.segments._making
            assert making is not None
            ahead = await asyncio.wrap_future(making)
        (segments_of(tmp_path) / segment_name(ahead.number)).unlink()  # it is free: a restored backup has none either
        async with opened(tmp_path, settings=EngineSettings(segments=AFTER[after])) as engine:
            topic = await engine.topic("kept")
            assert [entry for _, _, entry in logged(topic)] == kept
            await engine.deleting.delete("gone")
            await engine.deleting.sweeper.swept()
            before = [number for number, _ in listed(segments_of(tmp_path))]
            for _ in range(3):
                await engine.writer.compact_segments()
            check_places(engine.store)
            assert [entry for _, _, entry in logged(topic)] == kept
            for size in (10, 10_000, 90_000):
                kept.append(message(chance.randbytes(size)))
                await topic.publish([kept[-1]])
            check_no_segment_leaks(engine.store)
            engine.store.segments.wait_for_deleted()
            assert len(list(listed(segments_of(tmp_path)))) < len(before)
        async with opened(tmp_path, settings=LARGE) as engine:
            assert [entry for _, _, entry in logged(await engine.topic("kept"))] == kept
            check_places(engine.store)

    asyncio.run(main())


def test_a_store_with_segments_says_which_version_wrote_it_and_that_older_ones_cannot_read_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, settings=LARGE) as engine:
            head = engine.store.meta("store")
            assert (head["format"], head["version"]) == (FORMATS[0], __version__)
            await (await engine.topic("a")).publish([message()])
            head = engine.store.meta("store")
            assert (head["format"], head["version"]) == (FORMATS[-1], __version__)
        async with opened(tmp_path, settings=LARGE) as engine:
            assert engine.store.meta("store") == head

    asyncio.run(main())
