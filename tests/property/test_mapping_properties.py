"""The mapping table: monotone, never above the mark-delete position, bounded, and close for every lag."""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from snapshots.mapping import MAPPINGS_MAX, MappingTable, SnapshotMapping
from snapshots.position import Position


def mapping(local: int, remote: int) -> SnapshotMapping:
    return SnapshotMapping(f"{local}-{remote}", Position(1, local), "eu-west", Position(1, remote))


def filled(count: int) -> tuple[MappingTable, list[SnapshotMapping]]:
    """Return a table to which ``count`` mappings were added, and a list of all of these."""
    given_to_it = [mapping(3 * number, 5 * number) for number in range(count)]
    table = MappingTable()
    for item in given_to_it:
        assert table.add(item)
    return table, given_to_it


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=120), st.integers(-1, 61))
def test_whatever_is_offered_both_positions_ascend_and_lookup_is_the_best_at_or_below(
    offered: list[tuple[int, int]], mark_delete: int
) -> None:
    table = MappingTable()
    for local, remote in offered:
        before = table.newest
        taken = table.add(mapping(local, remote))
        if taken:
            assert table.newest == mapping(local, remote)
            assert before is None or (before.local <= table.newest.local and before.remote < table.newest.remote)
        else:
            assert table.newest == before
    kept = list(table)
    assert all(a.local < b.local and a.remote < b.remote for a, b in pairwise(kept))
    at_or_below = [item for item in kept if item.local <= Position(1, mark_delete)]
    assert table.lookup(Position(1, mark_delete)) == (at_or_below[-1] if at_or_below else None)


@given(st.integers(1, 4_000), st.data())
def test_every_lag_finds_a_mapping_within_a_seventh_of_it(count: int, data: st.DataObject) -> None:
    table, given_to_it = filled(count)
    lag = data.draw(st.integers(0, count - 1))
    best = given_to_it[count - 1 - lag]
    # Anywhere from the best mapping to just before the next one.
    found = table.lookup(Position(1, best.local.entry + data.draw(st.integers(0, 2))))
    assert found is not None
    found_lag = count - 1 - given_to_it.index(found)
    assert lag <= found_lag <= lag + lag / 7 or found is given_to_it[0]


def test_a_day_of_mappings_is_thinned_to_a_few_hundred_with_the_newest_and_the_oldest() -> None:
    table, given_to_it = filled(432_000)  # one each 200 ms
    assert len(table) <= 200 <= MAPPINGS_MAX
    kept = list(table)
    assert kept[0] == given_to_it[0]
    assert kept[-17:] == given_to_it[-17:]


@given(st.integers(0, 3_000), st.integers(-3, 9_100), st.integers(0, 50))
def test_trimming_loses_nothing_that_a_lookup_from_there_on_could_find(count: int, below: int, above: int) -> None:
    table, _ = filled(count)
    untrimmed, _ = filled(count)
    removed = table.trim(Position(1, below))
    assert removed + len(table) == len(untrimmed)
    assert table.lookup(Position(1, below + above)) == untrimmed.lookup(Position(1, below + above))
    assert sum(item.local < Position(1, below) for item in table) <= 1


@given(st.integers(0, 3_000), st.integers(1, 6), st.integers(0, 40))
def test_restarts_do_not_thin_again_what_was_thinned(count: int, restarts: int, between: int) -> None:
    table, given_to_it = filled(count)
    for _ in range(restarts):
        before = list(table)
        table = MappingTable.restored(before)
        assert list(table) == before
        for _ in range(between):
            given_to_it.append(mapping(3 * len(given_to_it), 5 * len(given_to_it)))
            assert table.add(given_to_it[-1])
    locals_given = [item.local for item in given_to_it]
    for lag in range(1, len(given_to_it)):
        mark_delete = given_to_it[-1 - lag].local
        found = table.lookup(mark_delete)
        assert found is not None
        found_lag = len(given_to_it) - bisect_right(locals_given, found.local)
        # The ages after a restart are those of the pattern, up to an eighth of a doubling beside the true ones.
        assert lag <= found_lag <= 2 * lag or found is given_to_it[0]


@given(st.integers(0, 2 * MAPPINGS_MAX), st.integers(0, 2_000))
def test_a_restored_table_stays_bounded_while_it_grows_on(restored: int, added: int) -> None:
    table = MappingTable.restored([mapping(number, number) for number in range(restored)])
    for number in range(restored, restored + added):
        table.add(mapping(number, number))
        assert len(table) <= MAPPINGS_MAX
    if restored + added:
        assert table.newest == mapping(restored + added - 1, restored + added - 1)
