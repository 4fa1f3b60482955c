"""Messages that another cluster's earlier start opened here are delivered after the acknowledgements that belong to it.

Invariants (DESIGN §3): 5, the other cluster wrote its start into the stream, and then what its consumers acknowledged.
A link may need any time between the two. 8, a cluster that is dead, or cannot answer, delays delivery once, and for a
limited time.

1. An update moves the start of a subscription back, and messages become unconsumed. Dispatch of the subscription is
   held, and the other clusters are asked for their whole states. The question has a name.
2. The source of the start answers with its whole state, which names the question. Then everything is here that was
   acknowledged there before it heard of the question, so dispatch goes on.
3. An answer may be missing, as over a one-way link or from a worker of an earlier version. Then dispatch goes on
   :data:`QUIET_SECONDS` after the last update of the subscription from that source. It goes on
   :data:`HELD_SECONDS_MAX` after the start at the latest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from replicator.engine.subscriptions.subscription import Subscription
from snapshots.actions import ApplyUpdate
from snapshots.controller import SnapshotController

QUIET_SECONDS: Final = 2.0
"""Links carry updates of a source one after another. After a gap of this length, no more are expected."""
HELD_SECONDS_MAX: Final = 10.0
"""Longest time for which messages wait for an answer."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    source: str
    ask_id: str
    until: float


class OpenedStarts:
    """Holds back dispatch of one topic's subscriptions. ``clock`` is monotonic, in seconds."""

    __slots__ = ("_clock", "_controller", "_waiting")

    def __init__(self, controller: SnapshotController, clock: Callable[[], float]) -> None:
        self._controller = controller
        self._clock = clock
        self._waiting: dict[str, _Waiting] = {}
        """Waiting subscriptions by name. Those whose time has passed stay until the next update."""

    def applied(self, subscription: Subscription, update: ApplyUpdate, *, opened: bool) -> None:
        """Record that ``update`` was merged, and whether it ``opened`` messages by an earlier start."""
        name, now = subscription.name, self._clock()
        pump = subscription.dispatching.pump
        if opened:
            ask_id = self._controller.ask(name, int(now * 1000))
            self._waiting[name] = _Waiting(update.source, ask_id, now + HELD_SECONDS_MAX)
            pump.hold(QUIET_SECONDS)
            return
        waiting = self._waiting.get(name)
        if waiting is None or waiting.source != update.source:
            return
        if update.answer == waiting.ask_id or now >= waiting.until or not pump.held:
            del self._waiting[name]
            pump.release()
        else:
            pump.hold(min(QUIET_SECONDS, waiting.until - now))

    def forget(self, name: str) -> None:
        """Forget a subscription that is gone."""
        self._waiting.pop(name, None)
