"""Producer: the asyncio shell around batching, framing and unconfirmed entries.

It owns the order of sending, and the connection. After a loss of the connection the unconfirmed entries are sent again,
in order, before anything newer: at least once; exactly once on a topic with deduplication, where the receipt of an
entry that was stored before says so (:meth:`MessageId.is_duplicate`). With ``reconnect=False`` the loss surfaces at
once instead, and :meth:`Producer.pending` has the messages that the caller may send elsewhere.

A message that is to be delivered later, or that may need chunks, is an entry of its own behind the open batch. A
producer that another one fenced off never connects again: that would take the topic back.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Final

from replicator.client.chunking import CHUNKED_MESSAGE_BYTES_MAX
from replicator.client.errors import (
    AlreadyClosed,
    ClusterFenced,
    ProducerFenced,
    ProducerQueueIsFull,
    PulsarException,
    Timeout,
)
from replicator.client.message import OutgoingMessage
from replicator.client.producing.batching import BatchContainer, Batcher, KeyBasedBatchContainer
from replicator.client.producing.encryption import EntryEncryptor
from replicator.client.producing.framing import (
    EntryFramer,
    SealedEntry,
    chunked_entries,
    single_entry,
)
from replicator.client.producing.pending import Confirmation, PendingEntries
from replicator.client.producing.producer_stats import ProducerStats, ProducerStatsRecorder, interval_line
from replicator.client.producing.sending import AddContext, MessageSender, check_message, wall_time_ms
from replicator.client.schema import Schema
from replicator.client.settings import BatchingType, CompressionType, ProducerSettings
from replicator.client.tasks import client_supervisor
from replicator.client.wire.channel import ProducerChannel, ProducerReady
from replicator.client.wire.reopening import open_first, open_with_retries
from replicator.engine.log.entry import MESSAGE_BYTES_MAX, METADATA_ROOM_BYTES
from replicator.engine.topic_name import parse_topic
from replicator.engine.types import DUPLICATE
from replicator.running.short_tasks import awaited
from replicator.running.supervisor import SupervisedTask
from snapshots.position import Position

OpenProducerChannel = Callable[[ProducerSettings, int | None], Awaitable[ProducerChannel]]
"""Function that opens a channel for these settings, with the topic epoch of the former channel."""

_log: Final = logging.getLogger(__name__)


class Producer(MessageSender):
    """Producer for one topic that is not partitioned, or one partition. :meth:`Client.create_producer` makes it."""

    def __init__(
        self,
        settings: ProducerSettings,
        open_channel: OpenProducerChannel,
        *,
        reconnect: bool,
        operation_timeout_seconds: float,
        on_close: Callable[[Producer], None],
        schema: Schema | None = None,
        encryptor: EntryEncryptor | None = None,
        add_context: AddContext | None = None,
    ) -> None:
        super().__init__(
            settings.topic, schema, block_if_queue_full=settings.block_if_queue_full, add_context=add_context
        )
        self._settings = settings
        self._open_channel = open_channel
        self._reconnect = reconnect
        self._operation_timeout_seconds = operation_timeout_seconds
        self._on_close = on_close
        self._encryptor = encryptor
        self._loop = asyncio.get_running_loop()
        whole = settings.compression is CompressionType.NONE and settings.chunk_message_bytes is None
        self._whole = whole
        self._content_bytes_max = MESSAGE_BYTES_MAX if whole else CHUNKED_MESSAGE_BYTES_MAX
        self._message_bytes_max = self._metadata_bytes_max = MESSAGE_BYTES_MAX
        """Limits that the cluster sets."""
        self._framer = EntryFramer(settings.producer_name or "", settings.compression, encryptor)
        self._batch: Batcher[Confirmation] | None = None
        self._batch_timer: asyncio.TimerHandle | None = None
        self._pending = PendingEntries(parse_topic(settings.topic).partition, settings.max_pending_messages)
        self._stats = ProducerStatsRecorder()
        self._stats_timer: asyncio.TimerHandle | None = None
        self._chunk_session = uuid.uuid4().hex[:8]
        self._next_sequence_id = settings.initial_sequence_id + 1
        self._last_sequence_id = settings.initial_sequence_id
        self._topic_epoch: int | None = None
        self._timeout_timer: asyncio.TimerHandle | None = None
        self._channel: ProducerChannel | None = None
        self._reopening: SupervisedTask | None = None
        self._closing: asyncio.Task[None] | None = None
        self._error: PulsarException | None = None
        """Error that ended this producer; None while it is open."""

    async def connect(self) -> None:
        """Open the channel, which sets the producer's name and its next sequence id. The client calls this once."""
        channel = await open_first(self._open, self._operation_timeout_seconds, reconnect=self._reconnect)
        ready = channel.ready
        # Later channels do not ask for the subscription: somebody may have deleted it meanwhile.
        settings = replace(self._settings, producer_name=ready.producer_name, initial_subscription=None)
        self._settings = settings
        self._topic_epoch = ready.topic_epoch
        if settings.initial_sequence_id == -1:
            self._last_sequence_id = ready.last_sequence_id
            self._next_sequence_id = ready.last_sequence_id + 1
        self._framer = EntryFramer(ready.producer_name, settings.compression, self._encryptor)
        if settings.batching is not None:
            by_key = settings.batching_type is BatchingType.KeyBased
            container = KeyBasedBatchContainer if by_key else BatchContainer
            self._batch = container(settings.batching, self._framer)
        self._fit(ready)
        self._channel = channel
        channel.start(self)
        if settings.stats_interval_seconds:
            self._log_stats_later(self.stats())

    def enqueue_message(self, message: OutgoingMessage) -> Confirmation:
        if self._error is not None:
            raise self._error.with_traceback(None)
        pending, batch = self._pending, self._batch
        if pending.full:
            raise ProducerQueueIsFull(
                f"{self._topic}: {pending.messages} messages wait for confirmation: send more slowly, or raise "
                "max_pending_messages"
            )
        check_message(message, self._content_bytes_max, self._metadata_bytes_max)
        sequence_id = message.sequence_id
        if sequence_id is None:
            sequence_id = self._next_sequence_id
            self._next_sequence_id += 1
        confirmation: Confirmation = self._loop.create_future()
        pending.messages += 1
        if batch is None or message.deliver_at is not None or message.clusters:  # what holds of a whole entry
            self.seal_batches()
            self._send_alone(message, sequence_id, confirmation)
            return confirmation
        for sealed in batch.add(message, sequence_id, self._loop.time(), wall_time_ms(), confirmation):
            self._send_sealed(sealed)
        if self._batch_timer is None and batch.deadline is not None:
            self._batch_timer = self._loop.call_at(batch.deadline, self._batch_is_due)
        return confirmation

    async def wait_for_room(self) -> None:
        while self._error is None and self._pending.full:
            self.seal_batches()
            await self._pending.wait_for_room()
        if self._error is not None:
            raise self._error.with_traceback(None)

    def is_full(self) -> bool:
        return self._pending.full

    def seal_batches(self) -> None:
        if self._batch is not None:
            for sealed in self._batch.seal():
                self._send_sealed(sealed)

    def pending(self) -> list[OutgoingMessage]:
        """Return the unconfirmed messages, in order; also after a loss with ``reconnect=False``."""
        return self._pending.unconfirmed() + (self._batch.open_messages() if self._batch is not None else [])

    async def flush(self) -> None:
        """Send the open batch and wait until everything sent is durable. Raises the first error."""
        if self._error is not None:
            raise self._error.with_traceback(None)
        self.seal_batches()
        await self._pending.wait_until_settled()

    async def close(self) -> None:
        """Wait until every sent message is confirmed or has failed, then release the topic. Idempotent.

        A cancelled call does not wait for sent messages, but still releases the topic.
        """
        try:
            if self._channel is not None:
                await self.flush()
        except PulsarException:
            pass  # it is in the futures of the messages that failed
        finally:
            if self._closing is None:
                self._closing = awaited(self._shut())
            ending = asyncio.shield(self._closing)  # a caller that gives up leaves nothing connected
        await ending

    def topic(self) -> str:
        return self._topic

    def producer_name(self) -> str:
        return self._framer.producer_name

    def last_sequence_id(self) -> int:
        """Return the highest confirmed sequence id, or the one that numbering began after, or -1."""
        return self._last_sequence_id

    def is_connected(self) -> bool:
        return self._channel is not None and self._error is None

    def stats(self) -> ProducerStats:
        """Return counts of sent, confirmed and failed messages, and latencies of confirmations."""
        return self._stats.stats(self._pending.messages)

    def stats_recorder(self) -> ProducerStatsRecorder:
        """Return the counters themselves, so that those of several producers can be added up."""
        return self._stats

    # Events of the channel.

    def on_receipts(self, entry_ids: Sequence[int], positions: Sequence[Position]) -> None:
        """Settle entries that are durable, or that the topic had already."""
        confirm, now = self._pending.confirm, self._loop.time()
        messages, duplicate, sent_at = 0, 0, now
        for entry_id, position in zip(entry_ids, positions, strict=True):
            entry = confirm(entry_id, position)
            if entry is None:
                continue  # it timed out before
            if entry.sent_at != sent_at:
                self._stats.confirmed(messages, now - sent_at, duplicate=duplicate)
                messages, duplicate, sent_at = 0, 0, entry.sent_at
            sealed = entry.sealed
            self._last_sequence_id = max(self._last_sequence_id, sealed.highest_sequence_id)
            messages += len(sealed.messages)
            if position == DUPLICATE:
                duplicate += len(sealed.messages)
        self._stats.confirmed(messages, now - sent_at, duplicate=duplicate)
        self._pending.settle_waiters()

    def on_refused(self, entry_id: int, error: PulsarException) -> None:
        """Fail an entry that was refused."""
        if isinstance(error, ClusterFenced):
            return  # it was not stored; the channel is about to be lost, and the entry is sent again over the next one
        self._fail_entry(entry_id, error)

    def on_lost(self, error: PulsarException) -> None:
        """Handle the loss of the connection: reconnect, or stop."""
        self._channel = None
        if self._error is not None:
            return
        if self._reconnect and not isinstance(error, ProducerFenced):
            self._reopening = client_supervisor().task(
                "reopening", f"reopening of the producer of {self._topic}", self._reopen, until_done=True
            )
            self._reopening.start()
        else:
            self._stop(error)

    # Inside.

    async def _open(self) -> ProducerChannel:
        return await self._open_channel(self._settings, self._topic_epoch)

    def _fit(self, ready: ProducerReady) -> None:
        """Adapt the limits of messages, chunks and batches to the present cluster. Sealed entries stay unchanged."""
        size = self._message_bytes_max = ready.message_bytes_max
        self._metadata_bytes_max = max(size, METADATA_ROOM_BYTES)
        if self._whole:
            self._content_bytes_max = size
        batching = self._settings.batching
        if self._batch is not None and batching is not None:
            self._batch.limits = replace(batching, payload_bytes_max=min(batching.payload_bytes_max, size))

    def _batch_is_due(self) -> None:
        self._batch_timer = None
        assert self._batch is not None
        deadline = self._batch.deadline
        if deadline is None:
            return
        if deadline > self._loop.time():
            # The batch that the timer was for is gone; this is a younger one.
            self._batch_timer = self._loop.call_at(deadline, self._batch_is_due)
            return
        self.seal_batches()

    def _send_alone(self, message: OutgoingMessage, sequence_id: int, confirmation: Confirmation) -> None:
        now_ms, chunk_message_bytes = wall_time_ms(), self._settings.chunk_message_bytes
        if chunk_message_bytes is None:
            self._send_sealed(single_entry(message, sequence_id, self._framer, now_ms, confirmation))
            return
        chunk_uuid = f"{self._framer.producer_name}-{self._chunk_session}-{sequence_id}"
        for sealed in chunked_entries(
            message,
            sequence_id,
            self._framer,
            now_ms,
            confirmation,
            uuid=chunk_uuid,
            message_bytes_max=min(chunk_message_bytes, self._message_bytes_max),
        ):
            self._send_sealed(sealed)

    def _send_sealed(self, sealed: SealedEntry[Confirmation]) -> None:
        now = self._loop.time()
        deadline = now + self._settings.send_timeout_ms / 1000
        entry_id = self._pending.add(sealed, now, deadline)
        entry = sealed.entry
        if isinstance(entry, PulsarException):
            self._fail_entry(entry_id, entry)
            return
        self._stats.sent(len(sealed.messages), len(entry))
        if self._settings.send_timeout_ms and self._timeout_timer is None:
            self._timeout_timer = self._loop.call_at(deadline, self._time_out)
        if self._channel is not None:
            self._channel.publish(entry_id, entry)

    def _time_out(self) -> None:
        self._timeout_timer = None
        while self._pending:
            entry_id, oldest = self._pending.oldest()
            if oldest.deadline > self._loop.time():
                self._timeout_timer = self._loop.call_at(oldest.deadline, self._time_out)
                return
            self._fail_entry(
                entry_id, Timeout(f"{self._topic}: not confirmed within {self._settings.send_timeout_ms} ms")
            )

    def _fail_entry(self, entry_id: int, error: PulsarException) -> None:
        self._stats.messages_failed += self._pending.fail(entry_id, error)

    async def _reopen(self) -> None:
        try:
            channel = await open_with_retries(self._open, self._operation_timeout_seconds, again=True)
        except PulsarException as error:
            self._reopening = None
            self._stop(error)
            return
        self._reopening = None
        self._topic_epoch = channel.ready.topic_epoch
        self._fit(channel.ready)
        self._channel = channel
        channel.start(self)
        for entry_id, entry in self._pending.resendable():
            channel.publish(entry_id, entry)

    def _stop(self, error: PulsarException) -> None:
        """Take no more messages, and fail those that wait. Unconfirmed ones stay listed in :meth:`pending`."""
        self._seal_open_batch_unsent()
        self._error = error
        for timer in (self._batch_timer, self._timeout_timer, self._stats_timer):
            if timer is not None:
                timer.cancel()
        if self._reopening is not None and not self._reopening.is_current:
            self._reopening.cancel()
        self._stats.messages_failed += self._pending.stop(error)

    async def _shut(self) -> None:
        self._stop(AlreadyClosed(f"producer of {self._topic} is closed"))
        self._pending.forget()
        channel, self._channel = self._channel, None
        self._on_close(self)
        if channel is not None:
            await channel.close()

    def _seal_open_batch_unsent(self) -> None:
        channel, self._channel = self._channel, None
        self.seal_batches()
        self._channel = channel

    def _log_stats_later(self, before: ProducerStats) -> None:
        interval_seconds = self._settings.stats_interval_seconds

        def log() -> None:
            now = self.stats()
            _log.info(
                "producer %s of %s: %s",
                self.producer_name(),
                self._topic,
                interval_line(before, now, interval_seconds),
            )
            self._log_stats_later(now)

        self._stats_timer = self._loop.call_later(interval_seconds, log)
