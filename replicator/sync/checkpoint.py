"""Stored position up to which the markers of one topic were handled.

It is written now and then. Markers after it are handled again after a restart, which does no harm. All topics of a
worker share a budget of these writes. If the budget is used up, writes wait for a tick, and those of a tick share a
commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from replicator.engine.engine import Engine
from replicator.engine.topic import Topic
from replicator.engine.topics.topic_deletion import MARKERS_HANDLED
from snapshots.pacing import Budget
from snapshots.position import BEFORE_ALL, Position

CHECKPOINT_MS: Final = 1_000
"""Time between two checkpoints of a topic where few topics move."""
CHECKPOINT_MS_MAX: Final = 10_000
"""Longest time for which a topic waits for its checkpoint. A restart handles the markers of that time again."""
CHECKPOINT_TICK_MS: Final = 100
"""Time between two ticks, for which checkpoints wait that got no earlier time, so that several share a commit."""
CHECKPOINTS_A_SECOND: Final = 20
"""Checkpoints of all topics of a worker per second, before they become rarer. They share commits, and take less than a
hundredth of a core. Snapshots have the same limit."""
BURST_CHECKPOINTS: Final = 10


def checkpoint_budget() -> Budget:
    """Return a budget for the checkpoints of all topics of a worker."""
    return Budget(CHECKPOINTS_A_SECOND, BURST_CHECKPOINTS, CHECKPOINT_TICK_MS)


class Checkpoint:
    """Checkpoint of one topic. ``on_due`` is called when a delayed save has become possible."""

    __slots__ = (
        "_announced",
        "_budget",
        "_closed",
        "_due_ms",
        "_engine",
        "_loop",
        "_on_due",
        "_saved",
        "_timer",
        "_topic",
        "handled",
    )

    def __init__(self, engine: Engine, topic: Topic, budget: Budget, on_due: Callable[[], None]) -> None:
        self._budget = budget
        self._engine = engine
        self._topic = topic
        self._on_due = on_due
        self._loop = asyncio.get_running_loop()
        self.handled = BEFORE_ALL
        """Position up to which markers were handled, and their effects carried out."""
        self._saved = BEFORE_ALL
        self._announced: dict[str, None] = {}
        """Subscriptions that were announced, while the store still notes them as unannounced."""
        self._due_ms = 0
        """Time from which the next checkpoint may be saved; 0 for at once."""
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def load(self) -> None:
        """Load the stored checkpoint, after a restart."""
        stored = self._engine.store.meta(self._name())
        self.handled = self._saved = Position(*stored) if stored else BEFORE_ALL

    def announced(self, name: str) -> None:
        """Note that subscription ``name`` is announced, so that the next save stores it."""
        self._announced[name] = None

    def subscription_deleted(self, name: str) -> None:
        self._announced.pop(name, None)

    async def save(self, handled: Position) -> bool:
        """Save that markers up to ``handled`` were handled, if it is time. Return whether it was.

        Raises the store's errors."""
        if handled <= self._saved and not self._announced:
            return False
        now = self._loop.time()
        if now * 1000 < self._due_ms:
            if self._timer is None and not self._closed:
                self._due_ms = self._budget.reserve(self._due_ms, self._due_ms + CHECKPOINT_MS_MAX)
                self._timer = self._loop.call_at(self._due_ms / 1000, self._on_timer)
            return False
        self._due_ms = int(now * 1000) + CHECKPOINT_MS
        announced, self._announced = self._announced, {}
        saves = [self._topic.subscriptions[name].saved() for name in announced if name in self._topic.subscriptions]
        await asyncio.gather(*saves, return_exceptions=True)  # what is not saved is announced again after a restart
        if handled > self._saved:
            await self._engine.remember(self._name(), list(handled))
            self._saved = handled
        return True

    async def save_now(self, handled: Position) -> bool:
        """Save that markers up to ``handled`` were handled, as :meth:`save` does, but whether it is time or not."""
        self._due_ms = 0
        return await self.save(handled)

    def close(self) -> None:
        """Stop the timer. ``on_due`` is not called any more."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _on_timer(self) -> None:
        self._timer, self._due_ms = None, 0
        self._on_due()

    def _name(self) -> str:
        return f"{MARKERS_HANDLED} {self._topic.topic_id}"
