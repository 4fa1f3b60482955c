"""A log that was restored from an old copy takes back its own messages: at the positions that they had, and no others.

The log lives on after the copy: it publishes, gets messages of another cluster, writes local markers, and begins new
ledgers. What its peers have of it is a part; the rest is lost.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from engine_support import TOPIC, make_block, message, opened
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from lived_log import CutOff, far_apart, few_fillers, left_above, live, publish_numbered

from replicator.backup.reclaim_plan import OwnLog, PeerCopy, TopicPlan, plan_topic
from replicator.engine.engine import Engine, EngineSettings
from replicator.engine.errors import NotReclaimed
from replicator.engine.log.block import BlockHeader, BlockKind, BlockView, verify_block
from replicator.engine.log.stored_blocks import StoredBlock
from replicator.engine.policies import TopicPolicies
from replicator.engine.topic import Topic
from replicator.engine.types import DUPLICATE
from snapshots.position import BEFORE_ALL, Position

END = Position(2**62, 0)
STEPS = st.lists(
    st.sampled_from(["publish", "publish", "copy", "marker", "local marker", "reopen"]), min_size=1, max_size=12
)


def in_directory(main: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> None:
    directory = Path(tempfile.mkdtemp(prefix="reclaiming-"))
    try:
        asyncio.run(main(directory, *arguments))
    finally:
        shutil.rmtree(directory)


def blocks_of(topic: Topic) -> list[StoredBlock]:
    found, _ = topic.reading.blocks(BEFORE_ALL, END, bytes_max=1 << 40)
    return found


def own(blocks: list[StoredBlock]) -> list[StoredBlock]:
    return [each for each in blocks if each.header.origin == "us-east" and each.header.kind != BlockKind.LOCAL_MARKERS]


@dataclass(frozen=True)
class Peer:
    """Copies of us-east's blocks at a peer, after it trimmed the first ones."""

    kept: list[StoredBlock]
    copy: PeerCopy


async def reclaim_some(
    directory: Path, before: list[str], after: list[str], had: float, trimmed: float, cut_off_after: int
) -> None:
    path, old = directory / "live", directory / "old"
    copied = [0]
    await live(path, ["publish", *before], copied)
    shutil.copytree(path, old)
    await live(path, after, copied)
    async with opened(path) as engine:
        topic = await engine.topic(TOPIC)
        lived, incarnation = own(blocks_of(topic)), topic.incarnation
        end = topic.log.last
    there = lived[: max(1, round(had * len(lived)))]
    kept = there[round(trimmed * len(there)) :]
    gone = BEFORE_ALL if len(kept) == len(there) else there[len(there) - len(kept) - 1].last
    peer = Peer(kept, PeerCopy(incarnation, there[-1].last, gone))

    async with opened(old) as engine:
        restored = blocks_of(topic := await engine.topic(TOPIC))
        first = plan_of(topic, peer)
    if first is None:
        return
    lost = [each for each in kept if each.last > first.after] if first.sources else []
    while True:  # each time as one run of the command, which is cut off
        async with opened(old) as engine:
            topic = await engine.topic(TOPIC)
            if (plan := plan_of(topic, peer)) is None:
                break
            await reclaim_parts(engine, topic, plan, peer, cut_off_after)
            if plan_of(topic, peer) is None:
                check(topic, restored, lost, first)
    async with opened(old) as engine:
        topic = await engine.topic(TOPIC)
        check(topic, restored, lost, first)
        (new,) = await topic.publish([message(b"new")])
        assert new > end, "invariant 10"


def plan_of(topic: Topic, peer: Peer) -> TopicPlan | None:
    mark = topic.origins.high_water("us-east")
    assert mark is not None
    return plan_topic(TOPIC, OwnLog(topic.incarnation, mark.position), {"eu-west": peer.copy}, ())


async def reclaim_parts(engine: Engine, topic: Topic, plan: TopicPlan, peer: Peer, parts_max: int) -> None:
    """Reclaim the blocks of ``plan`` that ``peer`` kept, one a commit, then its end; at most ``parts_max`` commits."""
    holes = list(plan.holes)
    blocks = [each for each in peer.kept if each.last > plan.after] if plan.sources else []
    for part in [*([each] for each in blocks), []][:parts_max]:
        upto = part[-1].last if part else plan.upto
        passed = [hole for hole in holes if hole[1] <= upto]
        holes = holes[len(passed) :]
        rows: list[tuple[BlockHeader, bytes]] = [(verify_block(each.block), each.block) for each in part]
        await engine.writer.reclaim(topic.tail, topic.log.last, rows, holes=passed, upto=upto, numbered=False)


def check(topic: Topic, restored: list[StoredBlock], lost: list[StoredBlock], plan: TopicPlan) -> None:
    now = blocks_of(topic)
    assert now[: len(restored)] == restored
    assert own(now[len(restored) :]) == lost, "the same bytes at the same positions"
    fillers = [each for each in now[len(restored) :] if each.header.kind is BlockKind.LOCAL_MARKERS]
    assert all(each.position in topic.log.markers for each in fillers)
    assert plan.upto in topic.log, "others find their own mark here"
    mark = topic.origins.high_water("us-east")
    assert mark is not None
    assert mark.position == plan.upto
    assert topic.origins.left_out("us-east") == list(plan.holes)


