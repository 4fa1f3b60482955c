"""Messages as producers take them and as consumers receive them, and their ids.

This module opens entries lazily: an entry is decrypted and decompressed when its first message is taken, and a batch is
opened one message at a time. Messages that are already acknowledged are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import total_ordering
from typing import Any, ClassVar, Final, NamedTuple, Protocol, cast

from pyroaring import BitMap

from replicator.client.chunking import Assembled, Chunk, chunk_of
from replicator.client.errors import DecryptionFailed, InvalidMessage, SchemaError, from_engine
from replicator.client.producing.encryption import ConsumerCryptoFailureAction, EntryDecryptor
from replicator.client.schema import Schema
from replicator.engine.errors import EngineError
from replicator.engine.log.compression import decompress
from replicator.engine.log.entry import BATCH_MESSAGES_MAX, decode_entry, split_batch
from replicator.engine.types import DUPLICATE, Delivery
from replicator.metadata.metadata_pb2 import (
    NONE,
    CompressionType,
    KeyValue,
    MessageMetadata,
    SingleMessageMetadata,
)
from snapshots.errors import InvalidPosition
from snapshots.position import BEFORE_ALL, Position

NO_BATCH: Final = -1
"""Batch index of a message that was not batched."""
_U64_MAX: Final = 2**64 - 1


@total_ordering
class MessageId:
    """A message's place in a topic of one cluster: its position, and its index in its batch.

    Ids are ordered by position, then batch index. ``batch_size`` is the number of messages in the entry. An id with -1
    as ledger and entry is :attr:`earliest`. Raises :class:`InvalidMessage` for numbers that no message has: a worker
    would end the connection of a consumer that sent them.
    """

    __slots__ = ("_batch_index", "_batch_size", "_partition", "_position")

    earliest: ClassVar[MessageId]
    """Place before the first message of every topic."""
    latest: ClassVar[MessageId]
    """Place after the last message of every topic."""

    def __init__(
        self,
        partition: int = -1,
        ledger_id: int = 0,
        entry_id: int = -1,
        batch_index: int = NO_BATCH,
        batch_size: int = 1,
    ) -> None:
        self._position = BEFORE_ALL if ledger_id == entry_id == -1 else Position(ledger_id, entry_id)
        self._partition = partition
        self._batch_index = batch_index
        self._batch_size = batch_size
        self._check()

    def _check(self) -> None:
        for name, number, low, high in (
            ("ledger", self._position.ledger, 0, _U64_MAX),
            ("entry", self._position.entry, -1, _U64_MAX),
            ("partition", self._partition, -1, _U64_MAX),
            ("batch index", self._batch_index, NO_BATCH, BATCH_MESSAGES_MAX),
            ("batch size", self._batch_size, 1, BATCH_MESSAGES_MAX),
        ):
            if type(number) is not int or not low <= number <= high:
                raise InvalidMessage(f"no message id: {name} is {number!r:.80}; it must be a whole number from {low}")

    @classmethod
    def at(cls, position: Position, partition: int, batch_index: int, batch_size: int) -> MessageId:
        """Return the id of a message at a known position."""
        made = cls.__new__(cls)
        made._position = position
        made._partition = partition
        made._batch_index = batch_index
        made._batch_size = batch_size
        return made

    def ledger_id(self) -> int:
        return self._position.ledger

    def entry_id(self) -> int:
        return self._position.entry

    def partition(self) -> int:
        """Return the partition's index, or -1 for a topic that is not a partition."""
        return self._partition

    def batch_index(self) -> int:
        """Return the index in the batch, or -1 for a message that was not batched."""
        return self._batch_index

    def batch_size(self) -> int:
        return self._batch_size

    def position(self) -> Position:
        return self._position

    def is_duplicate(self) -> bool:
        """Return whether the topic already had the sent message (deduplication); its id there is not known."""
        return self._position == DUPLICATE

    def serialize(self) -> bytes:
        """Return the id as ASCII, ``ledger:entry:partition:batch_index:batch_size``; :meth:`deserialize` reads it."""
        return str(self).encode()

    @classmethod
    def deserialize(cls, message_id_bytes: bytes) -> MessageId:
        """Read an id that :meth:`serialize` wrote. Raises :class:`InvalidMessage`."""
        try:
            ledger, entry, partition, index, size, *first_chunk = message_id_bytes.decode("ascii").split(":")
            position = Position.parse(f"{ledger}:{entry}")
            if first_chunk:
                first = Position.parse(":".join(first_chunk))
                made: MessageId = ChunkMessageId((first, position), int(partition))
            else:
                made = MessageId.at(position, int(partition), int(index), int(size))
            made._check()
        except (ValueError, InvalidPosition, InvalidMessage):
            raise InvalidMessage(
                f"not a message id as MessageId.serialize() gives it: {message_id_bytes[:80]!r}"
            ) from None
        if made._batch_index >= made._batch_size:
            raise InvalidMessage(f"not a message id as MessageId.serialize() gives it: {message_id_bytes[:80]!r}")
        return made

    def __str__(self) -> str:
        return f"{self._position}:{self._partition}:{self._batch_index}:{self._batch_size}"

    def __repr__(self) -> str:
        return f"MessageId({self})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MessageId):
            return NotImplemented
        return self._order() == other._order() and self._partition == other._partition

    def __lt__(self, other: MessageId) -> bool:
        if not isinstance(other, MessageId):
            return NotImplemented
        return self._order() < other._order()

    def __hash__(self) -> int:
        return hash((self._position, self._batch_index))

    def _order(self) -> tuple[Position, int]:
        return (self._position, self._batch_index)


