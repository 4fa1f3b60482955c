"""What is taken back of a topic, from whom, and what nobody has any more."""

from __future__ import annotations

import pytest

from replicator.backup.reclaim_plan import OwnLog, PeerCopy, plan_topic
from snapshots.position import BEFORE_ALL, Position


def at(entry: int, ledger: int = 5) -> Position:
    return Position(ledger, entry)


def copy(mark: int, trimmed: int = -1, incarnation: int = 7, *left_out: tuple[int, int]) -> PeerCopy:
    ranges = [(at(after), at(upto)) for after, upto in left_out]
    return PeerCopy(incarnation, at(mark), at(trimmed) if trimmed >= 0 else BEFORE_ALL, ranges)


HERE = OwnLog(7, at(10))


@pytest.mark.parametrize(
    ("here", "peers"),
    [
        (HERE, {}),
        (HERE, {"b": copy(10), "c": copy(4)}),
        (OwnLog(8, at(10)), {"b": copy(30)}),
        (None, {}),
    ],
    ids=["nobody has it", "nobody has more", "others have an older life of it", "it is nowhere"],
)
def test_where_nothing_was_lost_nothing_is_done(here: OwnLog | None, peers: dict[str, PeerCopy]) -> None:
    assert plan_topic("t", here, peers, ()) is None


def test_it_is_read_from_all_who_have_it_up_to_the_highest_mark() -> None:
    plan = plan_topic("t", HERE, {"b": copy(20), "c": copy(30), "d": copy(9)}, ())
    assert plan is not None
    assert (plan.after, plan.upto, plan.made_anew, plan.holes) == (at(10), at(30), False, ())
    assert plan.sources == {"b": at(20), "c": at(30)}


def test_a_topic_that_is_not_here_or_in_an_older_life_is_made_in_the_newest() -> None:
    for here in (None, OwnLog(6, at(99))):
        plan = plan_topic("t", here, {"b": copy(20), "c": copy(30, incarnation=6)}, ())
        assert plan is not None
        assert (plan.incarnation, plan.made_anew, plan.after, plan.upto) == (7, True, BEFORE_ALL, at(20))
        assert set(plan.sources) == {"b"}


def test_invariant_5_what_is_trimmed_or_left_out_everywhere_is_a_hole() -> None:
    plan = plan_topic("t", HERE, {"b": copy(40, 15, 7, (20, 25)), "c": copy(22, 18)}, ())
    assert plan is not None
    assert plan.holes == ((at(10), at(15)), (at(22), at(25)))


def test_what_comes_by_a_link_that_rewrites_is_not_taken_back_and_its_mark_is_accounted_for() -> None:
    plan = plan_topic("t", HERE, {"b": copy(40), "c": copy(20)}, {"b"})
    assert plan is not None
    assert (plan.upto, set(plan.sources), plan.holes) == (at(40), {"c"}, ((at(20), at(40)),))
    plan = plan_topic("t", HERE, {"b": copy(40)}, {"b"})
    assert plan is not None
    assert (plan.sources, plan.holes) == ({}, ((at(10), at(40)),))


def test_a_peer_of_which_all_that_was_lost_is_trimmed_has_nothing_to_read() -> None:
    plan = plan_topic("t", HERE, {"b": copy(40, 40)}, ())
    assert plan is not None
    assert (plan.sources, plan.holes) == ({}, ((at(10), at(40)),))
