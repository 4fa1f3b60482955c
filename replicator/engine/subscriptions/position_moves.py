"""Moving the position of a subscription, for a user, an operator, TTL or a quota.

A seek begins a new generation. All other moves only consume more, and are announced to other clusters like
acknowledgements. Skipping goes in pages, so that skipping a million messages does not block other tasks.
"""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import Final

from pyroaring import BitMap

from replicator.engine.errors import NotAllowedError
from replicator.engine.subscriptions.changed_subscription import ChangedSubscription
from replicator.engine.types import Ack
from snapshots.position import Position
from snapshots.starts import of_a_seek

SKIP_ENTRIES_MAX: Final = 1_000
SKIP_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bytes that one page of skipping reads, which takes some milliseconds. Other tasks run between pages."""


class PositionMoves:
    """Moves the position of one subscription."""

    __slots__ = ("_saving", "_subscription")

    def __init__(self, subscription: ChangedSubscription) -> None:
        self._subscription = subscription
        self._saving: asyncio.Future[None] | None = None
        """Save of the last seek."""

    async def seek(self, target: Position | int) -> None:
        """Begin a new generation at the entry ``target``, or at the first message published at ``target`` milliseconds
        since the epoch or later. Consumers stay connected. Raise :class:`InvalidSeek`.

        Raise :class:`StoreFull` if the store cannot take it. Then nothing has moved.
        """
        subscription = self._subscription
        position = await self._position_before(target)
        topic, cursor = subscription.topic, subscription.cursor
        moved = False

        def move() -> None:
            nonlocal moved
            if cursor.generation < state.generation:  # else another cluster sought meanwhile
                cursor.restart(position, starts=starts)
                moved = True
                subscription.backlog.moved()
                subscription.dispatching.restart()
                subscription.changed(None, local=True)

        while not moved:
            await self.sought()
            known = (topic.cluster, *topic.origins.high_waters())
            starts = of_a_seek(cursor.state.starts, known)
            state = cursor.restarted(position, starts)
            self._saving = subscription.saved_before(state, move)
            await asyncio.shield(self._saving)

    async def sought(self) -> None:
        """Wait until the last seek is durable, or was refused.

        A client drops what it has when its seek is answered. So it must not be served anew before that.
        """
        while self._saving is not None and not self._saving.done():
            await asyncio.wait([self._saving])

    async def clear_backlog(self) -> None:
        """Treat everything up to the LAC as consumed."""
        await self.consume_through(self._subscription.topic.log.last)

    async def expire(self, published_before_ms: int) -> None:
        """Treat messages published before a time (milliseconds since the epoch) as consumed."""
        await self.consume_through(await self._position_before(published_before_ms))

    async def consume_through(self, position: Position) -> None:
        """Treat all up to ``position`` as consumed (invariant 5, DESIGN §3)."""
        if self._consume_through(position):
            await self._subscription.saved()

    async def skip(self, messages: int) -> int:
        """Treat the next ``messages`` unconsumed messages as consumed. Return how many there were.

        It ends early if the subscription is moved meanwhile.
        """
        if messages < 0:
            raise NotAllowedError(f"{messages} messages cannot be skipped: give a number from 1 on")
        subscription = self._subscription
        cursor = subscription.cursor
        read = subscription.read_entries
        left, position, generation = messages, cursor.mark_delete, cursor.generation
        while left > 0 and (entries := read(position, None, SKIP_ENTRIES_MAX, SKIP_BYTES_MAX)):
            cut: Ack | None = None
            for entry in entries:
                if left <= 0:
                    break
                if not entry.marker and not cursor.passes_over(entry.position):
                    acked = cursor.acked_indexes(entry.position) or BitMap()
                    unacked = entry.batch_size - len(acked)
                    if unacked > left:
                        indexes = (index for index in range(entry.batch_size) if index not in acked)
                        cut = Ack(entry.position, tuple(islice(indexes, left)))
                        left = 0
                        break
                    left -= unacked
                position = entry.position
            self._consume_through(position)
            if cut is not None:
                await subscription.acknowledge([cut])
            await asyncio.sleep(0)
            if cursor.generation != generation:
                break  # somebody has put it elsewhere: what follows there was not asked for
        await subscription.saved()
        return messages - left

    async def _position_before(self, target: Position | int) -> Position:
        """Return the last position before ``target`` that this subscription can have. Raise :class:`InvalidSeek`."""
        topic = self._subscription.topic
        if self._subscription.cursor.state.read_compacted:
            return await topic.compaction.position_before(target)
        if isinstance(target, Position):
            return topic.reading.position_before(target)
        return await topic.reading.position_at_time(target, after=topic.log.trimmed)

    def _consume_through(self, position: Position) -> bool:
        """Treat all up to ``position`` as consumed, without saving it. Return whether anything changed."""
        subscription = self._subscription
        before = subscription.cursor.mark_delete
        changed = subscription.cursor.merge_mark_delete(position, subscription.cursor.generation, announce=True)
        if changed:
            subscription.backlog.moved()
            subscription.changed(before, local=True)
        return changed
