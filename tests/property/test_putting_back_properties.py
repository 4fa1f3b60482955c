"""A store that was started on an empty directory and used takes back its earlier lives: below what it has, at the
positions that they had.

The lives are lived by engines, each on a directory of its own. What peers have of them is a part. Engines, the writer
and the last steps are real; what is put back comes from the test instead of a peer.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from engine_support import TOPIC, make_block, message, opened
from examples import examples
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from lived_log import CutOff, far_apart, few_fillers, left_above, live, publish_numbered
from pyroaring import BitMap

from replicator.backup.putting_back import finish_put_back
from replicator.backup.reclaim_plan import OwnLog, PeerCopy, TopicPlan, plan_lives
from replicator.engine.engine import Engine, EngineSettings
from replicator.engine.errors import NotReclaimed
from replicator.engine.lineage import Judgement
from replicator.engine.log.block import BlockKind, BlockView, verify_block
from replicator.engine.log.commit.putting_back import put_back_note
from replicator.engine.log.entry import encode_entry
from replicator.engine.log.store_check import row_findings
from replicator.engine.log.store_tables import LOCAL_PREFIX
from replicator.engine.log.stored_blocks import StoredBlock, blocks_after
from replicator.engine.policies import TopicPolicies
from replicator.engine.subscriptions.putting_back import PeerState
from replicator.engine.topic import Topic
from replicator.engine.types import DUPLICATE, Ack
from replicator.metadata.metadata_pb2 import MessageMetadata
from snapshots.ack_vector import OriginAcks
from snapshots.position import BEFORE_ALL, Position
from snapshots.position_set import PositionSet
from snapshots.starts import FROM_THE_FIRST, Start

END = Position(2**62, 0)
STEPS = st.lists(
    st.sampled_from(["publish", "publish", "publish", "copy", "marker", "local marker", "reopen"]),
    min_size=1,
    max_size=10,
)


def in_directory(main: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> None:
    directory = Path(tempfile.mkdtemp(prefix="putting-back-"))

    async def limited() -> None:
        async with asyncio.timeout(60):
            await main(directory, *arguments)

    try:
        asyncio.run(limited())
    finally:
        shutil.rmtree(directory)


def blocks_of(topic: Topic) -> list[StoredBlock]:
    found, _ = topic.reading.blocks(BEFORE_ALL, END, bytes_max=1 << 40)
    return [StoredBlock(each.position, each.header, bytes(each.block)) for each in found]


def own(blocks: Sequence[StoredBlock]) -> list[StoredBlock]:
    return [each for each in blocks if each.header.origin == "us-east" and each.header.kind != BlockKind.LOCAL_MARKERS]


@dataclass
class Life:
    """Earlier life of a topic: its blocks of us-east that peers have, and what they lost of them."""

    incarnation: int
    blocks: list[StoredBlock]
    copy: PeerCopy
    lost: list[StoredBlock] = field(default_factory=list)


async def lived(path: Path, steps: Sequence[str], trimmed: float) -> Life:
    await live(path, ["publish", *steps], [0])
    async with opened(path) as engine:
        topic = await engine.topic(TOPIC)
        blocks = own(blocks_of(topic))
        incarnation = topic.incarnation
    gone = round(trimmed * len(blocks))
    upto = BEFORE_ALL if gone == 0 else blocks[gone - 1].last
    return Life(incarnation, blocks[gone:], PeerCopy(incarnation, blocks[-1].last, upto), blocks[:gone])


def plans_of(topic: Topic, lives: Sequence[Life]) -> tuple[TopicPlan, ...]:
    mark = topic.origins.high_water("us-east")
    runs = tuple(topic.log.runs_between(BEFORE_ALL, topic.log.last))
    here = OwnLog(topic.incarnation, BEFORE_ALL if mark is None else mark.position, runs)
    found = plan_lives(TOPIC, here, {"eu-west": [life.copy for life in lives]}, (), lambda *_: Judgement.LOST)
    assert found.newest is None
    assert not found.refused
    return found.below


async def put_back(engine: Engine, lives: Sequence[Life], parts_max: int, told: dict[str, PeerState]) -> bool:
    """Put back as one run of the command, which is cut off after ``parts_max`` commits. Return whether it finished."""
    topic = engine.find(TOPIC)
    assert topic is not None
    for plan in plans_of(topic, lives):
        life = next(each for each in lives if each.incarnation == plan.incarnation)
        blocks = [each for each in life.blocks if each.last > plan.after]
        holes = list(plan.holes)
        for part in [*([each] for each in blocks), []]:
            if parts_max == 0:
                return False
            parts_max -= 1
            upto = part[-1].last if part else plan.upto
            passed = [hole for hole in holes if hole[1] <= upto]
            holes = holes[len(passed) :]
            rows = [(verify_block(each.block), bytes(each.block)) for each in part]
            await engine.writer.put_back(
                topic.tail,
                plan.incarnation,
                rows,
                after=plan.after,
                holes=passed,
                upto=upto,
                numbered=topic.policies.effective.deduplication,
            )
    if put_back_note(engine.store, topic.topic_id) is None:
        return True
    with (
        patch("replicator.engine.log.commit.putting_back.RECOUNTED_ROWS_MAX", 2),
        patch.object(engine.writer, "put_many", engine.writer.put_many if parts_max else _cut_off),
    ):
        try:
            await finish_put_back(engine, topic, told)
        except CutOff:
            return False
    return True


async def _cut_off(*_: Any, **__: Any) -> None:
    raise CutOff


def counts(topic: Topic, engine: Engine) -> list[tuple[int, int]]:
    with engine.store.reading_blocks() as txn:
        cursor = txn.cursor()
        return [
            LOCAL_PREFIX.unpack_from(cursor.value()) for _ in blocks_after(cursor, topic.topic_id, BEFORE_ALL)
        ]  # the cursor stands on each block in turn


def check(engine: Engine, lives: Sequence[Life], before: list[StoredBlock], gone: tuple[int, int]) -> None:
    topic = engine.find(TOPIC)
    assert topic is not None
    now = blocks_of(topic)
    assert now == sorted(now, key=lambda each: each.position)
    assert now[len(now) - len(before) :] == before, "what was confirmed since is as it was"
    below = now[: len(now) - len(before)]
    assert own(below) == [each for life in lives for each in life.blocks], "the same bytes at the same positions"
    fillers = [each for each in below if each.header.kind is BlockKind.LOCAL_MARKERS]
    assert all(each.position in topic.log.markers for each in fillers)
    entries, messages = gone
    for each, counted in zip(now, counts(topic, engine), strict=True):
        assert counted == (entries, messages), f"what was counted before {each.position}"
        if each.header.kind is BlockKind.MESSAGES:
            assert engine.store.messages_before(topic.topic_id, each.position) == messages
        entries, messages = entries + each.header.entries, messages + each.header.messages
    assert (topic.tail.entries, topic.tail.messages, topic.log.messages) == (entries, messages, messages)
    assert engine.store.totals(topic.topic_id) == (entries, messages)
    assert [each for each in row_findings(engine.store) if "cut off in it" not in str(each)] == []
    for life in lives:
        assert life.copy.mark in topic.log, "others find their own mark here"
        holes = topic.origins.left_out("us-east")
        for each in life.lost:
            assert any(after < each.position and each.last <= upto for after, upto in holes)
        for each in life.blocks:
            assert not any(after < each.last and each.position <= upto for after, upto in holes)


@pytest.mark.timeout(600)
@settings(max_examples=examples(20), deadline=None, phases=[Phase.explicit, Phase.generate])
@given(
    st.lists(st.tuples(STEPS, st.sampled_from([0.0, 0.0, 0.5, 1.0])), min_size=1, max_size=3),
    STEPS,
    st.booleans(),
    st.integers(1, 4),
)
def test_invariant_10_earlier_lives_lie_where_they_lay_below_what_was_confirmed_since(
    earlier: list[tuple[list[str], float]], since: list[str], trims: bool, cut_off_after: int
) -> None:
    """Also when it is cut off again and again; and all is the same after a restart."""

    async def main(directory: Path) -> None:
        lives = [
            await lived(directory / f"life-{number}", steps, trimmed) for number, (steps, trimmed) in enumerate(earlier)
        ]
        path = directory / "new"
        await live(path, since, [100])
        gone = (0, 0)
        async with opened(path) as engine:
            topic = await engine.topic(TOPIC)
            if trims:
                await topic.trimming.trim(topic.log.last)
            before = blocks_of(topic)
            if before:
                gone = counts(topic, engine)[0]
            upto, trimmed = topic.log.last, topic.log.trimmed
        done = False
        while not done:
            async with opened(path) as engine:
                done = await put_back(engine, lives, cut_off_after, {})
                if done:
                    check(engine, lives, before, gone)
        async with opened(path) as engine:
            check(engine, lives, before, gone)
            topic = await engine.topic(TOPIC)
            assert (trimmed > BEFORE_ALL) == (topic.log.trimmed > BEFORE_ALL)
            assert put_back_note(engine.store, topic.topic_id) is None
            (new,) = await topic.publish([message(b"new")])
            assert new > max(upto, *(life.copy.mark for life in lives)), "invariant 10"
            await topic.trimming.trim(new)
            assert [each.position for each in blocks_of(topic)] == [new]
            ends = topic.log.trimmed_ends
            assert ends == sorted(ends)

    in_directory(main)


# Cursors.


@dataclass(frozen=True)
class Consumed:
    """Consumed messages, by index into the messages of a life."""

    acknowledged: frozenset[int]
    start: int | None = None
    """Number of messages before the start; None if no message lies before it."""


CONSUMED = st.builds(Consumed, st.frozensets(st.integers(0, 9)), st.none() | st.integers(0, 9))


def messages_of(blocks: Sequence[StoredBlock]) -> list[Position]:
    return [
        Position(each.position.ledger, each.position.entry + entry)
        for each in blocks
        if each.header.kind is BlockKind.MESSAGES
        for entry in range(each.header.entries)
    ]


def change_message(life: Life, consumed: Consumed, generation: int = 1) -> PeerState:
    at = messages_of(life.blocks)
    positions = PositionSet(at[each] for each in consumed.acknowledged if each < len(at))
    start = FROM_THE_FIRST
    if consumed.start:
        start = Start(life.incarnation, at[min(consumed.start, len(at)) - 1])
    return PeerState(generation, OriginAcks(life.incarnation, [], positions), start)


@pytest.mark.timeout(600)
@settings(max_examples=examples(20), deadline=None, phases=[Phase.explicit, Phase.generate])
@given(
    STEPS,
    STEPS,
    CONSUMED,
    st.frozensets(st.integers(0, 19)),
    st.sampled_from(["told", "unknown", "older"]),
    st.booleans(),
)
def test_invariant_5_nothing_counts_as_consumed_that_nobody_consumed(
    earlier: list[str], since: list[str], told: Consumed, acknowledged: frozenset[int], known: str, latest: bool
) -> None:
    """Other clusters tell what was consumed of the earlier life; the cursor has what was consumed in the new one."""

    async def main(directory: Path) -> None:
        life = await lived(directory / "life", earlier, 0.0)
        path = directory / "new"
        await live(path, since, [100])
        async with opened(path) as engine:
            topic = await engine.topic(TOPIC)
            at = messages_of(blocks_of(topic))
            start = topic.log.last if latest else BEFORE_ALL
            subscription = await topic.subscriptions.create("sub", start, replicated=True)
            await topic.publish([message(b"%d" % each) for each in range(4)])
            at = messages_of(blocks_of(topic))
            acks = [Ack(at[each]) for each in sorted(acknowledged) if each < len(at) and at[each] > start]
            if acks:
                await subscription.acknowledge(acks)
            left = unconsumed(topic)
            own_at = set(messages_of(own(blocks_of(topic))))
        states = {"sub": change_message(life, told, 0 if known == "older" else 1)} if known != "unknown" else {}
        async with opened(path) as engine:
            assert await put_back(engine, [life], 1_000, states)
        old = messages_of(life.blocks)
        before = min(told.start or 0, len(old))
        expected = left
        if known == "told":
            expected = [
                *(each for number, each in enumerate(old) if number >= before and number not in told.acknowledged),
                *(each for each in at if each in left or (each <= start and each in own_at)),
            ]
        async with opened(path) as engine:
            topic = await engine.topic(TOPIC)
            assert unconsumed(topic) == expected
            state = topic.subscriptions["sub"].cursor.state
            assert state.to_announce, "others are told the whole state"
            if known != "told":
                assert state.starts["us-east"] >= Start(topic.incarnation, life.copy.mark)
            topic.subscriptions.follow_log()
            assert unconsumed(topic) == expected

    in_directory(main)


def unconsumed(topic: Topic) -> list[Position]:
    state = topic.subscriptions["sub"].cursor.state
    return list(topic.log.messages_after(state.mark_delete, state.individually_deleted))


def test_a_batch_that_another_cluster_consumed_in_part_is_consumed_in_part(tmp_path: Path) -> None:
    async def main() -> None:
        life = await lived(tmp_path / "life", ["publish"], 0.0)
        (first, *_) = messages_of(life.blocks)
        await live(tmp_path / "new", ["publish"], [0])
        async with opened(tmp_path / "new") as engine:
            topic = await engine.topic(TOPIC)
            await topic.subscriptions.create("sub", topic.log.last, replicated=True)
        told = PeerState(1, OriginAcks(life.incarnation, [], PositionSet(), {first: BitMap([1])}))
        async with opened(tmp_path / "new") as engine:
            assert await put_back(engine, [life], 100, {"sub": told})
        async with opened(tmp_path / "new") as engine:
            state = (await engine.topic(TOPIC)).subscriptions["sub"].cursor.state
            assert list(state.batch_acks.items()) == [(first, BitMap([1]))]

    asyncio.run(main())


def test_two_clusters_that_tell_different_things_are_believed_both() -> None:
    one = PeerState(1, OriginAcks(5, [], PositionSet([Position(6, 1)])), Start(5, Position(6, 0)))
    other = PeerState(1, OriginAcks(5, [(Position(6, 1), Position(6, 3))]), FROM_THE_FIRST)
    both = one.merged(other)
    assert both.acks.covers(Position(6, 1))
    assert both.acks.covers(Position(6, 3))
    assert both.start == FROM_THE_FIRST
    assert both == other.merged(one)
    newer = PeerState(2, OriginAcks(5))
    assert one.merged(newer) is newer
    assert newer.merged(one) is newer


# What is refused, and what producers send again.


def test_a_place_that_is_taken_refuses_the_whole_request(tmp_path: Path) -> None:
    async def main() -> None:
        life = await lived(tmp_path / "life", ["publish", "publish"], 0.0)
        await live(tmp_path / "new", ["publish"], [0])
        async with opened(tmp_path / "new") as engine:
            topic = await engine.topic(TOPIC)
            before = blocks_of(topic)
            rows = [(verify_block(each.block), bytes(each.block)) for each in life.blocks]
            above = make_block(Position(2**60, 0), [message()], origin="us-east", incarnation=life.incarnation)
            foreign = make_block(life.blocks[-1].position, [message()], origin="eu-west", incarnation=life.incarnation)
            for wrong in (above, foreign):
                refused = [*rows[:-1], (verify_block(wrong), wrong)]
                upto = refused[-1][0].origin_last
                with pytest.raises(NotReclaimed):
                    await engine.writer.put_back(
                        topic.tail, life.incarnation, refused, after=BEFORE_ALL, holes=(), upto=upto, numbered=False
                    )
            assert blocks_of(topic) == before
            assert put_back_note(engine.store, topic.topic_id) is None

    asyncio.run(main())


def test_what_a_producer_sends_again_that_was_put_back_is_a_duplicate(tmp_path: Path) -> None:
    with_deduplication = EngineSettings(policies=TopicPolicies(deduplication=True))

    async def main() -> None:
        async with opened(tmp_path / "life", settings=with_deduplication) as engine:
            await publish_numbered(engine, 0, 6)
            topic = await engine.topic(TOPIC)
            blocks = own(blocks_of(topic))
            life = Life(topic.incarnation, blocks, PeerCopy(topic.incarnation, blocks[-1].last))
        async with opened(tmp_path / "new", settings=with_deduplication) as engine:
            await publish_numbered(engine, 6, 8)
        async with opened(tmp_path / "new", settings=with_deduplication) as engine:
            assert await put_back(engine, [life], 100, {})
        async with opened(tmp_path / "new", settings=with_deduplication) as engine:
            positions = await publish_numbered(engine, 4, 10)
            assert positions[:4] == [DUPLICATE] * 4
            payloads = [
                bytes(entry)[-1:]
                for each in own(blocks_of(await engine.topic(TOPIC)))
                for entry in BlockView(each.block).entries()
            ]
            assert payloads == [b"%d" % number for number in range(10)]

    asyncio.run(main())


def test_what_another_copy_of_the_store_has_is_put_between_the_ledgers_of_this_one(tmp_path: Path) -> None:
    """Both went on in the same life: the other one in the ledger that both have, and in one of its own."""

    async def main() -> None:
        async with opened(tmp_path / "one") as engine:
            topic = await engine.topic(TOPIC)
            await topic.publish([message(b"shared")])
            incarnation, shared = topic.incarnation, topic.log.last
            block = make_block(
                Position(shared.ledger, shared.entry + 1), [message(b"tail")], origin="us-east", incarnation=incarnation
            )
            tail = (verify_block(block), block)
        shutil.copytree(tmp_path / "one", tmp_path / "other")
        async with opened(tmp_path / "other") as engine:
            topic = await engine.topic(TOPIC)
            await topic.publish([message(b"theirs")])
            theirs = own(blocks_of(topic))[-1]
        async with opened(tmp_path / "one") as engine:
            topic = await engine.topic(TOPIC)
            await topic.subscriptions.create("sub", BEFORE_ALL, replicated=True)
            (ours,) = await topic.publish([message(b"ours")])
            await topic.subscriptions["sub"].acknowledge([Ack(shared), Ack(ours)])
        async with opened(tmp_path / "one") as engine:
            topic = await engine.topic(TOPIC)
            for rows, after in (
                ([tail], shared),
                ([(verify_block(theirs.block), bytes(theirs.block))], Position(theirs.position.ledger, -1)),
            ):
                upto = rows[-1][0].origin_last
                await engine.writer.put_back(
                    topic.tail, incarnation, rows, after=after, holes=(), upto=upto, numbered=False
                )
            told = PeerState(1, OriginAcks(incarnation, [], PositionSet([theirs.position])))
            await finish_put_back(engine, topic, {"sub": told})
        async with opened(tmp_path / "one") as engine:
            topic = await engine.topic(TOPIC)
            assert [each.position for each in own(blocks_of(topic))] == [
                shared,
                tail[0].origin_first,
                theirs.position,
                ours,
            ]
            assert counts(topic, engine) == [(0, 0), (1, 1), (2, 2), (3, 3)]
            assert unconsumed(topic) == [tail[0].origin_first]

    asyncio.run(main())


def test_a_topic_that_was_compacted_is_compacted_anew(tmp_path: Path) -> None:
    def keyed(key: str, payload: bytes) -> bytes:
        return encode_entry(
            MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, partition_key=key), payload
        )

    async def main() -> None:
        async with opened(tmp_path / "life") as engine:
            topic = await engine.topic(TOPIC)
            await topic.publish([keyed("old", b"1"), keyed("both", b"1")])
            blocks = own(blocks_of(topic))
            life = Life(topic.incarnation, blocks, PeerCopy(topic.incarnation, blocks[-1].last))
        async with opened(tmp_path / "new") as engine:
            topic = await engine.topic(TOPIC)
            await topic.publish([keyed("both", b"2"), keyed("new", b"1")])
            await topic.compaction.run()
            assert topic.log.view.horizon > BEFORE_ALL
        async with opened(tmp_path / "new") as engine:
            assert await put_back(engine, [life], 100, {})
        async with opened(tmp_path / "new") as engine:
            topic = await engine.topic(TOPIC)
            assert topic.log.view.horizon == BEFORE_ALL, "readers of the view get all of the log"
            await topic.compaction.run()
            found = topic.compaction.read(BEFORE_ALL, None, 100, 1 << 20)
            assert [bytes(each.entry)[-1:] for each in found] == [b"1", b"2", b"1"]
            assert topic.compaction.state.entries == 3

    asyncio.run(main())


def test_invariant_2_the_own_mark_of_a_log_that_had_only_local_markers_reaches_the_end_of_all_lives_put_back(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        lives = [await lived(tmp_path / f"life-{number}", ["publish"] * 3, 0.0) for number in range(2)]
        path = tmp_path / "new"
        await live(path, ["local marker"], [100])
        done = False
        while not done:
            async with opened(path) as engine:
                done = await put_back(engine, lives, 2, {})
        async with opened(path) as engine:
            (record,) = engine.store.topics()
            assert engine.store.high_waters(record.topic_id)["us-east"].position == lives[-1].copy.mark

    asyncio.run(main())


@pytest.mark.parametrize("commits_max", [1, 3, 5, 1 << 30])
def test_invariant_11_a_large_gap_below_the_log_is_filled_by_several_transactions(
    tmp_path: Path, commits_max: int
) -> None:
    """A hole lies in the gap, and the reclaim is cut off in it."""

    async def main() -> None:
        await live(tmp_path, ["publish", "reopen", "publish"], [0])
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            start, last = blocks_of(topic)[0].last, topic.log.last
            rows, hole, upto = far_apart(start, topic.incarnation)
        reached, runs = start, 0
        while reached < upto:
            runs += 1
            async with opened(tmp_path) as engine:
                topic = await engine.topic(TOPIC)
                left, holes = left_above(reached, rows, hole)
                with suppress(CutOff), few_fillers(engine, 250, commits_max=commits_max):
                    await engine.writer.put_back(
                        topic.tail, topic.incarnation, left, after=reached, holes=holes, upto=upto, numbered=False
                    )
            async with opened(tmp_path) as engine:
                topic = await engine.topic(TOPIC)
                note = put_back_note(engine.store, topic.topic_id)
                assert note is not None
                ((after, now),) = note.ranges
                assert after == start
                assert reached < now
                reached = now
                there = [(hole[0], min(reached, hole[1]))] if reached > hole[0] else []
                assert topic.origins.left_out("us-east") == there
                runs_here = list(topic.log.runs_between(BEFORE_ALL, END))
                assert runs_here == [(start.ledger, 0, reached.entry), (last.ledger, 0, last.entry)]
        assert (runs == 1) == (commits_max == 1 << 30)
        async with opened(tmp_path) as engine:
            topic = await finish_put_back(engine, await engine.topic(TOPIC), {})
            found = blocks_of(topic)
            assert [bytes(each.block) for each in own(found) if start < each.position <= upto] == [
                block for _, block in rows
            ]
            entries = list(accumulate((each.header.entries for each in found), initial=0))[:-1]
            messages = list(accumulate((each.header.messages for each in found), initial=0))[:-1]
            assert counts(topic, engine) == list(zip(entries, messages, strict=True))

    asyncio.run(main())
