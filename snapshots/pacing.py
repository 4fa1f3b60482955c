"""When the next update of a topic's subscriptions may go (DESIGN 4.3). Pure.

It serves invariant 11: what updates cost is bounded, however many topics change and however often.

1. The first change of a topic that has none under way goes at once.
2. While an update is under way, from its decision until it stands in the log, changes gather. So a busy worker groups
   them by itself: the longer its commits take, the more goes with one update.
3. Between the beginnings of two updates of a topic lie ``update_interval_ms``, and what the last one took, times how
   much longer it took than :data:`QUIET_MS`, but no more than :data:`GATHER_MS_MAX` if the interval is shorter.
4. All topics of a worker share :class:`UpdateBudget`. When it is used up a change waits for its turn, but no longer
   than :data:`GATHER_MS_MAX`: from then on updates go for each topic as they would if changes were only collected.
"""

from __future__ import annotations

from typing import Final

GATHER_MS_MAX: Final = 100
"""The longest that changes are gathered for the sake of what updates cost."""
QUIET_MS: Final = 4
"""So long an update takes where nothing else is done. One that takes longer says that the worker is busy."""
UPDATES_A_SECOND: Final = 200
"""Of all topics of a worker, before changes are gathered: a fifth of a core, on both sides together."""
BURST_UPDATES: Final = 20
"""That many may go at once after a rest."""
_SLOT_MS: Final = 1000 / UPDATES_A_SECOND


class UpdateBudget:
    """The updates that the topics of one worker may begin; a leaky bucket that gives times instead of refusals."""

    __slots__ = ("_next_ms",)

    def __init__(self) -> None:
        self._next_ms = 0.0
        """When the next one would be due if all were spaced evenly."""

    def reserve(self, earliest_ms: int, latest_ms: int) -> int:
        """When an update that is wanted at ``earliest_ms`` may begin; ``latest_ms`` if its turn is not before."""
        at_ms = max(earliest_ms, self._next_ms - BURST_UPDATES * _SLOT_MS)
        if at_ms >= latest_ms:
            return latest_ms
        self._next_ms = max(self._next_ms, at_ms) + _SLOT_MS
        return int(at_ms)


class UpdatePace:
    """Of one topic."""

    __slots__ = ("_began_ms", "_budget", "_due_ms", "_not_before_ms", "_under_way")

    def __init__(self, budget: UpdateBudget) -> None:
        self._budget = budget
        self._due_ms = 0
        self._under_way = 0
        """Markers that were decided and do not stand in the log yet."""
        self._began_ms = 0
        self._not_before_ms = 0

    @property
    def due_ms(self) -> int | None:
        """When what has changed is to be announced; None while an update is under way, which will end."""
        return None if self._under_way else max(self._due_ms, self._not_before_ms)

    def changed(self, now_ms: int, interval_ms: int) -> None:
        """There is something to announce, and there was nothing before."""
        earliest_ms = max(now_ms, self._not_before_ms)
        self._due_ms = self._budget.reserve(earliest_ms, max(earliest_ms, now_ms + max(GATHER_MS_MAX, interval_ms)))

    def began(self, now_ms: int, markers: int, interval_ms: int) -> None:
        """All that had changed is in so many markers."""
        self._under_way += markers
        self._began_ms = now_ms
        self._not_before_ms = now_ms + interval_ms

    def ended(self, now_ms: int) -> None:
        """One of the markers stands in the log, or was refused."""
        self._under_way -= 1
        if not self._under_way:
            took_ms = now_ms - self._began_ms
            rest_ms = min(GATHER_MS_MAX, took_ms * took_ms // QUIET_MS)
            self._not_before_ms = max(self._not_before_ms, self._began_ms + rest_ms)
