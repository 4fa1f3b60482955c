"""Skipping messages of a subscription, in pages, so that a million of them hold up nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import islice
from typing import Final, Protocol

from pyroaring import BitMap

from replicator.engine.subscriptions.cursor import Cursor
from replicator.engine.types import Ack, ReadEntries
from snapshots.position import Position

SKIP_ENTRIES_MAX: Final = 1_000
SKIP_BYTES_MAX: Final = 4 * 1024 * 1024
"""Looked at in one go: some milliseconds, then others have their turn."""


class SkippingSubscription(Protocol):
    """The subscription whose messages are skipped."""

    cursor: Cursor

    @property
    def read_entries(self) -> ReadEntries: ...

    def consume_through_unsaved(self, position: Position) -> bool: ...

    async def acknowledge(self, acks: Sequence[Ack]) -> None: ...

    def saved(self) -> asyncio.Future[None]: ...


async def skip_messages(subscription: SkippingSubscription, messages: int) -> int:
    """Treat the next ``messages`` unconsumed ones as consumed; returns how many there were.

    Ends early when somebody puts the subscription elsewhere meanwhile.
    """
    read = subscription.read_entries
    left, position, generation = messages, subscription.cursor.mark_delete, subscription.cursor.generation
    while left > 0 and (entries := read(position, None, SKIP_ENTRIES_MAX, SKIP_BYTES_MAX)):
        cut: Ack | None = None
        for entry in entries:
            if left <= 0:
                break
            if not entry.marker and not subscription.cursor.passes_over(entry.position):
                acked = subscription.cursor.acked_indexes(entry.position) or BitMap()
                unacked = entry.batch_size - len(acked)
                if unacked > left:
                    indexes = (index for index in range(entry.batch_size) if index not in acked)
                    cut = Ack(entry.position, tuple(islice(indexes, left)))
                    left = 0
                    break
                left -= unacked
            position = entry.position
        subscription.consume_through_unsaved(position)
        if cut is not None:
            await subscription.acknowledge([cut])
        await asyncio.sleep(0)
        if subscription.cursor.generation != generation:
            break  # somebody has put it elsewhere: what follows there was not asked for
    await subscription.saved()
    return messages - left
