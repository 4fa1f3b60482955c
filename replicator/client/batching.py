"""The batch container: gathers messages into one entry. Sans-IO; the clock is passed in.

Invariant 11: a batch is bounded by count, payload size and age.

Algorithm:
1. A message that would take the open batch over its size seals that batch first, so that order stays and
   no batch is over the limit; a message that alone is over it becomes a batch of one.
2. The message is added.
3. A batch that has reached its count or its size is sealed at once.
4. What is still open is sealed by the shell when :attr:`BatchContainer.deadline` has passed, or at a flush.

The key stands in the entry's metadata only when every message of the batch has the same one; a batch of
mixed keys counts as having none.

Source: the publicly documented behaviour of Pulsar's default batch container.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from replicator.client.errors import PulsarException, from_engine
from replicator.client.message import OutgoingMessage
from replicator.client.settings import BatchLimits
from replicator.engine.entry import append_to_batch, encode_entry
from replicator.engine.errors import EngineError
from replicator.engine.metadata_pb2 import KeyValue, MessageMetadata, SingleMessageMetadata


@dataclass(frozen=True, slots=True)
class SealedEntry:
    """An entry that is ready to be sent, and the messages in it.

    ``entry`` is the error instead when the messages cannot be framed.
    """

    entry: bytes | PulsarException
    messages: Sequence[OutgoingMessage]
    highest_sequence_id: int
    batched: bool


class BatchContainer:
    """The one open batch of a producer."""

    __slots__ = (
        "_first_sequence_id",
        "_highest_sequence_id",
        "_key",
        "_limits",
        "_messages",
        "_ordering_key",
        "_payload",
        "_producer_name",
        "_publish_time_ms",
        "deadline",
    )

    def __init__(self, limits: BatchLimits, producer_name: str) -> None:
        self._limits = limits
        self._producer_name = producer_name
        self.deadline: float | None = None
        """When the open batch must go (seconds, of the clock that :meth:`add` is given); None if it is empty."""
        self._payload = bytearray()
        self._messages: list[OutgoingMessage] = []
        self._first_sequence_id = 0
        self._highest_sequence_id = 0
        self._publish_time_ms = 0
        self._key: str | None = None
        self._ordering_key: str | None = None

    def __len__(self) -> int:
        return len(self._messages)

    def open_messages(self) -> list[OutgoingMessage]:
        """The messages of the open batch, in order."""
        return list(self._messages)

    def add(
        self, message: OutgoingMessage, sequence_id: int, now_seconds: float, wall_time_ms: int
    ) -> list[SealedEntry]:
        """Add one message; returns the entries that are to be sent now, in order."""
        sealed: list[SealedEntry] = []
        size = message_bytes(message)
        if self._messages and len(self._payload) + size > self._limits.payload_bytes_max:
            sealed += self.seal()
        if not self._messages:
            self._first_sequence_id = sequence_id
            self._publish_time_ms = wall_time_ms
            self._key = message.partition_key
            self._ordering_key = message.ordering_key
            self.deadline = now_seconds + self._limits.publish_delay_ms / 1000
        else:
            if message.partition_key != self._key:
                self._key = None
            if message.ordering_key != self._ordering_key:
                self._ordering_key = None
        append_to_batch(self._payload, _single_metadata(message, sequence_id), message.content)
        self._messages.append(message)
        self._highest_sequence_id = max(self._highest_sequence_id, sequence_id)
        if len(self._messages) >= self._limits.messages_max or len(self._payload) >= self._limits.payload_bytes_max:
            sealed += self.seal()
        return sealed

    def seal(self) -> list[SealedEntry]:
        """Close the open batch, if there is one, and begin the next."""
        if not self._messages:
            return []
        metadata = MessageMetadata(
            producer_name=self._producer_name,
            sequence_id=self._first_sequence_id,
            highest_sequence_id=self._highest_sequence_id,
            publish_time=self._publish_time_ms,
            num_messages_in_batch=len(self._messages),
            uncompressed_size=len(self._payload),
        )
        if self._key is not None:
            metadata.partition_key = self._key
        if self._ordering_key is not None:
            metadata.ordering_key = self._ordering_key.encode("utf-8", "surrogateescape")
        sealed = SealedEntry(_framed(metadata, self._payload), self._messages, self._highest_sequence_id, batched=True)
        self._begin()
        return [sealed]

    def _begin(self) -> None:
        self._payload = bytearray()
        self._messages = []
        self._highest_sequence_id = 0
        self.deadline = None


def single_entry(message: OutgoingMessage, sequence_id: int, producer_name: str, wall_time_ms: int) -> SealedEntry:
    """A message as an entry of its own: without ``num_messages_in_batch``."""
    metadata = MessageMetadata(
        producer_name=producer_name,
        sequence_id=sequence_id,
        publish_time=wall_time_ms,
        properties=_pairs(message.properties),
    )
    if message.partition_key is not None:
        metadata.partition_key = message.partition_key
    if message.ordering_key is not None:
        metadata.ordering_key = message.ordering_key.encode("utf-8", "surrogateescape")
    if message.event_timestamp is not None:
        metadata.event_time = message.event_timestamp
    return SealedEntry(_framed(metadata, message.content), [message], sequence_id, batched=False)


def message_bytes(message: OutgoingMessage) -> int:
    """About how many bytes the message takes in an entry: exact for the content, an upper guess for the rest."""
    size = len(message.content) + 32
    if message.partition_key is not None:
        size += 4 * len(message.partition_key)
    if message.ordering_key is not None:
        size += 4 * len(message.ordering_key)
    if message.properties:
        size += sum(4 * (len(key) + len(value)) + 16 for key, value in message.properties.items())
    return size


def _single_metadata(message: OutgoingMessage, sequence_id: int) -> SingleMessageMetadata:
    single = SingleMessageMetadata(sequence_id=sequence_id, partition_key=message.partition_key)
    if message.properties:
        single.properties.extend(_pairs(message.properties))
    if message.ordering_key is not None:
        single.ordering_key = message.ordering_key.encode("utf-8", "surrogateescape")
    if message.event_timestamp is not None:
        single.event_time = message.event_timestamp
    return single


def _pairs(properties: Mapping[str, str] | None) -> list[KeyValue]:
    return [KeyValue(key=key, value=value) for key, value in (properties or {}).items()]


def _framed(metadata: MessageMetadata, payload: bytes | bytearray) -> bytes | PulsarException:
    try:
        return encode_entry(metadata, payload)
    except EngineError as error:
        return from_engine(error)
