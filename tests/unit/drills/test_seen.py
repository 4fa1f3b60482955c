"""Facts that a drill derives for a system that does not report them: a cluster's copies of another, and the drill's
end."""

from __future__ import annotations

from replicator.drills.observations import DrillSubscription, Observations
from replicator.drills.systems.pulsar_geo import individually_deleted
from replicator.drills.systems.seen import QUIET_SECONDS, Settling, first_confirmed, high_water
from replicator.engine.types import SubscriptionType
from snapshots.position import BEFORE_ALL, Position

SUBSCRIPTION = DrillSubscription("s", SubscriptionType.SHARED, cumulative=False)


def record(confirmed_at_a: int) -> Observations:
    """Return a record of messages that A confirmed at positions 3:0, 3:1, …"""
    observations = Observations((SUBSCRIPTION,))
    for name in "ab":
        observations.clusters.code(name)
    for number in range(confirmed_at_a):
        message = observations.add_message("k")
        observations.sent(message, 0.0)
        observations.confirmed(message, "a", Position(3, number), -1, 1.0)
    return observations


def receive(observations: Observations, cluster: str, *messages: int) -> None:
    for message in messages:
        observations.received("s", "c", cluster, message, "a", Position(0, message), -1, 0, 2.0)


def test_a_cluster_has_of_another_what_a_reader_at_its_tail_saw() -> None:
    observations = record(3)
    assert high_water(observations, "a", "a") == Position(3, 2)
    assert high_water(observations, "b", "a") == BEFORE_ALL
    observations.observed("b", 1, Position(9, 0), -1, 2.0)
    assert high_water(observations, "b", "a") == Position(3, 1)
    assert high_water(observations, "a", "b") == BEFORE_ALL


def test_what_stands_behind_the_first_message_of_the_clients_that_came_was_not_there_for_them() -> None:
    observations = record(3)
    observations.observed("b", 0, Position(9, 0), -1, 2.0)
    observations.observed("b", 1, Position(9, 2), -1, 2.0)
    assert first_confirmed(observations, "b", 0.0) is None
    for entry, at_s in ((0, 1.0), (5, 4.0), (1, 4.0)):
        message = observations.add_message("k")
        observations.confirmed(message, "b", Position(9, entry), -1, at_s)
    assert first_confirmed(observations, "b", 3.0) == Position(9, 1)
    assert high_water(observations, "b", "a", before=Position(9, 1)) == Position(3, 0)
    assert high_water(observations, "b", "a", before=Position(10, 0)) == Position(3, 1)
    assert high_water(observations, "b", "a", before=Position(8, 7)) == BEFORE_ALL


def test_a_message_that_was_seen_and_never_confirmed_has_no_position() -> None:
    observations = record(1)
    unconfirmed = observations.add_message("k")
    observations.observed("b", unconfirmed, Position(9, 0), -1, 2.0)
    assert high_water(observations, "b", "a") == BEFORE_ALL


def test_a_drill_is_over_when_all_is_received_and_acknowledged_and_nothing_more_comes() -> None:
    observations, settling = record(2), Settling()
    assert settling.unsettled_work(observations, "b", 0.0) == "2 confirmed messages are not received by s"
    receive(observations, "b", 0, 1)
    observations.acked_many("s", "b", [0], 2.0)
    assert settling.unsettled_work(observations, "b", 0.0) == "1 messages that s received are not acknowledged"
    observations.acked_many("s", "b", [1], 2.0)
    assert settling.unsettled_work(observations, "b", 1.0) is not None
    receive(observations, "b", 0)
    assert settling.unsettled_work(observations, "b", QUIET_SECONDS) is not None
    assert settling.unsettled_work(observations, "b", 2 * QUIET_SECONDS) is None


def test_what_was_received_at_the_cluster_that_died_need_not_be_known_as_acknowledged() -> None:
    observations, settling = record(1), Settling()
    receive(observations, "a", 0)
    settling.unsettled_work(observations, "b", 0.0)
    assert settling.unsettled_work(observations, "b", QUIET_SECONDS) is None
    assert settling.unsettled_work(observations, "a", QUIET_SECONDS) is not None


def test_runs_of_a_cursors_internal_stats_begin_after_their_first_place() -> None:
    assert individually_deleted("[(3:10..3:12],(3:14..3:15]]") == [("3:11", "3:12"), ("3:15", "3:15")]
    assert individually_deleted("[(3:99..4:2],(5:-1..5:0]]") == [("4:0", "4:2"), ("5:0", "5:0")]
    assert individually_deleted("[]") == []
