from __future__ import annotations

import pytest

from replicator.engine.errors import InvalidHashRanges
from replicator.engine.subscriptions.key_shared.hash_range import HashRangeSelector
from replicator.engine.subscriptions.key_shared.hashing import SLOTS, key_hash
from replicator.engine.types import HashRange, KeySharedPolicy

AUTO = KeySharedPolicy()


def joined(consumers: int) -> HashRangeSelector:
    """C1, C2, … with ids 1, 2, … ."""
    selector = HashRangeSelector()
    for consumer_id in range(1, consumers + 1):
        selector.add(consumer_id, f"C{consumer_id}", AUTO)
    return selector


def picture(selector: HashRangeSelector) -> str:
    """Return the ranges as the seed draws them: consumers with the size of their ranges in 65,536ths, from slot 0
    up."""
    ranges = sorted((owned, consumer_id) for consumer_id, [owned] in selector.ranges().items())
    return " | ".join(f"C{consumer_id} {owned.end - owned.start + 1}" for owned, consumer_id in ranges)


def test_the_four_joins_of_the_seed() -> None:
    assert picture(joined(1)) == "C1 65536"
    assert picture(joined(2)) == "C2 32768 | C1 32768"
    assert picture(joined(3)) == "C3 16384 | C2 16384 | C1 32768"
    assert picture(joined(4)) == "C3 16384 | C2 16384 | C4 16384 | C1 16384"


def test_a_leaver_merges_into_its_right_neighbour_and_the_last_into_its_left_as_in_the_seed() -> None:
    selector = joined(4)
    selector.remove(4)
    assert picture(selector) == "C3 16384 | C2 16384 | C1 32768"
    selector.remove(1)
    assert picture(selector) == "C3 16384 | C2 49152"


def test_the_first_range_merges_into_its_right_neighbour() -> None:
    selector = joined(4)
    selector.remove(3)
    assert picture(selector) == "C2 32768 | C4 16384 | C1 16384"


def test_of_an_odd_range_the_newcomer_gets_the_smaller_half() -> None:
    selector = joined(2)
    selector._starts = [0, 32_767]  # odd sizes need many joins and leaves, so they are made directly
    selector.add(3, "C3", AUTO)
    assert picture(selector) == "C2 32767 | C3 16384 | C1 16385"


def test_the_key_of_the_seed_goes_to_c3() -> None:
    assert joined(4).select(key_hash(b"Order-3459134")) == 3


def test_hashes_at_the_borders_of_ranges_have_the_right_owner() -> None:
    selector = joined(4)
    borders = (0, 16_383, 16_384, 32_767, 32_768, 49_151, 49_152, 65_535, 65_536, 2**32 - 1)
    assert [selector.select(border) for border in borders] == [3, 3, 2, 2, 4, 4, 1, 1, 3, 1]


def test_without_consumers_nobody_is_selected() -> None:
    selector = joined(1)
    selector.remove(1)
    assert selector.select(0) is None
    assert selector.ranges() == {}
    selector.add(2, "C2", AUTO)
    assert picture(selector) == "C2 65536"


def test_a_consumer_with_sticky_ranges_is_refused_and_all_stays_as_it_was() -> None:
    selector = joined(2)
    before = (selector.ranges(), selector.version)
    with pytest.raises(InvalidHashRanges, match="'stubborn' brings sticky ranges"):
        selector.add(3, "stubborn", KeySharedPolicy(sticky_ranges=(HashRange(0, 9),)))
    assert (selector.ranges(), selector.version) == before


def test_every_slot_can_have_its_own_consumer_and_one_more_is_refused() -> None:
    selector = HashRangeSelector()
    # The tiling that 65,536 joins lead to, made directly: they would take a minute.
    selector._starts = list(range(SLOTS))
    selector._owners = list(range(SLOTS))
    with pytest.raises(InvalidHashRanges, match=r"'late' cannot .* each of its 65536 has its own consumer"):
        selector.add(SLOTS, "late", AUTO)
    assert selector.version == 0
    assert selector._starts == selector._owners == list(range(SLOTS))
