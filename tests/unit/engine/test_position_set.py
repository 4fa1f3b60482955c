from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from snapshots.position import BEFORE_ALL, Position
from snapshots.position_set import PositionSet

positions = st.builds(Position, st.integers(1, 4), st.integers(0, 40))
bounds = st.one_of(positions, st.just(BEFORE_ALL), st.builds(Position, st.integers(0, 5), st.just(-1)))
position_sets = st.sets(positions, max_size=60)


def runs_of(members: set[Position]) -> list[tuple[Position, Position]]:
    """Return the runs without holes, the slow way."""
    found: list[tuple[Position, Position]] = []
    for position in sorted(members):
        if found and found[-1][1] == (position.ledger, position.entry - 1):
            found[-1] = (found[-1][0], position)
        else:
            found.append((position, position))
    return found


@given(position_sets)
def test_it_holds_what_was_added_in_the_order_of_positions(members: set[Position]) -> None:
    tested = PositionSet(members)
    assert list(tested) == sorted(members)
    assert len(tested) == len(members)
    assert bool(tested) == bool(members)
    assert tested.first() == min(members, default=None)
    assert all((Position(ledger, entry) in tested) == (Position(ledger, entry) in members)
               for ledger in range(6) for entry in range(42))  # fmt: skip


@given(position_sets, bounds)
def test_what_lies_above_a_position_is_a_copy(members: set[Position], position: Position) -> None:
    tested = PositionSet(members)
    above = tested.after(position)
    assert list(above) == sorted(each for each in members if each > position)
    above.discard_through(Position(9, 0))
    assert list(tested) == sorted(members)


@given(position_sets, positions)
def test_discarding_a_position_removes_it_alone(members: set[Position], gone: Position) -> None:
    tested = PositionSet(members)
    tested.discard(gone)
    assert tested == PositionSet(members - {gone})
    assert bool(tested) == bool(members - {gone})


@given(position_sets, bounds)
def test_discarding_through_a_position_leaves_what_is_above_it(members: set[Position], through: Position) -> None:
    tested = PositionSet(members)
    tested.discard_through(through)
    left = {position for position in members if position > through}
    assert list(tested) == sorted(left)
    assert tested == PositionSet(left)


@given(position_sets, position_sets)
def test_updating_is_union_and_leaves_the_other_alone(ours: set[Position], theirs: set[Position]) -> None:
    tested, other = PositionSet(ours), PositionSet(theirs)
    tested.update(other)
    tested.add(Position(9, 9))
    assert list(tested) == [*sorted(ours | theirs), Position(9, 9)]
    assert list(other) == sorted(theirs)


@given(position_sets, bounds, bounds)
def test_counting_between_is_open_below_and_closed_above(
    members: set[Position], after: Position, upto: Position
) -> None:
    expected = sum(after < position <= upto for position in members)
    assert PositionSet(members).count_between(after, upto) == expected


@given(position_sets)
def test_runs_are_the_maximal_stretches_without_holes(members: set[Position]) -> None:
    assert list(PositionSet(members).runs()) == runs_of(members)


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 5000), st.integers(1, 3000)), max_size=8))
def test_the_end_of_a_run_is_found_for_long_runs_too(ranges: list[tuple[int, int, int]]) -> None:
    tested = PositionSet()
    members: set[Position] = set()
    for ledger, first, length in ranges:
        tested.add_range(ledger, first, first + length - 1)
        members |= {Position(ledger, entry) for entry in range(first, first + length)}
    assert list(tested.runs()) == runs_of(members)
    for first, last in runs_of(members):
        middle = Position(first.ledger, (first.entry + last.entry) // 2)
        assert tested.run_end(middle) == last


def test_an_empty_range_adds_nothing() -> None:
    tested = PositionSet()
    tested.add_range(1, 5, 4)
    assert not tested
    assert tested.first() is None


@given(position_sets)
def test_it_comes_back_from_its_serialized_form(members: set[Position]) -> None:
    assert PositionSet.deserialize(PositionSet(members).serialize()) == PositionSet(members)


@given(position_sets, positions)
def test_a_copy_is_independent(members: set[Position], added: Position) -> None:
    tested = PositionSet(members)
    copied = tested.copy()
    copied.add(added)
    copied.discard_through(Position(2, 3))
    assert list(tested) == sorted(members)


@given(position_sets, position_sets)
def test_taking_a_set_away_leaves_what_is_not_in_it(members: set[Position], gone: set[Position]) -> None:
    tested = PositionSet(members)
    tested.difference_update(PositionSet(gone))
    assert tested == PositionSet(members - gone)
    assert bool(tested) == bool(members - gone)


@given(position_sets, position_sets)
def test_adding_a_set_leaves_that_set_as_it_is(members: set[Position], more: set[Position]) -> None:
    tested, other = PositionSet(members), PositionSet(more)
    tested.update(other)
    tested.update(PositionSet([Position(1, 41)]))
    assert list(tested) == sorted(members | more | {Position(1, 41)})
    assert list(other) == sorted(more)


def test_what_is_no_entry_id_is_in_no_set() -> None:
    tested = PositionSet([Position(1, 0), Position(1, 2**32 - 1)])
    assert all(Position(1, entry) not in tested for entry in (-1, 2**32, 2**63, 2**70))


@given(position_sets, bounds)
def test_the_highest_through_a_bound_is_at_or_below_it(members: set[Position], bound: Position) -> None:
    assert PositionSet(members).highest_through(bound) == max((p for p in members if p <= bound), default=None)


@given(position_sets, bounds)
def test_the_next_after_a_bound_is_above_it(members: set[Position], bound: Position) -> None:
    assert PositionSet(members).next_after(bound) == min((p for p in members if p > bound), default=None)


@given(position_sets, position_sets, bounds)
def test_the_first_that_is_missing_in_another_set_is_above_the_bound(
    members: set[Position], others: set[Position], bound: Position
) -> None:
    missing = (p for p in members - others if p > bound)
    assert PositionSet(members).first_missing(PositionSet(others), bound) == min(missing, default=None)


@given(st.integers(0, 30_000), st.integers(0, 30_000), st.integers(-1, 30_000))
def test_the_first_that_is_missing_is_found_behind_long_runs_too(end: int, hole: int, after: int) -> None:
    ours, theirs = PositionSet(), PositionSet()
    ours.add_range(1, 0, end)
    theirs.add_range(1, 0, end)
    theirs.discard(Position(1, hole))
    expected = Position(1, hole) if after < hole <= end else None
    assert ours.first_missing(theirs, Position(1, after)) == expected


@given(position_sets, position_sets)
def test_common_positions_are_counted_over_all_ledgers(members: set[Position], others: set[Position]) -> None:
    assert PositionSet(members).count_common(PositionSet(others)) == len(members & others)
