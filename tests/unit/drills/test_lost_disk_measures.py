"""Measures of a drill with a lost disk tell what nobody had from what another cluster had (docs/drills.md)."""

from __future__ import annotations

from typing import Any

import pytest

from replicator.drills.judge import failures
from replicator.drills.measures import measure
from replicator.drills.observations import DrillSubscription, FailoverKind, Observations
from replicator.drills.timeline import LostMessages
from replicator.engine.types import SubscriptionType
from snapshots.position import Position


def drilled(*, received: set[int], elsewhere: int = 6, named: int = 6) -> Observations:
    """Ten messages that us-east confirmed before it lost its disk. Another cluster had the first ``elsewhere``, and the
    status of us-east names all after the first ``named`` as lost."""
    seen = Observations((DrillSubscription("sub", SubscriptionType.SHARED, cumulative=False),), 1)
    for number in range(10):
        seen.add_message("key")
        seen.sent(number, 1.0)
        seen.confirmed(number, "us-east", Position(1, number), 0, 2.0)
    for number in received:
        seen.received("sub", "sub-1", "us-east", number, "us-east", Position(1, number), 0, 0, 2.5)
    for number in range(elsewhere):
        seen.observed("eu-west", number, Position(7, number), -1, 2.5)
    failover = seen.failed_over(FailoverKind.KILL, "us-east", "eu-west", 3.0, 3.0)
    seen.high_water(failover, "eu-west", Position(1, 4))
    seen.took_back("us-east", Position(1, named - 1), 0, 3.0, 8.0)
    seen.returned("us-east", 8.0)
    return seen


def lost(seen: Observations) -> tuple[int, int, int]:
    measures = measure(seen)
    (sub,) = measures.subscriptions
    return sub.lost, sub.lost_with_disk, measures.lost_with_disk


def test_what_did_not_come_back_with_the_disk_is_counted_apart() -> None:
    assert lost(drilled(received=set(range(10)))) == (0, 0, 4)
    assert lost(drilled(received=set(range(6)))) == (4, 4, 4)
    assert lost(drilled(received=set(range(4)))) == (6, 4, 4), "two of them another cluster had"


@pytest.mark.parametrize(("named", "differing"), [(6, 0), (7, 1), (3, 3)])
def test_what_nobody_had_is_compared_message_by_message_with_what_the_status_names(named: int, differing: int) -> None:
    (disk,) = measure(drilled(received=set(range(10)), named=named)).lost_disks
    assert disk == LostMessages("us-east", 4, 10 - named, differing)


def test_a_message_that_a_subscription_received_in_another_cluster_was_not_lost_with_the_disk() -> None:
    seen = drilled(received=set(range(6)), named=7)
    seen.received("sub", "sub-2", "eu-west", 6, "us-east", Position(7, 6), 0, 0, 4.0)
    (disk,) = measure(seen).lost_disks
    assert disk == LostMessages("us-east", 3, 3, 0)


def test_a_drill_fails_for_what_another_cluster_had_and_for_nothing_else() -> None:
    def of(lost: int, with_disk: int, **disk: Any) -> list[str]:
        subscription = {
            "name": "sub", "lost": lost, "lost_with_disk": with_disk, "out_of_order": 0, "cumulative": False,
            "repeated_acked_over_1s_before_kill": 0, "repeated_acked_before_planned": 0,
        }  # fmt: skip
        disks = [{"cluster": "us-east", "state": "serving", "named_losses": [], **disk}]
        return list(
            failures(
                {
                    "published": 10,
                    "confirmed": 10,
                    "late": 0,
                    "rpo_messages": 0,
                    "subscriptions": [subscription],
                    "failovers": [],
                    "lost_disks": disks,
                    "lacks": ["verify"],
                }
            )
        )

    assert of(4, 4) == []
    assert of(6, 4) == ["2 confirmed messages never reached subscription sub"]
    assert of(0, 0, named_losses=["t: damaged"]) == ["us-east could not take back what another cluster had: t: damaged"]
    same = {"lost_messages": 4, "named_messages": 4}
    assert of(4, 4, **same, differing_messages=0) == []
    assert of(4, 4, **same, differing_messages=2) == [
        "us-east lost 4 messages with its disk that no other cluster had, and its status names 4 as lost; 2 of these "
        "are not in both"
    ]
    assert of(0, 0, state="replaced") == ["us-east lost its disk, and its worker says that it is replaced"]
