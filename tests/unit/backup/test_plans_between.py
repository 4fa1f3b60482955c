"""Messages of one life that others have between the ledgers of this store's log."""

from __future__ import annotations

from typing import Any

import pytest

from replicator.backup.directory_peer import lacking_at
from replicator.backup.reclaim_peers import Peer
from replicator.backup.reclaim_plan import OwnLog, PeerCopy, TopicPlan, plan_between, plan_lives
from replicator.engine.lineage import Judgement
from replicator.failover.epochs import FIRST
from replicator.pipeline.errors import UnexpectedAnswer
from snapshots.ack_vector import Range
from snapshots.position import BEFORE_ALL, Position

LIFE = 10
Runs = list[tuple[int, int, int]]


def at(ledger: int, entry: int) -> Position:
    return Position(ledger, entry)


def here(runs: Runs, *, own_last: Position | None = None, trimmed_ends: tuple[Position, ...] = ()) -> OwnLog:
    trimmed = max(trimmed_ends, default=BEFORE_ALL)
    own_last = own_last or at(runs[-1][0], runs[-1][2])
    return OwnLog(LIFE, own_last, runs, trimmed, trimmed_ends, replaceable=False)


def copy(ledgers: Runs, trimmed: Position = BEFORE_ALL, left_out: tuple[Range, ...] = ()) -> PeerCopy:
    return PeerCopy(LIFE, at(ledgers[-1][0], ledgers[-1][2]), trimmed, left_out, ledgers=ledgers)


def ranges(log: OwnLog, *ledgers: Runs) -> list[Range]:
    peers = {f"peer{number}": copy(each) for number, each in enumerate(ledgers)}
    plans = plan_between("t", log, peers, ())
    assert all(plan.below and plan.between and not plan.made_anew and not plan.holes for plan in plans)
    return [(plan.after, plan.upto) for plan in plans]


def test_the_rest_of_a_ledger_that_is_here_in_part_lies_between() -> None:
    assert ranges(here([(11, 0, 4), (20, 0, 9)]), [(11, 0, 7)]) == [(at(11, 4), at(11, 7))]


def test_a_whole_ledger_lies_between_and_one_above_the_end_does_not() -> None:
    log = here([(11, 0, 4), (30, 0, 9)])
    assert ranges(log, [(11, 0, 4), (20, 0, 2), (40, 0, 5)]) == [(at(11, 4), at(20, 2))]


def test_a_ledger_before_the_first_one_lies_between() -> None:
    assert ranges(here([(30, 0, 9)]), [(20, 0, 2)]) == [(at(LIFE, -1), at(20, 2))]


def test_nothing_lies_between_where_both_have_the_same() -> None:
    assert ranges(here([(11, 0, 4), (20, 0, 2)]), [(11, 0, 4), (20, 0, 1)]) == []


def test_what_was_trimmed_here_does_not_come_back() -> None:
    log = here([(20, 2, 5), (30, 0, 1)], trimmed_ends=(at(11, 4), at(20, 1)))
    assert ranges(log, [(11, 0, 4), (20, 0, 5)]) == []
    assert ranges(log, [(11, 0, 6), (20, 0, 5)]) == [(at(11, 4), at(11, 6))]


def test_ledgers_before_the_first_known_end_were_trimmed_and_do_not_come_back() -> None:
    assert ranges(here([(30, 0, 1)], trimmed_ends=(at(25, 4),)), [(11, 0, 6)]) == []


def test_what_is_known_to_be_lost_for_good_does_not_come_back() -> None:
    log = OwnLog(LIFE, at(30, 0), [(11, 0, 4), (20, 3, 3), (30, 0, 0)], left_out=[(at(11, 4), at(20, 3))])
    assert ranges(log, [(11, 0, 4), (20, 0, 3)]) == []


def test_messages_that_were_lost_before_an_earlier_reclaim_come_back_although_a_peer_has_later_ones() -> None:
    """The copy's last position is here, so the copy is judged to be the same."""
    log = here([(11, 0, 4), (30, 0, 2), (50, 0, 0)])
    assert ranges(log, [(11, 0, 4), (20, 0, 3), (30, 0, 2)]) == [(at(11, 4), at(20, 3))]


def test_each_gap_has_a_plan_of_its_own() -> None:
    log = here([(11, 0, 4), (30, 0, 1), (50, 0, 0)])
    assert ranges(log, [(20, 0, 3)], [(30, 0, 7)]) == [(at(11, 4), at(20, 3)), (at(30, 1), at(30, 7))]


def test_a_peer_is_not_said_to_have_ledgers_that_only_another_one_has() -> None:
    peers = {"b": copy([(20, 2, 3)], trimmed=at(20, 1)), "c": copy([(11, 0, 4), (30, 0, 2)])}
    (plan,) = plan_between("t", here([(11, 0, 4), (40, 0, 0)]), peers, ())
    assert plan.upto == at(30, 2)
    assert plan.has == {"b": [(at(20, 1), at(20, 3))], "c": [(at(11, 4), at(20, -1)), (at(20, 3), at(30, 2))]}
    assert plan.holes == ((at(20, -1), at(20, 1)),)
    assert plan.firsts == {"b": at(20, 2), "c": at(30, 0)}


