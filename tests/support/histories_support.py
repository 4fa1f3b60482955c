"""Histories of a topic with entries that no client gets, for tests that draw their steps.

Such entries are markers, duplicates, parts of batches, and entries that are compacted away or trimmed. :class:`History`
carries out steps that a test draws, and remembers every message id at which a client might begin. :class:`Reading`
returns what a reader gets, by reading as a reader does.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from engine_support import all_sent, make_block, marker
from pyroaring import BitMap

from replicator.engine.log.compression import decompress
from replicator.engine.log.entry import append_to_batch, decode_entry, encode_entry, split_batch
from replicator.engine.log.writer import CopiedBlock
from replicator.engine.subscriptions.consumer import EngineConsumer
from replicator.engine.topic import Topic
from replicator.engine.types import Delivery, SubscribeOptions
from replicator.metadata.metadata_pb2 import MessageMetadata, SingleMessageMetadata
from snapshots.position import BEFORE_ALL, Position

ORIGIN: Final = "eu-west"
PERMITS: Final = 100_000
STEPS: Final = ("single", "batch", "null", "markers", "part", "duplicate", "chunks", "open chunks", "compact", "trim")


class Id(NamedTuple):
    """A message id as clients compare them; the index is -1 outside of batches."""

    position: Position
    index: int


@dataclass
class History:
    """History of one topic in a cluster that deduplicates."""

    topic: Topic
    random: random.Random
    ids: list[Id] = field(default_factory=list)
    times_ms: list[int] = field(default_factory=list)
    _numbers: int = 0
    _origin: Position = BEFORE_ALL

    async def step(self, kind: str) -> None:
        """Carry out one of :data:`STEPS`."""
        drawn, topic = self.random, self.topic
        if kind == "single":
            await self._publish([self._entry(self._key(), b"x")])
        elif kind == "null":
            await self._publish([self._entry(self._key(), None)])
        elif kind == "batch":
            await self._publish([self._batch(drawn.randint(1, 4))])
        elif kind == "markers":
            for _ in range(drawn.randint(1, 3)):
                await topic.writing.marker(marker())
        elif kind == "part":
            size = drawn.randint(2, 4)
            absent = drawn.sample(range(size), drawn.randint(1, size - 1))
            await self._copy(self._batch(size, absent), size, absent)
        elif kind == "duplicate":
            entry = self._entry(self._key(), b"twice")
            await self._publish([entry])
            if drawn.random() < 0.5:
                await self.step(drawn.choice(("single", "batch", "markers")))
            await self._copy(entry, 1, ())
        elif kind in ("chunks", "open chunks"):
            await self._chunks(3, complete=kind == "chunks")
        elif kind == "compact":
            await topic.compaction.run()
        elif kind == "trim" and topic.log.first is not None:
            first, last = topic.log.first, topic.log.last
            upto = Position(last.ledger, drawn.randint(min(first.entry, last.entry), last.entry))
            await topic.trimming.trim(topic.log.clamp(upto))
        self.times_ms.append(topic.writer.wall_clock_ms())

    def _key(self) -> str | None:
        return self.random.choice(("a", "b", "c", None))

    def _metadata(self, numbers: int) -> MessageMetadata:
        first, self._numbers = self._numbers, self._numbers + numbers
        return MessageMetadata(producer_name="p", sequence_id=first, publish_time=self.topic.writer.wall_clock_ms())

    def _entry(self, key: str | None, payload: bytes | None) -> bytes:
        metadata = self._metadata(1)
        if key is not None:
            metadata.partition_key = key
        metadata.null_value = payload is None
        return encode_entry(metadata, payload or b"")

    def _batch(self, size: int, absent: Sequence[int] = ()) -> bytes:
        metadata = self._metadata(size)
        metadata.highest_sequence_id = metadata.sequence_id + size - 1
        metadata.num_messages_in_batch = size
        body = bytearray()
        for index in range(size):
            if index in absent:
                append_to_batch(body, SingleMessageMetadata(payload_size=0, compacted_out=True), b"")
                continue
            key, null = self._key(), self.random.random() < 0.2
            single = SingleMessageMetadata(payload_size=0, partition_key=key, null_value=null)
            append_to_batch(body, single, b"" if null else b"x")
        return encode_entry(metadata, body)

    async def _chunks(self, count: int, *, complete: bool) -> None:
        key, uuid, number = self._key(), f"p-{self._numbers}", self._metadata(1).sequence_id
        for chunk in range(count if complete else self.random.randint(1, count - 1)):
            metadata = MessageMetadata(
                producer_name="p",
                sequence_id=number,
                publish_time=self.topic.writer.wall_clock_ms(),
                partition_key=key,
                uuid=uuid,
                chunk_id=chunk,
                num_chunks_from_msg=count,
                total_chunk_msg_size=count,
            )
            await self._publish([encode_entry(metadata, b"x")], readable=chunk == count - 1)

    async def _publish(self, entries: Sequence[bytes], *, readable: bool = True) -> None:
        for entry, position in zip(entries, await self.topic.publish(entries), strict=True):
            if readable:
                self._note(entry, position)

    async def _copy(self, entry: bytes, size: int, absent: Sequence[int]) -> None:
        """Copy an entry of another cluster, like a link whose SQL leaves the messages ``absent`` out of it."""
        previous, self._origin = self._origin, Position(1, self._origin.entry + 1)
        block = make_block(
            self._origin, [entry], origin=ORIGIN, batch_sizes=[size], absent={0: absent} if absent else None
        )
        await self.topic.writing.copy([CopiedBlock(previous, block)])
        self._note(entry, self.topic.log.last)

    def _note(self, entry: bytes, position: Position) -> None:
        self.ids.extend(messages_of_entry(entry, position, None))


def messages_of_entry(entry: bytes, position: Position, acked: bytes | None) -> list[Id]:
    """Return the ids of the messages that a client shows of an entry. A chunk has one only if it completes its
    message."""
    metadata, payload = decode_entry(entry)
    if not metadata.HasField("num_messages_in_batch"):
        last = metadata.num_chunks_from_msg <= 1 or metadata.chunk_id == metadata.num_chunks_from_msg - 1
        return [Id(position, -1)] if last else []
    gone = BitMap() if acked is None else BitMap.deserialize(acked)
    content = memoryview(decompress(payload, metadata.compression, metadata.uncompressed_size))
    singles = [single.metadata for single in split_batch(metadata, content)]
    return [
        Id(position, index) for index, single in enumerate(singles) if index not in gone and not single.compacted_out
    ]


class Reading:
    """Reader as the cluster sees it: a consumer of a subscription that is not durable."""

    def __init__(self, consumer: EngineConsumer, deliveries: list[Delivery]) -> None:
        self.consumer = consumer
        self._deliveries = deliveries

    async def readable(self) -> list[Id]:
        """Return all messages that the reader gets from its position on, if nothing more is published."""
        self._deliveries.clear()
        self.consumer.flow(PERMITS)
        await all_sent(self.consumer)
        return [
            message
            for delivery in self._deliveries
            for message in messages_of_entry(delivery.entry, delivery.position, delivery.acked)
        ]


async def reading(topic: Topic, name: str, options: SubscribeOptions) -> Reading:
    """Return a reader that begins as ``options`` say."""
    deliveries: list[Delivery] = []
    return Reading(await topic.subscribe(name, options, deliveries.extend), deliveries)
