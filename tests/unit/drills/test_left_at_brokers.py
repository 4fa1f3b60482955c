"""When a drill beside brokers has nothing left to do at them."""

from __future__ import annotations

from replicator.apache.shown import TopicInternals
from replicator.drills.systems.beside import left_at_brokers
from snapshots.position import Position


def internals(**cursors: tuple[str, str]) -> TopicInternals:
    """Return the internals of a topic with three entries in ledger 3, none in 4, and two in 5."""
    shown = {
        name: {"markDeletePosition": mark_delete, "individuallyDeletedMessages": ranges}
        for name, (mark_delete, ranges) in cursors.items()
    }
    return TopicInternals(Position(5, 1), 0, "load", shown, {3: 2, 4: -1, 5: 1})


def test_all_is_done_when_every_subscription_has_acknowledged_every_entry() -> None:
    assert left_at_brokers("a", internals(work=("5:1", "[]")), ["work"]) is None


def test_what_is_left_is_named_with_its_subscription() -> None:
    shown = internals(work=("5:1", "[]"), slow=("3:0", "[(3:1..3:2]]"))
    assert left_at_brokers("a", shown, ["work", "slow"]) == "slow has a backlog of 3 entries at the brokers of a"
    assert left_at_brokers("a", shown, ["work", "new"]) == "new is missing at the brokers of a"


def test_an_end_in_a_ledger_without_entries_is_the_end() -> None:
    shown = TopicInternals(
        Position(4, -1),
        0,
        "",
        {"work": {"markDeletePosition": "3:2", "individuallyDeletedMessages": "[]"}},
        {3: 2, 4: -1},
    )
    assert left_at_brokers("a", shown, ["work"]) is None
