"""Offsets that a Kafka consumer may commit when it finishes messages out of order."""

from __future__ import annotations

from replicator.drills.traffic.done_offsets import DoneOffsets


def test_the_offset_stops_before_the_first_message_that_is_not_done() -> None:
    offsets = DoneOffsets()
    for offset in range(5):
        offsets.received("t", offset)
    offsets.done([("t", 0), ("t", 1), ("t", 3)])
    assert offsets.take() == ({"t": 2}, {("t", 0), ("t", 1)})
    assert offsets.take() == ({}, set())
    offsets.done([("t", 2)])
    assert offsets.take() == ({"t": 4}, {("t", 2), ("t", 3)})


def test_each_partition_has_an_offset_of_its_own_and_offsets_may_have_gaps() -> None:
    offsets = DoneOffsets()
    for partition, offset in (("t", 7), ("a.t", 0), ("t", 9)):
        offsets.received(partition, offset)
    offsets.done([("t", 7), ("t", 9)])
    assert offsets.take() == ({"t": 10}, {("t", 7), ("t", 9)})
    offsets.done([("a.t", 0)])
    assert offsets.take() == ({"a.t": 1}, {("a.t", 0)})


def test_of_a_partition_that_was_taken_away_nothing_is_committed() -> None:
    offsets = DoneOffsets()
    offsets.received("t", 0)
    offsets.received("a.t", 0)
    offsets.forget(["t"])
    offsets.done([("t", 0), ("a.t", 0)])
    assert offsets.take() == ({"a.t": 1}, {("a.t", 0)})
