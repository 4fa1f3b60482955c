from __future__ import annotations

from collections import Counter

import pytest

from replicator.engine.errors import InvalidHashRanges
from replicator.engine.subscriptions.key_shared.consistent_hash import ConsistentHashSelector
from replicator.engine.subscriptions.key_shared.hashing import HASH_SPACE, key_hash
from replicator.engine.types import HashRange, KeySharedPolicy

AUTO = KeySharedPolicy()
SEED_NAME = "orders-aggregator-pod-2345-consumer"


def ring(*names: str) -> ConsistentHashSelector:
    """Consumers of these names with ids 1, 2, … ."""
    selector = ConsistentHashSelector()
    for consumer_id, name in enumerate(names, start=1):
        selector.add(consumer_id, name, AUTO)
    return selector


def parts(selector: ConsistentHashSelector) -> tuple[list[int], list[int], dict[int, tuple[int, ...]]]:
    """Return a copy of a selector's state: its points, the owner of each, and the consumers that share a point."""
    return list(selector._points), list(selector._owners), dict(selector._shared)


def owner_by_definition(names: dict[int, str], wanted: int) -> int:
    """Return the owner by the seed's rules, word by word, without a cache."""
    points: dict[int, list[int]] = {}
    for consumer_id in sorted(names, key=lambda other: (names[other], other)):
        for number in range(1, 101):
            standing = points.setdefault(key_hash(f"{names[consumer_id]}{number}".encode()), [])
            if consumer_id not in standing:
                standing.append(consumer_id)
    after = [point for point in points if point >= wanted]
    standing = points[min(after) if after else min(points)]
    return standing[wanted % len(standing)]


def test_a_consumer_has_a_hundred_points_where_the_seed_says() -> None:
    selector = ring(SEED_NAME, "other")
    ends = {owned.end for owned in selector.ranges()[1]} | {owned.end for owned in selector.ranges()[2]}
    assert len(selector._points) == 200
    for point in (1003084738, 373317202, 320276078):
        assert selector.select(point) == 1
        assert point in selector._points
    assert ends <= {*selector._points, HASH_SPACE - 1}


def test_a_key_goes_to_the_first_point_at_or_after_its_hash() -> None:
    names = {1: "a", 2: "b", 3: "c"}
    selector = ring(*names.values())
    for point in selector._points:
        for wanted in (point - 1, point, point + 1):
            assert selector.select(wanted) == owner_by_definition(names, wanted)


def test_past_the_last_point_the_ring_goes_on_at_its_first() -> None:
    selector = ring("a", "b", "c")
    first = selector.select(0)
    assert selector.select(selector._points[-1] + 1) == first
    assert selector.select(HASH_SPACE - 1) == first
    assert any(owned.start == 0 for owned in selector.ranges()[first or 0])
    assert any(owned.end == HASH_SPACE - 1 for owned in selector.ranges()[first or 0])


@pytest.mark.parametrize("names", [{1: "pod-1", 2: "pod-11"}, {1: "pod-11", 2: "pod-1"}])
def test_names_that_collide_at_some_points_share_the_keys_there_by_the_hash(names: dict[int, str]) -> None:
    # pod-1 + "11" is pod-11 + "1", and so on to pod-1 + "19".
    selector = ring(*names.values())
    shared = [key_hash(f"pod-11{number}".encode()) for number in range(1, 10)]
    assert len(selector._points) == 200 - len(shared)
    for point in shared:
        assert {selector.select(point), selector.select(point - 1)} == {1, 2}
        assert selector.select(point) == owner_by_definition(names, point)


def test_a_collision_ends_when_one_of_the_two_leaves() -> None:
    for leaver, name in ((1, "pod-11"), (2, "pod-1")):
        selector = ring("pod-1", "pod-11")
        selector.remove(leaver)
        alone = ConsistentHashSelector()
        alone.add(3 - leaver, name, AUTO)
        assert selector.ranges() == alone.ranges()
        assert parts(selector) == parts(alone)


@pytest.mark.parametrize("namesakes", [2, 3, 5])
def test_consumers_of_one_name_share_its_keys_evenly(namesakes: int) -> None:
    names = dict.fromkeys(range(1, namesakes + 1), "same") | {99: "other"}
    selector = ConsistentHashSelector()
    for consumer_id, name in names.items():
        selector.add(consumer_id, name, AUTO)
    keys = [key_hash(b"key-%d" % number) for number in range(10_000)]
    taken = Counter(selector.select(key) for key in keys)
    assert all(selector.select(key) == owner_by_definition(names, key) for key in keys[:50])
    of_the_name = sum(count for consumer_id, count in taken.items() if consumer_id != 99)
    assert all(
        abs(taken[namesake] - of_the_name / namesakes) < 0.1 * of_the_name for namesake in range(1, namesakes + 1)
    )


def test_the_third_of_a_name_moves_keys_of_that_name_only() -> None:
    selector = ring("same", "same", "other")
    keys = [key_hash(b"key-%d" % number) for number in range(3_000)]
    before = [selector.select(key) for key in keys]
    selector.add(4, "same", AUTO)
    after = [selector.select(key) for key in keys]
    assert [owner == 3 for owner in before] == [owner == 3 for owner in after]
    assert {4, 1, 2} <= set(after)


def test_who_owns_a_key_does_not_depend_on_the_order_of_joins() -> None:
    names = {1: "pod-1", 2: "pod-11", 3: "same", 4: "same", 5: "x"}
    there, back = ConsistentHashSelector(), ConsistentHashSelector()
    for consumer_id in names:
        there.add(consumer_id, names[consumer_id], AUTO)
    for consumer_id in reversed(names):
        back.add(consumer_id, names[consumer_id], AUTO)
    assert parts(there) == parts(back)


def test_a_thousand_consumers_join_and_leave_to_the_very_ring_that_was_there_before() -> None:
    selector = ring("a", "b")
    before = parts(selector)
    for consumer_id in range(10, 1_010):
        selector.add(consumer_id, f"pod-{consumer_id}", AUTO)
    for consumer_id in range(10, 1_010):
        selector.remove(consumer_id)
    assert parts(selector) == before


def test_without_consumers_nobody_is_selected() -> None:
    selector = ring("a")
    selector.remove(1)
    assert selector.select(0) is None
    assert selector.ranges() == {}


def test_the_only_consumer_owns_the_whole_ring() -> None:
    assert ring("a").ranges() == {1: [HashRange(0, HASH_SPACE - 1)]}


def test_a_consumer_with_sticky_ranges_is_refused_and_all_stays_as_it_was() -> None:
    selector = ring("a", "b")
    before = (selector.ranges(), selector.version)
    with pytest.raises(InvalidHashRanges, match="'stubborn' brings sticky ranges"):
        selector.add(3, "stubborn", KeySharedPolicy(sticky_ranges=(HashRange(0, 9),)))
    assert (selector.ranges(), selector.version) == before
    selector.add(3, "stubborn", AUTO)
