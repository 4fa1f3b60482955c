"""Taking over into a subscription what other clusters say is acknowledged, whatever consumers here hold of it.

Invariant 6 (DESIGN §3) is the cursor's: merging is a union. Here what was merged is taken from those who hold it: their
counts of unacknowledged messages shrink, a key that was draining moves on, and what was to be sent again is not.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyroaring import BitMap

from replicator.engine.errors import BlockCorrupt, InvalidAck
from replicator.engine.subscriptions.changed_subscription import ChangedSubscription
from replicator.engine.subscriptions.dispatch.dispatcher import Dispatcher
from snapshots.position import Position
from snapshots.position_set import PositionSet
from snapshots.starts import Starts


class Merging:
    """Merges into one subscription's cursor. Nothing here is saved yet when it returns."""

    __slots__ = ("_cursor", "_subscription")

    def __init__(self, subscription: ChangedSubscription) -> None:
        self._subscription = subscription
        self._cursor = subscription.cursor

    def mark_delete(self, position: Position, generation: int) -> bool:
        """Take over what another cluster says is consumed here. Returns whether anything changed."""
        subscription, cursor = self._subscription, self._cursor
        before: Position | None = cursor.mark_delete
        generation_before = cursor.generation
        if not cursor.merge_mark_delete(position, generation):
            return False
        # Acknowledgements here may have carried it further than the other cluster knows: then that is for us to tell.
        subscription.locally_active = cursor.mark_delete > self._over_markers(position)
        subscription.backlog.moved()
        if cursor.generation != generation_before:
            subscription.dispatching.restart()
            before = None
        subscription.changed(before, local=subscription.locally_active)
        return True

    def acks(self, positions: PositionSet, batches: Mapping[Position, BitMap], *, announce: bool) -> bool:
        """Take over what other clusters say is acknowledged, in positions of this one: see :meth:`Cursor.merge_acks`.

        What consumers here hold of it is released, and it is not sent again.
        """
        subscription, cursor = self._subscription, self._cursor
        before = cursor.mark_delete
        if not cursor.merge_acks(positions, batches, self._batch_size, announce=announce):
            return False
        if (dispatcher := subscription.dispatching.dispatcher) is not None:
            self._release(dispatcher, positions, batches)
        subscription.backlog.moved()
        if cursor.mark_delete != before:
            subscription.locally_active = announce
        subscription.changed(before, local=announce)
        subscription.dispatching.schedule()
        return True

    def start(self, starts: Starts, uncovered: PositionSet, unclaimed: Mapping[str, Position] | None) -> None:
        """Replace the start by ``starts``, and deliver the entries ``uncovered``, which lay before the old start.

        ``starts`` is earlier than the old start, or names more origins. ``unclaimed`` has, by origin, the position up
        to which trimmed entries are not told to other clusters as acknowledged.
        """
        subscription, state = self._subscription, self._cursor.state
        before = self._cursor.mark_delete
        state.starts, state.unclaimed = starts, unclaimed
        found = self._cursor.uncover(uncovered)
        if found:
            subscription.locally_active = False
            subscription.backlog.moved()
            subscription.dispatching.rewind(found)
        subscription.changed(before, local=False)

    def adopt_generation(self, generation: int, unclaimed: Mapping[str, Position] | None = None) -> None:
        """Another cluster put the subscription elsewhere: start over in its generation, with nothing consumed.

        What is consumed in it is then merged; see :class:`CursorState` for ``unclaimed``. A generation that is not
        higher is old news.
        """
        subscription, cursor = self._subscription, self._cursor
        if generation <= cursor.generation:
            return
        cursor.adopt_generation(generation, unclaimed=unclaimed)
        subscription.backlog.moved()
        subscription.locally_active = False
        subscription.dispatching.restart()
        subscription.changed(None, local=False)

    def outlive(self, generation: int) -> None:
        """Keep the subscription with its state, though another cluster deleted it in ``generation``.

        The subscription gets the next generation.
        """
        subscription, cursor = self._subscription, self._cursor
        assert generation >= cursor.generation, "a deletion of an older generation"
        cursor.state.outlive(generation)
        subscription.changed(None, local=True)

    def _over_markers(self, position: Position) -> Position:
        """How far the mark-delete position goes by itself if all up to ``position`` is consumed."""
        log = self._subscription.topic.log
        position = self._cursor.clamp(position)
        while (following := log.next_after(position)) is not None and following in log.markers:
            position = log.markers.run_end(following)
        return position

    def release_followed(self) -> bool:
        """Let go of what was acknowledged as another entry of the same message; returns whether there was any."""
        followed = self._cursor.take_followed()
        dispatcher = self._subscription.dispatching.dispatcher
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
            return self._subscription.topic.reading.batch_size(position)
        except (BlockCorrupt, InvalidAck):
            return 0
