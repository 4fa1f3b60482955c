"""Merging the acknowledgements of other clusters into a subscription, even of entries that consumers here hold.

The cursor keeps invariant 6 (DESIGN §3): merging is a union. This module also releases the merged entries from the
consumers that hold them: counts of unacknowledged messages shrink, a draining key moves on, and the entries are not
sent again.
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
    """Merges changes of other clusters into one subscription's cursor. The methods do not save them."""

    __slots__ = ("_cursor", "_subscription")

    def __init__(self, subscription: ChangedSubscription) -> None:
        self._subscription = subscription
        self._cursor = subscription.cursor

    def mark_delete(self, position: Position, generation: int) -> bool:
        """Merge a mark-delete position of another cluster. Return whether anything changed."""
        subscription, cursor = self._subscription, self._cursor
        before: Position | None = cursor.mark_delete
        generation_before = cursor.generation
        if not cursor.merge_mark_delete(position, generation):
            return False
        # With acknowledgements made here it may be further than the other cluster knows. Then it must be announced.
        subscription.locally_active = cursor.mark_delete > self._over_markers(position)
        subscription.backlog.moved()
        if cursor.generation != generation_before:
            subscription.dispatching.restart()
            before = None
        subscription.changed(before, local=subscription.locally_active)
        return True

    def acks(self, positions: PositionSet, batches: Mapping[Position, BitMap], *, announce: bool) -> bool:
        """Merge acknowledgements of other clusters, in local positions; see :meth:`Cursor.merge_acks`.

        Consumers here that hold these entries are released from them, and the entries are not sent again.
        """
        subscription, cursor = self._subscription, self._cursor
        before = cursor.mark_delete
        new = cursor.merge_acks(positions, batches, self._batch_size, announce=announce)
        if new is None:
            return False
        if subscription.topic.log.duplicates is None:
            subscription.backlog.consumed_at(new)
        else:
            subscription.backlog.moved()  # duplicates of these entries may be consumed as well
        if (dispatcher := subscription.dispatching.dispatcher) is not None:
            self._release(dispatcher, positions, batches)
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
        """Start over in the higher ``generation`` of another cluster, with nothing consumed. Ignore one that is not
        higher.

        Merge its consumed messages afterwards. See :class:`CursorState` for ``unclaimed``.
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
        """Return how far the mark-delete position goes over markers if all up to ``position`` is consumed."""
        log = self._subscription.topic.log
        position = self._cursor.clamp(position)
        while (following := log.next_after(position)) is not None and following in log.markers:
            position = log.markers.run_end(following)
        return position

    def release_followed(self) -> bool:
        """Release entries from consumers that were acknowledged as another entry of their message. Return whether there
        were any."""
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
        """Return the number of messages of a batch; 0 if it cannot be read, because then acknowledgements of it cannot
        be checked."""
        try:
            return self._subscription.topic.reading.batch_size(position)
        except (BlockCorrupt, InvalidAck):
            return 0
