"""Drill runs: their scenarios, topologies and outcomes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import select

from snapshots.limits import WORD_CHARS_MAX
from snapshots.models import DrillRunRow
from snapshots.repository.rows import Rows, shown, shown_json

LISTED_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class DrillRun:
    """Run of one scenario; ``ended_at``, ``passed`` and ``report`` are None while it runs, or if it was cut off."""

    id: str
    scenario: str
    topology_digest: str
    started_at: datetime
    ended_at: datetime | None = None
    passed: bool | None = None
    report: Mapping[str, Any] | None = None


class DrillRuns(Rows):
    """Part of the repository that holds drill runs of all clusters."""

    async def save_drill_run(self, run: DrillRun) -> None:
        """Write a run, or overwrite the one with its id."""
        row = {
            "id": run.id,
            "scenario": shown(run.scenario, WORD_CHARS_MAX),
            "topology_digest": run.topology_digest,
            "started_at": run.started_at,
            "ended_at": run.ended_at,
            "passed": run.passed,
            "report": None if run.report is None else shown_json(run.report),
        }
        await self._upsert(DrillRunRow, [row])

    async def drill_runs(self, *, scenario: str | None = None, newest: int = LISTED_MAX) -> list[DrillRun]:
        """Return at most ``newest`` drill runs, of ``scenario`` or of all, the newest first, without their reports."""
        row = DrillRunRow
        query = select(row.id, row.scenario, row.topology_digest, row.started_at, row.ended_at, row.passed)
        if scenario is not None:
            query = query.where(row.scenario == scenario)
        query = query.order_by(row.started_at.desc(), row.id).limit(min(newest, LISTED_MAX))
        async with self._connection() as connection:
            found = (await connection.execute(query)).all()
        return [DrillRun(*each) for each in found]

    async def drill_run(self, run_id: str) -> DrillRun | None:
        """Return the drill run of id ``run_id`` with its report; None if there is none."""
        row = DrillRunRow
        query = select(
            row.id, row.scenario, row.topology_digest, row.started_at, row.ended_at, row.passed, row.report
        ).where(row.id == run_id)
        async with self._connection() as connection:
            found = (await connection.execute(query)).one_or_none()
        return None if found is None else DrillRun(*found)