MessageId.earliest = MessageId.at(BEFORE_ALL, -1, NO_BATCH, 1)
MessageId.latest = MessageId.at(Position(2**63 - 1, 2**63 - 1), -1, NO_BATCH, 1)


class ChunkMessageId(MessageId):
    """Id of a chunked message: that of its last chunk, with the positions of the other chunks.

    An id made by :meth:`deserialize` knows only the first and the last position.
    """

    __slots__ = ("_positions",)

    def __init__(self, positions: Sequence[Position], partition: int) -> None:
        super().__init__(partition, *positions[-1])
        self._positions = tuple(positions)

    def first_chunk_position(self) -> Position:
        """Return the position of the first chunk: a seek must go there to receive the message."""
        return self._positions[0]

    def chunk_positions(self) -> tuple[Position, ...]:
        """Return the positions of all chunks, in order. Consuming the message acknowledges all of them."""
        return self._positions

    def serialize(self) -> bytes:
        """Return the id as ASCII: the base class's text, then ``:ledger:entry`` of the first chunk."""
        return f"{self}:{self._positions[0]}".encode()


class OutgoingMessage(NamedTuple):
    """Message to be sent, with the arguments of ``Producer.send``.

    ``sequence_id`` is None if the producer chooses it; ``event_timestamp`` and ``deliver_at`` are in milliseconds since
    the epoch.
    """

    content: bytes | None
    """Payload as bytes. None is the null value: compaction deletes the key of such a message."""
    properties: Mapping[str, str] | None = None
    partition_key: str | None = None
    ordering_key: str | None = None
    sequence_id: int | None = None
    event_timestamp: int | None = None
    deliver_at: int | None = None
    clusters: tuple[str, ...] = ()
    """Only clusters to copy the message to. Empty: all clusters. Only the local cluster: no copies."""


@dataclass(frozen=True, slots=True)
class ReceivedEntry:
    """Facts that all messages of one received entry share."""

    topic: str
    partition: int
    delivery: Delivery
    metadata: MessageMetadata
    schema: Schema | None = None
    chunk_positions: tuple[Position, ...] = ()
    """Positions of all chunks of a chunked message; ``delivery`` is the last chunk. Empty for other messages."""
    encrypted: bool = False
    """Whether the payload is still encrypted, because it could not be decrypted."""


class Unpacked(Protocol):
    """Interface of an entry that is being decompressed elsewhere."""

    def content(self) -> bytes | None:
        """Return the uncompressed content; None until the entry is decompressed.

        Raises :class:`~replicator.engine.errors.EngineError` if the entry cannot be decompressed.
        """

    def belongs_to(self, message: Message) -> None:
        """Count the content as in use until ``message`` is gone, because the message holds it."""

    def close(self) -> None:
        """Release the content. If it belongs to a message, it counts as in use until the message is gone."""


Unpack = Callable[[memoryview, CompressionType, int, Callable[[], None]], Unpacked]
"""Function that begins to decompress a payload, and calls its last argument when the content is there."""


@dataclass(frozen=True, slots=True)
class Opening:
    """Settings with which a consumer turns a received entry into messages.

    ``on_chunk`` takes each chunk. It returns the whole message if the chunk completes one. Without ``on_chunk``, chunks
    are refused. With ``unpack``, entries are decompressed elsewhere, and ``ready`` is called when one is done.
    """

    schema: Schema | None = None
    decryptor: EntryDecryptor | None = None
    crypto_failure_action: ConsumerCryptoFailureAction = ConsumerCryptoFailureAction.FAIL
    on_chunk: Callable[[Chunk], Assembled | None] | None = None
    unpack: Unpack | None = None
    ready: Callable[[], None] = lambda: None


