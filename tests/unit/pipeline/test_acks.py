"""Which messages count as acknowledged, row by row."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from replicator.pipeline.acks import SUBSCRIPTIONS_PER_WORD, AckedSet, acked_sets
from replicator.pipeline.data_plane import SubscriptionState
from snapshots.position import BEFORE_ALL, Position


def state(
    name: str = "s",
    mark_delete: Position = BEFORE_ALL,
    ranges: tuple[tuple[Position, Position], ...] = (),
    batch_acks: dict[Position, tuple[int, ...]] | None = None,
    replicated: bool = True,
) -> SubscriptionState:
    return SubscriptionState(name, replicated, 1, mark_delete, ranges, batch_acks or {})


def acked(of: SubscriptionState, *rows: tuple[int, int, int]) -> list[bool]:
    ledgers, entries, indexes = (np.array(column, dtype=np.int64) for column in zip(*rows, strict=True))
    return AckedSet.of(of).contains(ledgers, entries, indexes).tolist()


def test_all_up_to_the_mark_delete_is_acknowledged_also_in_earlier_ledgers() -> None:
    rows = [(2, 99, 0), (3, 5, 7), (3, 6, 0), (4, 0, 0)]
    assert acked(state(mark_delete=Position(3, 5)), *rows) == [True, True, False, False]


def test_ranges_include_both_ends_and_belong_to_their_ledger() -> None:
    ranges = ((Position(4, 8), Position(4, 9)), (Position(3, 2), Position(3, 4)))
    rows = [(3, 1, 0), (3, 2, 0), (3, 4, 0), (3, 5, 0), (4, 3, 0), (4, 7, 0), (4, 9, 0)]
    assert acked(state(ranges=ranges), *rows) == [False, True, True, False, False, False, True]


def test_of_a_batch_acknowledged_in_part_only_those_indexes_count() -> None:
    batch_acks = {Position(3, 1): (0, 2)}
    rows = [(3, 1, 0), (3, 1, 1), (3, 1, 2), (3, 2, 0), (4, 1, 0)]
    assert acked(state(batch_acks=batch_acks), *rows) == [True, False, True, False, False]


positions = st.builds(Position, st.integers(1, 3), st.integers(0, 30))


@given(
    mark_delete=positions,
    single=st.sets(positions),
    batch_acks=st.dictionaries(positions, st.sets(st.integers(0, 3)).map(tuple)),
    rows=st.lists(st.tuples(st.integers(1, 3), st.integers(0, 30), st.integers(0, 3)), min_size=1),
)
def test_rows_agree_with_the_definition(
    mark_delete: Position,
    single: set[Position],
    batch_acks: dict[Position, tuple[int, ...]],
    rows: list[tuple[int, int, int]],
) -> None:
    subscription = state("s", mark_delete, tuple((p, p) for p in single), batch_acks)
    expected = [
        (position := Position(ledger, entry)) <= mark_delete
        or position in single
        or index in batch_acks.get(position, ())
        for ledger, entry, index in rows
    ]
    assert acked(subscription, *rows) == expected


def test_a_subscription_has_the_same_bit_in_every_cluster_and_none_where_it_is_missing() -> None:
    everything = Position(9, 9)
    sets = acked_sets(
        {
            "a": {"t": [state("x", everything), state("y", everything)]},
            "b": {"t": [state("y", everything), state("local", everything, replicated=False)]},
        }
    )
    row = (np.array(["t"], dtype=object), *(np.array([value]) for value in (3, 0, 0)))
    assert sets["a"].word(0, *row).tolist() == [0b11]
    assert sets["b"].word(0, *row).tolist() == [0b10]
    assert sets["b"].named("t", [0b10]) == ["y"]


def test_many_subscriptions_take_several_words() -> None:
    names = [f"s{number:03}" for number in range(SUBSCRIPTIONS_PER_WORD + 2)]
    sets = acked_sets({"a": {"t": [state(name, Position(9, 9)) for name in names]}})["a"]
    row = (np.array(["t"], dtype=object), *(np.array([value]) for value in (3, 0, 0)))
    words = [int(sets.word(number, *row)[0]) for number in range(sets.words)]
    assert words == [2**SUBSCRIPTIONS_PER_WORD - 1, 0b11]
    assert sets.named("t", words) == names
