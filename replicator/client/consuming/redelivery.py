"""Asyncio shell around the two trackers that ask for messages again: negative acknowledgements and timeouts.

It owns their one timer, which runs only while a message waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from replicator.client.consuming.consumer_stats import ConsumerStatsRecorder
from replicator.client.consuming.negative_acks import FixedRedeliveryBackoff, NegativeAckTracker
from replicator.client.consuming.unacked_tracker import MessageKey, UnackedTracker
from replicator.client.message import Message
from replicator.client.settings import ConsumerSettings
from snapshots.position import Position

RedeliverDue = Callable[[Sequence[Position], Sequence[MessageKey]], None]
"""Function called with the entries whose negative-acknowledgement delay is over, and the messages that timed out."""


class RedeliveryTimers:
    """Timers of one consumer's messages: delays after negative acknowledgements, and acknowledgement timeouts."""

    def __init__(self, settings: ConsumerSettings, stats: ConsumerStatsRecorder, redeliver: RedeliverDue) -> None:
        self._loop = asyncio.get_running_loop()
        self._stats = stats
        self._redeliver = redeliver
        self._negative = NegativeAckTracker(
            settings.negative_ack_backoff or FixedRedeliveryBackoff(settings.negative_ack_redelivery_delay_ms)
        )
        self._unacked = (
            UnackedTracker(
                settings.unacked_messages_timeout_ms, settings.ack_timeout_tick_ms(), settings.ack_timeout_backoff
            )
            if settings.unacked_messages_timeout_ms > 0
            else None
        )
        self._timer: asyncio.TimerHandle | None = None

    @property
    def unacked_messages(self) -> int:
        """Number of messages that the application has in hand; 0 without a timeout."""
        return len(self._unacked) if self._unacked is not None else 0

    def show(self, messages: Iterable[Message]) -> None:
        """Start the timeouts of messages that the application gets."""
        if self._unacked is None:
            return
        now_ms = self._now_ms()
        for message in messages:
            message_id = message.message_id()
            self._unacked.add(message_id.position(), message_id.batch_index(), message.redelivery_count(), now_ms)
        self._set_timer()

    def acknowledged(self, position: Position, batch_index: int, batch_size: int) -> None:
        """Stop the timers of a message that the application acknowledged."""
        if self._unacked is not None:
            self._unacked.remove(position, batch_index)
        if batch_index < 0 or batch_size <= 1:
            self._negative.remove(position)

    def acknowledged_through(self, position: Position, batch_index: int) -> None:
        """Stop the timeouts of everything through a message that the application acknowledged cumulatively."""
        if self._unacked is not None:
            self._unacked.remove_through(position, batch_index)

    def rejected(self, position: Position, batch_index: int, redelivery_count: int) -> None:
        """Start the delay of a message that the application rejected."""
        self._stats.negative_acks += 1
        if self._unacked is not None:
            self._unacked.remove(position, batch_index)
        early = self._negative.add(position, redelivery_count, self._now_ms())
        if early:
            self._redeliver(early, ())
        self._set_timer()

    def redelivered(self, positions: Iterable[Position]) -> None:
        """Stop the timers of entries that come again: the application's copies of them are void."""
        for position in positions:
            self._negative.remove(position)
            if self._unacked is not None:
                self._unacked.remove(position)

    def clear(self) -> None:
        """Stop all timers: all unacknowledged messages come again, or none."""
        self._negative.clear()
        if self._unacked is not None:
            self._unacked.clear()
        self._set_timer()

    def _set_timer(self) -> None:
        due = [
            due_ms
            for due_ms in (self._negative.next_due_ms(), self._unacked.next_due_ms() if self._unacked else None)
            if due_ms is not None
        ]
        if not due:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            return
        when = min(due) / 1000
        if self._timer is not None:
            if self._timer.when() <= when:
                return  # it sets itself again
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self._fired)

    def _fired(self) -> None:
        self._timer = None
        now_ms = self._now_ms()
        negative = self._negative.take_due(now_ms)
        timed_out = self._unacked.take_due(now_ms) if self._unacked is not None else []
        self._stats.ack_timeouts += len(timed_out)
        if negative or timed_out:
            self._redeliver(negative, timed_out)
        self._set_timer()

    def _now_ms(self) -> float:
        return self._loop.time() * 1000