class Message:
    """Received message. Consumers make it; applications do not."""

    __slots__ = ("__weakref__", "_batch_index", "_entry", "_payload", "_single")

    def __init__(
        self, entry: ReceivedEntry, batch_index: int, single: SingleMessageMetadata | None, payload: bytes
    ) -> None:
        self._entry = entry
        self._batch_index = batch_index
        self._single = single
        self._payload = payload

    def data(self) -> bytes:
        """Return the payload; it is empty for a null value."""
        return self._payload

    def has_null_value(self) -> bool:
        """Return whether the producer sent the null value; on a compacted topic that deletes the message's key."""
        return (self._entry.metadata if self._single is None else self._single).null_value

    def value(self) -> Any:
        """Return the payload as the consumer's schema decodes it.

        Without a schema, or if the payload is encrypted, return its bytes. The schema decodes a null value like an
        empty payload; if it cannot, as JSON cannot, return None. Raises :class:`SchemaError` for another payload that
        it cannot decode.
        """
        schema = self._entry.schema
        if schema is None or self._entry.encrypted:
            return self._payload
        try:
            return schema.decode(self._payload)
        except SchemaError as error:
            if self.has_null_value():
                return None
            raise SchemaError(
                f"the payload of message {self.message_id()} of {self._entry.topic} does not fit the consumer's "
                f"schema: {error}"
            ) from None

    def is_chunked(self) -> bool:
        """Return whether the message came in chunks. Its id is then a :class:`ChunkMessageId`."""
        return bool(self._entry.chunk_positions)

    def is_encrypted(self) -> bool:
        """Return whether the payload is a whole encrypted entry; only the failure action ``CONSUME`` gives such
        messages."""
        return self._entry.encrypted

    def properties(self) -> dict[str, str]:
        return {pair.key: pair.value for pair in self._properties()}

    def partition_key(self) -> str:
        """Return the key, or "" if the message has none."""
        return (self._entry.metadata if self._single is None else self._single).partition_key

    def ordering_key(self) -> str:
        """Return the ordering key, or "" if the message has none."""
        source = self._entry.metadata if self._single is None else self._single
        return source.ordering_key.decode("utf-8", "surrogateescape")

    def publish_timestamp(self) -> int:
        """Return when the producer sent the message, in milliseconds since the epoch, by the producer's clock."""
        return self._entry.metadata.publish_time

    def event_timestamp(self) -> int:
        """Return the application's event time in milliseconds since the epoch, or 0."""
        return (self._entry.metadata if self._single is None else self._single).event_time

    def message_id(self) -> MessageId:
        delivery = self._entry.delivery
        if self._entry.chunk_positions:
            return ChunkMessageId(self._entry.chunk_positions, self._entry.partition)
        return MessageId.at(
            delivery.position, self._entry.partition, self._batch_index, self._entry.metadata.num_messages_in_batch
        )

    def topic_name(self) -> str:
        return self._entry.topic

    def redelivery_count(self) -> int:
        return self._entry.delivery.redelivery_count

    def producer_name(self) -> str:
        return self._entry.metadata.producer_name

    def sequence_id(self) -> int:
        """Return the message's number in its producer's sequence."""
        if self._single is not None and self._single.HasField("sequence_id"):
            return self._single.sequence_id
        return self._entry.metadata.sequence_id + max(self._batch_index, 0)

    def origin(self) -> str:
        """Return the cluster where the message was first published."""
        return self._entry.delivery.origin

    def origin_message_id(self) -> MessageId:
        """Return the message's id in its origin cluster. It is the same in every cluster."""
        delivery = self._entry.delivery
        return MessageId.at(
            delivery.origin_position,
            self._entry.partition,
            self._batch_index,
            self._entry.metadata.num_messages_in_batch,
        )

    def __repr__(self) -> str:
        return f"Message({self._entry.topic} {self.message_id()}, {len(self._payload)} bytes)"

    def _properties(self) -> Sequence[KeyValue]:
        return (self._entry.metadata if self._single is None else self._single).properties


