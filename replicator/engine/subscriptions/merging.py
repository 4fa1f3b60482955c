"""Taking over into a subscription what other clusters say is acknowledged, whatever consumers here hold of it.

Invariant 6 (DESIGN §3) is the cursor's: merging is a union. Here what was merged is taken from those who hold it: their
counts of unacknowledged messages shrink, a key that was draining moves on, and what was to be sent again is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyroaring import BitMap

from replicator.engine.errors import BlockCorrupt, InvalidAck
from replicator.engine.subscriptions.dispatch.dispatcher import Dispatcher
from snapshots.position import Position
from snapshots.position_set import PositionSet

if TYPE_CHECKING:
    from replicator.engine.subscriptions.cursor import Cursor
    from replicator.engine.subscriptions.subscribed_topic import SubscribedTopic


class Merging:
    """Merges into one subscription's cursor."""

    __slots__ = ("_cursor", "_topic")

    def __init__(self, topic: SubscribedTopic, cursor: Cursor) -> None:
        self._topic = topic
        self._cursor = cursor

    def merge(
        self,
        positions: PositionSet,
        batches: Mapping[Position, BitMap],
        dispatcher: Dispatcher | None,
        *,
        announce: bool,
    ) -> bool:
        """See :meth:`Subscription.merge_acks`."""
        if not self._cursor.merge_acks(positions, batches, self._batch_size, announce=announce):
            return False
        if dispatcher is not None:
            self._release(dispatcher, positions, batches)
        return True

    def over_markers(self, position: Position) -> Position:
        """How far the mark-delete position goes by itself if all up to ``position`` is consumed."""
        log = self._topic.log
        position = self._cursor.clamp(position)
        while (following := log.next_after(position)) is not None and following in log.markers:
            position = log.markers.run_end(following)
        return position

    def release_followed(self, dispatcher: Dispatcher | None) -> bool:
        """Let go of what was acknowledged as another entry of the same message; returns whether there was any."""
        followed = self._cursor.take_followed()
        if dispatcher is not None and followed:
            batches = dict.fromkeys(followed, BitMap())
            self._release(dispatcher, PositionSet(), batches)
        return bool(followed)

    def _release(self, dispatcher: Dispatcher, positions: PositionSet, batches: Mapping[Position, BitMap]) -> None:
        dispatcher.acknowledged_all(positions)
        for position in batches:
            if self._cursor.is_consumed(position):
                dispatcher.acknowledged(position)
                continue
            acked, size = self._cursor.acked_indexes(position), self._batch_size(position)
            if acked is not None and size:
                dispatcher.partly_acknowledged(position, size - len(acked))

    def _batch_size(self, position: Position) -> int:
        """0 for a batch that cannot be read: what is said of it can be neither checked nor shown to anybody."""
        try:
            return self._topic.reading.batch_size(position)
        except (BlockCorrupt, InvalidAck):
            return 0
