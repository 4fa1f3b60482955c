"""Retention's rules one by one; :mod:`test_trimming_machine` checks that nothing unconsumed ever goes."""

from __future__ import annotations

import pytest

from replicator.engine.log.block import BlockSpan
from replicator.engine.policies import Retention
from replicator.engine.upkeep.retention import RetentionPass, Trimming, done_through
from snapshots.position import BEFORE_ALL, Position

NOW_MS = 1_000_000
LAST = Position(1, 99)


def at(entry: int) -> Position:
    return Position(1, entry)


def block(index: int) -> BlockSpan:
    """Ten blocks of ten entries and 100 bytes; block i was written ``10 - i`` seconds ago."""
    return BlockSpan(at(10 * index), at(10 * index + 9), 100, NOW_MS - 1000 * (10 - index))


def trimmed(retention: Retention, done: Position = LAST) -> Trimming | None:
    blocks = [block(index) for index in range(10)]
    done_bytes = sum(each.size_bytes for each in blocks if each.last <= done)
    going = RetentionPass(retention, done, done_bytes, LAST, NOW_MS)
    for each in blocks:
        if not going.drop(each):
            break
    return going.trimming


def test_what_is_done_ends_at_the_slowest_subscription_or_link() -> None:
    assert done_through(at(9), [], []) == at(9)
    assert done_through(at(9), [at(5), at(3)], []) == at(3)
    assert done_through(at(9), [at(5)], [at(2), at(7)]) == at(2)
    assert done_through(at(9), [BEFORE_ALL], []) == BEFORE_ALL


def test_without_limits_everything_is_kept() -> None:
    assert trimmed(Retention()) is None


@pytest.mark.parametrize("retention", [Retention(0, 0), Retention(0, None), Retention(None, 0), Retention(0, 10**9)])
def test_zero_keeps_nothing_that_is_done_but_the_last_block(retention: Retention) -> None:
    assert trimmed(retention) == Trimming(at(89), 900)


def test_a_block_that_is_not_wholly_done_stays() -> None:
    assert trimmed(Retention(0, 0), at(38)) == Trimming(at(29), 300)
    assert trimmed(Retention(0, 0), at(39)) == Trimming(at(39), 400)
    assert trimmed(Retention(0, 0), at(8)) is None


@pytest.mark.parametrize(("bytes_max", "left"), [(1000, 10), (999, 9), (900, 9), (250, 2), (1, 1)])
def test_of_what_is_done_the_newest_bytes_are_kept(bytes_max: int, left: int) -> None:
    expected = None if left == 10 else Trimming(at(10 * (10 - left) - 1), 100 * (10 - left))
    assert trimmed(Retention(bytes_max=bytes_max)) == expected


def test_a_backlog_does_not_count_towards_the_size_that_is_kept() -> None:
    assert trimmed(Retention(bytes_max=200), at(39)) == Trimming(at(19), 200)


@pytest.mark.parametrize(("age", "gone"), [(11, 0), (10, 1), (9, 2), (3, 8), (1, 9)])
def test_of_what_is_done_the_newer_is_kept(age: int, gone: int) -> None:
    assert trimmed(Retention(age_seconds_max=age)) == (Trimming(at(10 * gone - 1), 100 * gone) if gone else None)


def test_both_limits_must_allow_what_is_kept() -> None:
    assert trimmed(Retention(age_seconds_max=7, bytes_max=10**9)) == Trimming(at(39), 400)
    assert trimmed(Retention(age_seconds_max=10**6, bytes_max=300)) == Trimming(at(69), 700)
    assert trimmed(Retention(age_seconds_max=7, bytes_max=300)) == Trimming(at(69), 700)


def test_an_old_block_behind_a_newer_one_waits_for_it() -> None:
    """Copied blocks bear the time of their origin; only the oldest positions can go."""
    going = RetentionPass(Retention(age_seconds_max=5), at(99), 1000, LAST, NOW_MS)
    assert not going.drop(block(9))
    assert going.trimming is None
