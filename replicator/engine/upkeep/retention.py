"""Retention: deletes blocks that nobody needs any more and that the policy does not keep. Pure.

Invariant (DESIGN §3): 5, no message is deleted that a durable subscription has not consumed, or a link has not copied.

1. A block is done if it lies at or below the lowest mark-delete position of the durable subscriptions, and at or below
   the position of every other holder. A subscription that is not durable holds nothing back. Without subscriptions all
   blocks are done (as upstream: then only the policy decides).
2. The policy keeps the newest ``bytes_max`` bytes of the done blocks, except messages older than ``age_seconds_max``.
   None is no limit; with both None nothing is ever deleted, and with a 0 nothing is kept.
3. Only whole blocks are deleted, oldest first, and never the last block of a log.

Source: upstream's retention policy. Unlike there, only the size of done blocks counts, so that a large backlog does not
shrink the part that is kept for a replay.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from replicator.engine.log.block import BlockSpan
from replicator.engine.policies import Retention
from snapshots.position import Position


@dataclass(frozen=True, slots=True)
class Trimming:
    """Decision to delete the blocks up to ``upto``, which is the end of a block. They have ``size_bytes`` together."""

    upto: Position
    size_bytes: int


def done_through(last: Position, mark_deletes: Iterable[Position], held_back: Iterable[Position]) -> Position:
    """Return the position up to which nobody needs a log that ends at ``last``."""
    return min([last, *mark_deletes, *held_back])


class RetentionPass:
    """One pass over the oldest blocks of a log. Call :meth:`drop` with the blocks in order until it returns False.

    ``done`` is the result of :func:`done_through`. ``done_bytes`` is the size of the blocks that lie wholly at or below
    it.
    """

    def __init__(self, retention: Retention, done: Position, done_bytes: int, last: Position, now_ms: int) -> None:
        self._done = done
        self._last = last
        self._bytes_max = retention.bytes_max
        self._left_bytes = done_bytes
        self._done_bytes = done_bytes
        age = retention.age_seconds_max
        self._old_ms = None if age is None else now_ms - 1000 * age
        self._upto: Position | None = None

    def drop(self, block: BlockSpan) -> bool:
        """Return whether ``block``, the next oldest one, is deleted, too. If not, the pass is over."""
        if block.last > self._done or block.last >= self._last:
            return False
        too_much = self._bytes_max is not None and self._left_bytes > self._bytes_max
        too_old = self._old_ms is not None and block.publish_time_ms <= self._old_ms
        if not (too_much or too_old):
            return False
        self._left_bytes -= block.size_bytes
        self._upto = block.last
        return True

    @property
    def trimming(self) -> Trimming | None:
        """The blocks to delete; None if there are none."""
        return None if self._upto is None else Trimming(self._upto, self._done_bytes - self._left_bytes)
