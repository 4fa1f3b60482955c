"""Starts of subscriptions against plain sets of messages that lie after them: the earlier start counts, whatever the
order in which clusters hear of each other (invariants 5 and 6), and markers carry exactly what they were given."""

from __future__ import annotations

from functools import reduce

from hypothesis import given
from hypothesis import strategies as st
from test_ack_vector_properties import POSITIONS, UNIVERSE, VECTORS

from snapshots import starts
from snapshots.ack_vector import AckVector
from snapshots.markers import SubscriptionsUpdate, SubscriptionUpdate, decode_marker, encode_marker
from snapshots.position import BEFORE_ALL, Position
from snapshots.starts import FROM_THE_FIRST, Start

LIVES = {1: 1, 2: 2, 3: 2}
"""Number of the life that each ledger belongs to, at every origin."""


def start_at(position: Position, newest: int) -> Start:
    """Return a start at ``position`` that was made when life ``newest`` had begun, or in a later life than that."""
    return Start(max(newest, LIVES.get(position.ledger, 0)), position)


STARTS = st.dictionaries(
    st.sampled_from("abc"),
    st.one_of(
        st.just(FROM_THE_FIRST), st.builds(start_at, st.one_of(st.just(BEFORE_ALL), POSITIONS), st.integers(1, 2))
    ),
    max_size=3,
)


def wanted(said: starts.Starts, origin: str) -> set[Position]:
    """Return the messages of an origin, of any life, that lie after the start."""
    return {position for position in UNIVERSE if position > starts.end_before(said, origin)}


@given(STARTS, STARTS)
def test_what_lies_after_either_start_lies_after_the_merged_one(one: starts.Starts, other: starts.Starts) -> None:
    merged = starts.merged(one, other)
    assert merged.keys() == one.keys() | other.keys()
    for origin in merged:
        said = [wanted(each, origin) for each in (one, other) if origin in each]
        assert wanted(merged, origin) == set[Position]().union(*said)


@given(st.permutations([*"abcd"]), st.lists(STARTS, min_size=4, max_size=4))
def test_the_order_in_which_starts_are_merged_does_not_matter(order: list[str], given_: list[starts.Starts]) -> None:
    shuffled = [given_["abcd".index(each)] for each in order]
    assert reduce(starts.merged, shuffled) == reduce(starts.merged, given_)
    merged = reduce(starts.merged, given_)
    assert all(starts.merged(merged, each) == merged for each in given_)


@given(VECTORS, STARTS)
def test_a_vector_claims_nothing_that_lies_before_the_start(vector: AckVector, said: starts.Starts) -> None:
    before, after = vector.copy(), vector.copy()
    starts.cut(after, said)
    assert after.origins.keys() == before.origins.keys()
    for origin, acks in after.origins.items():
        end = starts.end_before(said, origin)
        claimed = before.origins[origin]
        for position in UNIVERSE:
            assert acks.covers(position) == (claimed.covers(position) and position > end)
            assert acks.batches.get(position) == (claimed.batches.get(position) if position > end else None)


@given(STARTS)
def test_a_marker_carries_the_starts(said: starts.Starts) -> None:
    marker = SubscriptionsUpdate((SubscriptionUpdate("sub", {}, 1, whole=True, starts=said),))
    assert decode_marker(*encode_marker(marker)) == marker
