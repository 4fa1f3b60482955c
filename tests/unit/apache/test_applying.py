"""How the bridge applies a subscription's state at the brokers: a part through the admin API, a part by a consumer's
acknowledgements."""

from __future__ import annotations

import pytest

from replicator.apache.applying import SHARING, Wanted
from replicator.apache.broker_cursor import BrokerCursor
from snapshots.position import Position
from snapshots.position_set import PositionSet

LAST = {3: 9}


def wanted(*entries: int, beyond: tuple[int, ...] = ()) -> Wanted:
    """Return a wish for a topic of ten entries, whose first three and the entries ``beyond`` are acknowledged."""
    cursor = BrokerCursor(Position(3, 2), PositionSet([Position(3, entry) for entry in beyond]))
    return Wanted(cursor, PositionSet([Position(3, entry) for entry in entries]))


@pytest.mark.parametrize("kind", ["", "None", "Exclusive"])
def test_what_leaves_no_hole_is_moved_where_a_consumer_could_keep_somebody_out(kind: str) -> None:
    assert wanted(3, 4, 5).passable(kind, LAST) == Position(3, 5)
    assert wanted(3, 5, beyond=(4,)).passable(kind, LAST) == Position(3, 5)


@pytest.mark.parametrize("kind", sorted(SHARING))
def test_a_consumer_does_all_of_a_subscription_that_consumers_share(kind: str) -> None:
    assert wanted(3, 4, 5).passable(kind, LAST) is None


@pytest.mark.parametrize("kind", ["", "None", "Exclusive"])
def test_a_hole_at_once_is_a_consumers(kind: str) -> None:
    assert wanted(4, 5).passable(kind, LAST) is None


def test_what_comes_before_a_hole_is_moved_only_where_an_exclusive_consumer_lets_none_of_ours_in() -> None:
    assert wanted(3, 5).passable("Exclusive", LAST) == Position(3, 3)
    assert wanted(3, 5).passable("", LAST) is None
