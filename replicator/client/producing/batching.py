"""Batch containers: they gather messages into entries. Sans-IO; the clock is passed in.

Invariant 11: open batches are bounded by count, payload size, and age, and with batches by key by their number.

Algorithm of both containers:
1. A message that would take the open batches over the size limit seals them first, so that order stays and no batch is
   over the limit; a message that alone is over it becomes a batch of one.
2. The message is added to its batch, and its confirmation with it.
3. When the count or the size is reached, everything is sealed at once.
4. The shell seals open batches when ``deadline`` has passed, or at a flush.

:class:`BatchContainer` has one batch open. The key stands in the entry's metadata only when every message of the batch
has the same one; a batch of mixed keys counts as having none.

:class:`KeyBasedBatchContainer` has one open for each key (the ordering key, else the partition key; messages without
either share one that has none), so that Key_Shared can send each entry to the consumer of its key. Limits count over
all of them and they are sealed together, because of deduplication: a topic drops an entry whose sequence id is not
above the highest that it has. Each batch bears its own highest sequence id as its only one, and batches leave in the
order of those: keys A: 0, 3, 4 and B: 1, 2 leave as B (2), A (4), so that each is above the one before, and a resend
after a loss is recognised. A batch that were sealed alone while an older one is open would make the topic drop the
older one. Sequence ids that the application chooses itself have to grow from one flush to the next for the same reason.

Source: the publicly documented behaviour of Pulsar's batch containers.
"""

from __future__ import annotations

from typing import Final, Generic, Protocol, TypeVar

from replicator.client.message import OutgoingMessage
from replicator.client.producing.framing import (
    EntryFramer,
    SealedEntry,
    is_plain,
    message_bytes,
    ordering_key_bytes,
    single_metadata,
)
from replicator.client.settings import BatchLimits
from replicator.engine.log.entry import append_plain_to_batch, append_to_batch
from replicator.metadata.metadata_pb2 import KeyValue, MessageMetadata
from replicator.tracing.context import TRACEPARENT

KEYS_MAX: Final = 1_000
"""Limit of open batches. Each becomes an entry when sealed, and more of them would hardly be batches."""

C = TypeVar("C")


class Batcher(Protocol[C]):
    """Interface of a batch container for a producer."""

    limits: BatchLimits
    """Limits of open batches. They may change at any time; new limits apply to open batches, too."""

    @property
    def deadline(self) -> float | None:
        """Return when open batches must be sealed, in seconds of the clock of :meth:`add`; None if none is open."""

    def add(
        self, message: OutgoingMessage, sequence_id: int, now_seconds: float, wall_time_ms: int, confirmation: C
    ) -> list[SealedEntry[C]]:
        """Add one message; return the entries to send now, in order."""

    def seal(self) -> list[SealedEntry[C]]:
        """Seal and return all open batches."""

    def open_messages(self) -> list[OutgoingMessage]:
        """Return the messages that are not sealed; those of one key are in order."""


class _OpenBatch(Generic[C]):
    """One batch that still takes messages."""

    __slots__ = (
        "confirmations",
        "first_sequence_id",
        "highest_sequence_id",
        "key",
        "messages",
        "ordering_key",
        "payload",
        "publish_time_ms",
        "traceparent",
    )

    def __init__(self, first: OutgoingMessage, sequence_id: int, wall_time_ms: int) -> None:
        self.payload = bytearray()
        self.messages: list[OutgoingMessage] = []
        self.confirmations: list[C] = []
        self.first_sequence_id = sequence_id
        self.highest_sequence_id = sequence_id
        self.publish_time_ms = wall_time_ms
        self.key = first.partition_key
        self.ordering_key = first.ordering_key
        self.traceparent: str | None = None
        """Trace context of the batch's first traced message.

        The batch has it as a property, so that a worker need not read each message. Readers use only the messages'
        properties."""

    def add(self, message: OutgoingMessage, sequence_id: int, confirmation: C) -> None:
        if message.partition_key != self.key:
            self.key = None
        if message.ordering_key != self.ordering_key:
            self.ordering_key = None
        if is_plain(message):
            append_plain_to_batch(self.payload, sequence_id, message.content or b"")
        else:
            append_to_batch(self.payload, single_metadata(message, sequence_id), message.content or b"")
            if self.traceparent is None and message.properties:
                self.traceparent = message.properties.get(TRACEPARENT)
        self.messages.append(message)
        self.confirmations.append(confirmation)
        if sequence_id > self.highest_sequence_id:
            self.highest_sequence_id = sequence_id

    def sealed(self, framer: EntryFramer, *, by_key: bool) -> SealedEntry[C]:
        metadata = MessageMetadata(
            producer_name=framer.producer_name,
            sequence_id=self.highest_sequence_id if by_key else self.first_sequence_id,
            publish_time=self.publish_time_ms,
            num_messages_in_batch=len(self.messages),
            uncompressed_size=len(self.payload),
        )
        if not by_key:
            metadata.highest_sequence_id = self.highest_sequence_id
        if self.traceparent is not None:
            metadata.properties.append(KeyValue(key=TRACEPARENT, value=self.traceparent))
        if self.key is not None:
            metadata.partition_key = self.key
        if self.ordering_key is not None:
            metadata.ordering_key = ordering_key_bytes(self.ordering_key)
        entry = framer.frame(metadata, self.payload)
        return SealedEntry(entry, self.messages, self.confirmations, self.highest_sequence_id, batched=True)


