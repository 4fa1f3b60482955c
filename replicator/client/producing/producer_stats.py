"""Statistics of a producer: messages, bytes, failures, and latencies of confirmations. Sans-IO; the clock is passed in.

Counting costs one step an entry, never one a message, since a batch is the unit that is sent and confirmed. Latencies
are kept in a histogram of fixed size whose buckets are an eighth of an octave wide, so quantiles are exact to about 9 %
and memory is bounded (invariant 11).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

_BUCKETS_PER_OCTAVE: Final = 8
_OCTAVES: Final = 32
"""Range of the histogram in octaves: from 1 microsecond to over an hour."""


@dataclass(frozen=True, slots=True)
class ProducerStats:
    """Counts since a producer was made, and latencies. An entry's latency is the time from its sealing to its
    receipt."""

    entries_sent: int
    messages_sent: int
    bytes_sent: int
    """Bytes of sent entries on the wire: compressed, with metadata. Repeated sends after a loss do not count."""
    messages_confirmed: int
    messages_duplicate: int
    """Confirmed messages that the topic had already."""
    messages_failed: int
    messages_pending: int
    latency_ms_p50: float
    latency_ms_p95: float
    latency_ms_p99: float
    latency_ms_max: float


class LatencyHistogram:
    """Counts of durations by logarithmic buckets."""

    __slots__ = ("_counts", "_total", "seconds_max")

    def __init__(self) -> None:
        self._counts = [0] * (_BUCKETS_PER_OCTAVE * _OCTAVES)
        self._total = 0
        self.seconds_max = 0.0

    def add(self, seconds: float, count: int = 1) -> None:
        """Count ``count`` durations of ``seconds``."""
        octaves = math.log2(seconds * 1e6) if seconds > 1e-6 else 0.0
        self._counts[min(int(octaves * _BUCKETS_PER_OCTAVE), len(self._counts) - 1)] += count
        self._total += count
        if seconds > self.seconds_max:
            self.seconds_max = seconds

    def merge(self, other: LatencyHistogram) -> None:
        """Add the counts of ``other``."""
        for index, count in enumerate(other._counts):
            self._counts[index] += count
        self._total += other._total
        self.seconds_max = max(self.seconds_max, other.seconds_max)

    def quantile_seconds(self, share: float) -> float:
        """Return the upper end of the bucket that ``share`` of the durations are in or below; 0 without any."""
        wanted = math.ceil(share * self._total)
        seen = 0
        for index, count in enumerate(self._counts):
            seen += count
            if count and seen >= wanted:
                return min(math.exp2((index + 1) / _BUCKETS_PER_OCTAVE) / 1e6, self.seconds_max)
        return 0.0


class ProducerStatsRecorder:
    """Counters of one producer."""

    __slots__ = (
        "bytes_sent",
        "entries_sent",
        "latencies",
        "messages_confirmed",
        "messages_duplicate",
        "messages_failed",
        "messages_sent",
    )

    def __init__(self) -> None:
        self.entries_sent = 0
        self.messages_sent = 0
        self.bytes_sent = 0
        self.messages_confirmed = 0
        self.messages_duplicate = 0
        self.messages_failed = 0
        self.latencies = LatencyHistogram()

    def sent(self, messages: int, entry_bytes: int) -> None:
        """Count an entry that is sent for the first time."""
        self.entries_sent += 1
        self.messages_sent += messages
        self.bytes_sent += entry_bytes

    def confirmed(self, messages: int, latency_seconds: float, *, duplicate: int) -> None:
        """Count the receipts of messages that were sent at the same time. The topic had ``duplicate`` of them
        already."""
        if messages:
            self.messages_confirmed += messages
            self.messages_duplicate += duplicate
            self.latencies.add(latency_seconds, messages)

    def merge(self, other: ProducerStatsRecorder) -> None:
        """Add the counts of ``other``, a producer of another partition of the same topic."""
        self.entries_sent += other.entries_sent
        self.messages_sent += other.messages_sent
        self.bytes_sent += other.bytes_sent
        self.messages_confirmed += other.messages_confirmed
        self.messages_duplicate += other.messages_duplicate
        self.messages_failed += other.messages_failed
        self.latencies.merge(other.latencies)

    def stats(self, messages_pending: int) -> ProducerStats:
        """Return all counts and latencies as of now."""
        return ProducerStats(
            entries_sent=self.entries_sent,
            messages_sent=self.messages_sent,
            bytes_sent=self.bytes_sent,
            messages_confirmed=self.messages_confirmed,
            messages_duplicate=self.messages_duplicate,
            messages_failed=self.messages_failed,
            messages_pending=messages_pending,
            latency_ms_p50=self.latencies.quantile_seconds(0.50) * 1000,
            latency_ms_p95=self.latencies.quantile_seconds(0.95) * 1000,
            latency_ms_p99=self.latencies.quantile_seconds(0.99) * 1000,
            latency_ms_max=self.latencies.seconds_max * 1000,
        )


def interval_line(before: ProducerStats, now: ProducerStats, seconds: float) -> str:
    """Return a line for the log about the time between two snapshots."""
    return (
        f"{(now.messages_sent - before.messages_sent) / seconds:.1f} msg/s, "
        f"{(now.bytes_sent - before.bytes_sent) / seconds / 1e6:.3f} MB/s, "
        f"{now.messages_confirmed - before.messages_confirmed} confirmed, "
        f"{now.messages_failed - before.messages_failed} failed, {now.messages_pending} pending; "
        f"latency since the beginning: p50 {now.latency_ms_p50:.2f} ms, p99 {now.latency_ms_p99:.2f} ms, "
        f"max {now.latency_ms_max:.2f} ms"
    )
