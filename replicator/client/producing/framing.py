"""Framing turns messages into entries: metadata, compression, encryption, and chunks. Sans-IO.

Every reader of an entry undoes these steps backwards: a batch (or a message that goes alone) is compressed as a whole;
a payload over the limit is cut into chunks; each entry is encrypted; the frame and its checksum come last. A payload
that compression does not make smaller is sent uncompressed: the metadata says so for each entry.

Source: the publicly documented wire format of Pulsar's entries, and PIP-37 for chunks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

from replicator.client.chunking import split_payload
from replicator.client.errors import PulsarException, from_engine
from replicator.client.message import OutgoingMessage
from replicator.client.producing.encryption import EntryEncryptor
from replicator.client.settings import CompressionType
from replicator.engine.errors import EngineError
from replicator.engine.log.compression import compress
from replicator.engine.log.entry import MESSAGE_BYTES_MAX, encode_entry, encode_plain_entry, producer_field
from replicator.metadata.metadata_pb2 import (
    LZ4,
    NONE,
    SNAPPY,
    ZLIB,
    ZSTD,
    KeyValue,
    MessageMetadata,
    SingleMessageMetadata,
)
from replicator.metadata.metadata_pb2 import CompressionType as Codec

_CODECS: Final[Mapping[CompressionType, Codec]] = {
    CompressionType.NONE: NONE,
    CompressionType.LZ4: LZ4,
    CompressionType.ZLib: ZLIB,
    CompressionType.ZSTD: ZSTD,
    CompressionType.SNAPPY: SNAPPY,
}

C = TypeVar("C")
"""Confirmation that the caller gets back with each message's entry: a producer's future. Opaque here."""


class SealedEntry(NamedTuple, Generic[C]):
    """Entry that is ready to be sent, with its messages, and the confirmation that each of them waits for.

    ``entry`` is the error instead if the messages cannot be framed. If a message is cut into chunks, only its last
    entry has the message.
    """

    entry: bytes | PulsarException
    messages: Sequence[OutgoingMessage]
    confirmations: Sequence[C]
    highest_sequence_id: int
    batched: bool
    chunk_id: int = 0
    chunks: int = 1


class EntryFramer:
    """Framer that makes entries for one producer, with its name, its compression and its encryption."""

    __slots__ = ("_codec", "_encryptor", "_producer_field", "plain", "producer_name")

    def __init__(
        self,
        producer_name: str,
        compression: CompressionType = CompressionType.NONE,
        encryptor: EntryEncryptor | None = None,
    ) -> None:
        self.producer_name = producer_name
        self._codec = _CODECS[compression]
        self._encryptor = encryptor
        self._producer_field = producer_field(producer_name)
        self.plain = compression is CompressionType.NONE and encryptor is None
        """Whether payloads are neither compressed nor encrypted."""

    def plain_entry(self, content: bytes, sequence_id: int, wall_time_ms: int) -> bytes | PulsarException:
        """Return the entry of a message with content only, by a :attr:`plain` producer; return the error if that
        fails."""
        try:
            return encode_plain_entry(self._producer_field, sequence_id, wall_time_ms, content)
        except EngineError as error:
            return from_engine(error)

    def frame(self, metadata: MessageMetadata, payload: bytes | bytearray) -> bytes | PulsarException:
        """Return payload and metadata as an entry; return the error if that fails."""
        return self.seal(metadata, self.pack(metadata, payload))

    def pack(self, metadata: MessageMetadata, payload: bytes | bytearray) -> bytes | bytearray:
        """Return the payload, compressed if that makes it smaller; ``metadata`` then names the compression."""
        if self._codec == NONE or not payload:
            return payload
        packed = compress(payload, self._codec)
        if len(packed) >= len(payload):
            return payload
        metadata.compression = self._codec
        metadata.uncompressed_size = len(payload)
        return packed

    def seal(self, metadata: MessageMetadata, packed: bytes | bytearray | memoryview) -> bytes | PulsarException:
        """Return a packed payload as an entry, encrypted if the producer encrypts; return the error if that fails."""
        try:
            if self._encryptor is not None:
                packed = self._encryptor.encrypt(metadata, packed)
            return encode_entry(metadata, packed)
        except EngineError as error:
            return from_engine(error)
        except PulsarException as error:
            return error


def single_entry(
    message: OutgoingMessage, sequence_id: int, framer: EntryFramer, wall_time_ms: int, confirmation: C
) -> SealedEntry[C]:
    """Return a message as an entry of its own, without ``num_messages_in_batch``."""
    if framer.plain and is_plain(message):
        entry = framer.plain_entry(message.content or b"", sequence_id, wall_time_ms)
    else:
        entry = framer.frame(_metadata_of(message, sequence_id, framer, wall_time_ms), message.content or b"")
    return SealedEntry(entry, [message], [confirmation], sequence_id, batched=False)


def chunked_entries(
    message: OutgoingMessage,
    sequence_id: int,
    framer: EntryFramer,
    wall_time_ms: int,
    confirmation: C,
    *,
    uuid: str,
    message_bytes_max: int = MESSAGE_BYTES_MAX,
) -> list[SealedEntry[C]]:
    """Return a message as one entry if it fits in ``message_bytes_max`` with its metadata, else as chunks that do.

    If one chunk cannot be framed, only its error is returned: the message would be useless without it.
    """
    metadata = _metadata_of(message, sequence_id, framer, wall_time_ms)
    packed = framer.pack(metadata, message.content or b"")
    if len(packed) + metadata.ByteSize() <= message_bytes_max:
        return [SealedEntry(framer.seal(metadata, packed), [message], [confirmation], sequence_id, batched=False)]
    metadata.uuid = uuid
    metadata.total_chunk_msg_size = len(packed)
    metadata.num_chunks_from_msg = metadata.chunk_id = 2**31 - 1  # as large as they can become
    try:
        pieces = list(split_payload(packed, message_bytes_max - metadata.ByteSize()))
    except PulsarException as error:
        return [SealedEntry(error, [message], [confirmation], sequence_id, batched=False)]
    metadata.num_chunks_from_msg = len(pieces)
    entries: list[SealedEntry[C]] = []
    for chunk_id, piece in enumerate(pieces):
        metadata.chunk_id = chunk_id
        entry = framer.seal(metadata, piece)
        if isinstance(entry, PulsarException):
            return [SealedEntry(entry, [message], [confirmation], sequence_id, batched=False)]
        last = chunk_id == len(pieces) - 1
        entries.append(
            SealedEntry(
                entry,
                [message] if last else (),
                [confirmation] if last else (),
                sequence_id,
                batched=False,
                chunk_id=chunk_id,
                chunks=len(pieces),
            )
        )
    return entries


def message_bytes(message: OutgoingMessage) -> int:
    """Return about how many bytes the message takes in an entry: exact for the content, an upper guess for the rest."""
    size = len(message.content or b"") + 32
    if message.partition_key is not None:
        size += 4 * len(message.partition_key)
    if message.ordering_key is not None:
        size += 4 * len(message.ordering_key)
    if message.properties:
        size += sum(4 * (len(key) + len(value)) + 16 for key, value in message.properties.items())
    return size


def is_plain(message: OutgoingMessage) -> bool:
    """Return whether the message has a value and nothing else, except perhaps a sequence id.

    A null value, a key, properties, and times make a message not plain.
    """
    return (
        message.content is not None
        and message.partition_key is None
        and not message.properties
        and message.ordering_key is None
        and message.event_timestamp is None
        and message.deliver_at is None
        and not message.clusters
    )


def single_metadata(message: OutgoingMessage, sequence_id: int) -> SingleMessageMetadata:
    """Return a message's own metadata inside a batch, without the size of its payload."""
    single = SingleMessageMetadata()
    single.sequence_id = sequence_id  # a third faster than by keyword, and this runs for each message
    if message.partition_key is not None:
        single.partition_key = message.partition_key
    if message.properties:
        single.properties.extend(_pairs(message.properties))
    if message.ordering_key is not None:
        single.ordering_key = ordering_key_bytes(message.ordering_key)
    if message.event_timestamp is not None:
        single.event_time = message.event_timestamp
    if message.content is None:
        single.null_value = True
    return single


def ordering_key_bytes(ordering_key: str) -> bytes:
    """Return an ordering key as the metadata holds it: bytes on the wire, text in this API."""
    return ordering_key.encode("utf-8", "surrogateescape")


def _metadata_of(message: OutgoingMessage, sequence_id: int, framer: EntryFramer, wall_time_ms: int) -> MessageMetadata:
    metadata = MessageMetadata(
        producer_name=framer.producer_name,
        sequence_id=sequence_id,
        publish_time=wall_time_ms,
        properties=_pairs(message.properties),
    )
    if message.partition_key is not None:
        metadata.partition_key = message.partition_key
    if message.ordering_key is not None:
        metadata.ordering_key = ordering_key_bytes(message.ordering_key)
    if message.event_timestamp is not None:
        metadata.event_time = message.event_timestamp
    if message.deliver_at is not None:
        metadata.deliver_at_time = message.deliver_at
    if message.content is None:
        metadata.null_value = True
    metadata.replicate_to.extend(message.clusters)
    return metadata


def _pairs(properties: Mapping[str, str] | None) -> list[KeyValue]:
    return [KeyValue(key=key, value=value) for key, value in (properties or {}).items()]
