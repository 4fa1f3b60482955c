"""The inbox of one consumer: what was delivered to it, from its arrival to its acknowledgement or redelivery.

Owns the receiver queue and everything that remembers delivered entries: the opener with its chunks, the timers of
redelivery, the dead letters. Invariant 5 from the client's side: what is dropped here without having been shown is
either delivered again by the cluster, or unwanted by the user's own word (a seek into a batch, a discarded entry).

An entry takes this way:
1. :meth:`Inbox.deliver`: it is dropped if it is acknowledged already or is from before a redelivery; given up if it
   was redelivered too often; else queued.
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
    """What one consumer was given and has not answered."""

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
        """Tasks that open entries which are given up."""
        self._dead: DeadLetters | None = None
        self._redeliveries_awaited = 0
        self.rounds = 0
        """How often everything that was delivered became void."""
        self.skipped: SkippedPart | None = None
        """What is not wanted of the first entry after a seek."""

    def give_up_with(self, policy: ConsumerDeadLetterPolicy, sender: LetterSender) -> None:
        """Give up messages as ``policy`` says; called before anything is delivered."""
        self._dead = DeadLetters(
            policy,
            sender,
            self._stats,
            acknowledge=lambda message: self.acknowledge(message.message_id()),
            retry=self._reject_entries,  # after the delay: a topic that refuses letters is not to be stormed
        )

    def __len__(self) -> int:
        """Messages that were not handed out yet."""
        return len(self._queue)

    @property
    def unacked_messages(self) -> int:
        """Messages that the application has in hand; 0 without an acknowledgement timeout."""
        return self._timers.unacked_messages

    # From the cluster.

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        """Entries arrived."""
        for delivery in deliveries:
            if delivery.batch_size > 1 and self._settings.receiver_queue_size == 0:
                # As upstream: without a queue there is no place for the rest of a batch.
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
        """What comes from here on belongs to the redelivery of everything."""
        assert self._redeliveries_awaited > 0
        self._redeliveries_awaited -= 1

    def restarted(self, skipped: SkippedPart | None) -> None:
        """The subscription was put elsewhere: nothing that came before counts."""
        self.skipped = skipped
        self._forget()
        if self._dead is not None:
            self._dead.restarted()
        self._queue.drop_all()
        self.grant()

    def lost(self) -> None:
        """The connection is gone: the cluster delivers everything anew on the next one."""
        self._redeliveries_awaited = 0
        self._queue.restart()
        self._forget()

    def connected(self) -> None:
        """There is a new connection: it gets its first permits."""
        permits = self._queue.restart() or self._queue.take_permits(len(self._arrivals))
        channel = self._channel()
        if permits and channel is not None:
            channel.flow(permits)

    async def finish(self) -> None:
        """Wait for what is being given up."""
        if self._burying:
            await asyncio.wait(self._burying)
        if self._dead is not None:
            await self._dead.finish()

    async def close(self) -> None:
        """Nothing more comes or goes."""
        self.lost()
        for task in self._burying:
            task.cancel()
        if self._dead is not None:
            await self._dead.close()

    # From the application.

    def pop(self) -> Message | None:
        """The next message, or None; raises :class:`InvalidMessage` once for an entry that cannot be read."""
        try:
            return self._next()
        except InvalidMessage:
            self._stats.receive_failed += 1
            raise
        finally:
            self.grant()

    def pop_many(self, count_max: int) -> list[Message]:
        """As :meth:`pop`, several at once."""
        try:
            return self._next_ones(count_max)
        except InvalidMessage:
            self._stats.receive_failed += 1
            raise
        finally:
            self.grant()

    def put_back(self, messages: Sequence[Message]) -> None:
        """Take back what was popped and is not shown."""
        self._queue.put_back(messages)
        self._arrivals.wake(len(messages))

    def show(self, messages: Sequence[Message]) -> None:
        """The application gets what was popped."""
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
        """One message is consumed."""
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
        """Everything up to and with this message is consumed."""
        position, batch_index = message_id.position(), message_id.batch_index()
        self._timers.acknowledged_through(position, batch_index)
        self._opener.forget_through(position)
        self._acks.acknowledge_cumulative(position, batch_index, message_id.batch_size())

    def reject(self, message_id: MessageId, redelivery_count: int) -> None:
        """One message is to come again, after its delay; or to be given up."""
        position, batch_index = message_id.position(), message_id.batch_index()
        if self._dead is not None:
            self._dead.reject(position, batch_index)
        self.retry(message_id, redelivery_count)

    def retry(self, message_id: MessageId, redelivery_count: int) -> None:
        """As :meth:`reject`, and it is not given up."""
        self._timers.rejected(message_id.position(), message_id.batch_index(), redelivery_count)

    def redeliver(self, positions: Sequence[Position]) -> None:
        """Ask for these entries again. What is here of them goes, or it would be shown twice."""
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
        """Ask for everything again that is not acknowledged."""
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
        """Whether the application acknowledged it while it waited: it had got it from a former cluster."""
        message_id = message.message_id()
        return self._acks.settled(message_id.position(), message_id.batch_index())

    def _deliver(self, delivery: Delivery) -> None:
        permits = delivery.batch_size  # a batch costs all its messages, acknowledged or not
        position = delivery.position
        self._acks.arrived(position, (delivery.origin, delivery.origin_position), permits)
        acknowledged = self._acks.acknowledged(position)
        if acknowledged is True or self._redeliveries_awaited:
            # Acknowledged here while the cluster sent it again; or sent before it heard of the redelivery.
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
            self._give_up_unseen(self._dead, delivery, skip)
            return
        self._queue.put(self._opener.open(delivery, skip), permits, position)

    def _give_up_unseen(self, dead: DeadLetters, delivery: Delivery, skip: BitMap | None) -> None:
        if self._opener.unpacks_elsewhere:
            task = in_background(self._give_up_opened(dead, delivery, skip), "giving an entry up")
            self._burying.add(task)
            task.add_done_callback(self._burying.discard)
            return
        messages: list[Message] = []
        try:
            messages.extend(message for message in self._opener.open(delivery, skip) if message is not None)
        except InvalidMessage as error:
            self._not_buried(error)
        dead.bury(messages)

    async def _give_up_opened(self, dead: DeadLetters, delivery: Delivery, skip: BitMap | None) -> None:
        """Give an entry up once it is decompressed, unless it comes again by then."""
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
            self._not_buried(error)
        if rounds == self.rounds:
            dead.bury(messages)

    def _not_buried(self, error: InvalidMessage) -> None:
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
        """What was delivered comes again, or never counts any more."""
        self.rounds += 1
        self._timers.clear()
        self._opener.clear()
        if self._dead is not None:
            self._dead.clear()
