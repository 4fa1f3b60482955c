"""What waits for a consumer's socket: in order, within bounds, and no permit is lost when a restart drops entries."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from replicator.api.outgoing import GRANT_MESSAGES_MIN, OutgoingFrame, OutgoingQueue
from replicator.client.wire.frames import (
    ENTRIES_PER_FRAME_MAX,
    FRAME_BYTES_TARGET,
    Active,
    Closed,
    Deliver,
    InvalidFrame,
    Redelivering,
    Restarted,
)
from replicator.engine.types import Delivery
from snapshots.position import Position


def _entry(entry: int, size: int = 10, batch_size: int = 1) -> Delivery:
    return Delivery(Position(1, entry), 0, batch_size, None, bytes(size), "us-east", Position(1, entry))


def _taken(queue: OutgoingQueue) -> list[OutgoingFrame]:
    """All that waits, taken and sent."""
    frames: list[OutgoingFrame] = []
    while (frame := queue.take()) is not None:
        queue.sent(frame)
        frames.append(frame)
    return frames


def test_entries_travel_together_up_to_the_size_of_a_frame_and_controls_keep_their_place() -> None:
    queue = OutgoingQueue()
    queue.active(True)
    queue.delivered([_entry(0), _entry(1, FRAME_BYTES_TARGET), _entry(2), _entry(3)])
    queue.redelivering()
    queue.delivered([_entry(4)])
    queue.closed("SubscriptionNotFound", "deleted")
    assert _taken(queue) == [
        Active(True),
        Deliver((_entry(0),)),
        Deliver((_entry(1, FRAME_BYTES_TARGET),)),
        Deliver((_entry(2), _entry(3))),
        Redelivering(),
        Deliver((_entry(4),)),
        Closed("SubscriptionNotFound", "deleted"),
    ]


def test_a_frame_has_no_more_entries_than_its_limit() -> None:
    queue = OutgoingQueue()
    queue.delivered([_entry(index, size=1) for index in range(ENTRIES_PER_FRAME_MAX + 1)])
    assert [len(frame.deliveries) for frame in _taken(queue) if isinstance(frame, Deliver)] == [
        ENTRIES_PER_FRAME_MAX,
        1,
    ]


def test_a_restart_drops_what_waits_and_gives_its_permits_back() -> None:
    queue = OutgoingQueue()
    granted = queue.requested(1_000)
    assert granted == GRANT_MESSAGES_MIN
    queue.delivered([_entry(index) for index in range(granted)])
    queue.redelivering()
    assert queue.restarted() >= granted
    queue.delivered([_entry(0)])
    assert _taken(queue) == [Restarted(), Deliver((_entry(0),))]
    assert queue.redeliveries == 0


def test_what_was_taken_before_a_restart_has_used_its_permits() -> None:
    queue = OutgoingQueue()
    queue.requested(GRANT_MESSAGES_MIN)
    queue.delivered([_entry(0)])
    frame = queue.take()
    assert frame == Deliver((_entry(0),))
    assert queue.restarted() == 0
    assert queue.sent(frame) == 0


def test_a_restart_that_waits_is_told_once_and_has_to_be_seen_once() -> None:
    queue = OutgoingQueue()
    queue.restarted()
    queue.delivered([_entry(0)])
    queue.restarted()
    assert queue.restart_untold
    assert queue.restarts == 2
    assert _taken(queue) == [Restarted()]
    assert not queue.restart_untold
    assert queue.restart_unseen
    queue.restart_seen()
    assert not queue.restart_unseen


def test_a_restart_that_was_not_told_cannot_be_seen() -> None:
    queue = OutgoingQueue()
    with pytest.raises(InvalidFrame, match="without a restart"):
        queue.restart_seen()
    queue.restarted()
    with pytest.raises(InvalidFrame, match="without a restart"):
        queue.restart_seen()
    for frame in _taken(queue):
        assert frame == Restarted()
    queue.restarted()
    queue.restart_seen()
    with pytest.raises(InvalidFrame, match="without a restart"):
        queue.restart_seen()


def test_a_change_of_the_active_consumer_that_is_taken_back_is_not_told() -> None:
    queue = OutgoingQueue()
    queue.active(True)
    queue.active(False)
    queue.active(True)
    assert _taken(queue) == [Active(True)]
    queue.active(False)
    queue.active(True)
    assert _taken(queue) == []
    queue.active(False)
    queue.delivered([_entry(0)])
    queue.active(True)
    assert _taken(queue) == [Active(False), Deliver((_entry(0),)), Active(True)]


def test_of_the_changes_of_the_active_consumer_a_restart_keeps_the_last() -> None:
    queue = OutgoingQueue()
    queue.active(True)
    queue.delivered([_entry(0)])
    queue.active(False)
    queue.restarted()
    assert _taken(queue) == [Active(False), Restarted()]


@pytest.mark.parametrize("permits", [0, -1, -(2**40)])
def test_permits_that_make_no_sense_are_refused(permits: int) -> None:
    with pytest.raises(InvalidFrame, match="at least one"):
        OutgoingQueue().requested(permits)


@dataclass
class _Client:
    """What a client has understood of the frames that it got."""

    permits: int = 0
    """Granted, and not used by a delivery."""
    deliveries: list[Delivery] = field(default_factory=list)
    restarts: int = 0
    redeliveries: int = 0
    active: bool | None = None


class OutgoingMachine(RuleBasedStateMachine):
    """An engine, a queue and a client with a socket that stalls at any frame."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = OutgoingQueue()
        self.client = _Client()
        self.engine_permits = 0
        self.positions = count()
        self.active: bool | None = None
        self.after_restart: list[Delivery] = []
        """What the engine has delivered since the newest restart."""
        self.on_the_way: OutgoingFrame | None = None
        self.restarts = 0
        self.seen = 0

    @initialize(permits=st.integers(1, 200))
    def connect(self, permits: int) -> None:
        self.flow(permits)

    @rule(permits=st.integers(1, 200))
    def flow(self, permits: int) -> None:
        self.client.permits += permits
        self.engine_permits += self.queue.requested(permits)

    @precondition(lambda self: self.engine_permits > 0)
    @rule(sizes=st.lists(st.tuples(st.integers(0, 400_000), st.integers(1, 30)), min_size=1, max_size=5))
    def deliver(self, sizes: list[tuple[int, int]]) -> None:
        deliveries = []
        for size, batch_size in sizes:
            if self.engine_permits > 0:
                deliveries.append(_entry(next(self.positions), size, batch_size))
                self.engine_permits -= batch_size
        self.queue.delivered(deliveries)
        self.after_restart += deliveries

    @rule()
    def redeliver(self) -> None:
        self.queue.redelivering()

    @rule(active=st.booleans())
    def change_active(self, active: bool) -> None:
        self.queue.active(active)
        self.active = active

    @rule()
    def restart(self) -> None:
        self.restarts += 1
        self.engine_permits += self.queue.restarted()
        self.after_restart = []

    @precondition(lambda self: self.on_the_way is None)
    @rule()
    def take(self) -> None:
        self.on_the_way = self.queue.take()

    @precondition(lambda self: self.on_the_way is not None)
    @rule()
    def send(self) -> None:
        frame, self.on_the_way = self.on_the_way, None
        assert frame is not None
        self.engine_permits += self.queue.sent(frame)
        match frame:
            case Deliver(deliveries):
                self.client.deliveries += deliveries
                self.client.permits -= sum(delivery.batch_size for delivery in deliveries)
            case Restarted():
                self.client.deliveries = []
                self.client.restarts += 1
            case Redelivering():
                self.client.redeliveries += 1
            case Active(active):
                assert active is not self.client.active, "told what it knows"
                self.client.active = active

    @precondition(lambda self: self.client.restarts > self.seen)
    @rule()
    def see_restart(self) -> None:
        self.seen += 1
        self.queue.restart_seen()

    @invariant()
    def the_client_gets_in_order_what_came_after_the_newest_restart(self) -> None:
        if not self.queue.restart_untold:
            assert self.client.deliveries == self.after_restart[: len(self.client.deliveries)]

    @invariant()
    def what_the_client_asked_before_it_saw_a_restart_is_known_as_void(self) -> None:
        if self.queue.restart_untold or self.client.restarts > self.seen:
            assert self.queue.restart_unseen

    def teardown(self) -> None:
        """The socket takes everything: the client then knows all, and has the permits that the engine has."""
        if self.on_the_way is not None:
            self.send()
        while True:
            self.take()
            if self.on_the_way is None:
                break
            self.send()
        assert self.client.active is self.active
        assert self.client.deliveries == self.after_restart
        assert self.queue.redeliveries == 0
        # The engine is granted all of them in the end, a bounded number at a time.
        for _ in range(10_000):
            if self.engine_permits <= 0:
                break
            self.deliver([(1, 1)] * min(self.engine_permits, 1_000))
            self.take()
            self.send()
        assert self.client.permits <= 0
        assert self.client.permits == self.engine_permits
        while self.client.restarts > self.seen:
            self.see_restart()
        assert not self.queue.restart_unseen


OutgoingMachine.TestCase.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
TestOutgoingMachine = OutgoingMachine.TestCase
