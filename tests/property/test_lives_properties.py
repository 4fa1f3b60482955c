"""Copies over several lives of one topic, against the list of all that its origin published. Each entry comes once and
in order (invariants 2 and 3), despite repeated sends, cuts and new beginnings."""

from __future__ import annotations

from itertools import pairwise

from engine_support import make_block, message
from hypothesis import given
from hypothesis import strategies as st

from replicator.engine.errors import CopyGap, IncarnationMismatch
from replicator.engine.log.commit.new_blocks import select_new
from replicator.engine.log.requests import CopiedBlock, NewBlock
from replicator.engine.log.store_tables import HighWater
from snapshots.position import BEFORE_ALL, Position

ENTRY = message()


@st.composite
def blocks_of_lives(draw: st.DrawFn) -> list[tuple[int, Position, int]]:
    """Draw the blocks of a log with several lives: incarnation, first position, number of entries. A life may have
    several ledgers."""
    made: list[tuple[int, Position, int]] = []
    last_id = 0
    for _ in range(draw(st.integers(1, 4))):
        incarnation = last_id = last_id + draw(st.integers(1, 3))
        for _ in range(draw(st.integers(1, 2))):
            last_id += 1
            entry = 0
            for entries in draw(st.lists(st.integers(1, 3), min_size=1, max_size=4)):
                made.append((incarnation, Position(last_id, entry), entries))
                entry += entries
    return made


def last_of(block: tuple[int, Position, int]) -> Position:
    _, first, entries = block
    return Position(first.ledger, first.entry + entries - 1)


@given(blocks_of_lives(), st.data())
def test_invariants_2_and_3_each_entry_of_all_lives_comes_once_and_in_order(
    blocks: list[tuple[int, Position, int]], data: st.DataObject
) -> None:
    mark: HighWater | None = None
    here: list[Position] = []

    def send(start: int, count: int, previous: Position) -> None:
        nonlocal mark
        sent = []
        for block in blocks[start : start + count]:
            incarnation, first, entries = block
            made = make_block(first, [ENTRY] * entries, origin="x", incarnation=incarnation)
            sent.append(CopiedBlock(previous, made))
            previous = last_of(block)
        high_water = {} if mark is None else {"x": mark}
        for new in select_new(sent, cluster="y", topic="t", high_water=high_water):
            assert isinstance(new, NewBlock)
            header = new.header
            ledger, begin = header.origin_first
            here.extend(Position(ledger, begin + number) for number in range(header.entries))
            newest = header.incarnation if mark is None else max(mark.incarnation, header.incarnation)
            mark = HighWater(newest, header.origin_last)

    for _ in range(data.draw(st.integers(0, 6))):
        if mark is not None and data.draw(st.integers(0, 3)) == 0:  # the source has the earlier life too, and says so
            mark = HighWater(blocks[-1][0], mark.position)
        start = data.draw(st.integers(0, len(blocks) - 1))
        before = last_of(blocks[start - 1]) if start else BEFORE_ALL
        try:  # from anywhere, as a link that was told something else, or forgot what it sent
            send(start, data.draw(st.integers(1, 4)), data.draw(st.sampled_from([before, BEFORE_ALL])))
        except (CopyGap, IncarnationMismatch):
            continue
        assert all(one < other for one, other in pairwise(here))
    reached = BEFORE_ALL if mark is None else mark.position
    start = next((index for index, block in enumerate(blocks) if last_of(block) > reached), len(blocks))
    whole = here == [each for each in positions(blocks) if each <= reached]
    send(start, len(blocks), reached)  # as a link begins that has asked what is here
    assert all(one < other for one, other in pairwise(here))
    if whole:
        assert here == positions(blocks)


def positions(blocks: list[tuple[int, Position, int]]) -> list[Position]:
    return [Position(first.ledger, first.entry + number) for _, first, entries in blocks for number in range(entries)]