class BatchContainer(Generic[C]):
    """Container with one open batch."""

    __slots__ = ("_deadline", "_framer", "_open", "limits")

    def __init__(self, limits: BatchLimits, framer: EntryFramer) -> None:
        self.limits = limits
        self._framer = framer
        self._deadline: float | None = None
        self._open: _OpenBatch[C] | None = None

    @property
    def deadline(self) -> float | None:
        return self._deadline

    def open_messages(self) -> list[OutgoingMessage]:
        return [] if self._open is None else list(self._open.messages)

    def add(
        self, message: OutgoingMessage, sequence_id: int, now_seconds: float, wall_time_ms: int, confirmation: C
    ) -> list[SealedEntry[C]]:
        sealed: list[SealedEntry[C]] = []
        limits, batch = self.limits, self._open
        if batch is not None and len(batch.payload) + message_bytes(message) > limits.payload_bytes_max:
            sealed = self.seal()
            batch = None
        if batch is None:
            batch = self._open = _OpenBatch(message, sequence_id, wall_time_ms)
            self._deadline = now_seconds + limits.publish_delay_ms / 1000
        batch.add(message, sequence_id, confirmation)
        if len(batch.messages) >= limits.messages_max or len(batch.payload) >= limits.payload_bytes_max:
            sealed += self.seal()
        return sealed

    def seal(self) -> list[SealedEntry[C]]:
        batch, self._open, self._deadline = self._open, None, None
        return [] if batch is None else [batch.sealed(self._framer, by_key=False)]


class KeyBasedBatchContainer(Generic[C]):
    """Container with one open batch for each key."""

    __slots__ = ("_deadline", "_framer", "_messages", "_open", "_payload_bytes", "limits")

    def __init__(self, limits: BatchLimits, framer: EntryFramer) -> None:
        self.limits = limits
        self._framer = framer
        self._deadline: float | None = None
        self._open: dict[tuple[bool, str | None], _OpenBatch[C]] = {}
        self._messages = 0
        self._payload_bytes = 0

    @property
    def deadline(self) -> float | None:
        return self._deadline

    def open_messages(self) -> list[OutgoingMessage]:
        return [message for batch in self._open.values() for message in batch.messages]

    def add(
        self, message: OutgoingMessage, sequence_id: int, now_seconds: float, wall_time_ms: int, confirmation: C
    ) -> list[SealedEntry[C]]:
        sealed: list[SealedEntry[C]] = []
        by_ordering_key = message.ordering_key is not None
        # The flag keeps an ordering key apart from a partition key that reads the same.
        key = (by_ordering_key, message.ordering_key if by_ordering_key else message.partition_key)
        limits = self.limits
        if self._open and (
            self._payload_bytes + message_bytes(message) > limits.payload_bytes_max
            or (len(self._open) >= KEYS_MAX and key not in self._open)
        ):
            sealed = self.seal()
        batch = self._open.get(key)
        if batch is None:
            if not self._open:
                self._deadline = now_seconds + limits.publish_delay_ms / 1000
            batch = self._open[key] = _OpenBatch(message, sequence_id, wall_time_ms)
        before_bytes = len(batch.payload)
        batch.add(message, sequence_id, confirmation)
        self._payload_bytes += len(batch.payload) - before_bytes
        self._messages += 1
        if self._messages >= limits.messages_max or self._payload_bytes >= limits.payload_bytes_max:
            sealed += self.seal()
        return sealed

    def seal(self) -> list[SealedEntry[C]]:
        batches = sorted(self._open.values(), key=lambda batch: batch.highest_sequence_id)
        self._open = {}
        self._deadline = None
        self._messages = self._payload_bytes = 0
        return [batch.sealed(self._framer, by_key=True) for batch in batches]
