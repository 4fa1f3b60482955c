"""Invariant 1 when the power is cut: each page of a segment that was written and not synced may be there or not.

The cut comes before a random write or sync of a segment. Confirmed blocks are there afterwards, with right checksums;
others are there whole, or not at all.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from pathlib import Path

from engine_support import TOPIC, make_block, message, opened
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from segment_support import SMALL, CutPower, check_no_segment_leaks, check_places, faulty_disk

from replicator.engine.engine import Engine, EngineSettings
from replicator.engine.log.commit import compacting
from replicator.engine.log.segments import segments
from replicator.engine.log.segments.settings import SegmentSettings
from replicator.engine.log.writer import CopiedBlock
from snapshots.position import BEFORE_ALL, Position

END = Position(2**62, 0)
STEP_BYTES = 8 * 1024
"""Bytes per step of compaction, so few that the cut also comes between two steps of one segment."""
groups = st.lists(
    st.tuples(st.sampled_from(["publish", "publish", "copy", "trim"]), st.integers(1, 6), st.integers(1, 40_000)),
    min_size=4,
    max_size=12,
)
"""Concurrent actions of a step: kind, number, and the largest size of a message in bytes."""


class Told:
    """Confirmed entries, in order, and those before the cut."""

    def __init__(self) -> None:
        self.entries: list[tuple[str, Position, bytes]] = []
        self.trimmed = BEFORE_ALL
        self.before_cut: list[tuple[str, Position, bytes]] | None = None

    def cut(self) -> None:
        self.before_cut = list(self.entries)


async def work(engine: Engine, steps: list[tuple[str, int, int]], chance: random.Random, told: Told) -> None:
    topic = await engine.topic(TOPIC)
    copied = 0

    async def publish(size: int) -> None:
        entries = [message(chance.randbytes(size)) for _ in range(2)]
        for position, entry in zip(await topic.publish(entries), entries, strict=True):
            told.entries.append(("us-east", position, entry))

    async def copy(blocks: int, size: int) -> None:
        nonlocal copied
        sent = []
        for number in range(copied, copied + blocks):
            entry = message(chance.randbytes(size))
            previous = BEFORE_ALL if not number else Position(1, number - 1)
            sent.append((Position(1, number), entry, previous))
        copied += blocks
        await topic.writing.copy(
            [CopiedBlock(previous, make_block(at, [entry], origin="eu-west")) for at, entry, previous in sent]
        )
        told.entries.extend(("eu-west", at, entry) for at, entry, _ in sent)

    for what, count, size_max in steps:
        sizes = [chance.randrange(1, size_max + 1) for _ in range(count)]
        if what == "publish":
            await asyncio.gather(*map(publish, sizes))
        elif what == "copy":
            await copy(count, sizes[0])
        else:
            await topic.trimming.trim(topic.log.last)
            await engine.writer.compact_segments()


async def check(path: Path, settings_: EngineSettings, told: Told) -> None:
    confirmed = told.before_cut
    assert confirmed is not None
    async with opened(path, settings=settings_) as engine:
        check_places(engine.store)
        topic = engine.find(TOPIC)
        if topic is None:
            assert not confirmed
            return
        found = {}
        blocks, after = True, BEFORE_ALL
        while blocks:  # each block is verified
            page, after = engine.store.read_blocks(topic.topic_id, after, END, bytes_max=1 << 20)
            blocks = bool(page)
        trimmed = topic.log.trimmed
        for entry in topic.reading.entries(BEFORE_ALL, None, 10**9, 10**12):
            assert (entry.origin, entry.origin_position) not in found, "it is there twice"
            found[entry.origin, entry.origin_position] = bytes(entry.entry)
        for origin, position, content in confirmed:
            if (origin, position) in found:
                assert found[origin, position] == content
            else:
                ends = topic.trimming.ends().get(origin, ())
                assert any(position.ledger == end.ledger and position <= end for end in ends), "it is gone"
        assert trimmed > BEFORE_ALL or len(found) >= len(confirmed)
        await topic.publish([message(b"it goes on")])
        await topic.publish([message(b"and on")])
        await engine.writer.trim(topic.topic_id, topic.log.last, topic.tail)
        check_places(engine.store)
        check_no_segment_leaks(engine.store)


@given(groups, st.integers(1, 60), st.sampled_from([0.0, 0.5, 1.0]), st.integers(0, 2**32), st.booleans())
@settings(max_examples=examples(15))
def test_invariant_1_what_was_confirmed_is_there_after_the_power_was_cut(
    steps: list[tuple[str, int, int]], cut_at: int, keep: float, seed: int, large: bool
) -> None:
    """Each page that was not synced is there or gone, so a write may be torn. ``large`` segments are written aside,
    several writes at a time."""
    small = (
        SegmentSettings(segment_bytes=1 << 20, body_bytes_min=1, group_bytes_min=1, recent_bytes_max=1)
        if large
        else SMALL
    )
    settings_ = EngineSettings(segments=small)
    told = Told()
    with tempfile.TemporaryDirectory() as directory:
        live, copy = Path(directory, "live"), Path(directory, "copy")
        power = CutPower(live, copy, cut_at, random.Random(seed), keep=keep)
        power.on_cut = told.cut

        async def main() -> None:
            async with opened(live, settings=settings_) as engine:
                await work(engine, steps, random.Random(seed + 1), told)
                if told.before_cut is None:
                    power.cut()

        aside = segments.ASIDE_BYTES_MIN, segments.WRITE_BYTES
        step = compacting.MOVED_BYTES_MAX
        compacting.MOVED_BYTES_MAX = STEP_BYTES  # type: ignore[misc]
        segments.ASIDE_BYTES_MIN, segments.WRITE_BYTES = (4096, 8192) if large else aside  # type: ignore[misc]
        try:
            with faulty_disk(power):
                asyncio.run(main())
        finally:
            segments.ASIDE_BYTES_MIN, segments.WRITE_BYTES = aside  # type: ignore[misc]
            compacting.MOVED_BYTES_MAX = step  # type: ignore[misc]
        asyncio.run(check(copy, settings_, told))
