"""What a subscription, and the part of a topic that makes subscriptions, ask of the topic that they are on."""

from __future__ import annotations

import asyncio
from typing import Protocol

from replicator.engine.admission import Admission
from replicator.engine.compaction.compaction import Compaction
from replicator.engine.log.log_index import LogIndex
from replicator.engine.log.writer import Writer
from replicator.engine.policies import TopicPolicies
from replicator.engine.subscriptions.failover import FailoverRegistry
from replicator.engine.topics.catalog_index import Namespace
from replicator.engine.types import ReadEntries
from snapshots.position import Position
from snapshots.position_set import PositionSet


class SubscribedTopic(Protocol):
    """The topic, as its subscriptions see it."""

    name: str
    partition: int
    topic_id: int
    log: LogIndex
    loop: asyncio.AbstractEventLoop
    writer: Writer
    failover: FailoverRegistry
    admission: Admission
    namespace: Namespace
    messages: int

    @property
    def policies(self) -> TopicPolicies: ...

    @property
    def read_entries(self) -> ReadEntries: ...

    @property
    def read_compacted(self) -> ReadEntries: ...

    @property
    def compaction(self) -> Compaction: ...

    async def compacted_position_before(self, target: Position | int) -> Position: ...

    def has_position(self, position: Position) -> bool: ...

    def position_before(self, target: Position) -> Position: ...

    async def position_at_time(self, published_ms: int, *, after: Position) -> Position: ...

    def batch_size(self, position: Position) -> int: ...

    def messages_through(self, position: Position) -> int: ...

    def messages_in(self, positions: PositionSet) -> int: ...

    def check_there(self) -> None:
        """Raises why nothing is asked of the topic any more: it is being deleted."""
