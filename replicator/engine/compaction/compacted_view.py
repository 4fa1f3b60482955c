"""The compacted view of a topic in the store, and reading it.

Table ``compacted``: topic id | generation | ledger | entry → batch size, origin, origin position, the bitmap of the
batch indexes that are left out (if some are), entry. Each pass writes a generation of its own. Table ``compaction``:
topic id → JSON: the generation in use, the horizon up to which it replaces the log, and its figures. Writing that one
row switches from one view to the next. It is written together with the row topic id | "p": a bitmap of the view's
positions for each ledger, so that a subscription can skip missing positions without reading the view.

Positions are those of the log. Entries of the view stay readable when the log is trimmed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct
from typing import Final

from replicator.engine.compaction.compactor import Retained
from replicator.engine.log.store import Store
from replicator.engine.log.store_tables import TOPIC_KEY
from replicator.engine.types import LoggedEntry
from snapshots.position import BEFORE_ALL, Position
from snapshots.position_set import PositionSet

VIEW_TABLE: Final = "compacted"
STATE_TABLE: Final = "compaction"

_KEY = Struct(">IIQQ")
_GENERATION_KEY = Struct(">II")
_ROW = Struct(">IQQH")
_LEAVES_OUT: Final = 0x8000
"""Bit in the length of the origin: a bitmap follows. Rows from before there were bitmaps do not have it."""
_BITMAP = Struct(">I")
_POSITIONS: Final = b"p"
_LEDGER = Struct(">QI")
_COUNT = Struct(">I")


@dataclass(frozen=True, slots=True)
class ViewState:
    """State of the view in use: its generation and its size. Generation 0 is the empty view of a topic that was not
    compacted."""

    generation: int = 0
    horizon: Position = BEFORE_ALL
    entries: int = 0
    size_bytes: int = 0
    messages: int = 0
    """Number of messages, without those that are left out of batches; 0 in a view from before they were counted."""

    def encode(self) -> bytes:
        return json.dumps(
            {
                "generation": self.generation,
                "horizon": list(self.horizon),
                "entries": self.entries,
                "size_bytes": self.size_bytes,
                "messages": self.messages,
            }
        ).encode()

    @classmethod
    def decode(cls, stored: bytes) -> ViewState:
        fields = json.loads(stored)
        return cls(
            fields["generation"],
            Position(*fields["horizon"]),
            fields["entries"],
            fields["size_bytes"],
            fields.get("messages", 0),
        )


class CompactedView:
    """Reads the compacted view of one topic."""

    def __init__(self, store: Store, topic_id: int) -> None:
        self._store = store
        self._topic_id = topic_id
        with store.env.begin(db=store.tables[STATE_TABLE]) as txn:
            stored = txn.get(TOPIC_KEY.pack(topic_id))
        self.state = ViewState() if stored is None else ViewState.decode(bytes(stored))

    def read(self, after: Position, entries_max: int, bytes_max: int) -> list[LoggedEntry]:
        """Return entries of the view above ``after``, in order, at least one if there is one. Safe to call from any
        thread."""
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
        """Return the view's entry at ``position``, or None."""
        if not self.state.entries or position > self.state.horizon or position.entry < 0:
            return None
        with self._store.env.begin(db=self._store.tables[VIEW_TABLE]) as txn:
            stored = txn.get(_KEY.pack(self._topic_id, self.state.generation, *position))
        return None if stored is None else _decode(position, stored)

    def row(self, generation: int, entry: LoggedEntry, kept: Retained) -> tuple[str, bytes, bytes]:
        """Return the row that stores the retained part of ``entry``: table, key and value."""
        origin = entry.origin.encode("ascii")
        bitmap = b"" if kept.compacted_out is None else kept.compacted_out.serialize()
        flag = _LEAVES_OUT if bitmap else 0
        value = b"".join(
            (
                _ROW.pack(entry.batch_size, *entry.origin_position, len(origin) | flag),
                origin,
                _BITMAP.pack(len(bitmap)) if bitmap else b"",
                bitmap,
                kept.content,
            )
        )
        return VIEW_TABLE, _KEY.pack(self._topic_id, generation, *entry.position), value

    def state_row(self, state: ViewState) -> tuple[str, bytes, bytes]:
        """Return the row that puts ``state`` into use."""
        return STATE_TABLE, TOPIC_KEY.pack(self._topic_id), state.encode()

    def positions_row(self, generation: int, positions: PositionSet) -> tuple[str, bytes, bytes]:
        """Return the row with the positions of a generation. For millions of positions it has a megabyte."""
        parts = [
            part for ledger, bitmap in positions.serialize() for part in (_LEDGER.pack(ledger, len(bitmap)), bitmap)
        ]
        return STATE_TABLE, TOPIC_KEY.pack(self._topic_id) + _POSITIONS, b"".join((_COUNT.pack(generation), *parts))

    def positions(self) -> PositionSet:
        """Return the positions of the view."""
        if not self.state.entries:
            return PositionSet()
        with self._store.env.begin(db=self._store.tables[STATE_TABLE]) as txn:
            stored = txn.get(TOPIC_KEY.pack(self._topic_id) + _POSITIONS)
        if stored is None or _COUNT.unpack_from(stored)[0] != self.state.generation:
            return self._positions_of_rows()
        parts: list[tuple[int, bytes]] = []
        at = _COUNT.size
        while at < len(stored):
            ledger, length = _LEDGER.unpack_from(stored, at)
            at += _LEDGER.size + length
            parts.append((ledger, stored[at - length : at]))
        return PositionSet.deserialize(parts)

    def _positions_of_rows(self) -> PositionSet:
        """Return the positions of a view that an earlier version wrote without their row. This is slow, and not needed
        after the next pass."""
        found = PositionSet()
        with self._store.env.begin(db=self._store.tables[VIEW_TABLE]) as txn:
            cursor = txn.cursor()
            prefix = _GENERATION_KEY.pack(self._topic_id, self.state.generation)
            more = cursor.set_range(prefix)
            while more and (key := cursor.key()).startswith(prefix):
                found.add(Position(*_KEY.unpack(key)[2:]))
                more = cursor.next()
        return found

    def other_keys(self, keys_max: int) -> list[bytes]:
        """Return up to ``keys_max`` keys of generations that are not in use: replaced ones, and those of interrupted
        passes."""
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
    origin_end = at = _ROW.size + (origin_length & ~_LEAVES_OUT)
    compacted_out = None
    if origin_length & _LEAVES_OUT:
        (length,) = _BITMAP.unpack_from(stored, at)
        at += _BITMAP.size + length
        compacted_out = bytes(view[at - length : at])
    return LoggedEntry(
        position,
        batch_size,
        marker=False,
        entry=view[at:],
        origin=bytes(view[_ROW.size : origin_end]).decode("ascii"),
        origin_position=Position(ledger, entry),
        compacted_out=compacted_out,
    )
