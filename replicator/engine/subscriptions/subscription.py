"""A subscription of one topic: takes acknowledgements, tells listeners of them, and saves its state.

It is the shell around :mod:`replicator.engine.subscriptions.cursor`, which knows the consumed messages. The cursor is
written to the store before an acknowledgement is confirmed.

============================ ============================================================================
part                         answers for
============================ ============================================================================
``subscription.cursor``      what is consumed
``subscription.dispatching`` who is connected, and who gets what
``subscription.deleting``    deleting it, and the tombstone that it leaves
``subscription.moves``       seeking, skipping and expiring
``subscription.merging``     what other clusters say is acknowledged
``subscription.backlog``     how many messages are not consumed yet
============================ ============================================================================
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from pyroaring import BitMap

from replicator.engine.errors import EngineError, NotAllowedError, StoreFailed
from replicator.engine.log.delivered import LastMessage, last_delivered, last_position
from replicator.engine.log.topic_reading import CommittedBlock
from replicator.engine.subscriptions.backlog import Backlog, PositionAndIndexes
from replicator.engine.subscriptions.consumer import EngineConsumer
from replicator.engine.subscriptions.cursor import Cursor
from replicator.engine.subscriptions.cursor_rows import CursorRows, RowWrite
from replicator.engine.subscriptions.cursor_saver import CursorSaver, SaveCallback
from replicator.engine.subscriptions.cursor_state import CursorState
from replicator.engine.subscriptions.deleting import SubscriptionDeleting
from replicator.engine.subscriptions.dispatching import Dispatching
from replicator.engine.subscriptions.merging import Merging
from replicator.engine.subscriptions.position_moves import PositionMoves
from replicator.engine.subscriptions.subscribed_topic import SubscribedTopic
from replicator.engine.subscriptions.subscription_status import subscription_status
from replicator.engine.subscriptions.tombstones import Tombstones
from replicator.engine.subscriptions.unannounced import Unannounced
from replicator.engine.types import Ack, LoggedEntry, ReadEntries
from snapshots.position import Position
from snapshots.position_set import PositionSet


class SubscriptionNews(Protocol):
    """Interface of listeners to a topic's subscriptions: links, the subscription sync, and maintenance."""

    def on_subscription(self, subscription: Subscription) -> None:
        """Note that ``subscription`` was created, or became replicated or local."""

    def on_subscription_deleted(self, name: str, generation: int | None) -> None:
        """Note that subscription ``name`` was deleted. ``generation`` is that of its tombstone; None if it was not
        replicated."""

    def on_acknowledged(self, subscription: Subscription) -> None:
        """Note that ``subscription`` has acknowledgements to announce to other clusters. Before, it had none."""

    def on_mark_delete(self, subscription: Subscription, *, local: bool) -> None:
        """Note that the mark-delete position of ``subscription`` moved.

        ``local`` says that consumers here moved it, and not another cluster's update.
        """


