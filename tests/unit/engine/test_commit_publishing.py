"""Publishes in a transaction: which of them become one block."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from engine_support import (
    TOPIC,
    HeldClock,
    logged,
    marker,
    message,
    one_group,
    opened,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from replicator.engine.errors import TopicTerminated
from replicator.engine.log.block import BlockKind
from replicator.engine.log.commit import publishing
from replicator.engine.log.commit.request_queue import GROUP_PUBLISH_BYTES_MAX
from replicator.engine.log.entry import encode_entry
from replicator.engine.policies import TopicPolicies
from replicator.metadata.metadata_pb2 import MessageMetadata
from snapshots.position import BEFORE_ALL, Position


def test_group_commit_merges_the_publishes_of_a_topic_into_one_block(tmp_path: Path) -> None:
    async def main() -> None:
        clock = HeldClock()
        async with opened(tmp_path, settings=clock.settings()) as engine:
            topic = await engine.topic(TOPIC)
            commits = engine.writer.commits
            results = await one_group(engine, clock, *(topic.publish([message(b"%d" % n)] * 2) for n in range(50)))
            assert engine.writer.commits == commits + 2
            (block,), _ = topic.reading.blocks(BEFORE_ALL, bytes_max=1)
            assert block.header.entries == 100
            assert [position for positions in results for position in positions] == [
                Position(block.position.ledger, entry) for entry in range(100)
            ]

    asyncio.run(main())


def test_what_producers_keep_on_its_way_is_several_groups_so_that_neither_they_nor_the_writer_stand_still(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        clock = HeldClock()
        async with opened(tmp_path, settings=clock.settings()) as engine:
            topic = await engine.topic(TOPIC)
            commits = engine.writer.commits
            large = message(bytes(GROUP_PUBLISH_BYTES_MAX // 4))
            await one_group(engine, clock, *(topic.publish([large]) for _ in range(8)))
            assert engine.writer.commits == commits + 1 + 2, "one that held the writer, then two halves"

    asyncio.run(main())


def test_markers_and_messages_do_not_share_a_block(tmp_path: Path) -> None:
    async def main() -> None:
        clock = HeldClock()
        async with opened(tmp_path, settings=clock.settings()) as engine:
            topic, other = await engine.topic(TOPIC), await engine.topic("other")
            await one_group(
                engine,
                clock,
                topic.publish([message()]),
                topic.writing.marker(marker()),
                topic.writing.marker(marker(), local=True),
                other.publish([message()]),
                topic.publish([message()]),
            )
            blocks, _ = topic.reading.blocks(BEFORE_ALL, bytes_max=10**6)
            kinds = [BlockKind.MESSAGES, BlockKind.MARKERS, BlockKind.LOCAL_MARKERS, BlockKind.MESSAGES]
            assert [block.header.kind for block in blocks] == kinds
            assert [block.position.entry for block in blocks] == [0, 1, 2, 3]

    asyncio.run(main())


def test_publishes_of_many_topics_by_turns_become_one_block_of_each(tmp_path: Path) -> None:
    async def main() -> None:
        clock = HeldClock()
        async with opened(tmp_path, settings=clock.settings()) as engine:
            topics = [await engine.topic(f"topic-{number}") for number in range(3)]
            calls = [topic.publish([message(b"%d" % round_)]) for round_ in range(4) for topic in topics]
            results = await one_group(engine, clock, *calls)
            for number, topic in enumerate(topics):
                (block,), _ = topic.reading.blocks(BEFORE_ALL, bytes_max=10**6)
                assert block.header.entries == 4
                assert [bytes(entry) for _, _, entry in logged(topic)] == [message(b"%d" % n) for n in range(4)]
                ledger = block.position.ledger
                assert results[number::3] == [[Position(ledger, entry)] for entry in range(4)]

    asyncio.run(main())


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from(["message", "two", "restricted", "marker", "local", "row"])),
        min_size=1,
        max_size=30,
    ),
    st.sets(st.integers(0, 2)),
)
@settings(max_examples=25, deadline=None)
def test_invariant_3_a_group_keeps_the_order_of_each_topic_whatever_comes_between(
    steps: list[tuple[int, str]], deduplicated: set[int]
) -> None:
    async def main(path: Path) -> None:
        clock = HeldClock()
        async with opened(path, settings=clock.settings()) as engine:
            topics = [await engine.topic(f"topic-{number}") for number in range(3)]
            for number in deduplicated:
                await topics[number].policies.set(TopicPolicies(deduplication=True))
            calls: list[Coroutine[Any, Any, Any]] = []
            expected: list[list[bytes]] = [[], [], []]
            entries: list[list[bytes]] = []
            marked: set[bytes] = set()
            for at, (number, what) in enumerate(steps):
                topic = topics[number]
                one = message(b"%d" % at, sequence_id=2 * at, clusters=["us-east"] if what == "restricted" else ())
                entries.append([one])
                if what == "two":
                    entries[-1].append(message(b"%d too" % at, sequence_id=2 * at + 1))
                if what == "row":
                    entries[-1] = []
                    calls.append(engine.remember(f"row {at}", at))
                elif what in ("marker", "local"):
                    entries[-1] = [marker(b"%d" % at)]
                    marked.update(entries[-1])
                    calls.append(topic.writing.marker(entries[-1][0], local=what == "local"))
                else:
                    calls.append(topic.publish(entries[-1]))
                expected[number] += entries[-1]
            results = await one_group(engine, clock, *calls)
            for topic, sent in zip(topics, expected, strict=True):
                found = topic.reading.entries(BEFORE_ALL, None, 1_000, 1 << 30)
                assert [bytes(each.entry) for each in found] == sent
                assert [each.marker for each in found] == [entry in marked for entry in sent]
            for (number, what), sent, result in zip(steps, entries, results, strict=True):
                positions = [result] if isinstance(result, Position) else result or []
                assert len(positions) == len(sent)
                for position, entry in zip(positions, sent, strict=True):
                    before = Position(position.ledger, position.entry - 1)
                    (found_there,) = topics[number].reading.entries(before, position, 1, 1)
                    assert bytes(found_there.entry) == entry, what

    with TemporaryDirectory() as directory:
        asyncio.run(main(Path(directory)))


def test_a_request_between_publishes_ends_the_blocks_of_all_topics(tmp_path: Path) -> None:
    """Its result may depend on what came before it: a topic that is terminated takes what came before."""

    async def main() -> None:
        clock = HeldClock()
        async with opened(tmp_path, settings=clock.settings()) as engine:
            topic, other = await engine.topic(TOPIC), await engine.topic("other")
            results = await one_group(
                engine,
                clock,
                topic.publish([message(b"before")]),
                other.publish([message(b"0")]),
                engine.writer.terminate(topic.tail),
                topic.publish([message(b"behind")]),
                other.publish([message(b"1")]),
            )
            assert isinstance(results[3], TopicTerminated)
            assert [bytes(entry) for _, _, entry in logged(topic)] == [message(b"before")]
            assert [bytes(entry) for _, _, entry in logged(other)] == [message(b"0"), message(b"1")]

    asyncio.run(main())


def test_messages_for_different_clusters_do_not_share_a_block(tmp_path: Path) -> None:
    def named(*clusters: str) -> bytes:
        metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, replicate_to=clusters)
        return encode_entry(metadata, b"m")

    async def main() -> None:
        clock = HeldClock()
        async with opened(tmp_path, settings=clock.settings()) as engine:
            topic = await engine.topic(TOPIC)
            kinds: list[tuple[str, ...]] = [
                (),
                (),
                ("b",),
                ("b", "__local__"),
                ("c", "b"),
                ("b", "c"),
                ("__local__",),
                (),
            ]
            await one_group(engine, clock, *(topic.publish([named(*clusters)]) for clusters in kinds))
            blocks, _ = topic.reading.blocks(BEFORE_ALL, bytes_max=10**6)
            assert [(each.header.entries, each.header.only) for each in blocks] == [
                (2, None),
                (2, frozenset({"b"})),
                (2, frozenset({"b", "c"})),
                (1, frozenset()),
                (1, None),
            ]

    asyncio.run(main())


@pytest.mark.parametrize(("constant", "limit"), [("BLOCK_BYTES_TARGET", 1000), ("BLOCK_ENTRIES_TARGET", 10)])
def test_blocks_are_merged_up_to_a_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, constant: str, limit: int
) -> None:
    monkeypatch.setattr(publishing, constant, limit)

    async def main() -> None:
        clock = HeldClock()
        async with opened(tmp_path, settings=clock.settings()) as engine:
            topic = await engine.topic(TOPIC)
            await one_group(engine, clock, *(topic.publish([message(b"x" * 60)]) for _ in range(50)))
            blocks, _ = topic.reading.blocks(BEFORE_ALL, bytes_max=10**6)
            assert len(blocks) >= 5
            assert all(block.header.entries <= 12 for block in blocks)
            assert len(logged(topic)) == 50

    asyncio.run(main())
