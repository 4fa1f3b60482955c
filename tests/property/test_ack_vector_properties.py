"""Ack vectors against plain sets of identities: merging is union, whatever the order (invariant 6), and markers carry
exactly what they were given."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from snapshots import ack_vector
from snapshots.ack_vector import AckVector, OriginAcks, merged_ranges, union, without
from snapshots.markers import SubscriptionsUpdate, SubscriptionUpdate, decode_marker, encode_marker
from snapshots.position import BEFORE_ALL, Position
from snapshots.position_set import PositionSet

POSITIONS = st.builds(Position, st.integers(1, 3), st.integers(0, 12))
RANGES = st.lists(st.tuples(st.one_of(st.just(BEFORE_ALL), POSITIONS), POSITIONS), max_size=4)
UNIVERSE = [Position(ledger, entry) for ledger in range(1, 4) for entry in range(13)]


@st.composite
def origin_acks(draw: st.DrawFn, incarnations: st.SearchStrategy[int]) -> OriginAcks:
    batches = draw(st.dictionaries(POSITIONS, st.sets(st.integers(0, 5), min_size=1), max_size=3))
    return OriginAcks(
        draw(incarnations),
        merged_ranges(draw(RANGES)),
        PositionSet(draw(st.sets(POSITIONS, max_size=8))),
        {position: BitMap(indexes) for position, indexes in batches.items()},
    )


VECTORS = st.dictionaries(st.sampled_from("abc"), origin_acks(st.integers(1, 2)), max_size=3).map(AckVector)


def meaning(vector: AckVector) -> dict[str, tuple[int, frozenset[Position], dict[Position, frozenset[int]]]]:
    """Return what a vector acknowledges, by origin: incarnation, whole entries, and indexes in other entries."""
    return {
        origin: (
            acks.incarnation,
            frozenset(position for position in UNIVERSE if acks.covers(position)),
            {position: frozenset(indexes) for position, indexes in acks.batches.items()},
        )
        for origin, acks in vector.origins.items()
    }


@given(VECTORS, VECTORS, VECTORS)
def test_invariant_6_merging_is_commutative_associative_and_idempotent(
    a: AckVector, b: AckVector, c: AckVector
) -> None:
    assert meaning(union([a, b])) == meaning(union([b, a]))
    assert meaning(union([union([a, b]), c])) == meaning(union([a, union([b, c])]))
    assert meaning(union([a, b, a, b])) == meaning(union([a, b]))


@given(VECTORS, VECTORS)
def test_merging_is_the_union_of_what_both_say_of_all_lives(a: AckVector, b: AckVector) -> None:
    before, merged = (meaning(a), meaning(b)), meaning(union([a, b]))
    for origin in merged:
        said = [each[origin] for each in before if origin in each]
        assert merged[origin][0] == max(incarnation for incarnation, _, _ in said)
        assert merged[origin][1] == frozenset[Position]().union(*(whole for _, whole, _ in said))
        assert merged[origin][2].keys() == set().union(*(batches for _, _, batches in said))
        for position, indexes in merged[origin][2].items():
            assert indexes == frozenset[int]().union(*(each.get(position, ()) for _, _, each in said))
    assert (meaning(a), meaning(b)) == before, "the merged vectors stay as they were"


@given(RANGES, RANGES)
def test_a_hole_takes_away_exactly_what_lies_in_it(
    ranges: list[ack_vector.Range], holes: list[ack_vector.Range]
) -> None:
    def within(position: Position, of: list[ack_vector.Range]) -> bool:
        return any(after < position <= upto for after, upto in of)

    left = without(ranges, holes)
    for position in UNIVERSE:
        assert within(position, left) == (within(position, ranges) and not within(position, holes))


def without_one_by_one(ranges: list[ack_vector.Range], holes: list[ack_vector.Range]) -> list[ack_vector.Range]:
    """Return what ``without`` returns, by a simple form whose time grows with ranges times holes."""
    left = merged_ranges(ranges)
    for hole_after, hole_upto in merged_ranges(holes):
        cut = [(after, min(upto, hole_after)) for after, upto in left]
        cut += [(max(after, hole_upto), upto) for after, upto in left]
        left = [(after, upto) for after, upto in cut if after < upto]
    return merged_ranges(left)


MANY = st.lists(st.tuples(POSITIONS, POSITIONS), max_size=12)


@given(MANY, MANY)
def test_holes_are_taken_away_in_one_pass_as_one_by_one(
    ranges: list[ack_vector.Range], holes: list[ack_vector.Range]
) -> None:
    assert without(ranges, holes) == without_one_by_one(ranges, holes)


def test_the_time_for_many_holes_grows_with_their_number_and_not_with_its_square() -> None:
    count = 30_000
    ranges = [(Position(1, 10 * each), Position(1, 10 * each + 8)) for each in range(count)]
    holes = [(Position(1, 10 * each + 2), Position(1, 10 * each + 3)) for each in range(count)]
    found = without(ranges, holes)
    assert len(found) == 2 * count
    assert found[:2] == [(Position(1, 0), Position(1, 2)), (Position(1, 3), Position(1, 8))]


@given(VECTORS)
def test_a_marker_carries_a_vector_exactly(vector: AckVector) -> None:
    update = SubscriptionUpdate("sub", {}, 7, vector, whole=True, asks=True, properties={"team": "billing"})
    assert decode_marker(*encode_marker(SubscriptionsUpdate((update,)))) == SubscriptionsUpdate((update,))


@given(VECTORS, st.integers(1, 200))
def test_the_parts_of_a_vector_are_small_and_say_the_same_together(vector: AckVector, target: int) -> None:
    before, ack_vector.PART_BYTES_TARGET = ack_vector.PART_BYTES_TARGET, target  # type: ignore[misc]
    try:
        parts = [part for part, _ in vector.parts()]
    finally:
        ack_vector.PART_BYTES_TARGET = before  # type: ignore[misc]
    assert meaning(union(parts)) == meaning(vector)
    assert all(part.origins.keys() == vector.origins.keys() for part in parts)


def test_a_vector_with_a_million_holes_fits_markers() -> None:
    positions = PositionSet()
    positions.add_entries(1, BitMap(range(0, 60_000_000, 7)))
    parts = [part for part, _ in AckVector({"a": OriginAcks(1, positions=positions)}).parts()]
    assert len(parts) > 1
    for part in parts:
        _, payload = encode_marker(SubscriptionsUpdate((SubscriptionUpdate("sub", {}, 1, part),)))
        assert len(payload) < 2 * ack_vector.PART_BYTES_TARGET
    assert union(parts).origins["a"].positions == positions
