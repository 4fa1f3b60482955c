"""When a cluster asks for snapshots, of one topic (DESIGN 4.2, docs/adr/0068). Pure.

It serves invariants 7 (an idle topic gets no markers) and 8 (whoever does not answer delays nobody for ever).

1. Who published asks, or who cannot wait for who did. Between two requests lies an interval. All topics of a worker
   share a budget of requests, :class:`~snapshots.pacing.SnapshotBudget`. A topic waits for its turn, but no longer than
   :meth:`~snapshots.pacing.SnapshotBudget.age_ms_max`, and no longer than :data:`MESSAGES_MAX` messages.
2. Messages of a peer that asks by itself are *uncovered* until an answer of each cluster that we could ask covers them.
   We wait for these answers. If the peer does not ask in time (:func:`patience_ms`), or not all have answered in time
   after it asked, we ask.
3. What a cluster has said covers what is here until the next message comes. So nobody asks what all know.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from snapshots.pacing import SnapshotBudget

PATIENCE_INTERVALS: Final = 5
"""A peer whose turn has come asks within an interval and a round trip. After so many, it is not waited for."""
MESSAGES_MAX: Final = 1_000
"""Messages after which a topic does not wait for its turn any more."""
TIMEOUTS_WAITED_MAX: Final = 10
"""A peer that asks again and again, as messages keep coming, is waited for no longer: some cluster may not hear it."""


def patience_ms(budget: SnapshotBudget, interval_ms: int) -> int:
    """Return how long a peer that asks is waited for: until its turn has come in its own budget, and some intervals."""
    return budget.age_ms_max(interval_ms) + PATIENCE_INTERVALS * interval_ms


class Asking:
    """Whether to ask, and from when on. ``budget`` is that of all topics of the worker."""

    __slots__ = (
        "_budget",
        "_messages",
        "_moved",
        "_patience_ms",
        "_requested_ms",
        "_turn_ms",
        "_uncovered",
        "_waiting_since_ms",
    )

    def __init__(self, budget: SnapshotBudget) -> None:
        self._budget = budget
        self._turn_ms: int | None = None
        """Turn in the budget, from when it is first asked for until the request."""
        self._messages = 0
        """Messages since the last request that nobody else asks about."""
        self._moved = False
        """Messages came since the last request that nobody else asks about."""
        self._uncovered: frozenset[str] = frozenset()
        """Of whom no answer covers what is here."""
        self._waiting_since_ms = 0
        """When the first message came that others ask about."""
        self._patience_ms = 0
        """Until when they are waited for."""
        self._requested_ms: int | None = None

    @property
    def wanted(self) -> bool:
        """Whether there is something to ask about."""
        return self._moved or bool(self._uncovered)

    def due_ms(self, now_ms: int, interval_ms: int) -> int:
        """Return when to ask, if that is wanted. The first call after messages came takes a turn in the budget."""
        earliest_ms = now_ms if self._requested_ms is None else max(now_ms, self._requested_ms + interval_ms)
        if not self._moved:
            return max(earliest_ms, self._patience_ms)
        if self._messages >= MESSAGES_MAX:
            return earliest_ms
        if self._turn_ms is None:
            latest_ms = max(earliest_ms, now_ms + self._budget.age_ms_max(interval_ms))
            self._turn_ms = self._budget.reserve(earliest_ms, latest_ms)
        return self._turn_ms

    def on_messages(
        self, count: int, asked: frozenset[str], now_ms: int, interval_ms: int, *, others_ask: bool
    ) -> None:
        """Record that ``count`` messages came.

        ``asked`` are the clusters that we could ask. With ``others_ask``, the cluster that published them asks by
        itself.
        """
        if not others_ask:
            self._moved = True
            self._messages += count
        elif not self._uncovered:
            self._waiting_since_ms, self._patience_ms = now_ms, now_ms + patience_ms(self._budget, interval_ms)
        self._uncovered = asked

    def on_peers(self, asked: frozenset[str], *, ask: bool) -> None:
        """From now on we could ask these; with ``ask`` we do, since some of them know nothing yet."""
        self._uncovered &= asked
        self._moved |= ask

    def on_asked(self, now_ms: int, timeout_ms: int) -> None:
        """A peer has asked."""
        self._patience_ms = min(now_ms + timeout_ms, self._waiting_since_ms + TIMEOUTS_WAITED_MAX * timeout_ms)

    def is_uncovered(self, cluster: str) -> bool:
        return cluster in self._uncovered

    def on_covered(self, clusters: Collection[str]) -> None:
        """These have said that they have every message that is here."""
        if self._uncovered:
            self._uncovered = self._uncovered.difference(clusters)
            if not self._uncovered:
                self._rest()

    def on_request(self, now_ms: int) -> None:
        """We ask, about all that is here."""
        self._requested_ms = now_ms
        self.on_request_stands(about_all=True)

    def on_request_stands(self, *, about_all: bool) -> None:
        """A request of ours stands in the log after the last message; links carry it after what we published. It is
        ``about_all`` if others' messages were here, too, when it was decided."""
        self._rest()
        if about_all:
            self._uncovered = frozenset()

    def _rest(self) -> None:
        """Record that there is nothing to ask about until more messages come."""
        self._moved, self._messages, self._turn_ms = False, 0, None
