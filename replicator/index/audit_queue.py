"""Audit entries that wait for the database, on disk: a restart of the worker loses none of them.

Each is a row of the store's table ``audit``, in order of time, from when it is noted until the database has it. One
that was written and whose row is still there is written again by the next start: entries have ids, so it stands there
once. At most :data:`~replicator.index.waiting.KEPT_MAX` wait; then the oldest go, and are counted. What is audited
never waits for its row, and is never refused for it: a store that is full keeps no failover from being carried out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import structlog

from replicator.engine.engine import Engine
from replicator.engine.errors import EngineError
from replicator.index.waiting import KEPT_MAX
from replicator.running.short_tasks import in_background
from snapshots.repository import AuditEntry

TABLE: Final = "audit"

log = structlog.get_logger(__name__)


class AuditQueue:
    """The rows of one worker's store."""

    def __init__(self, engine: Engine) -> None:
        self._writer = engine.writer
        self._keys: dict[UUID, bytes] = {}
        """The oldest first."""
        self.found: list[AuditEntry] = []
        """Entries that waited when the worker started."""
        with engine.store.env.begin(db=engine.store.tables[TABLE]) as txn:
            for key, value in txn.cursor():
                entry = _decoded(bytes(value))
                self._keys[entry.id] = bytes(key)
                self.found.append(entry)

    def __len__(self) -> int:
        return len(self._keys)

    def keep(self, entry: AuditEntry) -> None:
        """Keep an entry from now on, if the store takes it."""
        rows: list[tuple[str, bytes, bytes | None]] = []
        while len(self._keys) >= KEPT_MAX:
            rows.append((TABLE, self._keys.pop(next(iter(self._keys))), None))
        key = _key(entry)
        self._keys[entry.id] = key
        rows.append((TABLE, key, _encoded(entry)))
        in_background(self._put(rows), "keeping of an audit entry")

    def written(self, ids: Iterable[UUID]) -> None:
        """Delete the rows of entries that the database has now."""
        keys = [key for each in ids if (key := self._keys.pop(each, None)) is not None]
        if keys:
            in_background(self._put([(TABLE, key, None) for key in keys]), "tidying up after audit entries")

    async def _put(self, rows: list[tuple[str, bytes, bytes | None]]) -> None:
        try:
            await self._writer.put_many(rows)
        except EngineError as error:
            log.warning("audit entries wait in memory alone", reason=str(error))


def _key(entry: AuditEntry) -> bytes:
    return int(entry.at.timestamp() * 1_000_000).to_bytes(8, "big") + entry.id.bytes


def _encoded(entry: AuditEntry) -> bytes:
    row: dict[str, Any] = {
        "id": entry.id.hex,
        "at": entry.at.isoformat(),
        "actor": entry.actor,
        "action": entry.action,
        "subject": entry.subject,
        "detail": None if entry.detail is None else dict(entry.detail),
    }
    return json.dumps(row, separators=(",", ":"), default=str).encode()


def _decoded(stored: bytes) -> AuditEntry:
    row = json.loads(stored)
    at = datetime.fromisoformat(row["at"])
    return AuditEntry(UUID(row["id"]), at, row["actor"], row["action"], row["subject"], row["detail"])
