"""A subscription of one topic: its cursor, its consumers, what they acknowledge, and saving its state.

The shell around pure cores: :mod:`replicator.engine.subscriptions.cursor` knows what is consumed,
:mod:`replicator.engine.subscriptions.dispatch` who gets what; :mod:`replicator.engine.subscriptions.pump` carries
entries between the log and the consumers. The cursor is written to the store before an acknowledgement is confirmed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from pyroaring import BitMap

from replicator.engine.errors import ConsumerBusy, EngineError, InvalidAck, NotAllowedError, SubscriptionNotFound
from replicator.engine.log.last_message import last_message
from replicator.engine.policies import TopicPolicies
from replicator.engine.subscriptions.backlog import Backlog
from replicator.engine.subscriptions.consumer import Deliver, EngineConsumer
from replicator.engine.subscriptions.cursor import Cursor
from replicator.engine.subscriptions.cursor_rows import CursorRows, RowWrite
from replicator.engine.subscriptions.cursor_saver import CursorSaver
from replicator.engine.subscriptions.cursor_state import CursorState
from replicator.engine.subscriptions.dispatch.choice import make_dispatcher, unacked_limits
from replicator.engine.subscriptions.dispatch.dispatcher import Dispatcher
from replicator.engine.subscriptions.dispatch.many_active import ManyActiveDispatcher
from replicator.engine.subscriptions.dispatch.redeliveries import RedeliveryCounts
from replicator.engine.subscriptions.dispatch.single_active import NOT_PARTITIONED, SingleActiveDispatcher
from replicator.engine.subscriptions.merging import Merging
from replicator.engine.subscriptions.position_moves import PositionMoves
from replicator.engine.subscriptions.pump import Pump
from replicator.engine.subscriptions.subscribed_topic import SubscribedTopic
from replicator.engine.subscriptions.subscription_status import subscription_status
from replicator.engine.subscriptions.tombstones import Tombstones
from replicator.engine.subscriptions.unannounced import Unannounced
from replicator.engine.types import Ack, LoggedEntry, ReadEntries, SubscribeOptions, SubscriptionType
from replicator.running.short_tasks import awaited
from snapshots.position import Position

CONSUMERS_MAX: Final = 10_000


class SubscriptionNews(Protocol):
    """Who is told what becomes of a topic's subscriptions: links, the subscription sync, maintenance."""

    def on_subscription(self, subscription: Subscription) -> None:
        """It was made, became replicated, or is not any more."""

    def on_subscription_deleted(self, name: str, generation: int | None) -> None:
        """It is gone; ``generation`` is that of its tombstone, None if it was not replicated."""

    def on_acknowledged(self, subscription: Subscription) -> None:
        """There is something to be told to other clusters, where there was nothing before."""

    def on_mark_delete(self, subscription: Subscription, *, local: bool) -> None:
        """Its mark-delete position moved; ``local`` if by consumers here and not by another cluster's update."""


class SubscriptionOwner(Protocol):
    """What has the subscription: the subscriptions of its topic."""

    news: SubscriptionNews
    tombstones: Tombstones

    def forget(self, subscription: Subscription, generation: int | None = None) -> None:
        """It is gone; ``generation`` is that of its tombstone, if it left one."""


