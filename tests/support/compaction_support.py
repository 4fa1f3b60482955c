"""Helpers of the tests of compaction: keyed entries of every form, and reading them back as messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from replicator.engine.log.compression import compress, decompress
from replicator.engine.log.entry import append_to_batch, decode_entry, encode_entry, split_batch
from replicator.engine.types import LoggedEntry
from replicator.metadata.metadata_pb2 import NONE, CompressionType, MessageMetadata, SingleMessageMetadata
from snapshots.position import Position

Keyed = tuple[str | None, bytes]
"""A key and a payload; no payload is a tombstone."""


def keyed(key: str | None, payload: bytes, *, compression: CompressionType = NONE, **fields: object) -> bytes:
    """Return an entry of one message."""
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, **fields)  # type: ignore[arg-type]
    if key is not None:
        metadata.partition_key = key
    if compression != NONE:
        metadata.compression, metadata.uncompressed_size = compression, len(payload)
    return encode_entry(metadata, compress(payload, compression))


def keyed_batch(messages: Sequence[Keyed], *, compression: CompressionType = NONE) -> bytes:
    body = bytearray()
    for key, payload in messages:
        append_to_batch(body, SingleMessageMetadata(payload_size=0, partition_key=key), payload)
    metadata = MessageMetadata(
        producer_name="p",
        sequence_id=0,
        publish_time=1,
        num_messages_in_batch=len(messages),
        compression=compression,
        uncompressed_size=len(body),
    )
    return encode_entry(metadata, compress(body, compression))


def chunk(key: str, part: bytes, at: int, of: int, uuid: str, published_at_ms: int = 1) -> bytes:
    metadata = MessageMetadata(
        producer_name="p",
        sequence_id=0,
        publish_time=published_at_ms,
        partition_key=key,
        chunk_id=at,
        num_chunks_from_msg=of,
        total_chunk_msg_size=99,
        uuid=uuid,
    )
    return encode_entry(metadata, part)


def at(number: int, entry: bytes, batch_size: int = 1) -> LoggedEntry:
    """Return the entry as it is logged under that number."""
    position = Position(1, number)
    return LoggedEntry(position, batch_size, False, memoryview(entry), "us-east", position)


def messages_in(entries: Iterable[LoggedEntry]) -> list[tuple[str | None, bytes, Position, int]]:
    """Return key, payload, position and batch index of all messages that are not marked as compacted out."""
    found: list[tuple[str | None, bytes, Position, int]] = []
    for entry in entries:
        if entry.marker:
            continue
        metadata, payload = decode_entry(entry.entry)
        if not metadata.HasField("num_messages_in_batch"):
            key = metadata.partition_key if metadata.HasField("partition_key") else None
            found.append((key, bytes(payload), entry.position, 0))
            continue
        assert metadata.num_messages_in_batch == entry.batch_size
        content = decompress(payload, metadata.compression, metadata.uncompressed_size)
        for index, (single, body) in enumerate(split_batch(metadata, memoryview(content))):
            if not single.compacted_out:
                key = single.partition_key if single.HasField("partition_key") else None
                found.append((key, bytes(body), entry.position, index))
    return found
