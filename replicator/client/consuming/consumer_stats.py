"""Statistics of a consumer: counts, and rates from them. Sans-IO; times are seconds of a clock passed in.

Source: seed 002 (a recorder that prints the consumer's counts at a fixed interval).
"""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class ConsumerStats:
    """Counts since the consumer was made, its present state, and rates since the last interval of the log.

    Without a log the rates are those since the consumer was made.
    """

    messages_received: int = 0
    """Messages given to the application."""
    bytes_received: int = 0
    """Payload bytes of the messages given to the application."""
    receive_failed: int = 0
    """Entries that could not be read."""
    acks_sent: int = 0
    """Messages that the application acknowledged; a cumulative acknowledgement is one."""
    ack_failed: int = 0
    """Acknowledgements that the cluster refused."""
    negative_acks: int = 0
    ack_timeouts: int = 0
    entries_redelivered: int = 0
    """Entries that this consumer asked for again; asking for all of them counts as one."""
    dead_letters: int = 0
    retry_letters: int = 0
    reconnects: int = 0
    prefetched_messages: int = 0
    """Messages in the receiver queue now."""
    unacked_messages: int = 0
    """Messages that the application has now; counted only with an acknowledgement timeout."""
    receive_rate: float = 0.0
    """Messages received per second."""
    receive_bytes_rate: float = 0.0
    ack_rate: float = 0.0

    def __add__(self, other: ConsumerStats) -> ConsumerStats:
        """Return the sums of the statistics of two consumers."""
        return ConsumerStats(
            *(getattr(self, each.name) + getattr(other, each.name) for each in fields(ConsumerStats))  # all are sums
        )


class ConsumerStatsRecorder:
    """Counters of one consumer."""

    __slots__ = (
        "_since",
        "_then",
        "ack_failed",
        "ack_timeouts",
        "acks_sent",
        "bytes_received",
        "dead_letters",
        "entries_redelivered",
        "messages_received",
        "negative_acks",
        "receive_failed",
        "reconnects",
        "retry_letters",
    )

    def __init__(self, now: float) -> None:
        self.messages_received = 0
        self.bytes_received = 0
        self.receive_failed = 0
        self.acks_sent = 0
        self.ack_failed = 0
        self.negative_acks = 0
        self.ack_timeouts = 0
        self.entries_redelivered = 0
        self.dead_letters = 0
        self.retry_letters = 0
        self.reconnects = 0
        self._since = now
        self._then = (0, 0, 0)

    def stats(self, now: float, *, prefetched: int = 0, unacked: int = 0) -> ConsumerStats:
        """Return the totals up to now, and the rates of the present interval."""
        seconds = now - self._since
        messages, payload, acks = self._then
        return ConsumerStats(
            messages_received=self.messages_received,
            bytes_received=self.bytes_received,
            receive_failed=self.receive_failed,
            acks_sent=self.acks_sent,
            ack_failed=self.ack_failed,
            negative_acks=self.negative_acks,
            ack_timeouts=self.ack_timeouts,
            entries_redelivered=self.entries_redelivered,
            dead_letters=self.dead_letters,
            retry_letters=self.retry_letters,
            reconnects=self.reconnects,
            prefetched_messages=prefetched,
            unacked_messages=unacked,
            receive_rate=(self.messages_received - messages) / seconds if seconds > 0 else 0.0,
            receive_bytes_rate=(self.bytes_received - payload) / seconds if seconds > 0 else 0.0,
            ack_rate=(self.acks_sent - acks) / seconds if seconds > 0 else 0.0,
        )

    def next_interval(self, now: float) -> None:
        """Begin a new interval for the rates."""
        self._since = now
        self._then = (self.messages_received, self.bytes_received, self.acks_sent)


def stats_line(stats: ConsumerStats) -> str:
    """Return the statistics as one line for the log."""
    return (
        f"received {stats.receive_rate:.1f} msg/s, {stats.receive_bytes_rate / 1e6:.3f} MB/s, "
        f"acknowledged {stats.ack_rate:.1f} msg/s; {stats.prefetched_messages} in the receiver queue; in all "
        f"{stats.messages_received} received, {stats.acks_sent} acknowledged, {stats.ack_failed} acknowledgements "
        f"refused, {stats.entries_redelivered} asked for again, {stats.dead_letters} dead letters"
    )
