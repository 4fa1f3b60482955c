"""Reading one topic of the brokers into the engine's log.

Invariants (DESIGN §3): 1 and 2, the brokers' cursor moves only after what it passes is durable here, and what comes
again then is dropped by the high-water mark, which was committed with the blocks; 3, entries are appended in the order
in which the broker stores them; 4, what the bridge itself published is recognised by its stamp and not appended again;
11, what is read and not yet stored is bounded by permits.

1. Whole entries come through a durable Exclusive subscription with a reserved name: as one consumer gets all of them,
   they come in order, and without delay.
2. Runs of entries without a stamp become blocks of the brokers' own origin. Its positions are the broker's.
3. Entries with a stamp are the bridge's own. They tell where what it published lies; that is stored as well.
4. The version of an entry's schema is put into the engine's terms, and that schema is durable first.
5. When all is durable, the broker's cursor is moved, cumulatively.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from typing import Final

from replicator.apache.arrivals import Arrivals, Permits
from replicator.apache.entry_map import EntryMap
from replicator.apache.names import reading_subscription
from replicator.apache.published import write_of
from replicator.apache.schemas import BrokerSchemas
from replicator.apache.stamps import marks_of, with_schema_version
from replicator.client.settings import ConsumerSettings
from replicator.client.wire.channel import ConsumerChannel
from replicator.client.wire.connector import BrokerConnector
from replicator.engine.log.block import BLOCK_ENTRIES_MAX, BlockKind, build_block
from replicator.engine.log.requests import CopiedBlock
from replicator.engine.subscriptions.cursor_rows import RowWrite
from replicator.engine.topic import Topic
from replicator.engine.types import Delivery, InitialPosition, SubscriptionType
from snapshots.position import BEFORE_ALL, Position

BLOCK_BYTES_MAX: Final = 4 * 1024 * 1024


class Incoming:
    """Reads one topic; ``incarnation`` is that of the topic at the brokers. ``stored`` is called when something new of
    what the bridge published was found."""

    def __init__(
        self,
        connector: BrokerConnector,
        cluster: str,
        topic: Topic,
        entries: EntryMap,
        schemas: BrokerSchemas,
        *,
        incarnation: int,
        reached: Position,
        stored: Callable[[], None],
    ) -> None:
        self._connector = connector
        self._name = reading_subscription(cluster)
        self._topic = topic
        self._entries = entries
        self._schemas = schemas
        self._incarnation = incarnation
        self._stored = stored
        self.reached = reached
        """All up to there is stored here, as a position of the brokers."""
        self.messages = 0

    async def read(self) -> None:
        """Read until the connection ends. Raises what it ends with, :class:`BridgeHalted`, and the store's errors."""
        events = Arrivals()
        channel = await self._connector.open_consumer(
            ConsumerSettings(
                topic=self._topic.name,
                subscription=self._name,
                consumer_name=self._name,
                consumer_type=SubscriptionType.EXCLUSIVE,
                initial_position=InitialPosition.EARLIEST,
                replicated=False,
                create_topic=False,
                subscription_properties={"incarnation": str(self._incarnation)},
            )
        )
        channel.start(events)
        try:
            await self._read(channel, events)
        finally:
            await channel.close()

    async def _read(self, channel: ConsumerChannel, events: Arrivals) -> None:
        requests = count(1)
        permits = Permits(channel)
        while True:
            arrived = await events.take()
            await self._store(arrived)
            channel.acknowledge_cumulative(next(requests), arrived[-1].position, None)
            permits.used(arrived)

    async def _store(self, arrived: Sequence[Delivery]) -> None:
        """All of it is durable when it returns."""
        marks = [marks_of(delivery.entry) for delivery in arrived]
        await self._schemas.fetch(version for identity, version in marks if identity is None)
        blocks: list[CopiedBlock] = []
        writes: dict[bytes, RowWrite] = {}
        run: list[Delivery] = []
        run_bytes = 0
        high_water = self._topic.origins.high_water(self._entries.broker_origin)
        previous = BEFORE_ALL if high_water is None else high_water.position
        for delivery, (identity, version) in zip(arrived, marks, strict=True):
            if delivery.position <= self.reached:
                continue  # it came again, as its acknowledgement was lost
            self.reached = delivery.position
            if identity is not None:
                seen = self._entries.seen_at_broker(identity, delivery.position)
                if seen is not None:
                    write = write_of(self._topic.topic_id, identity, seen)
                    writes[write[1]] = write
                continue
            if run and (
                delivery.position != Position(run[-1].position.ledger, run[-1].position.entry + 1)
                or run_bytes + len(delivery.entry) > BLOCK_BYTES_MAX
                or len(run) >= BLOCK_ENTRIES_MAX
            ):
                blocks.append(CopiedBlock(previous, self._block(run)))
                run, run_bytes = [], 0
            if version:
                entry = with_schema_version(delivery.entry, self._schemas.here(version))
                delivery = delivery._replace(entry=entry)
            run.append(delivery)
            run_bytes += len(delivery.entry)
        if run:
            blocks.append(CopiedBlock(previous, self._block(run)))
        storing: list[Awaitable[object]] = []
        if blocks:
            storing.append(self._topic.writing.copy(blocks))
        if writes:
            storing.append(self._topic.writer.put_many(list(writes.values())))
        await asyncio.gather(*storing)
        self.messages += sum(delivery.batch_size for delivery in arrived)
        if writes:
            self._stored()

    def _block(self, run: Sequence[Delivery]) -> bytes:
        return build_block(
            kind=BlockKind.MESSAGES,
            origin=self._entries.broker_origin,
            incarnation=self._incarnation,
            origin_first=run[0].position,
            publish_time_ms=time.time_ns() // 1_000_000,
            entries=[delivery.entry for delivery in run],
            batch_sizes=[delivery.batch_size for delivery in run],
        )
