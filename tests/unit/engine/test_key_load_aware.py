from __future__ import annotations

import pytest

from replicator.engine.errors import InvalidHashRanges
from replicator.engine.subscriptions.key_shared.hashing import SLOTS
from replicator.engine.subscriptions.key_shared.load_aware import BUCKET_SECONDS, WINDOW_SECONDS, LoadAwareSelector
from replicator.engine.types import HashRange, KeySharedPolicy

AUTO = KeySharedPolicy()


def joined(consumers: int) -> LoadAwareSelector:
    """C1, C2, … with ids 1, 2, …, and no load."""
    selector = LoadAwareSelector()
    for consumer_id in range(1, consumers + 1):
        selector.add(consumer_id, f"C{consumer_id}", AUTO)
    return selector


def shares(selector: LoadAwareSelector) -> dict[int, tuple[float, float]]:
    """Ranges as the seed writes them: of 0..1, the end not included."""
    return {
        consumer_id: (owned.start / SLOTS, (owned.end + 1) / SLOTS)
        for consumer_id, [owned] in selector.ranges().items()
    }


def test_the_timeline_of_the_seed() -> None:
    selector = LoadAwareSelector()
    selector.add(1, "C1", AUTO)  # 0
    assert shares(selector) == {1: (0, 1)}
    selector.record(1, 1_000, 1.0)
    selector.add(2, "C2", AUTO)  # T1
    assert shares(selector) == {1: (0, 0.5), 2: (0.5, 1)}
    selector.record(1, 500, 20.0)
    selector.record(2, 501, 20.0)
    selector.add(3, "C3", AUTO)  # T2: C2 is busier than C1
    assert shares(selector) == {1: (0, 0.5), 2: (0.5, 0.75), 3: (0.75, 1)}
    selector.remove(1)  # T3: C2 is the only neighbour
    assert shares(selector) == {2: (0, 0.75), 3: (0.75, 1)}
    selector.remove(2)  # T4
    assert shares(selector) == {3: (0, 1)}


def test_at_t2_a_busier_c1_would_be_relieved_instead() -> None:
    selector = joined(2)
    selector.record(1, 501, 20.0)
    selector.record(2, 500, 20.0)
    selector.add(3, "C3", AUTO)
    assert shares(selector) == {1: (0, 0.25), 3: (0.25, 0.5), 2: (0.5, 1)}


def test_load_older_than_the_window_does_not_count() -> None:
    selector = joined(2)
    selector.record(1, 1_000_000, 100.0)
    selector.record(2, 1, 100.0 + WINDOW_SECONDS - BUCKET_SECONDS)
    assert selector.loads() == {1: 1_000_000 / WINDOW_SECONDS, 2: 1 / WINDOW_SECONDS}
    selector.record(2, 1, 100.0 + WINDOW_SECONDS)
    assert selector.loads() == {1: 0, 2: 2 / WINDOW_SECONDS}
    selector.add(3, "C3", AUTO)
    assert shares(selector)[3] == (0.75, 1)


def test_a_pause_longer_than_the_window_forgets_all_load() -> None:
    selector = joined(2)
    for second in range(30):
        selector.record(1, 7, float(second))
    assert selector.loads()[1] == 7
    selector.record(2, 10, 1e9)
    assert selector.loads() == {1: 0, 2: 10 / WINDOW_SECONDS}


def test_a_time_that_goes_back_counts_as_the_latest() -> None:
    selector = joined(1)
    selector.record(1, 5, 50.0)
    selector.record(1, 5, 3.0)
    selector.record(1, 5, 30.0)
    assert selector.loads() == {1: 15 / WINDOW_SECONDS}


def test_newcomers_of_one_moment_do_not_all_halve_the_same_consumer() -> None:
    selector = joined(1)
    selector.record(1, 1_000, 5.0)
    for consumer_id in range(2, 9):
        selector.add(consumer_id, f"C{consumer_id}", AUTO)
    assert {round(end - start, 6) for start, end in shares(selector).values()} == {1 / 8}


