"""Searching the log by publish time, and counting messages at scattered positions."""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path

import pytest
from engine_support import PUBLISH_TIME_MS, TOPIC, batch, make_block, marker, message, opened
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from replicator.engine.engine import EngineSettings
from replicator.engine.log import store, stored_blocks
from replicator.engine.log.block import BlockKind, Buffer, build_block
from replicator.engine.log.entry import encode_entry
from replicator.engine.log.segments.places import BlockRow, parse_row
from replicator.engine.log.writer import CopiedBlock
from replicator.engine.topic import Topic
from replicator.metadata.metadata_pb2 import MessageMetadata
from snapshots.position import BEFORE_ALL, Position
from snapshots.position_set import PositionSet

moments = st.integers(0, 20)
blocks = st.lists(st.tuples(moments, st.lists(moments, min_size=1, max_size=4), st.booleans()), max_size=12)
"""When a block was written, when its entries were published, and whether it is one of markers."""


def published(at_ms: int) -> bytes:
    return encode_entry(MessageMetadata(producer_name="p", sequence_id=0, publish_time=PUBLISH_TIME_MS + at_ms), b"")


async def copy_alone(topic: Topic, entries: range) -> list[Position]:
    """Copy messages from another cluster, each in a block of its own. Return their positions."""
    blocks = [
        CopiedBlock(
            Position(3, entry - 1) if entry else BEFORE_ALL,
            make_block(Position(3, entry), [message()], origin="eu-west"),
        )
        for entry in entries
    ]
    await topic.writing.copy(blocks)
    last = topic.log.last
    return [Position(last.ledger, last.entry - len(blocks) + 1 + number) for number in range(len(blocks))]


@settings(max_examples=examples(30), deadline=None)
@given(blocks, moments)
def test_a_search_by_time_stops_before_the_first_message_of_that_time_whatever_links_mixed_in(
    script: list[tuple[int, list[int], bool]], sought: int
) -> None:
    async def main(path: Path) -> None:
        async with opened(path) as engine:
            topic = await engine.topic(TOPIC)
            following, expected, going = 0, BEFORE_ALL, True
            for written, entries, is_marker in script:
                block = build_block(
                    kind=BlockKind.MARKERS if is_marker else BlockKind.MESSAGES,
                    origin="eu-west",
                    incarnation=7,
                    origin_first=Position(3, following),
                    publish_time_ms=PUBLISH_TIME_MS + written,
                    entries=[marker() if is_marker else published(at_ms) for at_ms in entries],
                    batch_sizes=[0 if is_marker else 1 for _ in entries],
                )
                previous = Position(3, following - 1) if following else BEFORE_ALL
                (extent,) = await topic.writing.copy([CopiedBlock(previous, block)])
                following += len(entries)
                for index, at_ms in enumerate(entries):
                    going = going and (is_marker or written < sought or at_ms < sought)
                    if going and not is_marker:
                        expected = Position(extent.local_first.ledger, extent.local_first.entry + index)
            found = engine.store.position_at_time(topic.topic_id, PUBLISH_TIME_MS + sought)
            assert found == expected

    with tempfile.TemporaryDirectory() as path:
        asyncio.run(main(Path(path)))


def test_a_search_starts_where_it_is_told_and_never_goes_back(tmp_path: Path) -> None:
    async def main() -> None:
        now = [PUBLISH_TIME_MS]
        async with opened(tmp_path, settings=EngineSettings(wall_clock_ms=lambda: now[0])) as engine:
            topic, positions = await engine.topic(TOPIC), list[Position]()
            for second in range(4):
                now[0] = PUBLISH_TIME_MS + second
                positions += await topic.publish([published(second)])
            search = engine.store.position_at_time
            assert search(topic.topic_id, PUBLISH_TIME_MS + 2) == positions[1]
            assert search(topic.topic_id, PUBLISH_TIME_MS + 2, after=positions[0]) == positions[1]
            assert search(topic.topic_id, PUBLISH_TIME_MS + 2, after=positions[3]) == positions[3]
            assert search(topic.topic_id, PUBLISH_TIME_MS + 9) == positions[3]
            assert search(topic.topic_id, 0) == BEFORE_ALL
            assert search(topic.topic_id + 1, PUBLISH_TIME_MS + 9) == BEFORE_ALL

    asyncio.run(main())


def test_messages_are_counted_at_scattered_positions_of_batches_and_singles(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic, sizes = await engine.topic(TOPIC), dict[Position, int]()
            for part in ([1, 1, 1], [4, 2], [3], [1, 5, 1, 7]):
                entries = [batch([b"x"] * size) if size > 1 else message() for size in part]
                sizes.update(zip(await topic.publish(entries), part, strict=True))
            positions = sorted(sizes)
            for chosen in (positions, positions[::2], positions[1:-1], positions[4:5], []):
                assert topic.reading.messages_in(PositionSet(chosen)) == sum(sizes[position] for position in chosen)

    asyncio.run(main())


def test_the_backlog_of_a_subscription_with_many_holes_is_counted_at_once(tmp_path: Path) -> None:
    """Each block is read once, not once for every hole."""

    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            positions = [each for _ in range(10) for each in await topic.publish([message()] * 10_000)]
            subscription = await topic.subscriptions.create("s", BEFORE_ALL, replicated=False)
            for position in positions[1::2]:
                subscription.cursor.acknowledge(position, None, 1)
            started = time.perf_counter()
            assert subscription.backlog_messages() == 50_000
            assert time.perf_counter() - started < 1

    asyncio.run(main())


def test_a_backlog_behind_one_hole_is_counted_by_a_few_rows_however_many_blocks_are_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Merged acknowledgements are counted on, and a count from the start does not read the blocks of a run."""
    parsed = 0

    def counting(value: Buffer) -> BlockRow:
        nonlocal parsed
        parsed += 1
        return parse_row(value)

    async def main() -> None:
        nonlocal parsed
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            positions = await copy_alone(topic, range(1_500))
            await topic.writing.marker(marker())
            positions += await copy_alone(topic, range(1_500, 2_000))
            assert len(engine.store.block_spans(topic.topic_id, BEFORE_ALL, blocks_max=9_999)) == 2_001
            subscription = await topic.subscriptions.create("s", BEFORE_ALL, replicated=True)
            monkeypatch.setattr(store, "parse_row", counting)
            monkeypatch.setattr(stored_blocks, "parse_row", counting)
            assert subscription.backlog_messages() == 2_000
            parsed = 0
            subscription.merging.acks(PositionSet(positions[1:1_000]), {}, announce=False)
            subscription.merging.acks(PositionSet(positions[1_000:]), {}, announce=False)
            assert subscription.backlog.counts
            assert subscription.backlog_messages() == 1
            assert parsed < 30
            parsed = 0
            subscription.backlog.moved()
            assert subscription.backlog_messages() == 1
            assert parsed < 20

    asyncio.run(main())


def test_an_entry_that_cannot_be_read_is_as_old_as_its_block_and_stops_no_search(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            entries = [published(-5), b"garbage", published(-5)]
            await topic.writing.copy([CopiedBlock(BEFORE_ALL, make_block(Position(3, 0), entries, origin="eu-west"))])
            ledger = topic.log.last.ledger
            search = engine.store.position_at_time
            assert search(topic.topic_id, PUBLISH_TIME_MS) == Position(ledger, 0)
            assert search(topic.topic_id, PUBLISH_TIME_MS + 1) == Position(ledger, 2)

    asyncio.run(main())