@given(STEPS, STEPS, st.floats(0, 1), st.sampled_from([0.0, 0.0, 0.5, 1.0]), st.integers(1, 4))
@settings(max_examples=examples(30))
def test_invariant_10_what_is_reclaimed_lies_where_it_lay_and_new_messages_lie_above(
    before: list[str], after: list[str], had: float, trimmed: float, cut_off_after: int
) -> None:
    """Also when it is cut off again and again."""
    in_directory(reclaim_some, before, after, had, trimmed, cut_off_after)


def test_a_log_that_has_gone_on_takes_nothing_back(tmp_path: Path) -> None:
    """Nothing of the request is written then."""

    async def main() -> None:
        await live(tmp_path / "live", ["publish"], [0])
        shutil.copytree(tmp_path / "live", tmp_path / "old")
        await live(tmp_path / "live", ["publish"], [0])
        async with opened(tmp_path / "live") as engine:
            lost = own(blocks_of(await engine.topic(TOPIC)))[-1]
        async with opened(tmp_path / "old") as engine:
            topic = await engine.topic(TOPIC)
            await topic.publish([message(b"too early")])
            loaded, before = topic.log.last, blocks_of(topic)
            rows = [(verify_block(lost.block), lost.block)]
            with pytest.raises(NotReclaimed, match="has gone on"):
                await engine.writer.reclaim(topic.tail, loaded, rows, holes=(), upto=lost.last, numbered=False)
            other = make_block(lost.position, [message()], origin="us-east", incarnation=3)
            with pytest.raises(NotReclaimed, match="does not belong in this log"):
                await engine.writer.reclaim(
                    topic.tail, loaded, [(verify_block(other), other)], holes=(), upto=lost.last, numbered=False
                )
            assert blocks_of(topic) == before

    asyncio.run(main())


def test_what_a_producer_sends_again_that_was_reclaimed_is_a_duplicate(tmp_path: Path) -> None:
    with_deduplication = EngineSettings(policies=TopicPolicies(deduplication=True))

    async def main() -> None:
        async with opened(tmp_path / "live", settings=with_deduplication) as engine:
            await publish_numbered(engine, 0, 3)
        shutil.copytree(tmp_path / "live", tmp_path / "old")
        async with opened(tmp_path / "live", settings=with_deduplication) as engine:
            await publish_numbered(engine, 3, 6)
            lost = own(blocks_of(await engine.topic(TOPIC)))[-1]
        async with opened(tmp_path / "old", settings=with_deduplication) as engine:
            topic = await engine.topic(TOPIC)
            rows = [(verify_block(lost.block), lost.block)]
            await engine.writer.reclaim(topic.tail, topic.log.last, rows, holes=(), upto=lost.last, numbered=True)
        async with opened(tmp_path / "old", settings=with_deduplication) as engine:
            positions = await publish_numbered(engine, 2, 8)
            assert positions[:4] == [DUPLICATE] * 4
            assert min(positions[4:]) > lost.last
            payloads = [
                bytes(entry)[-1:]
                for each in own(blocks_of(await engine.topic(TOPIC)))
                for entry in BlockView(each.block).entries()
            ]
            assert payloads == [b"%d" % number for number in range(8)]

    asyncio.run(main())


@pytest.mark.parametrize("commits_max", [1, 3, 5, 1 << 30])
def test_invariant_11_a_large_gap_is_filled_by_several_transactions_each_of_which_names_what_is_lost(
    tmp_path: Path, commits_max: int
) -> None:
    """A hole lies in the gap, and the reclaim is cut off in it."""

    async def main() -> None:
        await live(tmp_path, ["publish"], [0])
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            start = topic.log.last
            rows, hole, upto = far_apart(start, topic.incarnation)
        reached, runs = start, 0
        while reached < upto:
            runs += 1
            async with opened(tmp_path) as engine:
                topic = await engine.topic(TOPIC)
                left, holes = left_above(reached, rows, hole)
                with suppress(CutOff), few_fillers(engine, 250, commits_max=commits_max):
                    await engine.writer.reclaim(
                        topic.tail, topic.log.last, left, holes=holes, upto=upto, numbered=False
                    )
            async with opened(tmp_path) as engine:
                topic = await engine.topic(TOPIC)
                mark = topic.origins.high_water("us-east")
                assert mark is not None
                assert reached < mark.position
                reached = mark.position
                assert topic.log.last == reached
                there = [(hole[0], min(reached, hole[1]))] if reached > hole[0] else []
                assert topic.origins.left_out("us-east") == there
                assert list(topic.log.runs_between(BEFORE_ALL, END)) == [(start.ledger, 0, reached.entry)]
                found = [bytes(each.block) for each in own(blocks_of(topic)) if each.position > start]
                assert found == [block for header, block in rows if header.origin_first <= reached]
        assert (runs == 1) == (commits_max == 1 << 30)

    asyncio.run(main())
