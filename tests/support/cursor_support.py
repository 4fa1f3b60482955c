"""The two tables of cursors in memory, for tests of cursors without a store."""

from __future__ import annotations

from collections.abc import Iterator

from replicator.engine.subscriptions.cursor_rows import CURSOR_ROWS, CURSORS, CursorRows, RowChanges, load_cursors
from replicator.engine.subscriptions.cursor_state import CursorState

TOPIC_ID = 7


class CursorTables:
    """Applies what a save writes, as the commit group does, and counts it."""

    def __init__(self) -> None:
        self.tables: dict[str, dict[bytes, bytes]] = {CURSORS: {}, CURSOR_ROWS: {}}
        self.written_bytes = 0

    def apply(self, changes: RowChanges) -> None:
        for table, prefix in changes.cleared:
            for key in [key for key in self.tables[table] if key.startswith(prefix)]:
                del self.tables[table][key]
        for table, key, value in changes.writes:
            if value is None:
                self.tables[table].pop(key, None)
            else:
                self.tables[table][key] = value
                self.written_bytes += len(value)

    def save(self, rows: CursorRows, state: CursorState) -> None:
        self.apply(rows.changes(state))
        rows.saved()

    def load(self, name: str = "s") -> tuple[CursorState, CursorRows]:
        return load_cursors(self, TOPIC_ID)[name]

    def cursors(self, topic_id: int) -> dict[str, bytes]:
        assert topic_id == TOPIC_ID
        return {key[4:].decode(): value for key, value in sorted(self.tables[CURSORS].items())}

    def cursor_rows(self, topic_id: int) -> Iterator[tuple[bytes, bytes]]:
        assert topic_id == TOPIC_ID
        yield from sorted(self.tables[CURSOR_ROWS].items())
