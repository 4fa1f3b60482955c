"""Pace of a link's small frames: how long the next frame waits, so that it takes more blocks. Pure; docs/adr/0116.

A frame costs both ends about as much as ten small blocks: a write, a commit at the destination, an answer. So small
frames gather. Invariant 8 stays: a link waits for its own frames only. Invariant 11: what is remembered is bounded.

1. The first block after a pause never waits, and neither does a frame after a large one.
2. While few topics move, the next frame waits only while the last one is not answered, and for
   :data:`GATHER_SECONDS` after it at most.
3. While many topics move, frames lie :data:`GATHER_MANY_SECONDS` apart, answered or not. Many are
   :data:`MANY_TOPICS` different topics in the frames of the last :data:`MANY_WITHIN_SECONDS`. Each of them has a
   message now and then, so its blocks would go out one by one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

GATHER_SECONDS: Final = 0.002
"""Wait of a frame while few topics move. It is short beside a synced commit, so it hardly delays a block."""
GATHER_MANY_SECONDS: Final = 0.02
"""Time between frames while many topics move: one tick of updates and snapshots (:data:`snapshots.pacing.TICK_MS`)."""
MANY_TOPICS: Final = 16
MANY_WITHIN_SECONDS: Final = 0.25
SMALL_FRAME_BYTES: Final = 64 * 1024
"""Size from which the frame after a frame does not wait, in bytes of blocks."""


class FramePace:
    """Decides how long the next frame of one link waits. ``now`` is a monotonic clock's reading in seconds."""

    __slots__ = ("_sent_at", "_topics")

    def __init__(self) -> None:
        self._sent_at: float | None = None
        """Time at which the last frame was sent; None if the next one does not wait, as the last one was large."""
        self._topics: OrderedDict[str, float] = OrderedDict()
        """The :data:`MANY_TOPICS` topics sent last, the oldest first, each with the time of its last frame."""

    def sent(self, topics: Iterable[str], size_bytes: int, now: float) -> None:
        """Record that a frame with blocks of ``topics``, ``size_bytes`` in all, was sent."""
        self._sent_at = now if size_bytes < SMALL_FRAME_BYTES else None
        for topic in topics:
            self._topics[topic] = now
            self._topics.move_to_end(topic)
        while len(self._topics) > MANY_TOPICS:
            self._topics.popitem(last=False)

    def wait_seconds(self, now: float, *, in_flight: bool) -> float:
        """Return how long the next frame is to wait from now on; 0 if it may go.

        ``in_flight`` says that a frame is not answered.
        """
        if self._sent_at is None:
            return 0.0
        if self.has_many(now):
            return max(0.0, self._sent_at + GATHER_MANY_SECONDS - now)
        return max(0.0, self._sent_at + GATHER_SECONDS - now) if in_flight else 0.0

    def has_many(self, now: float) -> bool:
        """Return whether frames of the last :data:`MANY_WITHIN_SECONDS` had blocks of many topics."""
        if len(self._topics) < MANY_TOPICS:
            return False
        return next(iter(self._topics.values())) >= now - MANY_WITHIN_SECONDS
