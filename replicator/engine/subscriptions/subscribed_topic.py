"""What a subscription asks of the topic that it is on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from replicator.engine.admission import Admission
from replicator.engine.compaction.compaction import Compaction
from replicator.engine.log.log_index import LogIndex
from replicator.engine.log.writer import Writer
from replicator.engine.policies import TopicPolicies
from replicator.engine.subscriptions.failover import FailoverRegistry
from replicator.engine.subscriptions.pump import ReadEntries
from replicator.engine.subscriptions.tombstones import Tombstones
from snapshots.position import Position
from snapshots.position_set import PositionSet

if TYPE_CHECKING:
    from replicator.engine.subscriptions.subscription import Subscription


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
    messages: int
    tombstones: Tombstones

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

    def notify_mark_delete(self, subscription: Subscription, *, local: bool) -> None: ...

    def notify_subscription(self, subscription: Subscription) -> None: ...

    def notify_acknowledged(self, subscription: Subscription) -> None: ...

    def forget(self, subscription: Subscription, generation: int | None = None) -> None: ...