def test_a_newcomer_takes_half_of_the_load_along_as_an_estimate() -> None:
    selector = joined(1)
    selector.record(1, 1_000, 5.0)
    selector.add(2, "C2", AUTO)
    assert selector.loads() == {1: 50, 2: 50}


def test_a_leaver_goes_to_its_less_busy_neighbour_on_either_side() -> None:
    for busy, heir in ((1, 3), (3, 1)):
        selector = LoadAwareSelector()
        selector.add(1, "C1", AUTO)
        selector.add(3, "C3", AUTO)
        selector.add(2, "C2", AUTO)  # takes the upper half of C1
        assert sorted(shares(selector).items(), key=lambda item: item[1]) == [
            (1, (0, 0.25)), (2, (0.25, 0.5)), (3, (0.5, 1)),
        ]  # fmt: skip
        selector.record(busy, 100, 1.0)
        selector.record(2, 40, 1.0)
        selector.remove(2)
        assert heir in shares(selector)
        assert shares(selector) == ({1: (0, 0.25), 3: (0.25, 1)} if heir == 3 else {1: (0, 0.5), 3: (0.5, 1)})
        assert selector.loads()[heir] == 40 / WINDOW_SECONDS


def test_of_equally_busy_neighbours_the_smaller_range_grows_and_then_the_right_one() -> None:
    selector = joined(2)
    selector.add(3, "C3", AUTO)  # C1 quarter, C3 quarter, C2 half
    selector.remove(3)
    assert shares(selector)[1] == (0, 0.5)
    selector = joined(4)
    assert list(selector.ranges()) == [1, 3, 2, 4]
    selector.remove(3)
    assert shares(selector)[2] == (0.25, 0.75)


def test_a_hot_key_in_a_single_slot_cannot_be_split_so_the_next_busiest_is() -> None:
    selector = joined(1)
    for consumer_id in range(2, 30):
        selector.add(consumer_id, f"C{consumer_id}", AUTO)
        hot = selector.select(0)
        assert hot is not None
        selector.record(hot, 1_000_000, float(consumer_id))
    assert selector.ranges()[1] == [HashRange(0, 0)]
    assert len(selector.ranges()) == 29


def test_of_an_odd_range_the_newcomer_gets_the_smaller_half() -> None:
    selector = joined(2)
    selector._starts = [0, 32_767]  # odd sizes need many joins and leaves, so they are made directly
    selector.add(3, "C3", AUTO)
    assert selector.ranges() == {
        1: [HashRange(0, 32_766)],
        2: [HashRange(32_767, 49_151)],
        3: [HashRange(49_152, 65_535)],
    }


def test_hashes_at_the_borders_of_ranges_have_the_right_owner() -> None:
    selector = joined(2)
    assert [selector.select(border) for border in (0, 32_767, 32_768, 65_535, 65_536)] == [1, 1, 2, 2, 1]


def test_without_consumers_nobody_is_selected_and_the_next_one_gets_all() -> None:
    selector = joined(1)
    selector.remove(1)
    assert selector.select(0) is None
    selector.add(2, "C2", AUTO)
    assert shares(selector) == {2: (0, 1)}


def test_a_consumer_with_sticky_ranges_is_refused_and_all_stays_as_it_was() -> None:
    selector = joined(2)
    selector.record(1, 10, 1.0)
    before = (selector.ranges(), selector.version, selector.loads())
    with pytest.raises(InvalidHashRanges, match="'stubborn' brings sticky ranges"):
        selector.add(3, "stubborn", KeySharedPolicy(sticky_ranges=(HashRange(0, 9),)))
    assert (selector.ranges(), selector.version, selector.loads()) == before


def test_every_slot_can_have_its_own_consumer_and_one_more_is_refused() -> None:
    selector = LoadAwareSelector()
    # The tiling that 65,536 joins lead to, made directly: they would take minutes.
    selector._starts = list(range(SLOTS))
    selector._owners = list(range(SLOTS))
    selector._sent = {consumer_id: [0] for consumer_id in range(SLOTS)}
    with pytest.raises(InvalidHashRanges, match=r"'late' cannot .* each of its 65536 has its own consumer"):
        selector.add(SLOTS, "late", AUTO)
    assert selector.version == 0
    assert SLOTS not in selector.loads()
