"""A renewal lets the reading of a halted topic go on where nothing is lost by it, and refuses elsewhere."""

from __future__ import annotations

import pytest

from replicator.apache.errors import RenewalRefused
from replicator.apache.renewing import Renewal, Way, plan_of
from replicator.apache.shown import TopicInternals
from snapshots.position import BEFORE_ALL, Position

TOPIC = "persistent://public/default/t"


def at_brokers(last: Position, *ledgers: int) -> TopicInternals:
    return TopicInternals(last, 0, "", {}, dict.fromkeys(ledgers, 9) | {last.ledger: last.entry}, frozenset(ledgers))


def planned(
    reached: Position, internals: TopicInternals | None, *, same: bool = False, matches: bool = True
) -> Renewal:
    return plan_of(TOPIC, reached, internals, same=same, matches=matches)


def test_reading_goes_on_right_behind_what_was_read_as_long_as_the_brokers_have_it() -> None:
    for same in (False, True):
        renewal = planned(Position(3, 4), at_brokers(Position(5, 2), 3, 5), same=same)
        assert (renewal.way, renewal.first) == (Way.BEHIND, Position(3, 5))


def test_what_brokers_have_deleted_before_it_was_read_is_named_as_missing() -> None:
    renewal = planned(Position(3, 4), at_brokers(Position(5, 2), 5), same=True)
    assert (renewal.way, renewal.first) == (Way.EARLIEST, None)
    assert "after 3:4" in renewal.text


def test_a_worker_that_has_read_nothing_reads_all_that_the_brokers_have() -> None:
    renewal = planned(BEFORE_ALL, at_brokers(Position(5, 2), 4, 5), same=True)
    assert (renewal.way, renewal.first) == (Way.EARLIEST, None)
    assert "missing" not in renewal.text


def test_a_topic_that_is_another_one_gets_what_other_clusters_published() -> None:
    assert planned(Position(3, 4), at_brokers(Position(5, 2), 5)).way is Way.ANEW
    assert planned(Position(3, 4), None).way is Way.ANEW


@pytest.mark.parametrize(
    ("internals", "matches"),
    [
        (at_brokers(Position(3, 2), 3), True),  # it ends before what was read
        (at_brokers(Position(2, 9), 2), True),
        (at_brokers(Position(5, 2), 1, 5), True),  # an earlier ledger, without the one that was read
        (at_brokers(Position(5, 2), 3, 5), False),  # another entry is there
    ],
)
def test_invariant_2_a_renewal_that_would_take_new_messages_for_those_that_were_read_is_refused(
    internals: TopicInternals, matches: bool
) -> None:
    for same in (False, True):
        with pytest.raises(RenewalRefused, match="keeps both"):
            planned(Position(3, 4), internals, same=same, matches=matches)
