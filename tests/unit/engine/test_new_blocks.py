"""Selection of new blocks among copied ones: refused, dropped, cut, or noted as left out. No store, no engine."""

from __future__ import annotations

import pytest
from engine_support import make_block, message

from replicator.engine.errors import BlockCorrupt, CopyGap, IncarnationMismatch, NotAllowedError
from replicator.engine.log.block import BlockKind, build_block
from replicator.engine.log.commit.new_blocks import select_new
from replicator.engine.log.left_out import LeftOutNote, decode_note, encode_note, is_note
from replicator.engine.log.requests import CopiedBlock, NewBlock, NewHole
from replicator.engine.log.store_tables import HighWater
from snapshots.position import BEFORE_ALL, Position

ENTRIES = [message(b"%d" % index) for index in range(4)]


def sent(first: int, count: int, *, previous: int = -1, incarnation: int = 7, left_out: bool = False) -> CopiedBlock:
    """``count`` entries from 9:``first`` on of cluster x, sent after the entry ``previous``; -1: the first ever."""
    block = make_block(Position(9, first), ENTRIES[:count], origin="x", incarnation=incarnation)
    return CopiedBlock(BEFORE_ALL if previous < 0 else Position(9, previous), block, left_out)


def selected(*blocks: CopiedBlock, reached: int | None = None) -> list[NewBlock | NewHole]:
    high_water = {} if reached is None else {"x": HighWater(7, Position(9, reached))}
    before = dict(high_water)
    found = select_new(blocks, cluster="y", topic="t", high_water=high_water)
    assert high_water == before, "a decision moves nothing"
    return found


def ranges(found: list[NewBlock | NewHole]) -> list[tuple[Position, Position]]:
    return [(new.header.origin_first, new.header.origin_last) for new in found if isinstance(new, NewBlock)]


def test_invariant_2_only_what_lies_above_the_high_water_mark_is_new() -> None:
    assert ranges(selected(sent(0, 4))) == [(Position(9, 0), Position(9, 3))]
    assert ranges(selected(sent(0, 4), reached=1)) == [(Position(9, 2), Position(9, 3))]
    assert selected(sent(0, 4), reached=3) == []


def test_a_block_counts_for_those_that_are_sent_with_it() -> None:
    assert ranges(selected(sent(0, 2), sent(0, 2), sent(1, 3), sent(4, 1, previous=3))) == [
        (Position(9, 0), Position(9, 1)),
        (Position(9, 2), Position(9, 3)),
        (Position(9, 4), Position(9, 4)),
    ]


def test_invariant_5_what_the_link_left_out_before_a_block_is_a_hole_as_far_as_it_is_not_here() -> None:
    (new,) = selected(sent(8, 1, previous=3, left_out=True), reached=5)
    assert isinstance(new, NewBlock)
    assert new.hole == (Position(9, 5), Position(9, 7))
    (new,) = selected(sent(6, 1, previous=3, left_out=True), reached=5)
    assert isinstance(new, NewBlock)
    assert new.hole is None, "it follows directly"


def test_invariant_3_what_does_not_follow_is_refused() -> None:
    with pytest.raises(CopyGap, match="sent 9:6 as the next after 9:5, and the last one here is 9:4"):
        selected(sent(6, 1, previous=5), reached=4)
    with pytest.raises(CopyGap):
        selected(sent(0, 1), sent(6, 1, previous=5))
    with pytest.raises(IncarnationMismatch):
        selected(sent(6, 1, previous=5, incarnation=8), reached=5)


def test_invariant_4_what_this_cluster_published_is_refused() -> None:
    own = CopiedBlock(BEFORE_ALL, make_block(Position(9, 0), ENTRIES, origin="y"))
    with pytest.raises(NotAllowedError, match="back to 'y' itself"):
        selected(own)


def test_local_markers_are_refused() -> None:
    local = make_block(Position(9, 0), [b"m"], origin="x", kind=BlockKind.LOCAL_MARKERS)
    with pytest.raises(NotAllowedError, match="local marker"):
        selected(CopiedBlock(BEFORE_ALL, local))


