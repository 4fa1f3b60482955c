"""Times at which a cluster requests snapshots of one topic (DESIGN 4.2, docs/adr/0068). Pure.

It serves invariants 7 (an idle topic gets no markers) and 8 (whoever does not answer delays nobody for ever).

1. The cluster that published asks. Another cluster asks if it cannot wait for that. Between two requests lies an
   interval. All topics of a worker share a budget of requests, :class:`~snapshots.pacing.SnapshotBudget`. A topic waits
   for its turn, but no longer than :meth:`~snapshots.pacing.SnapshotBudget.age_ms_max`, and no longer than
   :data:`MESSAGES_MAX` messages.
2. Messages of a peer that asks by itself are *uncovered* until an answer of each cluster that we could ask covers them.
   We wait for these answers. If the peer does not ask in time (:func:`request_delay_ms`), or not all have answered in
   time after it asked, we ask.
3. A cluster's answer covers all messages here until the next message comes. So no cluster asks for what all know.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from snapshots.pacing import SnapshotBudget

PATIENCE_INTERVALS: Final = 5
"""Number of snapshot intervals that a peer has for its request, after its turn came. Then this cluster asks instead."""
MESSAGES_MAX: Final = 1_000
"""Number of messages after which a topic requests a snapshot without waiting for its turn."""
TIMEOUTS_WAITED_MAX: Final = 10
"""Longest wait for a peer that keeps asking while messages keep coming, in timeouts. Some cluster may not receive its
requests."""
PENDING_REQUESTS_MAX: Final = 256
"""Most unanswered requests that are remembered for counting: 30 s of them at 5/s are 150. Beyond it the oldest counts
as timed out."""


def request_delay_ms(budget: SnapshotBudget, interval_ms: int) -> int:
    """Return how long to wait for a peer that asks by itself: its longest wait in its budget, and some intervals."""
    return budget.age_ms_max(interval_ms) + PATIENCE_INTERVALS * interval_ms


class SnapshotScheduler:
    """Decision whether and when one topic requests snapshots. All topics of the worker share ``budget``."""

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
        """Time that the budget gave for the next request; None if no time was reserved."""
        self._messages = 0
        """Number of messages since the last request for which no other cluster asks."""
        self._moved = False
        """Whether messages came since the last request for which no other cluster asks."""
        self._uncovered: frozenset[str] = frozenset()
        """Clusters without an answer that covers all messages of this cluster."""
        self._waiting_since_ms = 0
        """Time at which the first message came for which another cluster should ask."""
        self._patience_ms = 0
        """Time until which this cluster waits for the request of another cluster."""
        self._requested_ms: int | None = None

    @property
    def wanted(self) -> bool:
        """Whether a snapshot request is needed, now or later."""
        return self._moved or bool(self._uncovered)

    def due_ms(self, now_ms: int, interval_ms: int) -> int:
        """Return the earliest time at which to request a snapshot, if :attr:`wanted`.

        The first call after new messages reserves that time in the budget. ``interval_ms`` is the shortest time between
        two requests.
        """
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
        """Record that ``count`` messages came that a snapshot must cover; the clusters in ``asked`` must answer.

        This cluster requests the snapshot. With ``others_ask`` the publisher should, and this cluster waits for it
        before it asks itself. ``interval_ms`` is the time between two snapshots.
        """
        if not others_ask:
            self._moved = True
            self._messages += count
        elif not self._uncovered:
            self._waiting_since_ms, self._patience_ms = now_ms, now_ms + request_delay_ms(self._budget, interval_ms)
        self._uncovered = asked

    def on_peers(self, asked: frozenset[str], *, ask: bool) -> None:
        """Record that this cluster can now ask the clusters ``asked``. With ``ask``, want a snapshot, since some of
        them are new."""
        self._uncovered &= asked
        self._moved |= ask

    def on_peer_request(self, now_ms: int, timeout_ms: int) -> None:
        """Record that a peer requested a snapshot. Wait for the answers for at most ``timeout_ms``."""
        self._patience_ms = min(now_ms + timeout_ms, self._waiting_since_ms + TIMEOUTS_WAITED_MAX * timeout_ms)

    def on_covered(self, clusters: Collection[str]) -> None:
        """Record that ``clusters`` have every message that this cluster has."""
        if self._uncovered:
            self._uncovered = self._uncovered.difference(clusters)
            if not self._uncovered:
                self._rest()

    def on_request(self, now_ms: int) -> None:
        """Record that this cluster requests a snapshot for all messages that it has."""
        self._requested_ms = now_ms
        self.on_request_stands(about_all=True)

    def on_request_stands(self, *, about_all: bool) -> None:
        """Record that a request of this cluster is in the log behind the last message. Links carry it behind our
        messages.

        ``about_all`` says that the request was decided after all messages here came, whichever cluster published them.
        """
        self._rest()
        if about_all:
            self._uncovered = frozenset()

    def _rest(self) -> None:
        """Record that no request is needed until more messages come."""
        self._moved, self._messages, self._turn_ms = False, 0, None


@dataclass(slots=True)
class _Pending:
    sent_ms: int
    awaited: set[str]


class UnansweredRequests:
    """Requests of one topic that not all clusters have answered. They are only counted: nothing depends on them."""

    __slots__ = ("_pending",)

    def __init__(self) -> None:
        self._pending: dict[str, _Pending] = {}

    def note(self, snapshot_id: str, asked: Collection[str], now_ms: int) -> int:
        """Remember a request that the clusters ``asked`` must answer. Return how many older ones, 0 or 1, now count as
        timed out, because there are too many."""
        forgotten = len(self._pending) >= PENDING_REQUESTS_MAX
        if forgotten:
            self._forget_oldest()
        self._pending[snapshot_id] = _Pending(now_ms, set(asked))
        return int(forgotten)

    def answered(self, snapshot_id: str, cluster: str) -> None:
        """Record that ``cluster`` answered the request, if it is remembered."""
        pending = self._pending.get(snapshot_id)
        if pending is not None:
            pending.awaited.discard(cluster)
            if not pending.awaited:
                del self._pending[snapshot_id]

    def expire_ms(self, timeout_ms: int) -> int | None:
        """Return the time at which the oldest request times out; None if all are answered."""
        return next(iter(self._pending.values())).sent_ms + timeout_ms if self._pending else None

    def expire(self, now_ms: int, timeout_ms: int) -> int:
        """Forget the requests that have timed out, and return their number."""
        expired = 0
        while (at_ms := self.expire_ms(timeout_ms)) is not None and at_ms <= now_ms:
            self._forget_oldest()
            expired += 1
        return expired

    def _forget_oldest(self) -> None:
        del self._pending[next(iter(self._pending))]
