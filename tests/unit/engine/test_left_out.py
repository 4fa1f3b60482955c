from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from engine_support import make_block, message, opened
from hypothesis import given
from hypothesis import strategies as st

from replicator.engine.engine import Engine
from replicator.engine.errors import CopyGap
from replicator.engine.log import left_out
from replicator.engine.log.left_out import HOLES_KEPT, HOLES_MAX, Hole, with_hole
from replicator.engine.log.writer import CopiedBlock
from snapshots.position import BEFORE_ALL, Position

TOPIC = "orders"


def copied(previous: Position, first: Position, entries: int = 1, *, left_out: bool = False) -> CopiedBlock:
    return CopiedBlock(previous, make_block(first, [message()] * entries), left_out)


async def append(engine: Engine, *blocks: CopiedBlock) -> None:
    await (await engine.topic(TOPIC)).writing.copy(blocks)


async def holes(engine: Engine) -> list[Hole]:
    return (await engine.topic(TOPIC)).origins.left_out("us-east")


# In the store.


def test_invariant_5_what_a_link_left_out_is_a_hole_before_the_block_durably(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, "eu-west") as engine:
            await append(engine, copied(BEFORE_ALL, Position(9, 3), left_out=True))
            await append(engine, copied(Position(9, 3), Position(9, 4)))
            assert await holes(engine) == [(BEFORE_ALL, Position(9, 2))]
            await append(engine, copied(Position(9, 4), Position(9, 8), left_out=True))
            await append(engine, copied(Position(9, 8), Position(12, 0), left_out=True))
            found = await holes(engine)
            assert found == [
                (BEFORE_ALL, Position(9, 2)),
                (Position(9, 4), Position(9, 7)),
                (Position(9, 8), Position(12, -1)),
            ]
        async with opened(tmp_path, "eu-west") as engine:
            assert await holes(engine) == found
            assert (await engine.topic(TOPIC)).origins.left_out("elsewhere") == []

    asyncio.run(main())


def test_a_block_that_follows_directly_has_no_hole_before_it_whatever_its_link_says(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, "eu-west") as engine:
            await append(engine, copied(BEFORE_ALL, Position(9, 0)))
            await append(engine, copied(Position(9, 0), Position(9, 1), left_out=True))
            assert await holes(engine) == []

    asyncio.run(main())


def test_invariant_2_a_block_that_is_sent_again_makes_no_second_hole_and_moves_none(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, "eu-west") as engine:
            first = copied(BEFORE_ALL, Position(9, 0), 2)
            later = copied(Position(9, 1), Position(9, 5), 3, left_out=True)
            await append(engine, first, later)
            found = await holes(engine)
            longer = copied(Position(9, 1), Position(9, 5), 6, left_out=True)
            for blocks in ((first, later), (later,), (longer,), (longer, later)):
                await append(engine, *blocks)
                assert await holes(engine) == found == [(Position(9, 1), Position(9, 4))]
            assert (await engine.topic(TOPIC)).log.entries == 8

    asyncio.run(main())


def test_what_is_here_by_another_way_is_no_hole(tmp_path: Path) -> None:
    """The link has left out what it did not send; the mark says what is here."""

    async def main() -> None:
        async with opened(tmp_path, "eu-west") as engine:
            await append(engine, copied(BEFORE_ALL, Position(9, 0), 4))
            await append(engine, copied(Position(9, 0), Position(9, 6), left_out=True))
            assert await holes(engine) == [(Position(9, 3), Position(9, 5))]

    asyncio.run(main())


def test_left_out_does_not_excuse_a_gap_and_a_refused_request_leaves_no_hole(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, "eu-west") as engine:
            await append(engine, copied(BEFORE_ALL, Position(9, 0)))
            for blocks in (
                [copied(Position(9, 4), Position(9, 6), left_out=True)],
                [copied(Position(9, 0), Position(9, 3), left_out=True), copied(Position(9, 7), Position(9, 8))],
            ):
                with pytest.raises(CopyGap):
                    await append(engine, *blocks)
                assert await holes(engine) == []
            assert (await engine.topic(TOPIC)).log.entries == 1

    asyncio.run(main())


def test_invariant_11_the_rows_of_holes_are_bounded_and_the_same_after_reopening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(left_out, "HOLES_MAX", 10)
    monkeypatch.setattr(left_out, "HOLES_KEPT", 7)

    async def main() -> None:
        async with opened(tmp_path, "eu-west") as engine:
            at = 0
            for number in range(25):
                after = at + number % 5 + 2
                previous = Position(9, at) if number else BEFORE_ALL
                await append(engine, copied(previous, Position(9, after), left_out=True))
                at = after
            found = await holes(engine)
            assert 7 <= len(found) <= 10
            assert (found[0][0], found[-1][1]) == (BEFORE_ALL, Position(9, at - 1))
        async with opened(tmp_path, "eu-west") as engine:
            assert await holes(engine) == found

    asyncio.run(main())


# The holes themselves.

steps = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4), st.booleans()), min_size=1, max_size=60)


@given(steps, st.integers(1, 6))
def test_holes_cover_all_that_was_left_out_in_order_and_apart(
    steps: list[tuple[int, int, bool]], holes_max: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(left_out, "HOLES_MAX", holes_max)
        patch.setattr(left_out, "HOLES_KEPT", holes_max)
        ledger, entry = 1, 0
        found: tuple[Hole, ...] = ()
        missing: list[Position] = []
        for skipped, taken, next_ledger in steps:
            after = Position(ledger, entry)
            if next_ledger:
                ledger, entry = ledger + 1, 0
            missing += [Position(ledger, entry + 1 + offset) for offset in range(skipped)]
            entry += skipped
            found = with_hole(found, after, Position(ledger, entry))
            entry += taken
    assert len(found) <= holes_max
    assert all(any(after < each <= upto for after, upto in found) for each in missing)
    flat = [edge for hole in found for edge in hole]
    assert flat == sorted(set(flat)), "in order, and no two touch"


def test_the_nearest_are_joined_first() -> None:
    found: tuple[Hole, ...] = ()
    at = 0
    for number in range(HOLES_MAX + 1):
        found = with_hole(found, Position(1, at), Position(1, at + 1))
        at += 2 if number % 8 == 0 else 50
    assert len(found) == HOLES_KEPT
    wide = [upto.entry - after.entry for after, upto in found]
    assert max(wide) == 3, "only such as were two apart"


def test_touching_holes_are_one() -> None:
    found = with_hole((), Position(1, 0), Position(1, 5))
    assert with_hole(found, Position(1, 5), Position(2, -1)) == ((Position(1, 0), Position(2, -1)),)
    assert with_hole(found, Position(1, 3), Position(1, 4)) == found
