"""A subscription of one topic: its cursor, its dispatcher, its consumers, and saving its state.

The shell around two pure cores: :mod:`replicator.engine.cursor` knows what is consumed,
:mod:`replicator.engine.dispatcher` who gets what. This module reads entries for them, calls consumers, and writes the
cursor to the store before an acknowledgement is confirmed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any, Final, Protocol

from replicator.engine.cursor import Cursor, CursorState
from replicator.engine.cursor_rows import CursorRows
from replicator.engine.dispatcher import Assignment, Candidate, Dispatcher
from replicator.engine.errors import EngineError, InvalidAck, NotAllowedError, SubscriptionNotFound
from replicator.engine.log_index import LogIndex
from replicator.engine.types import Ack, Delivery, LoggedEntry, SubscriptionType
from replicator.engine.writer import Writer
from snapshots.position import BEFORE_ALL, Position

DISPATCH_ENTRIES_MAX: Final = 1000
"""Entries looked at in one go, so that one busy subscription does not hold up the event loop."""
DISPATCH_BYTES_MAX: Final = 4 * 1024 * 1024
CONSUMERS_MAX: Final = 10_000
PERMITS_MAX: Final = 1_000_000

Deliver = Callable[[Sequence[Delivery]], None]

_consumer_ids = count(1)


class SubscribedTopic(Protocol):
    """What a subscription asks of the topic that it is on."""

    name: str
    topic_id: int
    log: LogIndex
    loop: asyncio.AbstractEventLoop
    writer: Writer
    messages: int

    def read_entries(
        self, after: Position, upto: Position | None, entries_max: int, bytes_max: int
    ) -> list[LoggedEntry]: ...

    def batch_size(self, position: Position) -> int: ...

    def messages_through(self, position: Position) -> int: ...

    def notify_mark_delete(self, subscription: Subscription, *, local: bool) -> None: ...

    def forget(self, subscription: Subscription) -> None: ...


class EngineConsumer:
    """A consumer connected to a subscription. ``deliver`` is called on the event loop, within its permits."""

    def __init__(self, subscription: Subscription, name: str, deliver: Deliver) -> None:
        self.id = next(_consumer_ids)
        self.name = name
        self.subscription = subscription
        self.deliver = deliver
        self.on_closed: Callable[[str], None] | None = None
        self.closed = False

    def flow(self, permits: int) -> None:
        """Allow ``permits`` more messages; raises :class:`NotAllowedError` for a number that makes no sense."""
        if not 0 < permits <= PERMITS_MAX:
            raise NotAllowedError(f"permits must be 1 to {PERMITS_MAX}, not {permits}")
        self._check_open()
        self.subscription.flow(self, permits)

    async def acknowledge(self, acks: Sequence[Ack]) -> None:
        """Returns when the acknowledgements are durable. Raises :class:`InvalidAck`: then none of them counts."""
        self._check_open()
        await self.subscription.acknowledge(acks)

    async def acknowledge_cumulative(self, position: Position, batch_index: int | None = None) -> None:
        """All up to ``position`` (in it up to ``batch_index``); raises :class:`NotAllowedError` on Shared."""
        self._check_open()
        await self.subscription.acknowledge_cumulative(position, batch_index)

    def redeliver(self, positions: Sequence[Position] | None = None) -> None:
        """Send again what this consumer has not acknowledged: all of it, or ``positions``."""
        self._check_open()
        self.subscription.redeliver(self, positions)

    async def unsubscribe(self) -> None:
        """Delete the subscription; raises :class:`NotAllowedError` while it has other consumers."""
        self._check_open()
        await self.subscription.delete(by=self)

    def close(self, reason: str | None = None) -> None:
        """Disconnect; what is not acknowledged is sent to others. With a ``reason``, the owner is told."""
        if self.closed:
            return
        self.closed = True
        self.subscription.remove(self)
        if reason is not None and self.on_closed is not None:
            self.on_closed(reason)

    def _check_open(self) -> None:
        if self.closed:
            raise NotAllowedError(f"consumer {self.name!r} is closed")


class Subscription:
    """One subscription of one topic. All methods run on the engine's event loop."""

    def __init__(
        self, topic: SubscribedTopic, name: str, state: CursorState, *, rows: CursorRows | None = None
    ) -> None:
        """``rows`` are those that it was loaded from; a new subscription has none yet."""
        self.topic = topic
        self.name = name
        self.cursor = Cursor(topic.log, state)
        self._rows = rows or CursorRows(topic.topic_id, name)
        self.consumers: dict[int, EngineConsumer] = {}
        self.durable = rows is not None
        """Whether the store knows of it. Not so for a moment after it was made."""
        self.locally_active = False
        """Whether the newest change came from a consumer here, not from another cluster: only then others are told."""
        self._dispatcher = Dispatcher(SubscriptionType.EXCLUSIVE, self.cursor.mark_delete)
        self._pump_scheduled = False
        self._waiting_for_save: list[asyncio.Future[None]] = []
        self._saver: asyncio.Task[None] | None = None
        self._deleting = False
        self._consumed_messages: int | None = None
        self.error: str | None = None
        """Why dispatch stands still, such as a block that cannot be read."""

    @property
    def type(self) -> SubscriptionType | None:
        """Undefined while there are no consumers; the next consumer sets it."""
        return self._dispatcher.type if self.consumers else None

    @property
    def replicated(self) -> bool:
        return self.cursor.state.replicated

    # Consumers.

    def add(self, subscription_type: SubscriptionType, name: str, deliver: Deliver) -> EngineConsumer:
        """Connect a consumer; raises :class:`ConsumerBusy`."""
        if self._deleting:
            raise self._being_deleted()
        if len(self.consumers) >= CONSUMERS_MAX:
            raise NotAllowedError(f"subscription {self.name!r} has {CONSUMERS_MAX} consumers, the limit")
        consumer = EngineConsumer(self, name, deliver)
        self._dispatcher.add_consumer(consumer.id, subscription_type)
        self.consumers[consumer.id] = consumer
        return consumer

    def remove(self, consumer: EngineConsumer) -> None:
        del self.consumers[consumer.id]
        self._dispatcher.remove_consumer(consumer.id)
        self._schedule_pump()

    def flow(self, consumer: EngineConsumer, permits: int) -> None:
        self._dispatcher.flow(consumer.id, permits)
        self._schedule_pump()

    def redeliver(self, consumer: EngineConsumer, positions: Sequence[Position] | None) -> None:
        self._dispatcher.redeliver(consumer.id, positions)
        self._schedule_pump()

    # Acknowledging.

    async def acknowledge(self, acks: Sequence[Ack]) -> None:
        sizes = self._checked_batch_sizes(acks)
        before = self.cursor.mark_delete
        for ack, size in zip(acks, sizes, strict=True):
            was_consumed = self.cursor.is_consumed(ack.position)
            if self.cursor.acknowledge(ack.position, ack.batch_indexes, size) and not was_consumed:
                self._dispatcher.acknowledged(ack.position)
                if self._consumed_messages is not None:
                    self._consumed_messages += size
        self._changed(before, local=True)
        await self.saved()

    async def acknowledge_cumulative(self, position: Position, batch_index: int | None) -> None:
        if self._dispatcher.type is SubscriptionType.SHARED:
            raise NotAllowedError(
                "a Shared subscription has no cumulative acknowledgement: it would acknowledge what other "
                "consumers hold; acknowledge each message"
            )
        before = self.cursor.mark_delete
        size = 1 if batch_index is None else self.topic.batch_size(position)
        self.cursor.acknowledge_cumulative(position, batch_index, size)
        self._dispatcher.acknowledged_through(self.cursor.mark_delete)
        self._consumed_messages = None
        self._changed(before, local=True)
        await self.saved()

    def merge_mark_delete(self, position: Position, generation: int) -> bool:
        """Take over what another cluster says is consumed here. Returns whether anything changed; not yet saved."""
        before, generation_before = self.cursor.mark_delete, self.cursor.generation
        if not self.cursor.merge_mark_delete(position, generation):
            return False
        # Acknowledgements here may have carried it further than the other cluster knows: then that is for us to tell.
        self.locally_active = self.cursor.mark_delete > self._over_markers(position)
        self._consumed_messages = None
        if self.cursor.generation != generation_before:
            self._dispatcher.restart(self.cursor.mark_delete)
            self._schedule_pump()
        else:
            self._dispatcher.acknowledged_through(self.cursor.mark_delete)
        self._changed(before, local=self.locally_active)
        return True

    def _over_markers(self, position: Position) -> Position:
        """How far the mark-delete position goes by itself if all up to ``position`` is consumed."""
        log = self.topic.log
        position = log.clamp(position)
        while (following := log.next_after(position)) is not None and following in log.markers:
            position = log.markers.run_end(following)
        return position

    def _checked_batch_sizes(self, acks: Sequence[Ack]) -> list[int]:
        """The batch size of each; raises before anything is changed if one of them is wrong."""
        sizes: list[int] = []
        for ack in acks:
            if ack.position not in self.topic.log or ack.position in self.topic.log.markers:
                raise InvalidAck(
                    f"position {ack.position} is not a message of {self.topic.name} "
                    f"(its last entry is {self.topic.log.last})"
                )
            if ack.position <= self.cursor.mark_delete:
                sizes.append(1)  # late: it changes nothing, so its block need not be read
                continue
            size = self.topic.batch_size(ack.position)
            wrong = [index for index in ack.batch_indexes or () if not 0 <= index < size]
            if wrong:
                raise InvalidAck(f"{ack.position} has {size} messages, not index {wrong[0]}")
            sizes.append(size)
        return sizes

    def _changed(self, mark_delete_before: Position, *, local: bool) -> None:
        if local:
            self.locally_active = True
        if self.cursor.mark_delete != mark_delete_before:
            self._dispatcher.acknowledged_through(self.cursor.mark_delete)
            self.topic.notify_mark_delete(self, local=local)

    # What the topic tells.

    def on_appended(self, *, markers: bool) -> None:
        """The log has new entries: step over markers, and send messages on."""
        if markers and self.cursor.advance():
            self._dispatcher.acknowledged_through(self.cursor.mark_delete)
            self.topic.notify_mark_delete(self, local=self.locally_active)
        if self.consumers:
            self._schedule_pump()

    # Dispatch.

    def _schedule_pump(self) -> None:
        if not self._pump_scheduled and self.consumers:
            self._pump_scheduled = True
            self.topic.loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._pump_scheduled = False
        plan = self._dispatcher.next_read()
        if plan is None:
            return
        try:
            # An entry has at least one message: more entries than permits could not be sent.
            entries_max = min(self._dispatcher.permits, DISPATCH_ENTRIES_MAX)
            entries = self.topic.read_entries(plan.after, plan.upto, entries_max, DISPATCH_BYTES_MAX)
        except EngineError as error:
            self.error = str(error)
            return
        self.error = None
        if not entries:
            return
        candidates = [
            Candidate(
                entry.position,
                entry.batch_size,
                not entry.marker and not self.cursor.is_consumed(entry.position),
            )
            for entry in entries
        ]
        deliveries: dict[int, list[Delivery]] = {}
        for assignment in self._dispatcher.assign(plan, candidates):
            entry = entries[assignment.candidate]
            deliveries.setdefault(assignment.consumer_id, []).append(self._delivery(entry, assignment))
        for consumer_id, batch in deliveries.items():
            consumer = self.consumers.get(consumer_id)
            if consumer is not None:  # not closed by a consumer that was served before it
                consumer.deliver(batch)
        self._schedule_pump()

    def _delivery(self, entry: LoggedEntry, assignment: Assignment) -> Delivery:
        acked = self.cursor.acked_indexes(entry.position)
        return Delivery(
            position=entry.position,
            redelivery_count=assignment.redelivery_count,
            batch_size=entry.batch_size,
            acked=None if acked is None else acked.serialize(),
            entry=bytes(entry.entry),
            origin=entry.origin,
            origin_position=entry.origin_position,
        )

    # Saving. Concurrent changes share one write.

    def saved(self) -> asyncio.Future[None]:
        """A future that is done when the state as it is now is durable."""
        future: asyncio.Future[None] = self.topic.loop.create_future()
        self._waiting_for_save.append(future)
        if self._saver is None:
            self._saver = self.topic.loop.create_task(self._save())
        return future

    async def _save(self) -> None:
        while self._waiting_for_save:
            waiting, self._waiting_for_save = self._waiting_for_save, []
            try:
                await self._write_changes()
            except EngineError as error:
                for future in waiting:
                    if not future.done():
                        future.set_exception(error)
                continue
            self.durable = True
            for future in waiting:
                if not future.done():
                    future.set_result(None)
        self._saver = None

    async def _write_changes(self) -> None:
        if self._deleting:
            raise self._being_deleted()
        changes = self._rows.changes(self.cursor.state)
        try:
            if changes:
                await self.topic.writer.put_many(changes.writes, cleared=changes.cleared)
        except BaseException:
            self._rows.failed()
            raise
        self._rows.saved()

    async def delete(self, by: EngineConsumer | None = None) -> None:
        """Delete the subscription and its state; raises :class:`NotAllowedError` while others consume it."""
        if [consumer for consumer in self.consumers.values() if consumer is not by]:
            raise NotAllowedError(f"subscription {self.name!r} has other consumers: disconnect them first")
        if self._deleting:
            raise self._being_deleted()
        self._deleting = True  # what is saved from here on would bring it back
        try:
            deletion = self._rows.deletion()
            await self.topic.writer.put_many(deletion.writes, cleared=deletion.cleared)
        except BaseException:
            self._deleting = False
            raise
        if by is not None:
            by.close()
        self.topic.forget(self)

    def _being_deleted(self) -> SubscriptionNotFound:
        return SubscriptionNotFound(f"subscription {self.name!r} of {self.topic.name} is being deleted")

    # Figures.

    def backlog_messages(self) -> int:
        """Messages not consumed yet; a partly acknowledged batch counts whole."""
        if self._consumed_messages is None:
            self._consumed_messages = self.topic.messages_through(self.cursor.mark_delete) + sum(
                self.topic.messages_through(last) - self.topic.messages_through(_before(first))
                for first, last in self.cursor.state.individually_deleted.runs()
            )
        return self.topic.messages - self._consumed_messages

    def status(self) -> Mapping[str, Any]:
        """The figures of this subscription, as the status page shows them."""
        kind = self.type
        return {
            "name": self.name,
            "type": None if kind is None else kind.value,
            "replicated": self.replicated,
            "generation": self.cursor.generation,
            "mark_delete": str(self.cursor.mark_delete),
            "individually_deleted_entries": len(self.cursor.state.individually_deleted),
            "backlog_entries": self.cursor.backlog_entries(),
            "backlog_messages": self.backlog_messages(),
            "error": self.error,
            "consumers": [
                {
                    "name": consumer.name,
                    "permits": self._dispatcher.consumers[consumer.id].permits,
                    "unacked_entries": len(self._dispatcher.consumers[consumer.id].pending),
                }
                for consumer in self.consumers.values()
            ],
        }


def _before(position: Position) -> Position:
    return Position(position.ledger, position.entry - 1) if position != BEFORE_ALL else position