NOTE = LeftOutNote("x", 7, Position(5, 20))


def test_a_note_moves_the_mark_and_leaves_a_hole() -> None:
    noted = encode_note(NOTE)
    assert is_note(noted)
    assert not is_note(make_block(Position(5, 10), ENTRIES, origin="x"))
    assert decode_note(noted) == NOTE
    high_water = {"x": HighWater(7, Position(5, 12))}
    copied = CopiedBlock(Position(5, 12), noted, left_out=True)
    assert select_new([copied], cluster="y", topic="t", high_water=high_water) == [NewHole(NOTE, Position(5, 12))]
    later = {"x": HighWater(7, Position(5, 21))}
    assert select_new([copied], cluster="y", topic="t", high_water=later) == [], "sent again"
    with pytest.raises(NotAllowedError):
        select_new([copied], cluster="x", topic="t", high_water={})
    with pytest.raises(CopyGap):
        select_new([copied], cluster="y", topic="t", high_water={})


@pytest.mark.parametrize("at", range(len(encode_note(NOTE))))
def test_a_damaged_note_is_refused(at: int) -> None:
    damaged = bytearray(encode_note(NOTE))
    damaged[at] ^= 1
    with pytest.raises(BlockCorrupt):
        select_new([CopiedBlock(BEFORE_ALL, bytes(damaged))], cluster="y", topic="t", high_water={})


def test_invariant_5_a_block_that_is_not_for_this_cluster_is_a_hole_whoever_sends_it() -> None:
    """A link sends a note in its place; what an older or a faulty one sends does not come in by that."""
    block = build_block(
        kind=BlockKind.MESSAGES,
        origin="x",
        incarnation=7,
        origin_first=Position(9, 2),
        publish_time_ms=1,
        entries=ENTRIES[:2],
        batch_sizes=[1, 1],
        only=frozenset({"z"}),
    )
    found = selected(sent(0, 2), CopiedBlock(Position(9, 1), block), sent(4, 1, previous=3))
    assert ranges(found) == [(Position(9, 0), Position(9, 1)), (Position(9, 4), Position(9, 4))]
    assert found[1] == NewHole(LeftOutNote("x", 7, Position(9, 3)), Position(9, 1))
    assert selected(CopiedBlock(Position(9, 1), block), reached=3) == []
    assert select_new([CopiedBlock(BEFORE_ALL, block)], cluster="z", topic="t", high_water={})[0] != found[1]


def test_the_rest_of_an_earlier_life_is_taken_while_nothing_of_the_later_one_is_here() -> None:
    have = {"x": HighWater(20, Position(9, 1))}
    found = select_new([sent(2, 2, previous=1)], cluster="y", topic="t", high_water=have)
    assert ranges(found) == [(Position(9, 2), Position(9, 3))]
    have = {"x": HighWater(20, Position(21, 0))}
    assert select_new([sent(2, 2)], cluster="y", topic="t", high_water=have) == [], "it lies below what is here"
    have = {"x": HighWater(8, Position(9, 1))}
    with pytest.raises(IncarnationMismatch):
        select_new([sent(2, 2, previous=1)], cluster="y", topic="t", high_water=have)


def test_a_later_life_is_taken_right_behind_the_end_of_the_earlier_one_and_nowhere_else() -> None:
    later = make_block(Position(31, 0), ENTRIES[:2], origin="x", incarnation=30)
    blocks = [sent(0, 4), CopiedBlock(Position(9, 3), later)]
    assert ranges(selected(*blocks)) == [(Position(9, 0), Position(9, 3)), (Position(31, 0), Position(31, 1))]
    for previous in (BEFORE_ALL, Position(9, 2)):
        with pytest.raises(IncarnationMismatch, match="30 was sent, 7 is here"):
            selected(sent(0, 4), CopiedBlock(previous, later))
