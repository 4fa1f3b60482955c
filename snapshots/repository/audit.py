"""Audit log: actions on a cluster, with their actors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert

from snapshots.limits import ROLE_CHARS_MAX, SUBJECT_CHARS_MAX, WORD_CHARS_MAX
from snapshots.models import AuditRow
from snapshots.repository.rows import Rows, batches, shown, shown_json

LISTED_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """Audit entry: ``actor`` did ``action`` to ``subject``.

    Its writer chooses ``id``, so that an entry that is sent several times is stored once."""

    id: UUID
    at: datetime
    actor: str
    action: str
    subject: str
    detail: Mapping[str, Any] | None = None


class AuditLog(Rows):
    """Part of the repository that holds the audit log. Entries are added, and never changed."""

    async def append_audit(self, entries: Sequence[AuditEntry]) -> None:
        """Add entries. Entries that are stored already do not change."""
        rows = [
            {
                "id": entry.id,
                "at": entry.at,
                "cluster": self._cluster,
                "actor": shown(entry.actor, ROLE_CHARS_MAX),
                "action": shown(entry.action, WORD_CHARS_MAX),
                "subject": shown(entry.subject, SUBJECT_CHARS_MAX),
                "detail": None if entry.detail is None else shown_json(entry.detail),
            }
            for entry in entries
        ]
        async with self._connection() as connection:
            for batch in batches(rows):
                await connection.execute(insert(AuditRow).on_conflict_do_nothing(), batch)

    async def audit_log(
        self, *, action: str | None = None, since: datetime | None = None, newest: int = LISTED_MAX
    ) -> list[AuditEntry]:
        """Return audit entries, the newest first: at most ``newest``, only of ``action``, and not before ``since``."""
        row = AuditRow
        query = select(row.id, row.at, row.actor, row.action, row.subject, row.detail)
        query = query.where(row.cluster == self._cluster)
        if action is not None:
            query = query.where(row.action == action)
        if since is not None:
            query = query.where(row.at >= since)
        query = query.order_by(row.at.desc(), row.id).limit(min(newest, LISTED_MAX))
        async with self._connection() as connection:
            found = (await connection.execute(query)).all()
        return [AuditEntry(*each) for each in found]