def test_what_every_peer_has_trimmed_is_a_hole() -> None:
    peers = {"b": PeerCopy(LIFE, at(20, 3), at(20, 3), ledgers=[])}
    (plan,) = plan_between("t", here([(11, 0, 4), (30, 0, 0)]), peers, ())
    assert (plan.upto, plan.sources, plan.holes) == (at(20, 3), {}, ((at(11, 4), at(20, 3)),))


def test_a_peer_of_an_earlier_version_has_everything_before_its_mark() -> None:
    peers = {"b": PeerCopy(LIFE, at(20, 3))}
    (plan,) = plan_between("t", here([(11, 0, 4), (30, 0, 0)]), peers, ())
    assert (plan.upto, plan.has) == (at(20, 3), {"b": [(at(11, 4), at(20, 3))]})
    assert plan_between("t", here([(11, 0, 4), (30, 0, 0)]), {"b": PeerCopy(LIFE, at(30, 0))}, ()) == []


def test_what_a_link_rewrites_is_not_taken_back_and_is_accounted_for() -> None:
    (plan,) = plan_between("t", here([(11, 0, 4), (30, 0, 0)]), {"b": copy([(20, 0, 3)])}, {"b"})
    assert (plan.sources, plan.holes) == ({}, ((at(11, 4), at(20, 3)),))


def lost(_: str, copy: PeerCopy) -> Judgement:
    return Judgement.DELETED_ON_PURPOSE if copy.deleted else Judgement.ABOVE_THE_END


def test_a_log_that_went_on_with_messages_of_others_alone_gets_its_own_back_between() -> None:
    log = here([(11, 0, 4), (30, 0, 9)], own_last=at(11, 4))
    lives = plan_lives("t", log, {"b": [copy([(11, 0, 4), (20, 0, 3)])]}, (), lost)
    assert lives.newest is None
    assert [(plan.after, plan.upto) for plan in lives.plans] == [(at(11, 4), at(20, 3))]


def test_a_log_that_did_not_go_on_gets_its_own_back_behind_its_end() -> None:
    log = here([(11, 0, 6)], own_last=at(11, 4))
    lives = plan_lives("t", log, {"b": [copy([(11, 0, 9), (20, 0, 3)])]}, (), lost)
    assert [(plan.after, plan.upto, plan.between) for plan in lives.plans] == [(at(11, 4), at(20, 3), False)]


def test_another_life_or_one_that_was_deleted_on_purpose_does_not_lie_between() -> None:
    log = here([(11, 0, 4), (20, 0, 2)])
    other = PeerCopy(5, at(9, 6), ledgers=[(9, 0, 6)])
    gone = PeerCopy(LIFE, at(15, 6), deleted=True, ledgers=[(15, 0, 6)])
    assert not any(plan.between for plan in plan_lives("t", log, {"b": [other]}, (), lost).plans)
    assert plan_lives("t", log, {"b": [gone]}, (), lost).plans == ()


@pytest.mark.parametrize(
    ("code", "status", "said"),
    [
        ("NotCopied", 404, "other lacks what came back"),
        ("PositionTrimmed", 410, "other has trimmed what came back"),
        ("PermissionDenied", 403, "other does not say whether it has what came back"),
    ],
)
def test_a_peer_is_not_said_to_lack_what_it_trimmed_or_does_not_tell(code: str, status: int, said: str) -> None:
    class Plane:
        def place(self, *_: object) -> None:
            error = UnexpectedAnswer("refused")
            error.code, error.status = code, status
            raise error

    plane: Any = Plane()
    peer = Peer("other", plane, {"t": [PeerCopy(LIFE, Position(30, 5))]}, FIRST, {})
    plan = TopicPlan("t", LIFE, Position(11, 4), Position(11, 7), False, {}, {}, (), below=True, between=True)
    (text,) = lacking_at([peer], plan, [Position(11, 7)], "a", {})
    assert said in text


def test_each_ledger_that_a_peer_lacks_is_named_though_it_has_a_later_one_that_came_back() -> None:
    class Plane:
        def place(self, _: str, __: str, ___: int, at: Position) -> None:
            if at in answers:
                error = UnexpectedAnswer("refused")
                error.code, error.status = answers[at]
                raise error

    plane: Any = Plane()
    peer = Peer("other", plane, {"t": [PeerCopy(LIFE, Position(30, 5))]}, FIRST, {})
    plan = TopicPlan("t", LIFE, Position(11, 4), Position(14, 7), False, {}, {}, (), below=True, between=True)
    ends = [Position(12, 3), Position(13, 3), Position(14, 7)]
    answers = dict.fromkeys(ends[:2], ("NotCopied", 404))
    (text,) = lacking_at([peer], plan, ends, "a", {})
    assert "other lacks what came back after 11:4 up to 13:3" in text
    answers = dict.fromkeys(ends[:2], ("PositionTrimmed", 410))
    assert lacking_at([peer], plan, ends, "a", {}) == [], "it has the last, and can have had the others"
    answers[ends[2]] = ("PositionTrimmed", 410)
    (text,) = lacking_at([peer], plan, ends, "a", {})
    assert "other has trimmed what came back after 11:4 up to 14:7" in text
