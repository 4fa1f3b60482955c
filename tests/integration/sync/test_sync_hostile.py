"""Markers that no worker writes, in the log of a running worker: passed over, and everything goes on.

What comes over a link is checked only for being a block; another version, a bug or a bad disk elsewhere may have made
what is in it. It must not stop the sync of the topic, and not at all the store, not even after a restart.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from engine_support import TOPIC, eventually, message
from pyroaring import BitMap

from replicator.engine.engine import Engine
from replicator.engine.log.block import BlockKind, build_block
from replicator.engine.log.entry import encode_entry
from replicator.engine.log.writer import CopiedBlock
from replicator.engine.topic import Topic
from replicator.metadata.metadata_pb2 import MessageMetadata
from replicator.sync.service import SubscriptionSync
from snapshots.ack_vector import AckVector, OriginAcks
from snapshots.actions import ControllerSettings
from snapshots.markers import (
    MarkerType,
    SnapshotRequest,
    SnapshotResponse,
    SubscriptionsUpdate,
    SubscriptionUpdate,
    encode_marker,
)
from snapshots.position import BEFORE_ALL, Position
from snapshots.position_set import PositionSet

OWN_INCARNATION = -1
"""Stands for that of the topic here."""
LAST = Position(2**64 - 1, 2**63 - 1)
FAST = ControllerSettings(snapshot_interval_ms=5, update_interval_ms=2)


class NoIndex:
    """Nobody reads it here."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


def update(name: str = "sub", generation: int = 1, *, origin: str = "a", acks: OriginAcks | None = None, **more: Any):
    vector = AckVector() if acks is None else AckVector({origin: acks})
    return SubscriptionsUpdate((SubscriptionUpdate(name, {}, generation, vector, **more),))


def own(**acks: Any) -> OriginAcks:
    return OriginAcks(OWN_INCARNATION, **acks)


ODD_BATCHES = {LAST: BitMap([1]), Position(1, -1): BitMap([2**24]), Position(1, 2**40): BitMap([3])}
HOSTILE: dict[str, Any] = {
    "a name too long, deleted": update("n" * 600, 3, deleted=True),
    "a name too long, made": update("n" * 600, 3, whole=True),
    "a name with NUL, deleted": update("a\0b", 3, deleted=True),
    "a name with NUL, made": update("a\0b", 3, whole=True),
    "no name, deleted": update("", 3, deleted=True),
    "no name, made": update("", 3, whole=True),
    "a generation that does not fit": update(generation=2**63, whole=True),
    "the last generation": update(generation=2**64 - 1, whole=True),
    "the last generation, deleted": update(generation=2**64 - 1, deleted=True),
    "no generation": update("other", 0, whole=True),
    "positions past the log": update(acks=own(positions=PositionSet([Position(2**64 - 1, 2**32 - 1)]))),
    "a range that goes back": update(acks=own(ranges=[(Position(9, -1), Position(2, 5))])),
    "batches that are nowhere": update(acks=own(batches=ODD_BATCHES)),
    "batches of a peer that are nowhere": update(origin="b", acks=OriginAcks(7, batches=ODD_BATCHES)),
    "all of a peer": update(origin="b", acks=OriginAcks(7, ranges=[(BEFORE_ALL, LAST)])),
    "an entry of a peer that never comes": update(
        origin="b", acks=OriginAcks(7, positions=PositionSet([Position(2**64 - 1, 2**32 - 1)]))
    ),
    "an incarnation to come": update(origin="b", acks=OriginAcks(2**64 - 1, ranges=[(BEFORE_ALL, LAST)])),
    "an origin without a name": update(origin="", acks=OriginAcks(7, ranges=[(BEFORE_ALL, LAST)])),
    "properties of 140 kB": update("other", 2, whole=True, properties={"k" * 70_000: "v" * 70_000, "": ""}),
    "a request of 100 kB": SnapshotRequest("i" * 100_000, "b"),
    "an answer past everything": SnapshotResponse("i", "b", LAST, {"b": Position(1, 0)}, "a"),
    "an answer of odd origins": SnapshotResponse("i", "b", Position(1, -1), {"": LAST, "a": BEFORE_ALL}, "a"),
    "no update": (MarkerType.SUBSCRIPTIONS_UPDATE, b""),
    "no bytes of ours": (MarkerType.SUBSCRIPTIONS_UPDATE, b"\xff\xff\xff"),
    "an answer of nobody": (MarkerType.SNAPSHOT_RESPONSE, b""),
}


def copied(at: int, marker_type: int, payload: bytes) -> CopiedBlock:
    metadata = MessageMetadata(producer_name="w", sequence_id=at, publish_time=1, marker_type=int(marker_type))
    block = build_block(
        kind=BlockKind.MARKERS,
        origin="b",
        incarnation=7,
        origin_first=Position(1, at),
        publish_time_ms=1,
        entries=[encode_entry(metadata, payload)],
        batch_sizes=[0],
    )
    return CopiedBlock(Position(1, at - 1) if at else BEFORE_ALL, block)


@pytest.mark.parametrize("hostile", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_marker_that_no_worker_writes_stops_neither_the_topic_nor_the_worker(tmp_path: Path, hostile: Any) -> None:
    async def main() -> None:
        failures: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
        engine, sync = await start()
        topic = await engine.topic(TOPIC)
        first, *others = await topic.publish([message()] * 3)
        await topic.subscriptions.create("sub", BEFORE_ALL, replicated=True)

        marker_type, payload = hostile if isinstance(hostile, tuple) else encode_marker(with_own(hostile, topic))
        await topic.writing.copy([copied(0, marker_type, payload)])
        for at, position in enumerate(others, 1):
            said = own(positions=PositionSet([position]))
            await topic.writing.copy([copied(at, *encode_marker(with_own(update(acks=said), topic)))])
            cursor = topic.subscriptions["sub"].cursor
            await eventually(lambda cursor=cursor, position=position: cursor.is_consumed(position))
            if at == 1:
                await stop(engine, sync)
                engine, sync = await start()
                topic = await engine.topic(TOPIC)

        assert not topic.subscriptions["sub"].cursor.is_consumed(first)
        await topic.subscriptions["sub"].moves.seek(first)
        await topic.subscriptions.delete("sub")
        await stop(engine, sync)
        assert not failures

    async def start() -> tuple[Engine, SubscriptionSync]:
        engine = await Engine.open(tmp_path / "a", cluster="a")
        sync = SubscriptionSync(engine, peers=["b"], reachable_origins=["b"], settings=FAST, index=NoIndex())
        await sync.start()
        return engine, sync

    async def stop(engine: Engine, sync: SubscriptionSync) -> None:
        await sync.stop()
        await engine.close()

    asyncio.run(main())


def with_own(marker: Any, topic: Topic) -> Any:
    """The marker with the topic's incarnation where it says that it speaks of ours."""
    for each in marker.updates if isinstance(marker, SubscriptionsUpdate) else ():
        for acks in each.acks.origins.values():
            if acks.incarnation == OWN_INCARNATION:
                acks.incarnation = topic.incarnation
    return marker
