"""What the tests of messages that come by two ways share: entries of a producer, and copying without links."""

from __future__ import annotations

import uuid as uuids
from collections.abc import Sequence

from replicator.engine.engine import EngineSettings
from replicator.engine.log.entry import append_to_batch, decode_entry, encode_entry
from replicator.engine.log.writer import CopiedBlock
from replicator.engine.policies import TopicPolicies
from replicator.engine.topic import Topic
from replicator.engine.types import Delivery, LoggedEntry
from replicator.metadata.metadata_pb2 import MessageMetadata, SingleMessageMetadata
from snapshots.position import BEFORE_ALL

ON = EngineSettings(policies=TopicPolicies(deduplication=True))


def numbered(sequence_id: int, *, producer: str = "p", key: str = "", publish_time: int = 1) -> bytes:
    metadata = MessageMetadata(producer_name=producer, sequence_id=sequence_id, publish_time=publish_time)
    if key:
        metadata.partition_key = key
    return encode_entry(metadata, f"{producer} {sequence_id}".encode())


def numbered_batch(first: int, last: int, *, producer: str = "p") -> bytes:
    metadata = MessageMetadata(
        producer_name=producer,
        sequence_id=first,
        highest_sequence_id=last,
        publish_time=1,
        num_messages_in_batch=last - first + 1,
    )
    body = bytearray()
    for number in range(first, last + 1):
        append_to_batch(body, SingleMessageMetadata(payload_size=0, sequence_id=number), b"%d" % number)
    return encode_entry(metadata, body)


def chunks_of(sequence_id: int, count: int, *, producer: str = "p", uuid: str | None = None) -> list[bytes]:
    uuid = uuid or uuids.uuid4().hex
    return [
        encode_entry(
            MessageMetadata(
                producer_name=producer,
                sequence_id=sequence_id,
                publish_time=1,
                uuid=uuid,
                chunk_id=chunk,
                num_chunks_from_msg=count,
                total_chunk_msg_size=10 * count,
            ),
            b"x" * 10,
        )
        for chunk in range(count)
    ]


async def copy(source: Topic, destination: Topic) -> None:
    """What a link does: all that ``source`` originated, as far as it is not there yet."""
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
    """Producer, sequence id and chunk of what was delivered."""
    found = []
    for delivery in deliveries:
        metadata, _ = decode_entry(delivery.entry)
        found.append((metadata.producer_name, metadata.sequence_id, metadata.chunk_id))
    return found
