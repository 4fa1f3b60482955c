"""Extents against a plain dictionary from every origin position to its place here."""

from __future__ import annotations

import contextlib
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from step_limit import at_most_steps

from snapshots import extents
from snapshots.errors import ExtentsCorrupt
from snapshots.extents import Extent, ExtentTable
from snapshots.position import BEFORE_ALL, Position
from snapshots.position_set import PositionSet

ARRAYS = {"FEW_POSITIONS": 0, "FEW_RUNS": 0, "LONG_RUN": 3, "SLICE_POSITIONS": 6}
"""Limits with which the few runs of a table go every way that many runs go."""
WAYS = pytest.mark.parametrize("limits", [ARRAYS, {"FEW_RUNS": extents.FEW_RUNS}], ids=["by-arrays", "one-by-one"])


@st.composite
def tables(draw: st.DrawFn) -> tuple[ExtentTable, dict[Position, Position]]:
    """A table as copying makes it, and what is true of it."""
    table, truth = ExtentTable(), dict[Position, Position]()
    origin, local = Position(1, 0), Position(1, 0)
    for _ in range(draw(st.integers(0, 12))):
        origin, local = draw(_next(origin)), draw(_next(local))
        entries = draw(st.integers(1, 5))
        table.append(origin, local, entries)
        for index in range(entries):
            truth[Position(origin.ledger, origin.entry + index)] = Position(local.ledger, local.entry + index)
        origin = Position(origin.ledger, origin.entry + entries)
        local = Position(local.ledger, local.entry + entries)
    return table, truth


def _next(position: Position) -> st.SearchStrategy[Position]:
    """Return a position: ``position``, or one after a gap in its ledger, or one in a later ledger."""
    return st.one_of(
        st.just(position),
        st.integers(1, 4).map(lambda gap: Position(position.ledger, position.entry + gap)),
        st.tuples(st.integers(1, 3), st.integers(0, 3)).map(lambda new: Position(position.ledger + new[0], new[1])),
    )


POSITIONS = st.builds(Position, st.integers(0, 14), st.integers(-1, 30))


@given(tables(), st.lists(POSITIONS, max_size=30))
def test_a_position_is_found_exactly_where_copying_put_it(
    made: tuple[ExtentTable, dict[Position, Position]], others: list[Position]
) -> None:
    table, truth = made
    back = {local: origin for origin, local in truth.items()}
    asked = [*truth, *truth.values(), *others]
    for position in asked:
        assert table.to_local(position) == truth.get(position)
        assert table.to_origin(position) == back.get(position)
    real = [position for position in asked if position.entry >= 0]
    ledgers = np.array([position.ledger for position in real], np.uint64)
    entries = np.array([position.entry for position in real], np.uint64)
    for many, one in ((table.to_local_many, truth), (table.to_origin_many, back)):
        to_ledgers, to_entries, found = many(ledgers, entries)
        got = [
            Position(int(ledger), int(entry)) if there else None
            for ledger, entry, there in zip(to_ledgers, to_entries, found, strict=True)
        ]
        assert got == [one.get(position) for position in real]


@WAYS
@given(tables(), st.sets(st.builds(Position, st.integers(1, 14), st.integers(0, 30))), st.booleans(), st.data())
def test_a_set_is_translated_as_its_positions_are(
    limits: dict[str, int],
    made: tuple[ExtentTable, dict[Position, Position]],
    asked: set[Position],
    filled: bool,
    data: st.DataObject,
) -> None:
    table, truth = made
    if truth:  # chance alone seldom meets some of a run, or what follows it
        near = {Position(ledger, entry + step) for ledger, entry in (*truth, *truth.values()) for step in (0, 1)}
        asked |= data.draw(st.sets(st.sampled_from(sorted(near))))
    if filled:  # without holes: the way by runs
        asked = {Position(ledger, entry) for ledger in {position.ledger for position in asked} for entry in range(25)}
    back = {local: origin for origin, local in truth.items()}
    with mock.patch.multiple(extents, **limits):
        assert set(table.to_local_set(PositionSet(asked))) == {truth[each] for each in asked if each in truth}
        assert set(table.to_origin_set(PositionSet(asked))) == {back[each] for each in asked if each in back}
        assert set(table.of_origin(PositionSet(asked))) == {each for each in asked if each in back}


