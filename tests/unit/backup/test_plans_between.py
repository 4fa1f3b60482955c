"""What another store of the same cluster has between the ledgers of this one."""

from __future__ import annotations

from typing import Any

from replicator.backup.directory_peer import plans_between
from replicator.backup.reclaim_peers import Peer
from replicator.backup.reclaim_plan import OwnLog, PeerCopy
from replicator.failover.epochs import FIRST
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
