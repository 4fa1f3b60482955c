"""Inbox of one consumer: delivered messages from their arrival to their acknowledgement or redelivery.

It owns the receiver queue, and everything that remembers delivered entries: the opener with its chunks, the timers of
redelivery, the dead letters. Invariant 5 on the client's side: a message that is dropped here without being shown is
delivered again by the cluster, or the user does not want it (a seek into a batch, a discarded entry).

Life of an entry:
1. :meth:`Inbox.deliver` drops it if it is acknowledged already or precedes a redelivery, gives it up if it was
   redelivered too often, and queues it otherwise.
2. :meth:`Inbox.pop` opens it and hands out its messages; :meth:`Inbox.show` starts their clocks.
3. :meth:`Inbox.acknowledge` ends it, or :meth:`Inbox.reject` and the timers lead to its redelivery.
4. A redelivery of everything, a restart of the subscription and the loss of the connection empty the inbox.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from pyroaring import BitMap

from replicator.client.consuming.acknowledger import Acknowledger
from replicator.client.consuming.consumer_stats import ConsumerStatsRecorder
from replicator.client.consuming.entry_opening import EntryOpener
from replicator.client.consuming.letters import DeadLetters, LetterSender
from replicator.client.consuming.receiver_queue import ReceiverQueue
from replicator.client.consuming.receiving import Arrivals
from replicator.client.consuming.redelivery import RedeliveryTimers
from replicator.client.consuming.seeking import SkippedPart
from replicator.client.consuming.unacked_tracker import MessageKey
from replicator.client.errors import InvalidMessage, PulsarException
from replicator.client.message import NO_BATCH, ChunkMessageId, Message, MessageId, Opening
from replicator.client.settings import ConsumerDeadLetterPolicy, ConsumerSettings
from replicator.client.wire.channel import ConsumerChannel
from replicator.engine.types import Delivery
from replicator.running.short_tasks import in_background
from snapshots.position import Position

_log = logging.getLogger(__name__)


class Inbox:
    """Messages that were delivered to one consumer and are not answered yet."""

    def __init__(
        self,
        settings: ConsumerSettings,
        partition: int,
        *,
        acks: Acknowledger,
        arrivals: Arrivals,
        channel: Callable[[], ConsumerChannel | None],
        fail: Callable[[PulsarException], None],
        opening: Opening,
        stats: ConsumerStatsRecorder,
    ) -> None:
        self._settings = settings
        self._acks = acks
        self._arrivals = arrivals
        self._channel = channel
        self._fail = fail
        self._stats = stats
        self._queue: ReceiverQueue[Message] = ReceiverQueue(settings.receiver_queue_size)
        self._timers = RedeliveryTimers(settings, stats, self._redeliver_due)
        self._opener = EntryOpener(
            settings,
            partition,
            replace(opening, ready=lambda: arrivals.wake(1)),
            acknowledge=self._acks.acknowledge_chunks,
            reject=self._reject_entries,
        )
        self._burying: set[asyncio.Task[None]] = set()
        """Tasks that open entries in order to give them up."""
        self._dead: DeadLetters | None = None
        self._redeliveries_awaited = 0
        self.rounds = 0
        """Count of the times when all delivered messages became void."""
        self.skipped: SkippedPart | None = None
        """Messages to skip in the first entry after a seek."""

    def give_up_with(self, policy: ConsumerDeadLetterPolicy, sender: LetterSender) -> None:
        """Give up messages by ``policy``. Must be called before anything is delivered."""
        self._dead = DeadLetters(
            policy,
            sender,
            self._stats,
            acknowledge=lambda message: self.acknowledge(message.message_id()),
            retry=self._reject_entries,  # after the delay: a topic that refuses letters is not to be stormed
        )

    def __len__(self) -> int:
        """Return the number of messages that were not handed out yet."""
        return len(self._queue)

    @property
    def unacked_messages(self) -> int:
        """Number of messages that the application has in hand; 0 without an acknowledgement timeout."""
        return self._timers.unacked_messages

    # From the cluster.

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        """Handle arrived entries: queue, drop, or give up each."""
        for delivery in deliveries:
            if delivery.batch_size > 1 and self._settings.receiver_queue_size == 0:
                # Like upstream: without a queue there is no place for the rest of a batch.
                self._fail(
                    InvalidMessage(
                        f"entry {delivery.position} of {self._settings.topic} is a batch of {delivery.batch_size}; "
                        "a consumer with receiver_queue_size=0 cannot take it"
                    )
                )
                return
            self._deliver(delivery)
        self.grant()
        self._arrivals.wake(len(self._queue))

    def redelivery_started(self) -> None:
        """Handle the start of a redelivery of everything: entries that arrive from here on belong to it."""
        assert self._redeliveries_awaited > 0
        self._redeliveries_awaited -= 1

    def restarted(self, skipped: SkippedPart | None) -> None:
        """Drop everything delivered before, because the subscription moved by a seek or reset."""
        self.skipped = skipped
        self._forget()
        if self._dead is not None:
            self._dead.restarted()
        self._queue.drop_all()
        self.grant()

    def lost(self) -> None:
        """Empty the inbox after the connection is lost: the cluster delivers everything anew on the next one."""
        self._redeliveries_awaited = 0
        self._queue.restart()
        self._forget()

    def connected(self) -> None:
        """Grant the first permits to a new connection."""
        permits = self._queue.restart() or self._queue.take_permits(len(self._arrivals))
        channel = self._channel()
        if permits and channel is not None:
            channel.flow(permits)

    async def finish(self) -> None:
        """Wait until the messages that are being given up are sent."""
        if self._burying:
            await asyncio.wait(self._burying)
        if self._dead is not None:
            await self._dead.finish()

    async def close(self) -> None:
        """Empty the inbox and stop its tasks."""
        self.lost()
        for task in self._burying:
            task.cancel()
        if self._dead is not None:
            await self._dead.close()

    # From the application.

    def pop(self) -> Message | None:
        """Return the next message, or None. Raises :class:`InvalidMessage` once for an entry that cannot be read."""
        try:
            return self._next()
        except InvalidMessage:
            self._stats.receive_failed += 1
            raise
        finally:
            self.grant()

    def pop_many(self, count_max: int) -> list[Message]:
        """Return up to ``count_max`` messages, like repeated :meth:`pop`."""
        try:
            return self._next_ones(count_max)
        except InvalidMessage:
            self._stats.receive_failed += 1
            raise
        finally:
            self.grant()

    def put_back(self, messages: Sequence[Message]) -> None:
        """Take back messages that were popped and not shown."""
        self._queue.put_back(messages)
        self._arrivals.wake(len(messages))

    def show(self, messages: Sequence[Message]) -> None:
        """Count popped messages as given to the application, and start their clocks."""
        self._stats.messages_received += len(messages)
        self._stats.bytes_received += sum(len(message.data()) for message in messages)
        self._timers.show(messages)
        if self._dead is not None:
            self._dead.show(messages)

    def grant(self) -> None:
        """Ask the cluster for as many messages as there is room for."""
        permits = self._queue.take_permits(len(self._arrivals))
        channel = self._channel()
        if permits and channel is not None:
            channel.flow(permits)

    def acknowledge(self, message_id: MessageId) -> None:
        """Acknowledge one message."""
        position, batch_index, batch_size = message_id.position(), message_id.batch_index(), message_id.batch_size()
        self._timers.acknowledged(position, batch_index, batch_size)
        if self._dead is not None:
            self._dead.answered(position, batch_index)
        if isinstance(message_id, ChunkMessageId):
            self._opener.forget(position)
            self._acks.acknowledge_chunks(message_id.chunk_positions())
        else:
            self._acks.acknowledge(position, batch_index, batch_size)

    def acknowledge_cumulative(self, message_id: MessageId) -> None:
        """Acknowledge everything through this message."""
        position, batch_index = message_id.position(), message_id.batch_index()
        self._timers.acknowledged_through(position, batch_index)
        self._opener.forget_through(position)
        self._acks.acknowledge_cumulative(position, batch_index, message_id.batch_size())

    def reject(self, message_id: MessageId, redelivery_count: int) -> None:
        """Ask for one message again after its delay, or give it up."""
        position, batch_index = message_id.position(), message_id.batch_index()
        if self._dead is not None:
            self._dead.reject(position, batch_index)
        self.retry(message_id, redelivery_count)

    def retry(self, message_id: MessageId, redelivery_count: int) -> None:
        """Ask for one message again after its delay, and do not give it up."""
        self._timers.rejected(message_id.position(), message_id.batch_index(), redelivery_count)

    def redeliver(self, positions: Sequence[Position]) -> None:
        """Ask for these entries again. Their queued messages are dropped, or they would be shown twice."""
        channel = self._channel()
        if not positions or channel is None:
            return
        entries = sorted({entry for position in positions for entry in self._opener.entries_of(position)})
        self._acks.flush()  # first: what is acknowledged must not go to another consumer
        self._timers.redelivered(positions)
        for position in positions:
            self._opener.forget(position)
        self._queue.drop_entries(frozenset(entries))
        self._stats.entries_redelivered += len(entries)
        channel.redeliver(entries)
        self.grant()

    def redeliver_all(self) -> None:
        """Ask for all unacknowledged messages again."""
        self._acks.flush()
        self._forget()
        self._queue.drop_all()
        channel = self._channel()
        if channel is not None:
            self._redeliveries_awaited += 1
            self._stats.entries_redelivered += 1
            channel.redeliver(None)
        self.grant()

    # Inside.

    def _next(self) -> Message | None:
        while (message := self._queue.pop()) is not None and self._is_settled(message):
            pass
        return message

    def _next_ones(self, count_max: int) -> list[Message]:
        while messages := self._queue.pop_many(count_max):
            if wanted := [message for message in messages if not self._is_settled(message)]:
                return wanted
        return []

    def _is_settled(self, message: Message) -> bool:
        """Return whether the application acknowledged it while it was queued, because a former cluster had delivered
        it."""
        message_id = message.message_id()
        return self._acks.settled(message_id.position(), message_id.batch_index())

    def _deliver(self, delivery: Delivery) -> None:
        permits = delivery.batch_size  # a batch costs all its messages, acknowledged or not
        position = delivery.position
        self._acks.arrived(position, (delivery.origin, delivery.origin_position), permits)
        acknowledged = self._acks.acknowledged(position)
        if acknowledged is True or self._redeliveries_awaited:
            # Acknowledged here while the cluster sent it again; or sent before the cluster heard of the redelivery.
            self._queue.drop(permits)
            return
        self._acks.delivered(position)
        skip = acknowledged if isinstance(acknowledged, BitMap) else None
        if self.skipped is not None and self.skipped.position == position:
            unwanted = self.skipped.indexes() & BitMap(range(permits))
            for index in unwanted:
                self._acks.acknowledge(position, index, permits)
            if len(unwanted) == permits:
                self._queue.drop(permits)
                return
            skip = unwanted if skip is None else skip | unwanted
        if self._dead is not None and self._dead.is_over(delivery.redelivery_count):
            self._queue.drop(permits)
            self._dead_letter_unread(self._dead, delivery, skip)
            return
        self._queue.put(self._opener.open(delivery, skip), permits, position)

    def _dead_letter_unread(self, dead: DeadLetters, delivery: Delivery, skip: BitMap | None) -> None:
        if self._opener.unpacks_in_thread:
            task = in_background(self._give_up_opened(dead, delivery, skip), "giving an entry up")
            self._burying.add(task)
            task.add_done_callback(self._burying.discard)
            return
        messages: list[Message] = []
        try:
            messages.extend(message for message in self._opener.open(delivery, skip) if message is not None)
        except InvalidMessage as error:
            self._dead_letter_failed(error)
        dead.bury(messages)

    async def _give_up_opened(self, dead: DeadLetters, delivery: Delivery, skip: BitMap | None) -> None:
        """Give an entry up once it is decompressed, unless it is delivered again by then."""
        rounds, ready = self.rounds, asyncio.Event()
        messages: list[Message] = []
        try:
            for message in self._opener.open(delivery, skip, ready.set):
                if message is None:
                    await ready.wait()
                    ready.clear()
                else:
                    messages.append(message)
        except InvalidMessage as error:
            self._dead_letter_failed(error)
        if rounds == self.rounds:
            dead.bury(messages)

    def _dead_letter_failed(self, error: InvalidMessage) -> None:
        self._stats.receive_failed += 1
        _log.warning("not sent to the dead letter topic: %s", error)

    def _redeliver_due(self, positions: Sequence[Position], timed_out: Sequence[MessageKey]) -> None:
        due = sorted({*positions, *(key.position for key in timed_out)})
        if self._channel() is None:
            return  # there is nothing to ask for: the next connection delivers it all
        if self._settings.consumer_type.one_active:
            self.redeliver_all()
            return
        if self._dead is not None:
            for position, batch_index in timed_out:
                self._dead.reject(position, batch_index)
            due = self._dead.give_up(due)
        self.redeliver(due)

    def _reject_entries(self, positions: Sequence[Position]) -> None:
        for position in positions:
            self._timers.rejected(position, NO_BATCH, 0)

    def _forget(self) -> None:
        """Forget all delivered messages: they come again, or never count any more."""
        self.rounds += 1
        self._timers.clear()
        self._opener.clear()
        if self._dead is not None:
            self._dead.clear()
