"""Repair of damaged blocks and missing rows of a worker's store, by the copies that other clusters have.

Invariant (DESIGN §3): 2, a block is the same bytes in every cluster. So a copy replaces a damaged block only if both
have the same head with the same two checksums, which proves that they are one block. If the head itself is damaged,
everything else must agree: identity and counts that other rows store of the block, its length, and its body.

1. The worker does not run. Heads come first, because a topic cannot be loaded without the heads at its end. A damaged
   head is restored from the block's segment (:mod:`replicator.engine.log.damaged_heads`). For a block in the table,
   other rows tell which block it was (:mod:`replicator.engine.log.headless_blocks`).
2. Missing rows are put back (:mod:`replicator.backup.repairing_rows`).
3. Each block is read. The head of a damaged block names its origin, incarnation and origin position. The other clusters
   are asked for the block there.
4. The writer replaces the damaged block by the copy. The position, and all rows that refer to the block, stay.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from replicator.backup.errors import BackupError
from replicator.backup.repairing_rows import mend_rows
from replicator.engine.engine import Engine, EngineSettings
from replicator.engine.errors import BlockCorrupt, StoreUnusable
from replicator.engine.log.block import Buffer, verify_block
from replicator.engine.log.block_heads import BlockHead, checksums_of
from replicator.engine.log.damaged_heads import damaged_heads, row_by_segment
from replicator.engine.log.headless_blocks import HeadlessBlock, headless_block
from replicator.engine.log.store import Store
from replicator.engine.log.store_check import BY_A_BACKUP, damaged_blocks
from replicator.engine.log.store_files import check_there
from replicator.engine.log.store_tables import BLOCK_KEY
from replicator.pipeline.data_plane import DataPlane
from replicator.pipeline.errors import PeerUnavailable, UnexpectedAnswer
from replicator.security.asking import worker_url
from replicator.topology import Cluster, Topology
from snapshots.position import Position

ANSWER_SECONDS: Final = 10.0
"""Time for which to wait for a worker that refuses the connection, or is not ready."""
SILENCE_SECONDS: Final = 20.0
"""Time for which to wait for a worker that takes the connection, and sends nothing."""
Tell = Callable[[str], None]
"""Hears, on any thread, whom is asked and waited for."""


@dataclass(slots=True)
class Repaired:
    """Result of a repair: number of repaired ``blocks``, number of ``rows`` made again from blocks, and what is
    ``left``.

    ``left`` names what is still wrong, each with the reason.
    """

    blocks: int = 0
    rows: int = 0
    left: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    """Entries that no cluster has and that were given up."""


async def repair(topology: Topology, name: str, tell: Tell = lambda _: None, *, accept_loss: bool = False) -> Repaired:
    """Repair a stopped worker's store as far as possible. Raises :class:`StoreUnusable` if the worker runs.

    If a cluster does not answer, it is waited for once, and not asked for later blocks. With ``accept_loss``, blocks
    without rows that no cluster has are given up, provided that all clusters answered.
    """
    cluster = topology.cluster(name)
    settings = EngineSettings(
        store_bytes_max=topology.store.size_max, segments=topology.store.segments(), maintained=False
    )
    peers = {each.name: worker_url(each.address) for each in topology.clusters if each.name != name}
    if not peers:
        raise BackupError(
            f"{name} is the only cluster of the topology, so no other has copies of its damaged blocks: restore a "
            "backup"
        )
    check_there(cluster.data)
    done = Repaired()
    asking = _PeerBlocks(peers, tell)
    await asyncio.to_thread(_mend_heads, cluster, settings, asking, done, accept_loss)
    try:
        engine = await Engine.open(cluster.data, cluster=name, settings=settings)
    except StoreUnusable:
        if done.left:  # a topic with such a block may be one that cannot be loaded
            return done
        raise
    try:
        for record in engine.store.topics():
            for damaged, reason in damaged_blocks(engine.store, record.topic_id):
                if (row := row_by_segment(engine.store, record.topic_id, damaged.first)) is not None:
                    await engine.writer.put("blocks", *row)
                    done.blocks += 1
                    continue
                block, why = await asyncio.to_thread(asking.copy_of, damaged, record.name)
                if block is None:
                    done.left.append(f"topic {record.name} at {damaged.first}: {reason}; {why}")
                    continue
                await engine.writer.replace_block(record.topic_id, damaged.first, block)
                done.blocks += 1
        return done
    finally:
        await engine.close()


def _mend_heads(
    cluster: Cluster, settings: EngineSettings, asking: _PeerBlocks, done: Repaired, accept_loss: bool
) -> None:
    """Repair damaged heads before the engine is opened: it reads the heads at the end of each topic."""
    store = Store(cluster.data, cluster=cluster.name, size_max=settings.store_bytes_max, segments=settings.segments)
    try:
        for record in store.topics():
            for head in damaged_heads(store, record.topic_id):
                row, why = head.row, ""
                if row is None and (lost := headless_block(store, record, head.first)) is not None:
                    block, why = asking.copy_of_headless(lost, record.name)
                    if block is not None:
                        row = BLOCK_KEY.pack(record.topic_id, *head.first), lost.prefix + block
                if row is None:
                    reasons = filter(None, (head.reason, why, BY_A_BACKUP))
                    done.left.append(f"topic {record.name}: {'; '.join(reasons)}")
                    continue
                with store.env.begin(write=True, db=store.tables["blocks"]) as txn:
                    txn.put(*row)
                done.blocks += 1
        mended = mend_rows(store, asking.ask, all_answered=asking.all_answered, accept_loss=accept_loss)
        done.blocks += mended.blocks
        done.rows += mended.rows
        done.left += mended.left
        done.lost += mended.lost
    finally:
        store.close()


def copy_of(damaged: BlockHead, topic: str, peers: Mapping[str, str]) -> tuple[bytes | None, str]:
    """Return the same block from the first cluster that has it, or the reason why none has. ``peers`` are workers' URLs
    by name.
    """
    return _PeerBlocks(peers, lambda _: None).copy_of(damaged, topic)


class _PeerBlocks:
    """Asks the other clusters for blocks, one cluster after another."""

    def __init__(self, peers: Mapping[str, str], tell: Tell) -> None:
        self._peers = peers
        self._tell = tell
        self._asked: set[str] = set()
        self._away: dict[str, str] = {}
        """Clusters that did not answer, each with the reason."""
        self._refused: set[str] = set()
        """Clusters that refused to answer, for example for a missing permission: nobody knows what they have."""

    def all_answered(self) -> bool:
        """Return whether every cluster asked so far has answered whether it has the block."""
        return not self._away and not self._refused

    def copy_of(self, damaged: BlockHead, topic: str) -> tuple[bytes | None, str]:
        """See :func:`copy_of`."""
        header = damaged.header

        def is_copy(block: Buffer) -> bool:
            if len(block) != damaged.size_bytes or checksums_of(memoryview(block)) != damaged.checksums:
                return False
            verify_block(block)
            return True

        return self.ask(topic, header.origin, header.incarnation, header.origin_first, is_copy)

    def copy_of_headless(self, lost: HeadlessBlock, topic: str) -> tuple[bytes | None, str]:
        """Return a copy of a block whose head is damaged; see :func:`copy_of`."""
        return self.ask(topic, lost.origin, lost.incarnation, lost.origin_first, lost.is_copy)

    def ask(
        self, topic: str, origin: str, incarnation: int, origin_first: Position, is_copy: Callable[[Buffer], bool]
    ) -> tuple[bytes | None, str]:
        """Return the first block for which ``is_copy`` is true, and an empty text. If no cluster has one, return None
        and the reasons."""
        about = {"origin": origin, "incarnation": str(incarnation), "origin_position": str(origin_first)}
        reasons = []
        for name, url in self._peers.items():
            if name in self._away:
                reasons.append(f"{name}: {self._away[name]}")
                continue
            if name not in self._asked:
                self._asked.add(name)
                self._tell(
                    f"asks {name} at {url} (if it does not answer, for {ANSWER_SECONDS:g} s; "
                    f"if it is silent, for {SILENCE_SECONDS:g} s)"
                )
            try:
                with DataPlane(url, wait_seconds=ANSWER_SECONDS, silence_seconds=SILENCE_SECONDS) as plane:
                    if (found := _block_there(plane, topic, about, is_copy)) is not None:
                        return found, ""
                reasons.append(f"{name} does not have that block as it was")
            except PeerUnavailable as error:
                self._away[name] = str(error)
                self._tell(f"{name} does not answer, and is not asked for other blocks: {error}")
                reasons.append(f"{name}: {error}")
            except UnexpectedAnswer as error:
                if not error.is_not_found and error.code != BlockCorrupt.__name__:
                    self._refused.add(name)
                reasons.append(f"{name}: {error}")
            except BlockCorrupt as error:
                reasons.append(f"{name}: {error}")
        return None, "; ".join(reasons)


def _block_there(
    plane: DataPlane, topic: str, about: Mapping[str, str], is_copy: Callable[[Buffer], bool]
) -> bytes | None:
    """Return that cluster's block which begins with the entry that ``about`` names; None if ``is_copy`` refuses it."""
    at = Position.parse(plane.call("GET", "/replication/v1/place", topic=topic, **about)["position"])
    for fetched in plane.blocks(topic, Position(at.ledger, at.entry - 1), at):
        block = bytes(fetched.block)
        if is_copy(block):
            return block
    return None
