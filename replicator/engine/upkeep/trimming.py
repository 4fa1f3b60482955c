"""Deleting the oldest blocks of one topic.

Invariants (DESIGN §3): 5, blocks that a durable subscription or a holder still needs stay; 10, the last block stays,
because it says which positions were used.

1. The log's index is trimmed, and subscriptions that are not durable are moved. From here on nobody reads the blocks.
2. The rows are deleted in the writer's turn. A store that fails leaves them, and the next call deletes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from replicator.engine.errors import EngineError
from replicator.engine.log.log_index import LogIndex
from replicator.engine.log.origins import Origins
from replicator.engine.log.store import Store
from replicator.engine.log.store_tables import Trim
from replicator.engine.log.topic_reading import TopicReading
from replicator.engine.log.writer import Tail, Writer
from replicator.engine.subscriptions.subscription import Subscription
from replicator.engine.upkeep.holds import Holds
from replicator.engine.upkeep.retention import done_through
from snapshots.position import BEFORE_ALL, Position


class TrimmedTopic(Protocol):
    """Interface of a topic that is trimmed."""

    topic_id: int
    log: LogIndex
    writer: Writer
    tail: Tail
    origins: Origins
    reading: TopicReading
    holds: Holds

    @property
    def deleted(self) -> EngineError | None: ...

    @property
    def subscriptions(self) -> Mapping[str, Subscription]: ...


class Trimming:
    """Trims one topic."""

    __slots__ = ("_store", "_topic", "in_store")

    def __init__(self, topic: TrimmedTopic, store: Store) -> None:
        self._topic = topic
        self._store = store
        self.in_store = topic.log.trimmed
        """Position up to which the store has deleted the blocks. The log's index may be trimmed further."""

    async def trim(self, upto: Position) -> None:
        """Delete the oldest blocks at or below ``upto``, except the last block (invariant 10) and blocks that a durable
        subscription or a link still needs (invariant 5).

        Reads from now on begin above them. A subscription that is not durable is moved there if it lies below.
        """
        topic = self._topic
        if topic.deleted is not None:
            return
        subscriptions = list(topic.subscriptions.values())
        needed_after = (each.cursor.needed_after() for each in subscriptions if each.durable)
        upto = done_through(upto, needed_after, topic.holds.holding())
        await self._trim_index(upto, subscriptions)
        if self.in_store < topic.log.trimmed:  # also what a store that failed did not delete at an earlier call
            trimmed = topic.log.trimmed
            await topic.writer.trim(topic.topic_id, trimmed, topic.tail)
            self.in_store = trimmed
            topic.origins.trimmed()

    def recorded(self) -> Trim:
        """Return what the store has recorded as trimmed. The log's index can be ahead of it: then the store still has
        the blocks in between."""
        return self._store.trim(self._topic.topic_id) if self._topic.log.trimmed > BEFORE_ALL else Trim()

    def ends(self) -> Mapping[str, Sequence[Position]]:
        """Return, by origin, the last trimmed entry of each of its ledgers, as origin positions in order."""
        return self.recorded().ends

    async def _trim_index(self, upto: Position, subscriptions: Sequence[Subscription]) -> None:
        topic, log = self._topic, self._topic.log
        following = log.next_after(upto)
        kept = self._store.block_start(topic.topic_id, log.last if following is None else following)
        end = log.trimmed if kept is None else log.clamp(Position(kept.ledger, kept.entry - 1))
        if end <= log.trimmed:
            return
        log.trim(end)
        topic.reading.discard_through(end)
        for subscription in subscriptions:
            if subscription.follow_log():
                await subscription.saved()
