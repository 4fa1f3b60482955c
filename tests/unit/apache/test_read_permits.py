"""Permits for a broker: by the bytes of its messages, and shared by the topics of a worker."""

from __future__ import annotations

import pytest
from asynchronous import asynchronous
from hypothesis import given
from hypothesis import strategies as st

from replicator.apache import flow_control as bounds
from replicator.apache.arrivals import BYTES_MAX, Arrivals
from replicator.apache.flow_control import PERMITS_FIRST, PERMITS_MAX, FlowControl, read_budget
from replicator.apache.shared_budget import SharedBudget
from replicator.client.errors import ConnectError
from replicator.engine.types import Delivery
from snapshots.position import Position

MIB = 1024 * 1024


class Reader:
    """Reader of a topic; a broker always has as many messages as it grants."""

    def __init__(self, room: SharedBudget) -> None:
        self.granted = 0
        self.permits = FlowControl(self._flow, room)

    def _flow(self, messages: int) -> None:
        assert messages > 0
        self.granted += messages

    def comes(self, messages: int, bytes_each: int) -> None:
        self.granted -= messages
        self.permits.used([_delivery(messages, messages * bytes_each)])
        self.permits.grant()

    def all_comes(self, bytes_each: int, times: int = 12) -> None:
        for _ in range(times):
            self.comes(self.granted, bytes_each)


def _delivery(messages: int, size: int) -> Delivery:
    return Delivery(Position(1, 0), 0, messages, None, bytes(size), "", Position(1, 0))


def test_a_backlog_of_batches_fills_the_bytes_of_a_topic_and_not_a_number_of_messages() -> None:
    reader = Reader(read_budget())
    reader.all_comes(1_000)
    assert reader.granted == bounds.TOPIC_BYTES_MAX // 1_000
    reader.all_comes(10)
    assert reader.granted <= PERMITS_MAX


def test_a_topic_that_seldom_gets_a_message_is_granted_few() -> None:
    room = read_budget()
    reader = Reader(room)
    for _ in range(1_000):
        reader.comes(1, 1_000)
    assert reader.granted <= PERMITS_FIRST
    assert room.used == 0


def test_what_was_granted_to_a_backlog_is_given_back_when_messages_come_one_by_one() -> None:
    room = read_budget()
    reader = Reader(room)
    reader.all_comes(2_000)
    assert room.used > 60 * MIB
    for _ in range(2 * reader.granted):
        reader.comes(1, 2_000)
    assert reader.granted <= 2 * PERMITS_FIRST
    assert room.used == 0


def test_many_topics_share_what_each_does_not_have_for_itself_and_none_is_left_without() -> None:
    room = read_budget()
    readers = [Reader(room) for _ in range(100)]
    for _ in range(12):
        for reader in readers:
            reader.comes(reader.granted, 10_000)
    under_way = sum(reader.granted * 10_000 for reader in readers)
    assert under_way <= bounds.SHARED_BYTES + 100 * bounds.TOPIC_BYTES_MIN
    assert all(reader.granted * 10_000 >= 0.9 * bounds.TOPIC_BYTES_MIN for reader in readers)
    for reader in readers:
        reader.permits.close()
    assert room.used == 0


def test_a_message_larger_than_all_room_may_come() -> None:
    reader = Reader(SharedBudget(bounds.SHARED_BYTES, topic_max=2 * MIB, topic_min=MIB))
    reader.comes(PERMITS_FIRST, MIB)
    assert reader.granted == 2
    reader.comes(2, 5 * MIB)
    assert reader.granted == 1


def test_after_a_pause_few_are_granted_and_soon_more() -> None:
    reader = Reader(read_budget())
    reader.all_comes(1_000)
    reader.permits.used([_delivery(reader.granted, 1_000 * reader.granted)])
    reader.granted = 0
    reader.permits.pause()
    reader.permits.grant()
    assert reader.granted == bounds.PERMITS_PAUSED
    reader.all_comes(1_000)
    assert reader.granted == bounds.TOPIC_BYTES_MAX // 1_000


steps = st.lists(st.tuples(st.integers(0, 3), st.floats(0.0, 1.0), st.integers(1, 3 * MIB), st.booleans()), max_size=60)


@given(steps)
def test_invariant_11_what_may_come_is_bounded_by_the_size_of_what_came(
    steps: list[tuple[int, float, int, bool]],
) -> None:
    room = read_budget()
    readers = [Reader(room) for _ in range(4)]
    for index, part, size, pauses in steps:
        reader = readers[index]
        if pauses:
            reader.permits.pause()
        messages = min(max(1, int(part * reader.granted)), 64)
        if messages > reader.granted:
            continue
        before = reader.granted - messages
        reader.comes(messages, size)
        # What was granted before, when messages were smaller, stays granted; nothing is added beyond the bytes.
        assert reader.granted <= max(before, bounds.TOPIC_BYTES_MAX // size, 1)
        assert room.used >= 0
    for reader in readers:
        reader.permits.close()
    assert room.used == 0


@asynchronous
async def test_invariant_11_a_broker_that_sends_more_bytes_than_may_wait_is_left() -> None:
    arrivals = Arrivals()
    large = _delivery(1, MIB)
    for _ in range(BYTES_MAX // MIB):
        arrivals.on_deliveries([large])
    assert len(await arrivals.take()) == BYTES_MAX // MIB
    for _ in range(BYTES_MAX // MIB + 2):
        arrivals.on_deliveries([large])
    with pytest.raises(ConnectError, match="more than it was asked for"):
        await arrivals.take()
