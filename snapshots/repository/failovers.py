"""Failover epochs: which cluster took over from which, and when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import select

from snapshots.limits import CLUSTER_CHARS_MAX, WORD_CHARS_MAX
from snapshots.models import FailoverEpochRow
from snapshots.repository.rows import Rows, shown, shown_json


@dataclass(frozen=True, slots=True)
class FailoverEpoch:
    """Failover: its number, both clusters, and its report.

    ``kind`` is ``planned``, ``unplanned``, ``failback`` or ``promote``. ``completed_at`` is None while it runs."""

    epoch: int
    from_cluster: str
    to_cluster: str
    kind: str
    started_at: datetime
    completed_at: datetime | None = None
    report: Mapping[str, Any] | None = None


class FailoverEpochs(Rows):
    """Part of the repository that holds failover epochs."""

    async def record_failover_epochs(self, epochs: Sequence[FailoverEpoch]) -> None:
        """Write epochs. If several have one number, the last one counts."""
        rows = {
            each.epoch: {
                "cluster": self._cluster,
                "epoch": each.epoch,
                "from_cluster": shown(each.from_cluster, CLUSTER_CHARS_MAX),
                "to_cluster": shown(each.to_cluster, CLUSTER_CHARS_MAX),
                "kind": shown(each.kind, WORD_CHARS_MAX),
                "started_at": each.started_at,
                "completed_at": each.completed_at,
                "report": None if each.report is None else shown_json(each.report),
            }
            for each in epochs
        }
        await self._upsert(FailoverEpochRow, list(rows.values()))

    async def failover_epochs(self, *, newest: int | None = None) -> list[FailoverEpoch]:
        """Return the epochs, the newest first; at most ``newest`` of them if that is given."""
        row = FailoverEpochRow
        query = select(
            row.epoch, row.from_cluster, row.to_cluster, row.kind, row.started_at, row.completed_at, row.report
        )
        query = query.where(row.cluster == self._cluster).order_by(row.epoch.desc()).limit(newest)
        async with self._connection() as connection:
            found = (await connection.execute(query)).all()
        return [FailoverEpoch(*each) for each in found]
