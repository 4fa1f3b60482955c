"""Tracker of unacknowledged messages: finds those that the application did not answer in time. Sans-IO.

It takes what the application received, acknowledged and rejected, with the time of a clock that is passed in, and
returns the messages whose time is over. A message that is only prefetched is not in it, and never times out: the
application has not seen it yet.

Algorithm:
1. A message enters the last slot of a wheel of ``ack_timeout / tick`` slots when the application receives it.
2. An acknowledgement (also a cumulative one) or a negative acknowledgement takes it out.
3. Each tick the wheel turns by a slot; messages still in the head slot are to be redelivered. So a message waits for
   the timeout at least, and at most one tick more.
4. With a back-off, a message that was redelivered before enters a slot further back.

Each message of a batch has its own time; its redelivery brings the whole entry, so the consumer then forgets the others
of that entry here.

Bounded (invariant 11) by the cluster, which stops delivering to a consumer with too much unacknowledged.

Source: seed 002 (time wheel of ack timeout and tick duration; prefetched messages do not time out).
"""

from __future__ import annotations

from typing import NamedTuple

from replicator.client.consuming.negative_acks import FixedRedeliveryBackoff, RedeliveryBackoff
from replicator.client.consuming.timer_wheel import TimerWheel
from snapshots.position import Position


class MessageKey(NamedTuple):
    """Key of one message: its entry, and its index in the batch or -1."""

    position: Position
    batch_index: int


class UnackedTracker:
    """Messages that the application of one consumer has in hand."""

    __slots__ = ("_backoff", "_indexes", "_wheel")

    def __init__(self, ack_timeout_ms: int, tick_ms: int, backoff: RedeliveryBackoff | None = None) -> None:
        assert tick_ms > 0
        assert ack_timeout_ms > 0
        self._backoff: RedeliveryBackoff = FixedRedeliveryBackoff(ack_timeout_ms) if backoff is None else backoff
        self._wheel: TimerWheel[MessageKey] = TimerWheel(tick_ms)
        self._indexes: dict[Position, set[int]] = {}

    def __len__(self) -> int:
        return len(self._wheel)

    def add(self, position: Position, batch_index: int, redelivery_count: int, now_ms: float) -> None:
        """Start the time of a message that the application received now."""
        self._wheel.put(MessageKey(position, batch_index), now_ms + self._backoff.next_delay_ms(redelivery_count))
        self._indexes.setdefault(position, set()).add(batch_index)

    def remove(self, position: Position, batch_index: int = -1) -> None:
        """Remove a message that was acknowledged or rejected; index -1 means its whole entry."""
        indexes = self._indexes.get(position)
        if indexes is None:
            return
        gone = indexes.copy() if batch_index < 0 else {batch_index} & indexes
        for index in gone:
            self._wheel.remove(MessageKey(position, index))
        indexes -= gone
        if not indexes:
            del self._indexes[position]

    def remove_through(self, position: Position, batch_index: int = -1) -> None:
        """Remove everything through an acknowledged message; index -1 means to the end of its entry."""
        for entry in [entry for entry in self._indexes if entry < position]:
            self.remove(entry)
        if batch_index < 0:
            self.remove(position)
            return
        for index in [index for index in self._indexes.get(position, ()) if index <= batch_index]:
            self.remove(position, index)

    def take_due(self, now_ms: float) -> list[MessageKey]:
        """Remove and return the messages whose time is over, in order."""
        due = self._wheel.take_due(now_ms)
        for key in due:
            indexes = self._indexes[key.position]
            indexes.discard(key.batch_index)
            if not indexes:
                del self._indexes[key.position]
        return sorted(due)

    def next_due_ms(self) -> float | None:
        """Return when to call :meth:`take_due` next; None while nothing is tracked."""
        return self._wheel.next_due_ms()

    def clear(self) -> None:
        """Forget everything: all unacknowledged messages come again, or none."""
        self._wheel.clear()
        self._indexes.clear()