class SubscriptionOwner(Protocol):
    """Interface of the collection that has the subscription: the subscriptions of its topic."""

    news: SubscriptionNews
    tombstones: Tombstones

    def forget(self, subscription: Subscription, generation: int | None = None) -> None:
        """Remove a deleted subscription. ``generation`` is that of its tombstone; None if it left none."""


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
        """Create the object for a stored or a new subscription.

        ``rows`` are those of a stored one; a new one has none. ``with_first_save`` goes into the transaction that
        stores a new one.
        """
        self.topic = topic
        self._news = owner.news
        self.name = name
        self.durable = durable
        """Whether the subscription remains after its consumers have gone, and after a restart."""
        self.cursor = Cursor(topic.log, state)
        self.to_be_saved = False
        """Whether a save before the engine closes would avoid repeated announcements to other clusters."""
        self.locally_active = False
        """Whether the newest change came from a consumer here, and not from another cluster. Only then other clusters
        are told."""
        self._saver = CursorSaver(
            topic.loop,
            topic.writer,
            rows or CursorRows(topic.topic_id, name),
            lambda: self.cursor.state,
            stored=rows is not None or not durable,
            with_first_save=with_first_save,
        )
        self.deleting = SubscriptionDeleting(self, self._saver, owner.tombstones, partial(owner.forget, self))
        tracing = topic.tracing
        self.traces = None if tracing is None else tracing.subscription(topic.name, name)
        self.dispatching = Dispatching(self)
        self.consumers: Mapping[int, EngineConsumer] = self.dispatching.consumers
        self._pump = self.dispatching.pump
        self.backlog = Backlog(topic, self.cursor)
        self.merging = Merging(self)
        self.moves = PositionMoves(self)
        self._notified: Unannounced | None = None
        """Unannounced acknowledgements that listeners already know of."""

    @property
    def stored(self) -> bool:
        """Whether the store has the subscription, or never will. It is False for a moment after creation."""
        return self._saver.stored

    @property
    def replicated(self) -> bool:
        return self.cursor.state.replicated

    # Reading.

    @property
    def read_entries(self) -> ReadEntries:
        """Function that reads the subscription's entries, from the log or from the compacted view and then the log."""
        return self._read_compacted if self.cursor.state.read_compacted else self.topic.reading.entries

    def _read_compacted(
        self, after: Position, upto: Position | None, entries_max: int, bytes_max: int
    ) -> list[LoggedEntry]:
        """Return entries of the compacted view and the log.

        Messages that are compacted out of a batch count as acknowledged, since nobody sees them. With the remaining
        ones the batch is consumed.
        """
        entries = self.topic.compaction.read(after, upto, entries_max, bytes_max)
        before = self.cursor.mark_delete
        compacted = [entry for entry in entries if entry.compacted_out is not None]
        for entry in compacted:
            self.cursor.acknowledge(entry.position, BitMap.deserialize(entry.compacted_out or b""), entry.batch_size)
        if compacted:  # maybe only such messages were left of a batch
            self.topic.loop.call_soon(self._passed_over, before)  # not amid a dispatch
        return entries

    def _passed_over(self, mark_delete_before: Position) -> None:
        if not self.deleting.begun:
            self.changed(mark_delete_before, local=True)

    # Acknowledging.

    async def acknowledge(self, acks: Sequence[Ack]) -> None:
        """Acknowledge messages, durably when this returns. See :meth:`begin_acknowledge`."""
        await self.begin_acknowledge(acks)

    async def acknowledge_cumulative(self, position: Position, batch_index: int | None) -> None:
        """Acknowledge all up to ``position``, durably when this returns. See :meth:`begin_acknowledge_cumulative`."""
        await self.begin_acknowledge_cumulative(position, batch_index)

    def begin_acknowledge(self, acks: Sequence[Ack]) -> asyncio.Future[None]:
        """Acknowledge messages at once. Return a future that is done when the acknowledgement is durable.

        Raises :class:`InvalidAck` if one of the messages is invalid. Then none of them is acknowledged.
        """
        if all(ack.batch_indexes is None for ack in acks):
            self._acknowledge_entries([ack.position for ack in acks])
        else:
            self._acknowledge([(ack.position, ack.batch_indexes) for ack in acks])
        durable = self.saved()
        if self.traces is not None:
            self.traces.acknowledged(acks, durable)
        return durable

    def acknowledge_entries(self, positions: Sequence[Position], told: SaveCallback) -> None:
        """Acknowledge whole entries at once, and call ``told`` with the outcome when that is durable.

        Raises :class:`InvalidAck` if one of them is invalid. Then none is acknowledged, and ``told`` is not called.
        """
        if self.traces is not None:
            acks = [Ack(position) for position in positions]
            self.begin_acknowledge(acks).add_done_callback(lambda durable: told(_error_of(durable)))
            return
        self._acknowledge_entries(positions)
        if self.durable:
            self._saver.call_when_saved(told)
        else:
            told(None)

    def _acknowledge(self, acks: Sequence[PositionAndIndexes]) -> None:
        cursor = self.cursor
        sizes = self.backlog.checked_sizes(acks)
        before = cursor.mark_delete
        dispatcher = self._pump.dispatcher
        resumes = self._pump.waits_for_acknowledgements
        for (position, batch_indexes), size in zip(acks, sizes, strict=True):
            if cursor.is_consumed(position):
                if dispatcher is not None and cursor.lacks(position):  # compacted away since it was sent
                    dispatcher.acknowledged(position)
                continue
            if cursor.acknowledge(position, batch_indexes, size):
                if dispatcher is not None:
                    dispatcher.acknowledged(position)
                self.backlog.consumed(size)
            elif dispatcher is not None and (acked := cursor.acked_indexes(position)) is not None:
                dispatcher.partly_acknowledged(position, size - len(acked))
        self._acknowledged(0, before, resumes=resumes)

    def _acknowledge_entries(self, positions: Sequence[Position]) -> None:
        """Acknowledge whole entries by the fastest method that works for them."""
        if not (self._acknowledge_next(positions[0]) if len(positions) == 1 else self._acknowledge_all(positions)):
            self._acknowledge([(position, None) for position in positions])

    def _acknowledge_next(self, position: Position) -> bool:
        """Do what :meth:`_acknowledge` does, if ``position`` is the message directly after mark-delete.

        Return False, and change nothing, for any other position.
        """
        before, resumes = self.cursor.mark_delete, self._pump.waits_for_acknowledgements
        messages = 0
        if self.backlog.counts and position == (before[0], before[1] + 1) and position in self.topic.log:
            messages = self.topic.reading.batch_size(position)
        if not self.cursor.acknowledge_next(position):
            return False
        if self._pump.dispatcher is not None:
            self._pump.dispatcher.acknowledged(position)
        self._acknowledged(messages, before, resumes=resumes)
        return True

    def _acknowledge_all(self, positions: Sequence[Position]) -> bool:
        """Do what :meth:`_acknowledge` does, if all ``positions`` are messages of the log.

        Clients gather acknowledgements for a while. The time that this takes hardly depends on their number. Return
        False, and change nothing, if one of them is something else.
        """
        try:
            asked = PositionSet(positions)
        except OverflowError:  # no entry id: clients may ask for anything
            return False
        before, resumes = self.cursor.mark_delete, self._pump.waits_for_acknowledgements
        new = self.cursor.acknowledge_all(asked)
        if new is None:
            return False
        if self._pump.dispatcher is not None:
            self._pump.dispatcher.acknowledged_all(new)
        self.backlog.consumed_at(new)
        self._acknowledged(0, before, resumes=resumes)
        return True

    def _acknowledged(self, messages: int, mark_delete_before: Position, *, resumes: bool) -> None:
        self.backlog.consumed(messages)
        self.changed(mark_delete_before, local=True, resumes=resumes)
        if resumes:  # a consumer that had too much unacknowledged, or a key that was held, may go on
            self._pump.schedule()

    def begin_acknowledge_cumulative(self, position: Position, batch_index: int | None) -> asyncio.Future[None]:
        """Acknowledge all up to ``position`` at once. Return a future that is done when the acknowledgement is durable.

        Raises :class:`NotAllowedError` if the subscription's type is a shared one, and :class:`InvalidAck` if
        ``position`` is invalid.
        """
        self._check_one_active()
        before = self.cursor.mark_delete
        if self.cursor.lacks(position):
            batch_index = None  # compacted away since it was sent: none of it is left to be acknowledged
        reading = self.topic.reading
        late = position <= before and reading.has_position(position)  # its block may be trimmed
        size = 1 if batch_index is None or late else reading.batch_size(position)
        resumes = self._pump.waits_for_acknowledgements or self.cursor.has_uncovered
        self.dispatching.acknowledged_through(position)
        self.cursor.acknowledge_cumulative(position, batch_index, size)
        self.backlog.moved()
        self.changed(before, local=True, resumes=resumes)
        durable = self.saved()
        if self.traces is not None:
            self.traces.acknowledged_through(position, batch_index, durable)
        return durable

    def begin_acknowledge_before(
        self, positions: PositionSet, batches: Mapping[Position, BitMap]
    ) -> asyncio.Future[None]:
        """Acknowledge cumulatively in the order of another cluster. Return a future that is done when that is durable.

        ``positions`` are the local entries to acknowledge, and ``batches`` the messages of batches that are
        acknowledged in part.
        """
        self._check_one_active()
        self.merging.acks(positions, batches, announce=True)
        durable = self.saved()
        if self.traces is not None:
            self.traces.acknowledged_among(positions, batches, durable)
        return durable

    def _check_one_active(self) -> None:
        dispatcher = self._pump.dispatcher
        if dispatcher is not None and not dispatcher.type.one_active:
            raise NotAllowedError(
                f"a {dispatcher.type.value} subscription has no cumulative acknowledgement: it would acknowledge "
                "what other consumers hold; acknowledge each message"
            )

    def note_all(self) -> None:
        """Note that the whole state is to be announced, as :meth:`CursorState.note_all` does, without saving."""
        self.cursor.state.note_all()
        self.notify_unannounced()

    def note_heard(self) -> None:
        """Note news of other clusters, as :meth:`CursorState.note_heard` does, without saving."""
        self.cursor.state.note_heard()
        self.notify_unannounced()

    async def set_replicated(self, replicated: bool) -> None:
        """Start or stop announcing the state to other clusters, durably when this returns. Starting announces the whole
        state.

        Raises :class:`NotAllowedError` if the subscription is not durable.
        """
        if replicated and not self.durable:
            raise NotAllowedError(
                f"subscription {self.name!r} is not durable, and only durable ones can be replicated: use a durable "
                "one, or do not replicate it"
            )
        self.deleting.check_there()
        if replicated != self.replicated:
            self.cursor.state.set_replicated(replicated)
            self._news.on_subscription(self)  # first: nobody does so if this caller gives up
            self.notify_unannounced()
        await self.saved()

    async def set_properties(self, properties: Mapping[str, str]) -> None:
        """Replace the properties of the subscription, durably when this returns."""
        self.deleting.check_there()
        self.cursor.state.properties = dict(properties)
        await self.saved()

    def take_unannounced(self) -> Unannounced:
        """Return the unannounced changes, as :meth:`CursorState.take_unannounced` does."""
        return self.cursor.state.take_unannounced()

    def note_announced(self) -> None:
        """Note that the state taken by :meth:`take_unannounced` is durably announced.

        The next save stores that. A crash before it only repeats the announcement.
        """
        if self.cursor.state.to_announce and self.cursor.state.note_announced():
            self.to_be_saved = True

    def notify_unannounced(self) -> None:
        """Tell listeners once that there are changes to announce to other clusters, until these are taken."""
        unannounced = self.cursor.state.unannounced
        if unannounced is not None and unannounced is not self._notified and unannounced:
            self._notified = unannounced
            self._news.on_acknowledged(self)

    def changed(self, mark_delete_before: Position | None, *, local: bool, resumes: bool = True) -> None:
        """Tell every part that depends on mark-delete that the cursor changed.

        ``mark_delete_before`` is mark-delete before the change. None reports a change even if mark-delete did not move.
        ``resumes`` is False if the caller knows that the change lets no further entry be sent.
        """
        if local:
            self.locally_active = True
        if self.topic.log.duplicates is not None and self.merging.release_followed():
            self.backlog.moved()
            self._pump.schedule()  # whoever held them may get more, though mark-delete may have stayed
            resumes = True
        if self.cursor.mark_delete != mark_delete_before:
            if self._pump.dispatcher is not None:
                self._pump.dispatcher.acknowledged_through(self.cursor.mark_delete)
            if resumes:
                self._pump.schedule()
            self._news.on_mark_delete(self, local=local)
            if self.topic.log.terminated:
                self.dispatching.tell_end()
        self.notify_unannounced()

    # What the topic tells.

    def on_appended(self, new: CommittedBlock | None, *, markers: bool) -> None:
        """Step over new markers, and send new messages on. ``new`` is the log's last block, if it is in memory."""
        if markers and self.cursor.advance():
            if self._pump.dispatcher is not None:
                self._pump.dispatcher.acknowledged_through(self.cursor.mark_delete)
            self._news.on_mark_delete(self, local=self.locally_active)
        if self.consumers:
            self._pump.appended(new)

    def on_terminated(self) -> None:
        """Tell consumers that producers cannot publish to the topic any more."""
        self.dispatching.tell_end()

    def on_duplicates(self, pairs: Sequence[tuple[Position, Position]]) -> None:
        """Mark messages as consumed that came again as other entries. Each pair has the earlier and the later
        position."""
        before = self.cursor.mark_delete
        self.cursor.join_duplicates(pairs)
        self.changed(before, local=False)

    def follow_log(self) -> bool:
        """Pass over entries that were trimmed or compacted away. Return whether that changed anything."""
        before = self.cursor.mark_delete
        if not self.cursor.advance():
            return False
        self.backlog.moved()
        self.changed(before, local=self.locally_active)
        return True

    # Being saved.

    def saved(self) -> asyncio.Future[None]:
        """Return a future that is done when the present state is durable. For a non-durable subscription it is done
        already."""
        if self.durable:
            return self._saver.saved()
        done: asyncio.Future[None] = self.topic.loop.create_future()
        done.set_result(None)
        return done

    def saved_before(self, state: CursorState, move: Callable[[], None]) -> asyncio.Future[None]:
        """Make ``state`` durable, and call ``move`` then, as :meth:`CursorSaver.saved_before` does. For a non-durable
        subscription ``move`` is called at once."""
        if self.durable:
            return self._saver.saved_before(state, move)
        move()
        return self.saved()

    def not_made(self, error: EngineError) -> None:
        """Refuse later saves, since the store did not accept the new subscription."""
        self._saver.refuse(error)

    def topic_deleted(self, error: EngineError | None) -> None:
        """Close the consumers and stop saving, as the topic is being deleted. If ``error`` is None, the topic stays
        after all."""
        self._saver.refuse(error)
        if error is not None:
            for consumer in list(self.consumers.values()):
                consumer.close(str(error), error.code)

    # Figures.

    @property
    def mark_delete(self) -> Position:
        """Position up to which everything is consumed."""
        return self.cursor.mark_delete

    def last_message(self) -> LastMessage:
        """Return the last message that consumers of this subscription can receive, and its mark-delete position.

        Raises :class:`BlockCorrupt` if the block of the message cannot be read.
        """
        return last_delivered(self.topic, compacted=self.cursor.state.read_compacted, consumed=self.mark_delete)

    def last_position(self) -> Position:
        """Return the position of the last entry that consumers of this subscription can receive, or BEFORE_ALL for
        none."""
        return last_position(self.topic.log, compacted=self.cursor.state.read_compacted)

    def backlog_messages(self) -> int:
        """Return the number of unconsumed messages. A partly acknowledged batch counts whole. See :class:`Backlog`."""
        return self.backlog.messages()

    def status(self) -> Mapping[str, Any]:
        """Return the figures of this subscription that the status page shows."""
        return subscription_status(self)


def _error_of(durable: asyncio.Future[None]) -> EngineError | None:
    error = StoreFailed("the save was given up") if durable.cancelled() else durable.exception()
    return error if error is None or isinstance(error, EngineError) else StoreFailed(str(error))