def messages_of(
    delivery: Delivery, topic: str, partition: int, skip: BitMap | None = None, opening: Opening | None = None
) -> Iterator[Message]:
    """Yield the messages of one delivered entry in order, without those already acknowledged.

    ``skip`` holds further batch indexes to leave out. Each message is made when the caller takes it, with a copy of its
    payload, so that keeping it does not keep its batch. A chunk yields no message, or the message that it completes.
    Raises :class:`InvalidMessage`, which names the position, at a message that cannot be read;
    :class:`DecryptionFailed` is one case.
    """
    assert opening is None or opening.unpack is None
    return cast("Iterator[Message]", messages_as_unpacked(delivery, topic, partition, skip, opening))


def messages_as_unpacked(
    delivery: Delivery, topic: str, partition: int, skip: BitMap | None = None, opening: Opening | None = None
) -> Iterator[Message | None]:
    """Yield the same messages as :func:`messages_of`, and None while the entry is being decompressed elsewhere.

    After a None, the caller waits until :attr:`Opening.ready` is called, and then asks for the next message again.
    """
    unpacked: Unpacked | None = None
    try:
        metadata, payload = decode_entry(delivery.entry)
        entry = ReceivedEntry(topic, partition, delivery, metadata, None if opening is None else opening.schema)
        if metadata.encryption_keys or metadata.num_chunks_from_msg > 1:  # the few: this is done for every entry
            entry, opened = _opened(entry, payload, opening or Opening())
            if opened is None:
                return
            payload = memoryview(opened)
        whole: bytes | None = None
        if metadata.compression != NONE and not entry.encrypted:
            if opening is None or opening.unpack is None:
                whole = decompress(payload, metadata.compression, metadata.uncompressed_size)
            else:
                unpacked = opening.unpack(payload, metadata.compression, metadata.uncompressed_size, opening.ready)
                while (whole := unpacked.content()) is None:
                    yield None
            payload = memoryview(whole)
        if not metadata.HasField("num_messages_in_batch") or entry.encrypted:
            only = [Message(entry, NO_BATCH, None, bytes(payload) if whole is None else whole)]
            if unpacked is not None:
                unpacked.belongs_to(only[0])
                unpacked.close()
            del whole, payload  # from here on the message alone holds its content
            yield only.pop()
            return
        acked = _acknowledged_indexes(delivery)
        if skip is not None:
            acked = skip if acked is None else acked | skip
        for index, (single, content) in enumerate(split_batch(metadata, payload)):
            if (acked is None or index not in acked) and not single.compacted_out:
                yield Message(entry, index, single, bytes(content))
    except EngineError as error:
        raise InvalidMessage(
            f"entry {delivery.position} of {topic} cannot be read: {from_engine(error)}. A seek behind the entry "
            "goes on without it"
        ) from error
    finally:
        if unpacked is not None:
            unpacked.close()


def _opened(
    entry: ReceivedEntry, payload: memoryview, opening: Opening
) -> tuple[ReceivedEntry, bytes | memoryview | None]:
    """Return the entry, updated, and its payload, decrypted and with all chunks; None if the payload is not
    available."""
    position, metadata = entry.delivery.position, entry.metadata
    clear: bytes | memoryview = payload
    if metadata.encryption_keys:
        try:
            clear = _decrypted(metadata, payload, opening.decryptor)
        except DecryptionFailed as error:
            if opening.crypto_failure_action is ConsumerCryptoFailureAction.CONSUME:
                return replace(entry, encrypted=True), payload
            raise DecryptionFailed(f"entry {position} of {entry.topic} cannot be decrypted: {error}") from error
    chunk = chunk_of(metadata, clear, position, entry.topic)
    if chunk is None:
        return entry, clear
    if opening.on_chunk is None:
        raise InvalidMessage(
            f"entry {position} of {entry.topic} is a chunk of a larger message: read the topic with a consumer or "
            "reader, which puts chunks together"
        )
    assembled = opening.on_chunk(chunk)
    if assembled is None:
        return entry, None
    return replace(entry, chunk_positions=assembled.positions), assembled.payload


def _decrypted(metadata: MessageMetadata, payload: memoryview, decryptor: EntryDecryptor | None) -> bytes:
    if decryptor is None:
        raise DecryptionFailed(
            "the message is encrypted, and the consumer has no crypto_key_reader: subscribe with one that has the "
            "private key"
        )
    return decryptor.decrypt(metadata, payload)


def _acknowledged_indexes(delivery: Delivery) -> BitMap | None:
    """Return the batch indexes that the cluster has as acknowledged. Raises :class:`InvalidMessage`."""
    if delivery.acked is None:
        return None
    try:
        return BitMap.deserialize(delivery.acked)
    except ValueError:
        raise InvalidMessage(
            f"entry {delivery.position}: its acknowledged indexes cannot be read: run a client of the worker's version"
        ) from None
