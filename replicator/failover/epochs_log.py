"""The log of the epochs' topic: failover records as markers, read and written.

The topic is the service's own (``persistent://replicator/system/epochs``). Every link carries it; users do not see it.
It is made with the first failover, so that a deployment that never had one has no such topic (invariant 7).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import structlog

from replicator.engine.engine import Engine
from replicator.engine.errors import BlockCorrupt, EngineError
from replicator.engine.log.block import BlockKind, BlockView
from replicator.engine.log.entry import decode_entry, encode_entry
from replicator.engine.log.writer import AppendedBlock
from replicator.engine.topic import Topic
from replicator.engine.topic_listener import TopicListener
from replicator.engine.topic_name import EPOCHS_TOPIC
from replicator.metadata.metadata_pb2 import MessageMetadata
from snapshots.errors import MarkerCorrupt
from snapshots.markers import FailoverEpoch, decode_marker, encode_marker
from snapshots.position import BEFORE_ALL, Position

PRODUCER_NAME: Final = "replicator"
PAGE_BYTES: Final = 1024 * 1024

log = structlog.get_logger(__name__)


class EpochsLog(TopicListener[Topic]):
    """Listens to the engine once it is added to it; ``on_record`` gets every record that is appended."""

    def __init__(self, engine: Engine, on_record: Callable[[FailoverEpoch], None]) -> None:
        self._engine = engine
        self._on_record = on_record

    def records(self) -> Iterator[FailoverEpoch]:
        """Yield all records in the log that can be read. Failovers are rare, so it is short.

        A damaged block is passed over: the newest record is also in the store's own row, and other clusters tell it.
        """
        topic = self._engine.find(EPOCHS_TOPIC)
        if topic is not None:
            yield from self._read(topic, BEFORE_ALL, topic.log.last)

    async def write(self, record: FailoverEpoch) -> None:
        """Append a record; returns when it is durable. Raises the store's errors."""
        marker_type, payload = encode_marker(record)
        metadata = MessageMetadata(
            producer_name=PRODUCER_NAME,
            sequence_id=record.epoch,
            publish_time=time.time_ns() // 1_000_000,
            marker_type=int(marker_type),
        )
        topic = await self._engine.topic(EPOCHS_TOPIC, by_link=True)
        await topic.writing.marker(encode_entry(metadata, payload))

    def _read(self, topic: Topic, after: Position, upto: Position) -> Iterator[FailoverEpoch]:
        def cannot_be_read(position: Position, error: BlockCorrupt) -> None:
            reason = str(error)
            log.warning("records of failovers cannot be read", topic=topic.name, position=str(position), reason=reason)

        for blocks, _ in topic.reading.pages(after, upto, bytes_max=PAGE_BYTES, damaged=cannot_be_read):
            for stored in blocks:
                if stored.header.kind is BlockKind.MARKERS:
                    yield from _decoded(topic, BlockView(stored.block, stored.header))

    # What the engine tells.

    def on_appended(self, topic: Topic, blocks: Sequence[AppendedBlock]) -> None:
        if topic.name != EPOCHS_TOPIC:
            return
        for block in blocks:
            before = Position(block.position.ledger, block.position.entry - 1)
            for record in self._read(topic, before, block.last):
                self._on_record(record)


def _decoded(topic: Topic, view: BlockView) -> Iterator[FailoverEpoch]:
    for entry in view.entries():
        try:
            metadata, payload = decode_entry(entry, check=False)
            marker = decode_marker(metadata.marker_type, payload)
        except (EngineError, MarkerCorrupt) as error:
            log.warning("marker cannot be read", topic=topic.name, reason=str(error))
            continue
        if isinstance(marker, FailoverEpoch):
            yield marker
