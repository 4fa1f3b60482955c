"""Every assignment of keys to consumers, under random joins and leaves, against what each of them promises."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from replicator.engine.errors import InvalidHashRanges
from replicator.engine.subscriptions.key_shared.consistent_hash import ConsistentHashSelector
from replicator.engine.subscriptions.key_shared.hash_range import HashRangeSelector
from replicator.engine.subscriptions.key_shared.hashing import HASH_SPACE, SLOTS
from replicator.engine.subscriptions.key_shared.load_aware import BUCKETS, WINDOW_SECONDS, LoadAwareSelector
from replicator.engine.subscriptions.key_shared.selector import KeySelector
from replicator.engine.subscriptions.key_shared.sticky import StickySelector
from replicator.engine.types import HashRange, KeySharedPolicy

AUTO = KeySharedPolicy()
SELF_ASSIGNING = [HashRangeSelector, ConsistentHashSelector, LoadAwareSelector]
PROBES = [0, SLOTS - 1, SLOTS, HASH_SPACE - 1, *(number * 2_654_435_761 % HASH_SPACE for number in range(300))]
"""Hashes at both ends and, by a golden-ratio walk, all over the space and all over the slots."""

Join = tuple[str, str, int]
"""("join", name, messages that the consumer gets afterwards)."""
Leave = tuple[str, int]
"""("leave", which of the connected consumers, counted round)."""

# Prefixes of each other, so that points of the ring collide: "a" + "11" is "a1" + "1".
names = st.one_of(st.text(max_size=8), st.from_regex(r"\Aa?1{0,3}\Z"), st.from_regex(r"\Apod-[0-9]{1,3}\Z"))
joins = st.tuples(st.just("join"), names, st.integers(0, 1_000_000))
leaves = st.tuples(st.just("leave"), st.integers(0, 1_000))
histories = st.lists(st.one_of(joins, joins, leaves), min_size=1, max_size=25)

sticky_ranges = st.lists(
    st.builds(HashRange, st.integers(-1, 60), st.integers(-1, 60)) | st.just(HashRange(65_000, 65_536)), max_size=3
)
sticky_histories = st.lists(st.one_of(sticky_ranges, st.integers(0, 1_000)), min_size=1, max_size=25)


class Follower:
    """Driver that applies joins and leaves to a selector, and remembers which consumers are connected."""

    def __init__(self, selector: KeySelector) -> None:
        self.selector = selector
        self.names: dict[int, str] = {}
        self.now_seconds = 0.0
        self._next_id = 1

    def apply(self, step: Join | Leave) -> tuple[int | None, int | None]:
        """Apply a step; return the ids of the consumer that joined and of the one that left, or None. A join of a name
        that is here is left out."""
        self.now_seconds += 0.7
        if step[0] == "join":
            name, messages = str(step[1]), int(step[-1])
            if name in self.names.values():
                return None, None
            consumer_id, self._next_id = self._next_id, self._next_id + 1
            self.selector.add(consumer_id, name, AUTO)
            self.selector.record(consumer_id, messages, self.now_seconds)
            self.names[consumer_id] = name
            return consumer_id, None
        if not self.names:
            return None, None
        consumer_id = sorted(self.names)[int(step[1]) % len(self.names)]
        self.selector.remove(consumer_id)
        del self.names[consumer_id]
        return None, consumer_id


def owners(selector: KeySelector) -> list[int | None]:
    return [selector.select(probe) for probe in PROBES]


def checked_ranges(selector: KeySelector) -> dict[int, list[HashRange]]:
    """Return ``ranges``, after checking it against ``select`` at both ends of each range."""
    reported = selector.ranges()
    for consumer_id, owned in reported.items():
        assert all(before.end + 1 < after.start for before, after in pairwise(owned))
        for one in owned:
            assert 0 <= one.start <= one.end < selector.hash_space
            for end in (one.start, one.end):
                chosen = selector.select(end)
                # Where names collide on the ring, another one that has this arc may be chosen.
                assert chosen is not None
                assert chosen == consumer_id or any(other.start <= end <= other.end for other in reported[chosen])
    return reported


@pytest.mark.parametrize("make", SELF_ASSIGNING)
@given(history=histories)
def test_every_hash_has_exactly_one_connected_owner(make: Callable[[], KeySelector], history: list[Join]) -> None:
    follower = Follower(make())
    for step in history:
        follower.apply(step)
        assert set(owners(follower.selector)) <= (set(follower.names) or {None})
        assert set(follower.selector.ranges()) == set(follower.names)


@pytest.mark.parametrize("make", [HashRangeSelector, LoadAwareSelector])
@given(history=histories)
def test_ranges_cover_all_slots_and_do_not_overlap(make: Callable[[], KeySelector], history: list[Join]) -> None:
    follower = Follower(make())
    for step in history:
        follower.apply(step)
        reported = checked_ranges(follower.selector)
        everything = sorted(one for owned in reported.values() for one in owned)
        if follower.names:
            assert (everything[0].start, everything[-1].end) == (0, SLOTS - 1)
        assert all(before.end + 1 == after.start for before, after in pairwise(everything))


@settings(max_examples=examples(20))
@given(history=histories)
def test_arcs_cover_the_ring_and_overlap_only_where_names_collide(history: list[Join]) -> None:
    follower = Follower(ConsistentHashSelector())
    for step in history:
        follower.apply(step)
    arcs = sorted(one for owned in checked_ranges(follower.selector).values() for one in owned)
    reached = -1
    for arc in arcs:
        assert arc.start <= reached + 1
        if arc.start <= reached:
            both = {consumer_id for consumer_id, owned in follower.selector.ranges().items()
                    if any(one.start <= arc.start <= one.end for one in owned)}  # fmt: skip
            assert {follower.selector.select(arc.start), follower.selector.select(arc.start + 1)} <= both
            assert len(both) > 1
        reached = max(reached, arc.end)
    assert reached == (HASH_SPACE - 1 if follower.names else -1)


@pytest.mark.parametrize("make", SELF_ASSIGNING)
@given(history=histories)
def test_a_join_moves_keys_to_the_newcomer_only_and_a_leave_moves_the_leavers_only(
    make: Callable[[], KeySelector], history: list[Join]
) -> None:
    follower = Follower(make())
    for step in history:
        before, version = owners(follower.selector), follower.selector.version
        joined, left = follower.apply(step)
        after = owners(follower.selector)
        moved = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
        if joined is not None:
            assert all(new == joined for _, new in moved)
        elif left is not None:
            assert all(old == left for old, _ in moved)
            assert all(new != left for new in after)
        else:
            assert not moved
        assert (follower.selector.version > version) == (joined is not None or left is not None)


@pytest.mark.parametrize("make", [HashRangeSelector, LoadAwareSelector])
@given(history=histories)
def test_a_change_of_ranges_touches_one_other_consumer(make: Callable[[], KeySelector], history: list[Join]) -> None:
    follower = Follower(make())
    for step in history:
        before = follower.selector.ranges()
        follower.apply(step)
        after = follower.selector.ranges()
        assert sum(before[stayed] != after[stayed] for stayed in before.keys() & after.keys()) <= 1


@pytest.mark.parametrize("make", SELF_ASSIGNING)
@given(history=histories)
def test_the_same_history_gives_the_same_owners(make: Callable[[], KeySelector], history: list[Join]) -> None:
    one, other = Follower(make()), Follower(make())
    for step in history:
        one.apply(step)
        other.apply(step)
    assert one.selector.ranges() == other.selector.ranges()
    assert owners(one.selector) == owners(other.selector)


@given(history=histories, newcomers=st.permutations(["x", "x", "x1", "x11", "y"]))
def test_owners_on_the_ring_depend_on_who_is_connected_only(history: list[Join], newcomers: list[str]) -> None:
    lived = Follower(ConsistentHashSelector())
    for step in history:
        lived.apply(step)
    namesakes = {1_000 + number: name for number, name in enumerate(newcomers)}
    for consumer_id, name in namesakes.items():
        lived.selector.add(consumer_id, name, AUTO)
    fresh = ConsistentHashSelector()
    for consumer_id, name in sorted((lived.names | namesakes).items(), reverse=True):
        fresh.add(consumer_id, name, AUTO)
    assert owners(fresh) == owners(lived.selector)
    assert {key: sorted(value) for key, value in fresh.ranges().items()} == lived.selector.ranges()
    for consumer_id in namesakes:
        lived.selector.remove(consumer_id)
    again = ConsistentHashSelector()
    for consumer_id, name in lived.names.items():
        again.add(consumer_id, name, AUTO)
    assert owners(again) == owners(lived.selector)


@pytest.mark.parametrize("make", SELF_ASSIGNING)
@given(history=histories, left=st.permutations(range(25)))
def test_all_that_joined_can_leave_in_any_order(
    make: Callable[[], KeySelector], history: list[Join], left: list[int]
) -> None:
    follower = Follower(make())
    for step in history:
        follower.apply(step)
    for index in left:
        follower.apply(("leave", index))
        assert set(owners(follower.selector)) <= (set(follower.names) or {None})
    assert not follower.names
    assert follower.selector.ranges() == {}
    follower.apply(("join", "the next one", 0))
    assert len(set(owners(follower.selector))) == 1


@pytest.mark.parametrize("make", [HashRangeSelector, LoadAwareSelector])
@given(history=histories, newcomers=st.integers(1, 300))
def test_after_some_joins_no_range_is_over_the_stated_bound(
    make: Callable[[], KeySelector], history: list[Join], newcomers: int
) -> None:
    follower = Follower(make())
    for step in history:
        follower.apply((*step[:-1], 0) if step[0] == "join" else step)
    for joins_since_leave in range(1, newcomers + 1):
        follower.apply(("join", f"new {joins_since_leave}", 0))
        sizes = [one.end - one.start + 1 for [one] in follower.selector.ranges().values()]
        assert max(sizes) <= 2 * (SLOTS // joins_since_leave) + 1


@pytest.mark.parametrize("make", [HashRangeSelector, LoadAwareSelector])
def test_with_joins_only_no_range_is_more_than_twice_another(make: Callable[[], KeySelector]) -> None:
    follower = Follower(make())
    for number in range(1_000):
        follower.apply(("join", str(number), 0))
        sizes = [one.end - one.start + 1 for [one] in follower.selector.ranges().values()]
        assert max(sizes) <= 2 * min(sizes)


@settings(max_examples=examples(30))
@given(connected=st.sets(names, min_size=1, max_size=40))
def test_shares_of_the_ring_are_between_half_and_twice_the_mean(connected: set[str]) -> None:
    selector = ConsistentHashSelector()
    for consumer_id, name in enumerate(sorted(connected)):
        selector.add(consumer_id, name, AUTO)
    shares = dict.fromkeys(range(len(connected)), 0.0)
    for arc, owner in selector._arcs():
        standing = (owner,) if isinstance(owner, int) else owner
        for consumer_id in standing:
            shares[consumer_id] += (arc.end - arc.start + 1) / HASH_SPACE / len(standing)
    assert sum(shares.values()) == pytest.approx(1)
    assert all(0.5 <= share * len(connected) <= 2 for share in shares.values())


@given(history=histories, loads=st.lists(st.integers(0, 1_000_000), min_size=1, max_size=25))
def test_a_newcomer_relieves_the_busiest_by_half_and_raises_nobodys_load(history: list[Join], loads: list[int]) -> None:
    follower = Follower(selector := LoadAwareSelector())
    for step in history:
        follower.apply(step)
    follower.apply(("join", "one at least", 0))
    for consumer_id, messages in zip(follower.names, loads, strict=False):
        selector.record(consumer_id, messages, follower.now_seconds)
    before, sizes = selector.loads(), {owner: one.end - one.start for owner, [one] in selector.ranges().items()}
    newcomer = 99_999
    selector.add(newcomer, "newcomer", AUTO)  # and no dispatch after it, which could move the window on
    after = selector.loads()
    [relieved] = [other for other in before if selector.ranges()[other][0].end - selector.ranges()[other][0].start
                  != sizes[other]]  # fmt: skip
    assert before[relieved] == max(load for other, load in before.items() if sizes[other] > 0)
    assert after[relieved] + after[newcomer] == pytest.approx(before[relieved])
    assert 0 <= after[relieved] - after[newcomer] <= BUCKETS / WINDOW_SECONDS
    assert all(after[other] == before[other] for other in before if other != relieved)


@given(history=histories)
def test_no_dispatch_is_forgotten_or_counted_twice_within_the_window(history: list[Join]) -> None:
    follower = Follower(selector := LoadAwareSelector())
    seen = 0
    for step in history[:10]:  # ten steps of 0.7 s lie within the window
        joined, _ = follower.apply(step)
        seen += int(step[-1]) if joined is not None else 0
        if not follower.names:  # the last one took the load along
            seen = 0
        assert sum(selector.loads().values()) * WINDOW_SECONDS == pytest.approx(seen)


@given(history=sticky_histories)
def test_sticky_ranges_are_a_plain_table_of_slots(history: list[list[HashRange] | int]) -> None:
    selector = StickySelector()
    table: dict[int, int] = {}
    brought: dict[int, list[HashRange]] = {}
    for consumer_id, step in enumerate(history):
        before = (selector.ranges(), selector.version)
        if isinstance(step, int):
            if brought:
                leaver = sorted(brought)[step % len(brought)]
                selector.remove(leaver)
                del brought[leaver]
                table = {slot: owner for slot, owner in table.items() if owner != leaver}
                assert selector.version > before[1]
        else:
            slots = [slot for one in step for slot in range(one.start, one.end + 1)]
            right = all(0 <= one.start <= one.end < SLOTS for one in step) and len(slots) == len(set(slots))
            policy = KeySharedPolicy(sticky_ranges=tuple(step))
            if step and right and not table.keys() & set(slots):
                selector.add(consumer_id, f"C{consumer_id}", policy)
                brought[consumer_id] = sorted(step)
                table |= dict.fromkeys(slots, consumer_id)
                assert selector.version > before[1]
            else:
                with pytest.raises(InvalidHashRanges):
                    selector.add(consumer_id, f"C{consumer_id}", policy)
                assert (selector.ranges(), selector.version) == before
        assert [selector.select(3 * SLOTS + slot) for slot in range(70)] == [table.get(slot) for slot in range(70)]
        assert selector.ranges() == brought


@pytest.mark.parametrize("make", SELF_ASSIGNING)
@given(history=histories, refused=st.lists(st.builds(HashRange, st.integers(), st.integers()), max_size=3))
def test_a_refused_consumer_leaves_no_trace(
    make: Callable[[], KeySelector], history: list[Join], refused: list[HashRange]
) -> None:
    follower, untouched = Follower(make()), Follower(make())
    for step in history:
        with pytest.raises(InvalidHashRanges):
            follower.selector.add(99_999, "a", KeySharedPolicy(sticky_ranges=tuple(refused)))
        follower.apply(step)
        untouched.apply(step)
        assert owners(follower.selector) == owners(untouched.selector)
        assert follower.selector.version == untouched.selector.version
    assert follower.selector.ranges() == untouched.selector.ranges()
