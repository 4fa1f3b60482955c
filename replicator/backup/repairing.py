"""Mending damaged blocks of a worker's store by the copies that other clusters have.

Invariant (DESIGN §3): 2, a block is the same bytes in every cluster. So a copy takes the place of a damaged block only
if its head is the same, with both checksums: then it is what lay there.

1. The worker does not run. Each block is read; of one that is damaged its head tells what it was, as long as the head
   itself is sound.
2. Each other cluster is asked where it has those entries of that origin, and for the block there.
3. The writer puts the copy in its place; its position, and all that refers to it, stays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from replicator.backup.errors import BackupError
from replicator.engine.engine import Engine, EngineSettings
from replicator.engine.errors import BlockCorrupt
from replicator.engine.log.block import verify_block
from replicator.engine.log.block_heads import BlockHead, checksums_of
from replicator.engine.log.store_check import damaged_blocks
from replicator.engine.log.store_files import check_there
from replicator.pipeline.data_plane import DataPlane
from replicator.pipeline.errors import PeerUnavailable, UnexpectedAnswer
from replicator.security.asking import worker_url
from replicator.topology import Topology
from snapshots.position import Position

ANSWER_SECONDS: Final = 10.0


@dataclass(slots=True)
class Repaired:
    """``blocks`` were mended; ``left`` says of each other damaged one why not."""

    blocks: int = 0
    left: list[str] = field(default_factory=list)


async def repair(topology: Topology, name: str) -> Repaired:
    """Mend what can be mended of a stopped worker's store. Raises :class:`StoreUnusable` while the worker runs."""
    cluster = topology.cluster(name)
    settings = EngineSettings(
        store_bytes_max=topology.store.size_max, segments=topology.store.segments(), maintained=False
    )
    peers = {each.name: worker_url(each.address) for each in topology.clusters if each.name != name}
    if not peers:
        raise BackupError(f"{name} is the only cluster: nobody has copies of its blocks")
    check_there(cluster.data)
    engine = await Engine.open(cluster.data, cluster=name, settings=settings)
    done = Repaired()
    try:
        for record in engine.store.topics():
            for damaged, reason in damaged_blocks(engine.store, record.topic_id):
                if damaged is None:
                    done.left.append(f"topic {record.name}: {reason}")
                    continue
                block, why = await asyncio.to_thread(copy_of, damaged, record.name, peers)
                if block is None:
                    done.left.append(f"topic {record.name} at {damaged.first}: {reason}; {why}")
                    continue
                await engine.writer.replace_block(record.topic_id, damaged.first, block)
                done.blocks += 1
        return done
    finally:
        await engine.close()


def copy_of(damaged: BlockHead, topic: str, peers: Mapping[str, str]) -> tuple[bytes | None, str]:
    """The same block from the first cluster that has it, or why none has. ``peers`` are workers' URLs by name."""
    reasons = []
    for name, url in peers.items():
        try:
            with DataPlane(url, wait_seconds=ANSWER_SECONDS) as plane:
                if (found := _block_there(plane, topic, damaged)) is not None:
                    return found, ""
            reasons.append(f"{name} does not have that block as it was")
        except (PeerUnavailable, UnexpectedAnswer, BlockCorrupt) as error:
            reasons.append(f"{name}: {error}")
    return None, "; ".join(reasons)


def _block_there(plane: DataPlane, topic: str, damaged: BlockHead) -> bytes | None:
    header = damaged.header
    about = {
        "origin": header.origin,
        "incarnation": str(header.incarnation),
        "origin_position": str(header.origin_first),
    }
    at = Position.parse(plane.call("GET", "/replication/v1/place", topic=topic, **about)["position"])
    for fetched in plane.blocks(topic, Position(at.ledger, at.entry - 1), at):
        block = bytes(fetched.block)
        if len(block) == damaged.size_bytes and checksums_of(memoryview(block)) == damaged.checksums:
            verify_block(block)
            return block
    return None
