"""Compaction of segments moves a bounded number of bytes at a time, and clients write between its steps.

The test counts bytes and commits, so that it holds on any machine. No commit moves more than the limit, except a single
larger block. Between two commits of a busy client, compaction takes at most two steps: one that ran when the write
came, and one in the write's own group.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from engine_support import logged, message, opened
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from segment_support import SMALL, check_no_segment_leaks, check_places

from replicator.engine.engine import Engine, EngineSettings
from replicator.engine.log import writer
from replicator.engine.log.block import BlockKind
from replicator.engine.log.commit import compacting
from replicator.engine.log.requests import Committed, CompactSegmentsRequest, Request
from replicator.engine.log.segments.places import Place, read_placed
from replicator.engine.log.segments.settings import SegmentSettings

STEPS_BETWEEN_CLIENTS_MAX = 2
rounds = st.lists(
    st.tuples(st.lists(st.integers(1, 3_000), min_size=1, max_size=4), st.integers(30_000, 48_000)),
    min_size=2,
    max_size=10,
)
"""About a segment each: the sizes of the messages that are kept, and of one that goes."""


@dataclass(frozen=True)
class Group:
    """Effects of one commit: whether a client wrote, and the sizes of the blocks that compaction moved, by key."""

    client: bool
    moved: dict[bytes, int]

    @property
    def moved_bytes(self) -> int:
        return sum(self.moved.values())


def placed(engine: Engine) -> dict[bytes, Place]:
    store = engine.store
    with store.env.begin() as txn:
        return {key: place for place, key in read_placed(txn, store.tables["placed"])}


async def compacted_under_a_client(engine: Engine) -> list[Group]:
    """Compact everything sparse while a client publishes one message after another. Return the commits in order."""
    groups: list[Group] = []
    commits = engine.writer._commits
    committing = commits.commit

    def commit(group: list[Request]) -> Committed:
        before = placed(engine)
        committed = committing(group)
        after = placed(engine)
        moved = {key: place.size for key, place in before.items() if after[key] != place}
        groups.append(Group(any(not isinstance(each, CompactSegmentsRequest) for each in group), moved))
        return committed

    client = await engine.topic("client")
    with patch.object(commits, "commit", commit), patch.object(writer, "COMPACTION_PAUSE_SECONDS", 0):
        compaction = asyncio.create_task(engine.writer.compact_segments(quiet_only=False))
        while not compaction.done():
            await engine.writer.publish(client.tail, BlockKind.MESSAGES, [message(b"from a client")], [1])
        await compaction
    return groups


async def compact(directory: Path, contents: list[tuple[list[int], int]], step_bytes_max: int) -> None:
    chance = random.Random(step_bytes_max)
    async with opened(directory, settings=EngineSettings(segments=SMALL)) as engine:
        kept, gone = await engine.topic("kept"), await engine.topic("gone")
        expected = []
        for kept_sizes, gone_size in contents:
            for size in kept_sizes:
                expected.append(message(chance.randbytes(size)))
                await kept.publish([expected[-1]])
            await gone.publish([message(chance.randbytes(gone_size))])
        await engine.deleting.delete("gone", force=True)
        await engine.deleting.sweeper.swept()
        sparse = {each.number for each in engine.store.segments.space._sparse()}
        in_sparse = {key for key, place in placed(engine).items() if place.segment in sparse}
        with patch.object(compacting, "MOVED_BYTES_MAX", step_bytes_max):
            groups = await compacted_under_a_client(engine)

        assert in_sparse <= {key for group in groups for key in group.moved}, "it is not all moved"
        steps = 0
        for group in groups:
            assert group.moved_bytes <= step_bytes_max or len(group.moved) == 1, f"{group} moves too much"
            steps += bool(group.moved)
            assert steps <= STEPS_BETWEEN_CLIENTS_MAX, "a client waits for more steps"
            if group.client:
                steps = 0
        check_places(engine.store)
        assert [entry for _, _, entry in logged(kept)] == expected
        client = await engine.topic("client")
        await engine.writer.trim(client.topic_id, client.log.last, client.tail)
        check_no_segment_leaks(engine.store)


@given(rounds, st.integers(1, 20_000))
@settings(max_examples=examples(15))
def test_invariant_11_no_commit_moves_more_than_a_step_and_clients_write_between_steps(
    contents: list[tuple[list[int], int]], step_bytes_max: int
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(compact(Path(directory), contents, step_bytes_max))


def test_a_step_is_two_megabytes_at_most_whatever_lives_in_sparse_segments(tmp_path: Path) -> None:
    """The limit is the real one: 12 MB are moved."""

    async def main() -> None:
        large = SegmentSettings(segment_bytes=64 << 20, group_bytes_min=0)
        async with opened(tmp_path, settings=EngineSettings(segments=large)) as engine:
            kept, gone = await engine.topic("kept"), await engine.topic("gone")
            for _ in range(24):
                await kept.publish([message(bytes(500_000))])
                await gone.publish([message(bytes(2 << 20))])
            for _ in range(4):
                await gone.publish([message(bytes(4 << 20))])
            await engine.deleting.delete("gone", force=True)
            await engine.deleting.sweeper.swept()
            groups = await compacted_under_a_client(engine)
            moved = [group.moved_bytes for group in groups if group.moved]
            assert sum(moved) >= 10_000_000
            assert max(moved) <= 2 << 20

    asyncio.run(main())
