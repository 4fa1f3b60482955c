"""Rule for a store that takes back its messages: keep the log until other clusters tell its subscriptions. Pure.

A new store has messages before it has subscriptions. Without a subscription nothing holds back retention, and
unconsumed messages would be deleted. So other clusters are asked for the states of subscriptions.

Invariant (DESIGN §3): 5, nothing is trimmed that a subscription may need whose state was not told.

1. For :data:`SILENT_SECONDS` after the first question of this process, each other cluster counts, afterwards only one
   that answered. A cluster that is away must not fill the disk. A wall clock that steps, or a worker that comes back
   late, does not shorten this time.
2. While one of these has not told its states, nothing is trimmed, expired or evicted, for ``seconds_max`` at most.
3. After that, expiry goes on. Retention still trims no topic that was there at the start, until the clusters in
   question have told their states. What is kept counts against the backlog quota, which may evict it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import Enum
from typing import Final

SILENT_SECONDS: Final = 60.0
"""Time in which a cluster that is starting too has to answer for the first time."""
HOLDER: Final = "states of other clusters"
"""Name of the holder of a topic's log in place of subscriptions whose states were not told."""


class Kept(Enum):
    """Part of the log that is kept for subscriptions that were not told."""

    EVERYTHING = "everything"
    """Nothing is trimmed, expired or evicted."""
    UNTOLD = "untold"
    """Nothing is trimmed, and what is kept counts against the backlog quota."""
    NOTHING = "nothing"


class WaitingStates:
    """Knows which of the clusters ``peers`` are still awaited, and what is kept for them. The wait began at
    ``since_ms`` of the wall clock.

    ``told`` are clusters that have told theirs before a restart. Methods get the seconds for which this process has
    asked the clusters, by a clock that does not step.
    """

    def __init__(self, peers: Collection[str], since_ms: int, seconds_max: float, told: Iterable[str] = ()) -> None:
        self.since_ms = since_ms
        self._peers = frozenset(peers)
        self._ms_max = 1000 * seconds_max
        self._told = set(told)
        self._heard = set(told)

    def change(self, peers: Collection[str], seconds_max: float) -> None:
        """Use another topology: a cluster that is not in it any more is not awaited."""
        self._peers, self._ms_max = frozenset(peers), 1000 * seconds_max

    def heard(self, peer: str) -> None:
        """Note that ``peer`` answered, though it has not told everything yet."""
        self._heard.add(peer)

    def told(self, peer: str) -> None:
        """Note that ``peer`` has told the states of all its subscriptions."""
        self._heard.add(peer)
        self._told.add(peer)

    @property
    def complete_peers(self) -> list[str]:
        return sorted(self._told)

    def untold(self, asking_seconds: float) -> list[str]:
        """Return the clusters that are awaited at that time."""
        counted = self._peers if asking_seconds < SILENT_SECONDS else self._peers & self._heard
        return sorted(counted - self._told)

    def kept(self, now_ms: int, asking_seconds: float) -> Kept:
        """Return what is kept at that time, of the wall clock and since the first question."""
        if not self.untold(asking_seconds):
            return Kept.NOTHING
        return Kept.EVERYTHING if now_ms < self.since_ms + self._ms_max else Kept.UNTOLD
