"""Snapshot mappings (the coarse mapping), by topic and peer."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import delete, func, select, tuple_

from snapshots.mapping import SnapshotMapping
from snapshots.models import SnapshotMappingRow
from snapshots.position import Position
from snapshots.repository.rows import Rows


class Mappings(Rows):
    """Part of the repository that holds snapshot mappings."""

    async def record_mappings(self, mappings: Sequence[tuple[str, SnapshotMapping]]) -> None:
        """Write snapshot mappings; each comes after the name of its topic."""
        rows = {
            (topic, mapping.peer, mapping.local): {
                "cluster": self._cluster,
                "topic": topic,
                "peer": mapping.peer,
                "local_ledger": mapping.local.ledger,
                "local_entry": mapping.local.entry,
                "remote_ledger": mapping.remote.ledger,
                "remote_entry": mapping.remote.entry,
                "snapshot_id": mapping.snapshot_id,
            }
            for topic, mapping in mappings
        }
        await self._upsert(SnapshotMappingRow, list(rows.values()), "recorded_at")

    async def mappings(self, topic: str, peer: str | None = None) -> list[SnapshotMapping]:
        """Return the mappings of ``topic``, or only those for ``peer``, ordered by peer and local position."""
        row = SnapshotMappingRow
        query = select(
            row.snapshot_id, row.local_ledger, row.local_entry, row.peer, row.remote_ledger, row.remote_entry
        )
        query = query.where(row.cluster == self._cluster, row.topic == topic)
        if peer is not None:
            query = query.where(row.peer == peer)
        query = query.order_by(row.peer, row.local_ledger, row.local_entry)
        async with self._connection() as connection:
            found = (await connection.execute(query)).all()
        return [_mapping(*values) for values in found]

    async def mappings_of(self, topics: Collection[str]) -> dict[str, list[SnapshotMapping]]:
        """Return the mappings of ``topics``, by topic, ordered by peer and local position. A topic without any is
        left out."""
        row = SnapshotMappingRow
        query = select(
            row.topic, row.snapshot_id, row.local_ledger, row.local_entry, row.peer, row.remote_ledger, row.remote_entry
        )
        query = query.where(row.cluster == self._cluster, row.topic.in_(list(topics)))
        query = query.order_by(row.topic, row.peer, row.local_ledger, row.local_entry)
        found: dict[str, list[SnapshotMapping]] = {}
        async with self._connection() as connection:
            for topic, *values in (await connection.execute(query)).all():
                found.setdefault(topic, []).append(_mapping(*values))
        return found

    async def count_mappings(self, topic: str | None = None) -> int:
        query = select(func.count()).select_from(SnapshotMappingRow).where(SnapshotMappingRow.cluster == self._cluster)
        if topic is not None:
            query = query.where(SnapshotMappingRow.topic == topic)
        async with self._connection() as connection:
            return int((await connection.execute(query)).scalar_one())

    async def keep_mappings(self, topic: str, peer: str, kept: Collection[Position]) -> int:
        """Remove the mappings of a topic and peer whose local position is not in ``kept``; return their number."""
        row = SnapshotMappingRow
        statement = delete(row).where(row.cluster == self._cluster, row.topic == topic, row.peer == peer)
        if kept:
            statement = statement.where(tuple_(row.local_ledger, row.local_entry).not_in(list(map(tuple, kept))))
        async with self._connection() as connection:
            return int((await connection.execute(statement)).rowcount)


def _mapping(
    snapshot_id: Any, ledger: Any, entry: Any, peer: Any, remote_ledger: Any, remote_entry: Any
) -> SnapshotMapping:
    return SnapshotMapping(snapshot_id, Position(ledger, entry), peer, Position(remote_ledger, remote_entry))
