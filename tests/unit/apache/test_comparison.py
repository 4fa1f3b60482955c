"""The comparison of a topic at the brokers with what the worker read and published names what lasts, and nothing
else."""

from __future__ import annotations

from typing import Final

from replicator.apache.comparison import STANDS_STILL_SECONDS, Comparison, WorkerProgress, quiet_seconds
from replicator.apache.shown import TopicInternals
from snapshots.position import BEFORE_ALL, Position

LATER: Final = STANDS_STILL_SECONDS


def at_brokers(**last_entries: int) -> TopicInternals:
    """Return a topic with these ledgers, given as ``l3=9``: ledger 3 ends with entry 9."""
    ends = {int(name[1:]): last for name, last in last_entries.items()}
    newest = max(ends)
    return TopicInternals(Position(newest, ends[newest]), 0, "", {}, ends, frozenset(ends))


class Compared:
    """A comparison whose time is passed in."""

    def __init__(self) -> None:
        self.comparison = Comparison()

    def differences(
        self,
        now: float,
        internals: TopicInternals,
        read: Position,
        *,
        passed: Position = BEFORE_ALL,
        to_publish: dict[str, tuple[Position, Position]] | None = None,
    ) -> list[str]:
        self.comparison.look(internals, WorkerProgress(read, to_publish or {}), passed, now)
        found: list[str] = self.comparison.status(now)["differences"]
        return found


def test_entries_that_are_not_read_are_named_once_reading_has_stood_still() -> None:
    compared, held = Compared(), at_brokers(l3=9, l4=5)
    assert compared.differences(0, held, Position(3, 4)) == []
    assert compared.differences(LATER - 1, held, Position(3, 5)) == []  # it moves
    assert compared.differences(LATER, held, Position(3, 5)) == []
    (named,) = compared.differences(2 * LATER, held, Position(3, 5))
    assert "10 entries" in named
    assert "3:5" in named
    assert compared.comparison.status(2 * LATER)["unread"] == 10
    assert compared.differences(3 * LATER, held, Position(4, 5)) == []


def test_what_the_cursor_has_passed_is_not_unread() -> None:
    """Brokers show the ends of transactions to nobody, and move the cursor past them."""
    compared, held = Compared(), at_brokers(l3=9)
    for now in (0.0, LATER, 2 * LATER):
        assert compared.differences(now, held, Position(3, 7), passed=Position(3, 9)) == []


def test_a_topic_that_was_idle_has_its_full_time_when_a_message_comes() -> None:
    compared = Compared()
    assert compared.differences(0, at_brokers(l3=9), Position(3, 9)) == []
    assert compared.differences(10 * LATER, at_brokers(l3=10), Position(3, 9)) == []
    assert compared.differences(11 * LATER, at_brokers(l3=10), Position(3, 9)) != []


def test_publishing_that_stands_still_for_one_origin_is_named_though_more_comes_and_others_move() -> None:
    compared, held = Compared(), at_brokers(l3=9)
    named: list[str] = []
    for second in range(20):
        to_publish = {
            "b": (Position(1, 4), Position(1, 10 + second)),
            "c": (Position(1, second), Position(1, 100)),
        }
        named = compared.differences(float(second), held, Position(3, 9), to_publish=to_publish)
    (only,) = named
    assert only.startswith("messages of b up to 1:29")
    assert compared.differences(21, held, Position(3, 9)) == []


def test_the_age_is_that_of_the_last_comparison() -> None:
    comparison = Comparison()
    assert comparison.status(5)["age_seconds"] is None
    comparison.look(at_brokers(l3=9), WorkerProgress(Position(3, 9), {}), BEFORE_ALL, 5)
    assert comparison.status(7.5)["age_seconds"] == 2.5
    assert comparison.status(7.5)["brokers_end"] == "3:9"


def test_quiet_topics_together_need_no_more_requests_than_the_limit() -> None:
    assert [quiet_seconds(topics, 20) for topics in (0, 100, 101, 5_000)] == [5, 5, 5.05, 250]
    for topics, rate in ((1_000, 20), (5_000, 7)):
        for chance in (0.0, 0.5, 1.0):
            assert topics / quiet_seconds(topics, rate, chance) <= rate
    assert quiet_seconds(1_000, 20, 1.0) == 75
