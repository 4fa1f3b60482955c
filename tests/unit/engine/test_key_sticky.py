from __future__ import annotations

import pytest

from replicator.engine.errors import InvalidHashRanges
from replicator.engine.subscriptions.key_shared.hashing import key_hash
from replicator.engine.subscriptions.key_shared.sticky import StickySelector
from replicator.engine.types import HashRange, KeySharedPolicy


def bringing(*ranges: tuple[int, int]) -> KeySharedPolicy:
    return KeySharedPolicy(sticky_ranges=tuple(HashRange(start, end) for start, end in ranges))


def seed() -> StickySelector:
    """C1 and C2 of the seed, each with two of four quarters; ids 1 and 2."""
    selector = StickySelector()
    selector.add(1, "C1", bringing((0, 16_383), (32_768, 49_151)))
    selector.add(2, "C2", bringing((49_152, 65_535), (16_384, 32_767)))
    return selector


def test_the_key_of_the_seed_goes_to_c1() -> None:
    assert seed().select(key_hash(b"Order-3459134")) == 1


def test_each_consumer_has_what_it_brought_and_no_more() -> None:
    selector = seed()
    borders = (0, 16_383, 16_384, 32_767, 32_768, 49_151, 49_152, 65_535, 65_536, 2**32 - 1)
    assert [selector.select(border) for border in borders] == [1, 1, 2, 2, 1, 1, 2, 2, 1, 2]
    assert selector.ranges() == {
        1: [HashRange(0, 16_383), HashRange(32_768, 49_151)],
        2: [HashRange(16_384, 32_767), HashRange(49_152, 65_535)],
    }


def test_a_slot_that_nobody_brought_is_nobodys() -> None:
    selector = StickySelector()
    assert selector.select(0) is None
    selector.add(1, "C1", bringing((10, 19)))
    selector.add(2, "C2", bringing((30, 30)))
    assert [selector.select(slot) for slot in (0, 9, 10, 19, 20, 29, 30, 31, 65_535)] == [
        None, None, 1, 1, None, None, 2, None, None,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("ranges", "message"),
    [
        ((), "'C3' brings no sticky ranges"),
        (((-1, 5),), "range -1..5 of consumer 'C3' must be start"),
        (((5, 65_536),), "range 5..65536 of consumer 'C3' must be start"),
        (((9, 8),), "range 9..8 of consumer 'C3' must be start"),
        (((60_000, 60_010), (9, 8)), "range 9..8 of consumer 'C3' must be start"),
        (((60_000, 60_010), (60_010, 60_020)), "60000..60010 and 60010..60020 of consumer 'C3' overlap each other"),
        (((60_005, 60_006), (60_000, 60_010)), "60000..60010 and 60005..60006 of consumer 'C3' overlap each other"),
        (((60_000, 60_000), (60_000, 60_000)), "60000..60000 and 60000..60000 of consumer 'C3' overlap each other"),
        (((0, 10),), "0..10 of consumer 'C3' overlaps 10..19, which consumer 'C1' has"),
        (((19, 25),), "19..25 of consumer 'C3' overlaps 10..19, which consumer 'C1' has"),
        (((12, 13),), "12..13 of consumer 'C3' overlaps 10..19, which consumer 'C1' has"),
        (((0, 100),), "0..100 of consumer 'C3' overlaps 30..39, which consumer 'C2' has"),
        (((25, 29), (39, 50)), "39..50 of consumer 'C3' overlaps 30..39, which consumer 'C2' has"),
        (((0, 65_535),), "0..65535 of consumer 'C3' overlaps 30..39, which consumer 'C2' has"),
    ],
)
def test_wrong_ranges_are_refused_by_name_and_all_stays_as_it_was(
    ranges: tuple[tuple[int, int], ...], message: str
) -> None:
    selector = StickySelector()
    selector.add(1, "C1", bringing((10, 19)))
    selector.add(2, "C2", bringing((30, 39)))
    before = (selector.ranges(), selector.version)
    with pytest.raises(InvalidHashRanges, match=message):
        selector.add(3, "C3", bringing(*ranges))
    assert (selector.ranges(), selector.version) == before
    assert [selector.select(slot) for slot in (0, 10, 19, 20, 29, 30, 39, 40)] == [None, 1, 1, None, None, 2, 2, None]
    selector.add(3, "C3", bringing((20, 29)))
    assert selector.select(25) == 3


def test_a_consumer_without_a_policy_of_ranges_is_refused() -> None:
    with pytest.raises(InvalidHashRanges, match="'C1' brings no sticky ranges"):
        StickySelector().add(1, "C1", KeySharedPolicy())


def test_a_consumer_that_reconnects_gets_its_ranges_again_once_it_has_left() -> None:
    selector = seed()
    again = bringing((0, 16_383), (32_768, 49_151))
    with pytest.raises(InvalidHashRanges, match="which consumer 'C1' has"):
        selector.add(3, "C1", again)
    selector.remove(1)
    assert selector.select(0) is None
    assert selector.select(16_384) == 2
    selector.add(3, "C1", again)
    assert selector.select(0) == 3


def test_gaps_can_be_filled_to_the_last_slot() -> None:
    selector = StickySelector()
    selector.add(1, "even", bringing(*((slot, slot) for slot in range(0, 65_536, 2))))
    selector.add(2, "odd", bringing(*((slot, slot) for slot in range(1, 65_536, 2))))
    assert all(selector.select(slot) == 1 + slot % 2 for slot in range(65_536))