@WAYS
@given(tables(), POSITIONS, POSITIONS, st.one_of(st.just(BEFORE_ALL), POSITIONS))
def test_what_lies_between_two_positions_of_the_origin(
    limits: dict[str, int],
    made: tuple[ExtentTable, dict[Position, Position]],
    after: Position,
    upto: Position,
    above: Position,
) -> None:
    table, truth = made
    between = {local for origin, local in truth.items() if after < origin <= upto and local > above}
    with mock.patch.multiple(extents, **limits):
        assert set(table.local_between(after, upto, above=above)) == between


def test_invariant_11_a_range_over_many_runs_takes_few_steps() -> None:
    """Two clusters publish by turns, so each run has one entry. One subscription claims a large backlog at once."""
    runs = 20_000
    table, everything = ExtentTable(), PositionSet()
    for entry in range(runs):
        table.append(Position(1, entry), Position(2, 2 * entry), 1)
    everything.add_range(2, 0, 2 * runs)
    with at_most_steps(10_000):
        assert len(table.of_origin(everything)) == runs
        assert len(table.to_origin_set(everything)) == runs
        assert len(table.local_between(BEFORE_ALL, Position(1, runs), above=BEFORE_ALL)) == runs


@given(tables(), POSITIONS)
def test_all_up_to_the_prefix_lies_at_or_below_the_place_and_no_longer_prefix_does(
    made: tuple[ExtentTable, dict[Position, Position]], local: Position
) -> None:
    table, truth = made
    prefix = table.origin_through(local)
    if not truth:
        assert prefix is None
        return
    assert prefix is not None
    assert all(place <= local for origin, place in truth.items() if origin <= prefix)
    assert all(place > local for origin, place in truth.items() if origin > prefix)


@given(tables(), POSITIONS)
def test_trimming_forgets_whole_runs_and_changes_nothing_else(
    made: tuple[ExtentTable, dict[Position, Position]], through: Position
) -> None:
    table, truth = made
    kept = [run for run in table if run.local_last > through]
    table.trim(through)
    assert list(table) == kept
    for origin, place in truth.items():
        expected = place if any(run.origin_first <= origin <= run.origin_last for run in kept) else None
        assert table.to_local(origin) == expected
    table.append(Position(100, 0), Position(100, 5), 3)
    assert table.last == Extent(Position(100, 0), Position(100, 5), 3)
    assert table.to_origin(Position(100, 7)) == Position(100, 2)


@given(tables())
def test_packed_extents_come_back_equal(made: tuple[ExtentTable, dict[Position, Position]]) -> None:
    table, _ = made
    assert list(ExtentTable.unpack(table.pack())) == list(table)


@given(tables(), st.data())
def test_damaged_bytes_are_refused_or_are_a_table(
    made: tuple[ExtentTable, dict[Position, Position]], data: st.DataObject
) -> None:
    packed = bytearray(made[0].pack())
    packed[data.draw(st.integers(0, len(packed) - 1))] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(ExtentsCorrupt):
        ExtentTable.unpack(bytes(packed))


def test_more_runs_than_allowed_are_refused_before_they_are_unpacked() -> None:
    table = ExtentTable()
    for index in range(100):
        table.append(Position(1, 2 * index), Position(2, index), 1)
    with pytest.raises(ExtentsCorrupt):
        ExtentTable.unpack(table.pack(), runs_max=99)


def test_neighbours_become_one_run_only_where_both_sides_go_on() -> None:
    table = ExtentTable()
    table.append(Position(1, 0), Position(9, 0), 10)
    table.append(Position(1, 10), Position(9, 10), 5)
    table.append(Position(1, 15), Position(9, 16), 1)
    table.append(Position(2, 0), Position(9, 17), 1)
    assert list(table) == [
        Extent(Position(1, 0), Position(9, 0), 15),
        Extent(Position(1, 15), Position(9, 16), 1),
        Extent(Position(2, 0), Position(9, 17), 1),
    ]
    assert table.entries == 17
