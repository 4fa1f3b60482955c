"""What another store of the same cluster has between the ledgers of this one."""

from __future__ import annotations

from typing import Any

import pytest

from replicator.backup.directory_peer import lacking_at, plans_between
from replicator.backup.reclaim_peers import Peer
from replicator.backup.reclaim_plan import OwnLog, PeerCopy, TopicPlan
from replicator.failover.epochs import FIRST
from replicator.pipeline.errors import UnexpectedAnswer
from snapshots.position import Position

LIFE = 10
Runs = list[tuple[int, int, int]]


def ranges(here: Runs, there: Runs, *, life: int = LIFE, deleted: bool = False) -> list[tuple[Position, Position]]:
    plane: Any = None
    copy = PeerCopy(life, Position(there[-1][0], there[-1][2]), deleted=deleted)
    peer = Peer("other", plane, {"t": [copy]}, FIRST, {}, {"t": there})
    plans = plans_between("t", OwnLog(LIFE, Position(here[-1][0], here[-1][2]), here), peer)
    assert all(plan.below and plan.between and not plan.made_anew for plan in plans)
    assert all(list(plan.has["other"]) == [(plan.after, plan.upto)] for plan in plans)
    return [(plan.after, plan.upto) for plan in plans]


def test_the_rest_of_a_ledger_that_is_here_in_part_lies_between() -> None:
    assert ranges([(11, 0, 4), (20, 0, 9)], [(11, 0, 7)]) == [(Position(11, 4), Position(11, 7))]


def test_a_whole_ledger_lies_between_and_one_above_the_end_does_not() -> None:
    here = [(11, 0, 4), (30, 0, 9)]
    assert ranges(here, [(11, 0, 4), (20, 0, 2), (40, 0, 5)]) == [(Position(20, -1), Position(20, 2))]


def test_nothing_lies_between_where_both_have_the_same() -> None:
    assert ranges([(11, 0, 4), (20, 0, 2)], [(11, 0, 4), (20, 0, 1)]) == []


def test_what_was_trimmed_there_does_not_come_back() -> None:
    assert ranges([(11, 0, 4), (20, 0, 2)], [(15, 3, 6)]) == [(Position(15, 2), Position(15, 6))]


def test_another_life_or_one_that_was_deleted_on_purpose_does_not_lie_between() -> None:
    assert ranges([(11, 0, 4), (20, 0, 2)], [(15, 0, 6)], life=12) == []
    assert ranges([(11, 0, 4), (20, 0, 2)], [(15, 0, 6)], deleted=True) == []


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
    peer = Peer("other", plane, {"t": [PeerCopy(LIFE, Position(30, 5))]}, FIRST, {}, {})
    plan = TopicPlan("t", LIFE, Position(11, 4), Position(11, 7), False, {}, {}, (), below=True, between=True)
    (text,) = lacking_at([peer], plan, Position(11, 7), "a")
    assert said in text
