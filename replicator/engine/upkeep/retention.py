"""How much of a log is deleted: nothing that anybody still needs, and of the rest what its policy does not keep. Pure.

Invariant (DESIGN §3): 5, no message goes that a durable subscription has not consumed, or a link has not copied.

1. Done is what lies at or below the lowest mark-delete position of the durable subscriptions, and at or below every
   position that somebody else holds the log back at. A subscription that is not durable holds nothing back. Without
   subscriptions everything is done (as upstream: then the policy alone decides).
2. Of what is done the policy keeps the newest ``bytes_max`` bytes, and of those what is not older than
   ``age_seconds_max``: both limits must allow it. None is no limit; with both None nothing is ever deleted, with a 0
   nothing is kept.
3. Only whole blocks go, oldest first, and the last block of a log never does.

Source: upstream's retention policy. Unlike there, the size is that of what is done, not of the whole log, so that a
large backlog does not make the part that is kept for a replay smaller.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from replicator.engine.log.block import BlockSpan
from replicator.engine.policies import Retention
from snapshots.position import Position


@dataclass(frozen=True, slots=True)
class Trimming:
    """Delete the blocks up to ``upto``, which is where one ends; they have ``size_bytes`` together."""

    upto: Position
    size_bytes: int


def done_through(last: Position, mark_deletes: Iterable[Position], held_back: Iterable[Position]) -> Position:
    """The position up to which nobody needs a log that ends at ``last``."""
    return min([last, *mark_deletes, *held_back])


class RetentionPass:
    """One pass over the oldest blocks of a log: give them in order until one is kept.

    ``done`` is :func:`done_through`, ``done_bytes`` the size of the blocks that lie wholly at or below it.
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
        """Whether ``block``, the oldest that was not dropped yet, goes too; if not, the pass is over."""
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
        """What was found to go; None if nothing."""
        return None if self._upto is None else Trimming(self._upto, self._done_bytes - self._left_bytes)
