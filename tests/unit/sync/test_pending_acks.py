"""Acknowledgements that wait for their messages: kept as told, but not without end."""

from __future__ import annotations

from pyroaring import BitMap

from replicator.sync.pending_acks import BATCHES_MAX, PendingAcks
from snapshots.ack_vector import AckVector, OriginAcks
from snapshots.position import Position
from snapshots.position_set import PositionSet


def at(entry: int) -> Position:
    return Position(1, entry)


def waiting(*whole: int, batches: range = range(0)) -> AckVector:
    parts = {at(entry): BitMap([0]) for entry in batches}
    return AckVector({"c": OriginAcks(7, positions=PositionSet(map(at, whole)), batches=parts)})


def test_a_batch_that_is_acknowledged_whole_by_now_waits_once() -> None:
    pending = PendingAcks(1, {})
    pending.put("sub", 1, waiting(3, 5, batches=range(3, 6)))
    assert pending.of("sub", 1) == waiting(3, 5, batches=range(4, 5))
    ranged = AckVector({"c": OriginAcks(7, ranges=[(at(3), at(8))], batches={at(3): BitMap([1]), at(4): BitMap([1])})})
    pending.put("sub", 1, ranged)
    assert list(pending.of("sub", 1).origins["c"].batches) == [at(3)]


def test_invariant_11_of_batches_that_wait_the_first_are_kept() -> None:
    pending = PendingAcks(1, {})
    pending.put("sub", 1, waiting(7, batches=range(10, BATCHES_MAX + 20)))
    assert pending.of("sub", 1) == waiting(7, batches=range(10, BATCHES_MAX + 10))


def test_what_waits_already_is_not_written_again() -> None:
    pending = PendingAcks(1, {})
    pending.put("sub", 1, waiting(3, batches=range(4, 9)))
    ((_, _, row),) = pending.take_changes().values()
    pending.put("sub", 1, waiting(3, batches=range(4, 9)))
    assert pending.take_changes() == {}
    assert row is not None
    stored = PendingAcks(1, {"sub": row})
    assert stored.of("sub", 1) == waiting(3, batches=range(4, 9))
    assert stored.of("sub", 2) == AckVector()
