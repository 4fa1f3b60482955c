"""Paces at which a worker writes updates of subscriptions, and snapshots (DESIGN 4.2 and 4.3). Pure.

It serves invariant 11: updates and snapshots cost a bounded amount, however many topics change and however often.

A :class:`Budget` gives times instead of refusals. A topic names the earliest and the latest time for its update or
snapshot. It gets a time in between: the earliest one while few topics ask, and the latest one if too many do. So the
rate is bounded, and no topic starves. The latest time is put on a *tick*, which topics share: their markers then go
into one commit and one frame of a link. :class:`SnapshotBudget` is for snapshots, :class:`UpdateBudget` for updates.

Updates of one topic, :class:`UpdatePace`:

1. The first change of a topic without an update under way is announced at once.
2. While an update is under way, from its decision until it is in the log, changes gather. So a busy worker groups
   them by itself: the longer its commits take, the more changes one update has.
3. Two updates of a topic begin at least ``update_interval_ms`` apart. After a slow one the pause is longer: the time
   that it took, times its ratio to :data:`QUIET_MS`, at most :data:`GATHER_MS_MAX` unless the interval is longer.
4. All topics of a worker share an :class:`UpdateBudget`. When it is used up a change waits for its turn, but no longer
   than :data:`GATHER_MS_MAX`: from then on each topic's updates go as if changes were only collected.
"""

from __future__ import annotations

from typing import Final

GATHER_MS_MAX: Final = 100
"""Longest time for which changes are collected to save updates."""
QUIET_MS: Final = 4
"""Duration of an update on a worker that does nothing else. A longer one shows that the worker is busy."""
UPDATES_A_SECOND: Final = 200
"""Updates of all topics of a worker per second before changes are collected: a fifth of a core, on both sides together.
"""
BURST_UPDATES: Final = 20
"""Number of updates that may go at once after a pause."""
SNAPSHOTS_A_SECOND: Final = 20
"""Snapshots of all topics of a worker per second before they become rarer. One is four markers in two clusters, so 20
are 80 markers."""
BURST_SNAPSHOTS: Final = 20
"""Number of snapshots that may begin at once after a pause."""
SNAPSHOT_AGE_MS_MAX: Final = 10_000
"""Longest time for which messages wait for a snapshot, at the default interval."""
SNAPSHOT_AGE_INTERVALS_MAX: Final = 50
"""Longest wait in intervals: 10 seconds of 200 ms. With a shorter interval a topic waits less. A longer one does not
extend the wait beyond :data:`SNAPSHOT_AGE_MS_MAX`."""
COARSE_SNAPSHOTS_A_SECOND: Final = 200
"""Used instead of :data:`SNAPSHOTS_A_SECOND` where acknowledgements travel as mark-delete positions alone."""
COARSE_AGE_INTERVALS_MAX: Final = 5
"""Longest wait in intervals where acknowledgements travel as mark-delete positions alone: 1 s with intervals of 200 ms.
"""


TICK_MS: Final = 20
"""Time between two ticks of updates and snapshots. At 500 updates a second, six topics share one tick."""


class Budget:
    """Leaky bucket that gives times instead of refusals, shared by all topics of a worker.

    A use gets its earliest time while the bucket has room, else its turn, at ``a_second`` turns each second. After a
    rest ``burst`` + 1 uses may go at once. If the turn comes too late, the use gets the last tick (every ``tick_ms``)
    up to its latest time, whatever the rate.
    """

    __slots__ = ("_burst_ms", "_next_ms", "_slot_ms", "_tick_ms")

    def __init__(self, a_second: int, burst: int, tick_ms: int = TICK_MS) -> None:
        self._slot_ms = 1000 / a_second
        self._tick_ms = tick_ms
        self._burst_ms = burst * self._slot_ms
        self._next_ms = 0.0
        """Time at which the next use would be due if all were evenly spaced."""

    def reserve(self, earliest_ms: int, latest_ms: int) -> int:
        """Return the time at which an update or a snapshot may begin that is wanted at ``earliest_ms``.

        If its turn does not come before ``latest_ms``, return the last tick up to that, or at least ``earliest_ms``.
        """
        at_ms = max(earliest_ms, self._next_ms - self._burst_ms)
        if at_ms >= latest_ms:
            return max(earliest_ms, latest_ms - latest_ms % self._tick_ms)
        self._next_ms = max(self._next_ms, at_ms) + self._slot_ms
        return int(at_ms)

    def wait_ms(self, now_ms: int) -> int:
        """Return how long an update or a snapshot that is wanted now would wait for its turn."""
        return max(0, int(self._next_ms - self._burst_ms) - now_ms)


class UpdateBudget(Budget):
    """Budget of the updates of subscriptions that one worker writes."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(UPDATES_A_SECOND, BURST_UPDATES)


class SnapshotBudget(Budget):
    """Budget of the snapshots that one worker asks for.

    Without ``exact``, mark-delete positions are the only announcement, and they need a snapshot each. Then the budget
    is larger, and topics wait less.
    """

    __slots__ = ("_age_intervals_max",)

    def __init__(self, *, exact: bool = True) -> None:
        super().__init__(SNAPSHOTS_A_SECOND if exact else COARSE_SNAPSHOTS_A_SECOND, BURST_SNAPSHOTS)
        self._age_intervals_max = SNAPSHOT_AGE_INTERVALS_MAX if exact else COARSE_AGE_INTERVALS_MAX

    def age_ms_max(self, interval_ms: int) -> int:
        """Return how long a topic's messages may wait for a snapshot.

        ``interval_ms`` is the time between two snapshots of the topic while few topics move.
        """
        return max(interval_ms, min(SNAPSHOT_AGE_MS_MAX, self._age_intervals_max * interval_ms))


class UpdatePace:
    """Times at which one topic announces changes of its subscriptions."""

    __slots__ = ("_began_ms", "_budget", "_due_ms", "_not_before_ms", "_under_way")

    def __init__(self, budget: UpdateBudget) -> None:
        self._budget = budget
        self._due_ms = 0
        self._under_way = 0
        """Number of markers that were decided and are not in the log yet."""
        self._began_ms = 0
        self._not_before_ms = 0

    @property
    def due_ms(self) -> int | None:
        """Return when changes may be announced; None while markers of an update are on their way into the log.

        It does not say whether there are changes.
        """
        return None if self._under_way else max(self._due_ms, self._not_before_ms)

    def changed(self, now_ms: int, interval_ms: int) -> None:
        """Record the first change after the last update, and reserve a time for its announcement."""
        earliest_ms = max(now_ms, self._not_before_ms)
        self._due_ms = self._budget.reserve(earliest_ms, max(earliest_ms, now_ms + max(GATHER_MS_MAX, interval_ms)))

    def began(self, now_ms: int, markers: int, interval_ms: int) -> None:
        """Record that ``markers`` markers announce all changes, and that no update may begin for ``interval_ms``."""
        self._under_way += markers
        self._began_ms = now_ms
        self._not_before_ms = now_ms + interval_ms

    def ended(self, now_ms: int) -> None:
        """Record that one of the announcing markers is in the log or was refused."""
        self._under_way -= 1
        if not self._under_way:
            took_ms = now_ms - self._began_ms
            rest_ms = min(GATHER_MS_MAX, took_ms * took_ms // QUIET_MS)
            self._not_before_ms = max(self._not_before_ms, self._began_ms + rest_ms)