class Subscription:
    """One subscription of one topic. All methods run on the engine's event loop."""

    def __init__(
        self,
        topic: SubscribedTopic,
        owner: SubscriptionOwner,
        name: str,
        state: CursorState,
        *,
        rows: CursorRows | None = None,
        durable: bool = True,
        with_first_save: Sequence[RowWrite] = (),
    ) -> None:
        """``rows`` are those that it was loaded from; a new subscription has none yet, and what is to be written in the
        transaction that makes it is ``with_first_save``."""
        self.topic = topic
        self._owner = owner
        self._news = owner.news
        self.name = name
        self.durable = durable
        """Whether it is kept when its consumers have gone, and over a restart."""
        self.cursor = Cursor(topic.log, state)
        self.consumers: dict[int, EngineConsumer] = {}
        self.to_be_saved = False
        """Whether a save before the engine closes spares telling other clusters again what they know."""
        self.locally_active = False
        """Whether the newest change came from a consumer here, not from another cluster: only then others are told."""
        self._saver = CursorSaver(
            topic.loop,
            topic.writer,
            rows or CursorRows(topic.topic_id, name),
            lambda: self.cursor.state,
            stored=rows is not None or not durable,
            with_first_save=with_first_save,
        )
        self._redeliveries = RedeliveryCounts()
        self._pump = Pump(topic.loop, topic.writer.wall_clock_ms, self.cursor, self.consumers)
        self._deleting = False
        self._deletion: asyncio.Task[None] | None = None
        self.backlog = Backlog(topic, self.cursor)
        self.merging = Merging(self)
        self.moves = PositionMoves(self)
        self._notified: Unannounced | None = None
        """What was noted there as unannounced, listeners know of already."""

    @property
    def type(self) -> SubscriptionType | None:
        """Undefined while there are no consumers; the next consumer sets it."""
        return self.dispatcher.type if self.consumers and self.dispatcher is not None else None

    @property
    def stored(self) -> bool:
        """Whether the store knows of it (or never will); not so for a moment after it was made."""
        return self._saver.stored

    @property
    def replicated(self) -> bool:
        return self.cursor.state.replicated

    @property
    def error(self) -> str | None:
        """Why dispatch stands still, such as a block that cannot be read."""
        return self._pump.error

    @property
    def dispatcher(self) -> Dispatcher | None:
        """What decides who gets what; None before the first consumer."""
        return self._pump.dispatcher

    # Consumers.

    def add(self, options: SubscribeOptions, deliver: Deliver) -> EngineConsumer:
        """Connect a consumer.

        Raises :class:`ConsumerBusy`, :class:`InvalidHashRanges`, :class:`NotAllowedError`; nothing is changed then.
        """
        if self._deleting:
            raise self._being_deleted()
        self._check(options)
        dispatcher = self.dispatcher if self.consumers else None
        if dispatcher is None:
            # Without consumers nothing is pending: so the type, and the policies as they are now, come from the next.
            dispatcher = make_dispatcher(
                options.type,
                self.cursor.mark_delete,
                self._redeliveries,
                policies=self.topic.policies.effective,
                topic=self.topic.name,
                partition=self.topic.partition,
            )
        elif dispatcher.type is not options.type:
            raise ConsumerBusy(
                f"the subscription is {dispatcher.type.value} while its consumers are connected, "
                f"not {options.type.value}: disconnect them to change its type"
            )
        consumer = EngineConsumer(self, options, deliver)
        dispatcher.add_consumer(consumer.id, options)
        self.consumers[consumer.id] = consumer
        self._pump.dispatcher = dispatcher
        self._pump.delays = self.topic.policies.effective.delayed_delivery
        self._pump.read = self.read_entries
        self._pump.paused = self._dispatch_paused
        if self._by_registry:
            self.topic.failover.add(self, consumer.name)
        self._tell_active_changes()
        return consumer

    def _dispatch_paused(self) -> bool:
        return self.topic.admission.dispatch_paused

    def schedule(self) -> None:
        """There may be something to dispatch: a merge released entries, or dispatch is not paused any more."""
        self._pump.schedule()

    @property
    def held_entries(self) -> int:
        """Entries that consumers have and have not acknowledged whole."""
        if self.dispatcher is None:
            return 0
        return sum(len(state.pending) for state in self.dispatcher.consumers.values())

    @property
    def read_entries(self) -> ReadEntries:
        """How the entries of this subscription are read: from the log, or from the compacted view and then the log."""
        return self._read_compacted if self.cursor.state.read_compacted else self.topic.reading.entries

    def _read_compacted(
        self, after: Position, upto: Position | None, entries_max: int, bytes_max: int
    ) -> list[LoggedEntry]:
        """Entries of the compacted view and the log. Messages that are compacted out of a batch are shown to nobody,
        so they count as acknowledged: with those that are left the batch is consumed."""
        entries = self.topic.compaction.read(after, upto, entries_max, bytes_max)
        before = self.cursor.mark_delete
        compacted = [entry for entry in entries if entry.compacted_out is not None]
        for entry in compacted:
            self.cursor.acknowledge(entry.position, BitMap.deserialize(entry.compacted_out or b""), entry.batch_size)
        if compacted:  # maybe only such messages were left of a batch
            self.topic.loop.call_soon(self._passed_over, before)  # not amid a dispatch
        return entries

    def _passed_over(self, mark_delete_before: Position) -> None:
        if not self._deleting:
            self.changed(mark_delete_before, local=True)

    def remove(self, consumer: EngineConsumer) -> None:
        """A consumer has gone; called by it."""
        del self.consumers[consumer.id]
        assert self.dispatcher is not None
        self.dispatcher.remove_consumer(consumer.id)
        if self._by_registry:
            self.topic.failover.remove(self, consumer.name)
        self._tell_active_changes()
        self._pump.schedule()
        if not self.consumers:
            self._pump.stop()
            if not self.durable:
                self._deleting = True
                self._owner.forget(self)

    def flow(self, consumer: EngineConsumer, permits: int) -> None:
        assert self.dispatcher is not None
        self.dispatcher.flow(consumer.id, permits)
        self._pump.schedule()

    def redeliver(self, consumer: EngineConsumer, positions: Sequence[Position] | None) -> None:
        assert self.dispatcher is not None
        self.dispatcher.redeliver(consumer.id, positions)
        self._pump.schedule()

    def consumer_names(self) -> Iterable[str]:
        """For the failover registry."""
        return [consumer.name for consumer in self.consumers.values()]

    def spread_over_topics(self, spread: bool) -> None:
        """The failover registry says that the consumers subscribe to several topics, or do not any more."""
        if isinstance(self.dispatcher, SingleActiveDispatcher):
            self.dispatcher.spread_over_topics(spread)
            self._tell_active_changes()
            self._pump.schedule()

    def apply_policies(self, policies: TopicPolicies) -> None:
        """The topic's policies changed; how keys are assigned changes when the consumers have gone."""
        if isinstance(self.dispatcher, ManyActiveDispatcher):
            self.dispatcher.set_limits(unacked_limits(policies))
            self._pump.delays = policies.delayed_delivery
            self._pump.schedule()

    @property
    def _by_registry(self) -> bool:
        return (
            self.dispatcher is not None
            and self.dispatcher.type is SubscriptionType.FAILOVER
            and self.topic.partition == NOT_PARTITIONED
        )

    def _check(self, options: SubscribeOptions) -> None:
        if len(self.consumers) >= CONSUMERS_MAX:
            raise NotAllowedError(f"subscription {self.name!r} has {CONSUMERS_MAX} consumers, the limit")
        if options.read_compacted and not options.type.one_active:
            raise NotAllowedError(f"read_compacted needs Exclusive or Failover, not {options.type.value}")
        if options.durable is not self.durable:
            raise NotAllowedError(
                f"subscription {self.name!r} is {'' if self.durable else 'not '}durable; "
                "use another name, or ask for the same"
            )
        other = next(iter(self.consumers.values()), None)  # those that are here agree
        if other is not None and other.options.read_compacted is not options.read_compacted:
            raise ConsumerBusy("the consumers of a subscription must agree on read_compacted")

    def _tell_active_changes(self) -> None:
        assert self.dispatcher is not None
        if self.dispatcher.type is not SubscriptionType.FAILOVER:
            self.dispatcher.take_active_changes()
            return
        for change in self.dispatcher.take_active_changes():
            self.topic.loop.call_soon(self._tell_active, change.consumer_id, change.active)
        self._pump.postpone()  # a consumer hears that it is active before it gets messages

    def _tell_active(self, consumer_id: int, active: bool) -> None:
        consumer = self.consumers.get(consumer_id)
        if consumer is not None and consumer.on_active_change is not None:
            consumer.on_active_change(active)

    # Acknowledging.

    async def acknowledge(self, acks: Sequence[Ack]) -> None:
        """Durable when it returns. Raises :class:`InvalidAck`: then none of them counts."""
        sizes = self._checked_batch_sizes(acks)
        before = self.cursor.mark_delete
        dispatcher = self.dispatcher
        for ack, size in zip(acks, sizes, strict=True):
            if self.cursor.is_consumed(ack.position):
                if dispatcher is not None and self.cursor.lacks(ack.position):  # compacted away since it was sent
                    dispatcher.acknowledged(ack.position)
                continue
            if self.cursor.acknowledge(ack.position, ack.batch_indexes, size):
                if dispatcher is not None:
                    dispatcher.acknowledged(ack.position)
                self.backlog.consumed(size)
            elif dispatcher is not None and (acked := self.cursor.acked_indexes(ack.position)) is not None:
                dispatcher.partly_acknowledged(ack.position, size - len(acked))
        self.changed(before, local=True)
        self._pump.schedule()  # a consumer that had too much unacknowledged, or a key that was held, may go on
        await self.saved()

    async def acknowledge_cumulative(self, position: Position, batch_index: int | None) -> None:
        """Durable when it returns. Raises :class:`NotAllowedError` on Shared types, :class:`InvalidAck`."""
        if self.dispatcher is not None and not self.dispatcher.type.one_active:
            raise NotAllowedError(
                f"a {self.dispatcher.type.value} subscription has no cumulative acknowledgement: it would acknowledge "
                "what other consumers hold; acknowledge each message"
            )
        before = self.cursor.mark_delete
        if self.cursor.lacks(position):
            batch_index = None  # compacted away since it was sent: none of it is left to be acknowledged
        reading = self.topic.reading
        late = position <= before and reading.has_position(position)  # its block may be trimmed
        size = 1 if batch_index is None or late else reading.batch_size(position)
        self.cursor.acknowledge_cumulative(position, batch_index, size)
        self.backlog.moved()
        self.changed(before, local=True)
        await self.saved()

    def note_all(self) -> None:
        """See :meth:`CursorState.note_all`. Not yet saved."""
        self.cursor.state.note_all()
        self.notify_unannounced()

    def note_heard(self) -> None:
        """See :meth:`CursorState.note_heard`. Not yet saved."""
        self.cursor.state.note_heard()
        self.notify_unannounced()

    async def set_replicated(self, replicated: bool) -> None:
        """Tell other clusters of the state from now on, beginning with all of it; or not any more. Durable when it
        returns. Raises :class:`NotAllowedError` for a subscription that is not durable."""
        if replicated and not self.durable:
            raise NotAllowedError(f"subscription {self.name!r}: one that is not durable cannot be replicated")
        if self._deleting:
            raise self._being_deleted()
        if replicated != self.replicated:
            self.cursor.state.set_replicated(replicated)
            self._news.on_subscription(self)  # first: nobody does so if this caller gives up
            self.notify_unannounced()
        await self.saved()

    def take_unannounced(self) -> Unannounced:
        """See :meth:`CursorState.take_unannounced`."""
        return self.cursor.state.take_unannounced()

    def note_announced(self) -> None:
        """What was taken is durable where others will find it. Noted with the next save: a crash only repeats it."""
        if self.cursor.state.to_announce and self.cursor.state.note_announced():
            self.to_be_saved = True

    def notify_unannounced(self) -> None:
        """Tell listeners once that there is something to be told to other clusters, until it is taken."""
        unannounced = self.cursor.state.unannounced
        if unannounced is not None and unannounced is not self._notified and unannounced:
            self._notified = unannounced
            self._news.on_acknowledged(self)

    def _checked_batch_sizes(self, acks: Sequence[Ack]) -> list[int]:
        """The batch size of each; raises before anything is changed if one of them is wrong."""
        sizes: list[int] = []
        reading, log = self.topic.reading, self.topic.log
        for ack in acks:
            position = ack.position
            if not reading.has_position(position) or position in log.markers:
                raise InvalidAck(
                    f"position {position} is not a message of {self.topic.name} (its last entry is {log.last})"
                )
            if position <= self.cursor.mark_delete or self.cursor.lacks(position):
                sizes.append(1)  # late: it changes nothing, so its block need not be read
                continue
            size = reading.batch_size(position)
            wrong = [index for index in ack.batch_indexes or () if not 0 <= index < size]
            if wrong:
                raise InvalidAck(f"{position} has {size} messages, not index {wrong[0]}")
            sizes.append(size)
        return sizes

    def changed(self, mark_delete_before: Position | None, *, local: bool) -> None:
        """Tell whom it concerns that mark-delete moved; with None also if it did not (another generation)."""
        if local:
            self.locally_active = True
        if self.topic.log.twins is not None and self.merging.release_followed():
            self.backlog.moved()
        if self.cursor.mark_delete != mark_delete_before:
            if self.dispatcher is not None:
                self.dispatcher.acknowledged_through(self.cursor.mark_delete)
            self._pump.schedule()
            self._news.on_mark_delete(self, local=local)
        self.notify_unannounced()

    def restarted(self) -> None:
        """The cursor was put elsewhere: dispatch starts anew, and consumers are told to drop what they have."""
        if self.dispatcher is not None:
            self.dispatcher.restart(self.cursor.mark_delete)
        for consumer in list(self.consumers.values()):
            if consumer.on_restarted is not None:
                consumer.on_restarted()
        self._pump.schedule()

    # What the topic tells.

    def on_appended(self, *, markers: bool) -> None:
        """The log has new entries: step over markers, and send messages on."""
        if markers and self.cursor.advance():
            if self.dispatcher is not None:
                self.dispatcher.acknowledged_through(self.cursor.mark_delete)
            self._news.on_mark_delete(self, local=self.locally_active)
        if self.consumers:
            self._pump.schedule()

    def on_twins(self, pairs: Sequence[tuple[Position, Position]]) -> None:
        """The log has new entries, the later of each pair, of messages that it had: what is consumed stays so."""
        before = self.cursor.mark_delete
        self.cursor.join_twins(pairs)
        self.changed(before, local=False)

    def follow_log(self) -> bool:
        """The log was trimmed or compacted: step over what is gone. Returns whether that changed anything."""
        before = self.cursor.mark_delete
        if not self.cursor.advance():
            return False
        self.backlog.moved()
        self.changed(before, local=self.locally_active)
        return True

    # Being saved, and deleted.

    def saved(self) -> asyncio.Future[None]:
        """A future that is done when the state as it is now is durable; at once for one that is not to be."""
        if self.durable:
            return self._saver.saved()
        done: asyncio.Future[None] = self.topic.loop.create_future()
        done.set_result(None)
        return done

    async def delete(
        self, by: EngineConsumer | None = None, *, force: bool = False, generation: int | None = None
    ) -> None:
        """Delete the subscription and its state. One that is replicated leaves a tombstone, with ``generation`` or else
        the next one, so that nothing that other clusters said before brings it back.

        Raises :class:`NotAllowedError` while others consume it; with ``force`` they are disconnected instead.
        """
        others = [consumer for consumer in self.consumers.values() if consumer is not by]
        if others and not force:
            raise NotAllowedError(
                f"subscription {self.name!r} has other consumers: disconnect them first, or use force"
            )
        if self._deleting:
            raise self._being_deleted()
        self._deleting = True
        # Whoever is cancelled cannot call the deletion back from the store, so it goes on to its end here as well.
        if generation is None and self.replicated:
            generation = self.cursor.generation + 1
        deletion = self._deletion = awaited(self._delete(by, generation))
        deletion.add_done_callback(lambda task: task.cancelled() or task.exception())  # maybe nobody is left to ask
        await asyncio.shield(deletion)

    async def bury(self, generation: int) -> None:
        """Another cluster deleted it: delete it here with that tombstone, or wait until it is deleted."""
        if self._deletion is None:
            await self.delete(force=True, generation=generation)
        else:
            await asyncio.wait([self._deletion])

    async def _delete(self, by: EngineConsumer | None, generation: int | None) -> None:
        if self.durable:
            tombstones = self._owner.tombstones
            writes = [] if generation is None else tombstones.writes(self.name, generation)
            try:
                await self._saver.delete(self._being_deleted(), writes)
            except BaseException:
                self._deleting, self._deletion = False, None
                raise
            if generation is not None:
                tombstones.note(self.name, generation)
        reason = f"subscription {self.name!r} was deleted"
        for consumer in list(self.consumers.values()):
            consumer.close(None if consumer is by else reason, SubscriptionNotFound.code)
        self._owner.forget(self, generation)

    def not_made(self, error: EngineError) -> None:
        """The store did not take it: whoever still has it must not bring it there later."""
        self._saver.refuse(error)

    def topic_deleted(self, error: EngineError | None) -> None:
        """The topic is being deleted: consumers go, and nothing is saved any more. With None it stays after all."""
        self._saver.refuse(error)
        if error is not None:
            for consumer in list(self.consumers.values()):
                consumer.close(str(error), error.code)

    def _being_deleted(self) -> SubscriptionNotFound:
        return SubscriptionNotFound(f"subscription {self.name!r} of {self.topic.name} is being deleted")

    # Figures.

    def last_message(self) -> Position:
        """The position of the last message that there is for this subscription, or BEFORE_ALL."""
        last = last_message(self.topic.log)
        return self.topic.log.view.clamp(last) if self.cursor.lacks(last) else last

    def backlog_messages(self) -> int:
        """Messages not consumed yet; a partly acknowledged batch counts whole. See :class:`Backlog`."""
        return self.backlog.messages()

    def status(self) -> Mapping[str, Any]:
        """The figures of this subscription, as the status page shows them."""
        return subscription_status(self)
