"""The compacted view of a topic, as it lies in the store, and reading it.

Table ``compacted``: topic id | generation | ledger | entry → batch size, origin, origin position, entry. Each pass
writes a generation of its own. Table ``compaction``: topic id → JSON: the generation that counts, the horizon up to
which it stands for the log, and its figures. Writing that one row is the switch from one view to the next.

Positions are those of the log, and stay readable here when the log is trimmed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct
from typing import Final

from replicator.engine.store import TOPIC_KEY, Store
from replicator.engine.types import LoggedEntry
from snapshots.position import BEFORE_ALL, Position

VIEW_TABLE: Final = "compacted"
STATE_TABLE: Final = "compaction"

_KEY = Struct(">IIQQ")
_GENERATION_KEY = Struct(">II")
_ROW = Struct(">IQQH")


@dataclass(frozen=True, slots=True)
class ViewState:
    """Which generation counts, and what it holds. Generation 0 is the empty view of a topic that was not compacted."""

    generation: int = 0
    horizon: Position = BEFORE_ALL
    entries: int = 0
    size_bytes: int = 0

    def encode(self) -> bytes:
        return json.dumps(
            {
                "generation": self.generation,
                "horizon": list(self.horizon),
                "entries": self.entries,
                "size_bytes": self.size_bytes,
            }
        ).encode()

    @classmethod
    def decode(cls, stored: bytes) -> ViewState:
        fields = json.loads(stored)
        return cls(fields["generation"], Position(*fields["horizon"]), fields["entries"], fields["size_bytes"])


class CompactedView:
    """Reads the view of one topic."""

    def __init__(self, store: Store, topic_id: int) -> None:
        self._store = store
        self._topic_id = topic_id
        with store.env.begin(db=store.tables[STATE_TABLE]) as txn:
            stored = txn.get(TOPIC_KEY.pack(topic_id))
        self.state = ViewState() if stored is None else ViewState.decode(bytes(stored))

    def read(self, after: Position, entries_max: int, bytes_max: int) -> list[LoggedEntry]:
        """Entries of the view above ``after``, in order, at least one if there is one. Safe to use from any thread."""
        found: list[LoggedEntry] = []
        if not self.state.entries or after >= self.state.horizon:
            return found
        taken = 0
        with self._store.env.begin(db=self._store.tables[VIEW_TABLE]) as txn:
            cursor = txn.cursor()
            prefix = _GENERATION_KEY.pack(self._topic_id, self.state.generation)
            more = cursor.set_range(prefix + _KEY.pack(0, 0, after.ledger, after.entry + 1)[len(prefix) :])
            while more and len(found) < entries_max and taken < bytes_max and cursor.key().startswith(prefix):
                _, _, ledger, entry = _KEY.unpack(cursor.key())
                found.append(_decode(Position(ledger, entry), cursor.value()))
                taken += len(found[-1].entry)
                more = cursor.next()
        return found

    def find(self, position: Position) -> LoggedEntry | None:
        """The view's entry at ``position``, if it has one."""
        if not self.state.entries or position > self.state.horizon or position.entry < 0:
            return None
        with self._store.env.begin(db=self._store.tables[VIEW_TABLE]) as txn:
            stored = txn.get(_KEY.pack(self._topic_id, self.state.generation, *position))
        return None if stored is None else _decode(position, stored)

    def row(self, generation: int, entry: LoggedEntry, content: bytes | memoryview) -> tuple[str, bytes, bytes]:
        """The row to write for ``entry`` with ``content``: table, key and value."""
        origin = entry.origin.encode("ascii")
        head = _ROW.pack(entry.batch_size, *entry.origin_position, len(origin))
        return VIEW_TABLE, _KEY.pack(self._topic_id, generation, *entry.position), b"".join((head, origin, content))

    def state_row(self, state: ViewState) -> tuple[str, bytes, bytes]:
        """The row that makes ``state`` count."""
        return STATE_TABLE, TOPIC_KEY.pack(self._topic_id), state.encode()

    def other_keys(self, keys_max: int) -> list[bytes]:
        """Up to ``keys_max`` keys of generations that do not count: left by a pass that was cut off, or replaced."""
        return [key for key, _ in zip(self._other_keys(), range(keys_max), strict=False)]

    def _other_keys(self) -> Iterator[bytes]:
        prefix = TOPIC_KEY.pack(self._topic_id)
        counts = _GENERATION_KEY.pack(self._topic_id, self.state.generation)
        beyond = _GENERATION_KEY.pack(self._topic_id, self.state.generation + 1)
        with self._store.env.begin(db=self._store.tables[VIEW_TABLE]) as txn:
            cursor = txn.cursor()
            more = cursor.set_range(prefix)
            while more and (key := cursor.key()).startswith(prefix):
                if key.startswith(counts):
                    more = cursor.set_range(beyond)
                    continue
                yield key
                more = cursor.next()


def _decode(position: Position, stored: bytes) -> LoggedEntry:
    batch_size, ledger, entry, origin_length = _ROW.unpack_from(stored)
    view = memoryview(stored)
    at = _ROW.size + origin_length
    return LoggedEntry(
        position,
        batch_size,
        marker=False,
        entry=view[at:],
        origin=bytes(view[_ROW.size : at]).decode("ascii"),
        origin_position=Position(ledger, entry),
    )
