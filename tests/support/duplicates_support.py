"""Helpers of the tests of messages that come by two ways: entries of a producer, and copying without links."""

from __future__ import annotations

import uuid as uuids
from collections.abc import Mapping, Sequence
from typing import Any

from replicator.engine.engine import EngineSettings
from replicator.engine.log import compression
from replicator.engine.log.entry import append_to_batch, decode_entry, encode_entry
from replicator.engine.log.writer import CopiedBlock
from replicator.engine.policies import TopicPolicies
from replicator.engine.topic import Topic
from replicator.engine.types import Delivery, LoggedEntry
from replicator.metadata.metadata_pb2 import NONE, MessageMetadata, SingleMessageMetadata
from snapshots.position import BEFORE_ALL

ON = EngineSettings(policies=TopicPolicies(deduplication=True))


def payload_of(number: int, producer: str, content: str) -> bytes:
    return f"{producer} {number} {content}".rstrip().encode()


def numbered(
    sequence_id: int, *, producer: str = "p", key: str = "", publish_time: int = 1, content: str = "", codec: Any = NONE
) -> bytes:
    """Return a single message; ``content`` distinguishes it from other messages with its id."""
    metadata = MessageMetadata(producer_name=producer, sequence_id=sequence_id, publish_time=publish_time)
    if key:
        metadata.partition_key = key
    return _encoded(metadata, payload_of(sequence_id, producer, content), codec)


def numbered_batch(
    first: int, last: int, *, producer: str = "p", publish_time: int = 1, content: str = "", codec: Any = NONE
) -> bytes:
    """Return the same messages as :func:`numbered` makes, as a batch."""
    return batch_of(dict.fromkeys(range(first, last + 1), content), producer, publish_time, codec)


def batch_of(contents: Mapping[int, str], producer: str = "p", publish_time: int = 1, codec: Any = NONE) -> bytes:
    """Return a batch of messages, given the content of each by sequence id."""
    first, last = min(contents), max(contents)
    metadata = MessageMetadata(
        producer_name=producer,
        sequence_id=first,
        highest_sequence_id=last,
        publish_time=publish_time,
        num_messages_in_batch=len(contents),
    )
    body = bytearray()
    for number, content in contents.items():
        single = SingleMessageMetadata(payload_size=0, sequence_id=number)
        append_to_batch(body, single, payload_of(number, producer, content))
    return _encoded(metadata, bytes(body), codec)


def _encoded(metadata: MessageMetadata, payload: bytes, codec: Any) -> bytes:
    if codec != NONE:
        metadata.compression, metadata.uncompressed_size = codec, len(payload)
        payload = compression.compress(payload, codec)
    return encode_entry(metadata, payload)


def chunks_of(
    sequence_id: int,
    count: int,
    *,
    producer: str = "p",
    uuid: str | None = None,
    contents: Sequence[bytes] | None = None,
    publish_time: int = 1,
) -> list[bytes]:
    """Return the chunks of one message; ``contents`` are their payloads."""
    uuid = uuid or uuids.uuid4().hex
    contents = contents or [b"x" * 10] * count
    return [
        encode_entry(
            MessageMetadata(
                producer_name=producer,
                sequence_id=sequence_id,
                publish_time=publish_time,
                uuid=uuid,
                chunk_id=chunk,
                num_chunks_from_msg=count,
                total_chunk_msg_size=sum(map(len, contents)),
            ),
            contents[chunk],
        )
        for chunk in range(count)
    ]


async def copy(source: Topic, destination: Topic) -> None:
    """Copy what ``source`` originated and ``destination`` does not have yet, as a link does."""
    origin = source.cluster
    mark = destination.origins.high_water(origin)
    previous = BEFORE_ALL
    blocks, _ = source.reading.blocks(BEFORE_ALL, bytes_max=10**9, origins=frozenset({origin}))
    copied: list[CopiedBlock] = []
    for stored in blocks:
        if mark is None or stored.header.origin_last > mark.position:
            copied.append(CopiedBlock(previous, stored.block))
        previous = stored.header.origin_last
    if copied:
        await destination.writing.copy(copied)


def ids_of(deliveries: Sequence[Delivery | LoggedEntry]) -> list[tuple[str, int, int]]:
    """Return producer, sequence id and chunk of each delivery."""
    found = []
    for delivery in deliveries:
        metadata, _ = decode_entry(delivery.entry)
        found.append((metadata.producer_name, metadata.sequence_id, metadata.chunk_id))
    return found
