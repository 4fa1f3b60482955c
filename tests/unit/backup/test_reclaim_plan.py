"""Plan of a reclaim: the messages of a topic to take back, the peers that have them, and those that nobody has."""

from __future__ import annotations

from typing import Any

import pytest

from replicator.backup.reclaim_plan import OwnLog, PeerCopy, plan_lives, plan_topic
from replicator.engine.lineage import Judgement
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


# Earlier lives.


def lost(_: str, copy: PeerCopy) -> Judgement:
    return Judgement.DELETED_ON_PURPOSE if copy.deleted else Judgement.LOST


def life(incarnation: int, ledger: int, last: int = 9, **more: Any) -> PeerCopy:
    return PeerCopy(incarnation, at(last, ledger), **more)


USED_SINCE = OwnLog(100, at(3, 101), ((101, 0, 3),), replaceable=False)


def test_earlier_lives_that_were_lost_are_put_back_below_the_one_that_goes_on_here() -> None:
    copies = {"b": [life(10, 11), life(20, 22)], "c": [life(20, 21, trimmed=at(4, 21))]}
    lives = plan_lives("t", USED_SINCE, copies, (), lost)
    assert lives.newest is None
    assert not lives.refused
    assert [(plan.incarnation, plan.after, plan.upto, plan.below) for plan in lives.plans] == [
        (10, Position(10, -1), at(9, 11), True),
        (20, Position(20, -1), at(9, 22), True),
    ]
    assert [set(plan.sources) for plan in lives.plans] == [{"b"}, {"b", "c"}]


def test_what_is_back_of_an_earlier_life_is_not_read_again() -> None:
    here = OwnLog(100, at(3, 101), ((11, 0, 4), (101, 0, 3)))
    (plan,) = plan_lives("t", here, {"b": [life(10, 11)]}, (), lost).below
    assert (plan.after, plan.upto) == (at(4, 11), at(9, 11))
    here = OwnLog(100, at(3, 101), ((11, 0, 9), (101, 0, 3)))
    assert plan_lives("t", here, {"b": [life(10, 11)]}, (), lost).plans == ()


def test_on_an_empty_directory_the_newest_life_comes_back_and_the_earlier_ones_below_it() -> None:
    lives = plan_lives("t", None, {"b": [life(10, 11), life(20, 22)]}, (), lost)
    assert lives.newest is not None
    assert (lives.newest.incarnation, lives.newest.made_anew) == (20, True)
    assert [plan.incarnation for plan in lives.below] == [10]


def test_what_was_deleted_on_purpose_stays_where_it_is_and_is_named() -> None:
    lives = plan_lives("t", USED_SINCE, {"b": [life(10, 11, deleted=True)]}, (), lost)
    assert (lives.plans, lives.refused) == ((), ())
    assert lives.deleted == {"b": (10,)}


def test_ids_that_do_not_lie_below_are_refused_and_named() -> None:
    lives = plan_lives("t", USED_SINCE, {"b": [life(99, 105)]}, (), lost)
    assert lives.plans == ()
    assert "a clock was behind" in lives.refused[0]
    assert lives.apart == {99}


def test_a_store_that_was_used_since_is_never_deleted_for_a_life_with_a_higher_id() -> None:
    lives = plan_lives("t", USED_SINCE, {"b": [life(200, 201)]}, (), lost)
    assert lives.plans == ()
    assert "which has messages, too" in lives.refused[0]
    assert "--from-directory" in lives.refused[0]
