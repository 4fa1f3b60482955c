"""Negative acknowledgement tracker: keeps entries until their redelivery is due. Sans-IO.

It takes negative acknowledgements with the time of a clock that is passed in, and returns the entries that are to be
redelivered now. Invariant 11: at most ``NEGATIVE_ACKS_MAX`` entries wait. Past that the ones that are due first go
early, which costs a repetition and no memory.

Algorithm:
1. The cluster redelivers entries, not single messages: a batch waits once, from its first negative acknowledgement on.
2. The delay is fixed, or grows with the entry's redelivery count (a back-off).
3. The wheel's tick is a third of the shortest delay, at most ``TICK_MS_MAX``: entries that are due within a tick
   share a request. Merging requests is what this tracker is for.

Source: seed 002 (a timer wheel with ticks of about 33 ms, a default delay of one minute, merged requests).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from replicator.client.consuming.timer_wheel import TimerWheel
from replicator.client.errors import InvalidConfiguration
from snapshots.position import Position

NEGATIVE_ACKS_MAX: Final = 100_000
"""Limit of waiting entries: twice the unacknowledged messages that a cluster lets one consumer hold by default."""
TICK_MS_MAX: Final = 33
"""Longest tick: unnoticed in delays of seconds, and long enough to merge a burst. Source: the seed."""
_DELAY_MS_LONGEST: Final = 2**31
_MULTIPLICATIONS_MAX: Final = 64
"""Limit of multiplications of a delay. After so many, a growing delay has passed the longest one in practice."""


class RedeliveryBackoff(Protocol):
    """Interface of a back-off: the time that a message waits, by its number of earlier redeliveries."""

    @property
    def min_delay_ms(self) -> float: ...

    def next_delay_ms(self, redelivery_count: int) -> float:
        """Return the delay before redelivery number ``redelivery_count + 1``, in milliseconds."""
        ...


@dataclass(frozen=True, slots=True)
class FixedRedeliveryBackoff:
    """Back-off with the same delay before every redelivery."""

    delay_ms: int = 60_000

    @property
    def min_delay_ms(self) -> float:
        return self.delay_ms

    def next_delay_ms(self, redelivery_count: int) -> float:
        return self.delay_ms


@dataclass(frozen=True, slots=True)
class MultiplierRedeliveryBackoff:
    """Back-off from ``min_delay_ms``, ``multiplier`` times as long with each redelivery, at most ``max_delay_ms``.

    Raises :class:`InvalidConfiguration` for values that make no sense together.
    """

    min_delay_ms: int = 10_000
    max_delay_ms: int = 600_000
    multiplier: float = 2.0

    def __post_init__(self) -> None:
        for argument in ("min_delay_ms", "max_delay_ms"):
            value = getattr(self, argument)
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _DELAY_MS_LONGEST:
                raise InvalidConfiguration(
                    f"{argument} is {value!r}; it must be a number from 0 to {_DELAY_MS_LONGEST}"
                )
        if self.min_delay_ms > self.max_delay_ms:
            raise InvalidConfiguration(f"min_delay_ms {self.min_delay_ms} is over max_delay_ms {self.max_delay_ms}")
        if not isinstance(self.multiplier, int | float) or not 1.0 <= self.multiplier <= 1_000_000.0:
            raise InvalidConfiguration(f"multiplier is {self.multiplier!r}; it must be a number from 1 to 1,000,000")

    def next_delay_ms(self, redelivery_count: int) -> float:
        if redelivery_count <= 0 or self.min_delay_ms == 0:
            return self.min_delay_ms
        delay = float(self.min_delay_ms)
        for _ in range(min(redelivery_count, _MULTIPLICATIONS_MAX)):
            delay *= self.multiplier
            if delay >= self.max_delay_ms:
                return self.max_delay_ms
        return delay


class NegativeAckTracker:
    """Entries of one consumer that wait for their redelivery."""

    __slots__ = ("_backoff", "_entries_max", "_wheel")

    def __init__(self, backoff: RedeliveryBackoff | None = None, *, entries_max: int = NEGATIVE_ACKS_MAX) -> None:
        self._backoff: RedeliveryBackoff = FixedRedeliveryBackoff() if backoff is None else backoff
        self._entries_max = entries_max
        tick_ms = min(max(int(self._backoff.min_delay_ms) // 3, 1), TICK_MS_MAX)
        self._wheel: TimerWheel[Position] = TimerWheel(tick_ms)

    def __len__(self) -> int:
        return len(self._wheel)

    def add(self, position: Position, redelivery_count: int, now_ms: float) -> list[Position]:
        """Let an entry wait, unless it does already. Return the entries to redeliver now, in order, to make room."""
        if position in self._wheel:
            return []
        early = sorted(self._wheel.take_first()) if len(self._wheel) >= self._entries_max else []
        self._wheel.put(position, now_ms + self._backoff.next_delay_ms(redelivery_count))
        return early

    def remove(self, position: Position) -> None:
        """Remove an entry that is acknowledged, or redelivered for another reason."""
        self._wheel.remove(position)

    def take_due(self, now_ms: float) -> list[Position]:
        """Remove and return the entries to redeliver now, in order."""
        return sorted(self._wheel.take_due(now_ms))

    def next_due_ms(self) -> float | None:
        """Return when to call :meth:`take_due` next; None while nothing waits."""
        return self._wheel.next_due_ms()

    def clear(self) -> None:
        """Forget everything: all unacknowledged messages come again anyway, or none."""
        self._wheel.clear()
