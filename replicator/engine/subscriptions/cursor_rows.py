"""Rows of a cursor in the store: a head row, and rows for chunks of acknowledgements beyond mark-delete. Pure.

Invariants (DESIGN §3): 1, a confirmed acknowledgement is in the rows of one transaction; 5, a row of an earlier
generation never counts for a later one; 11, an acknowledgement writes only changed rows, not the whole state.

=========== =========================================== ==================================================
table       key                                         value
=========== =========================================== ==================================================
cursors     topic id | subscription                     JSON: format, mark-delete, generation, replicated,
                                                        properties; read_compacted, untold (changes are not
                                                        announced yet) and unheard where they are true;
                                                        unclaimed (by origin a position), starts (by origin an
                                                        incarnation and a position) and rewound where there are
                                                        any
cursor_rows topic id | subscription NUL | "d" | ledger  roaring bitmap of the entry ids that are individually
            | chunk of 65,536 entry ids                 deleted
cursor_rows topic id | subscription NUL | "b" | ledger  (entry u32 | length u32 | roaring bitmap of
            | chunk of 256 entry ids                    acknowledged indexes) for each batch
=========== =========================================== ==================================================

1. The cursor notes the chunks that it changes (:class:`replicator.engine.subscriptions.cursor_state.DirtyChunks`).
   :meth:`CursorRows.changes` takes these notes and returns the rows of those chunks, with the head row if it changed.
2. Rows whose entries are all at or below the mark-delete position are deleted. The row in which the position lies
   stays as it is: entries at or below the position are ignored when the row is read.
3. After a seek (another generation) all rows are deleted, and the rows of the new generation are written.
4. All changes are one request to the writer. If it fails, the notes are restored: the chunks are still dirty. Rows that
   may have been written nevertheless count as stored, so that they are deleted later.

Format 1 (before there were rows) held everything in the head row; it is read, and the first save rewrites it.
"""

from __future__ import annotations

import json
import struct
from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

from replicator.engine.errors import StoreUnusable
from replicator.engine.subscriptions.batch_acks import BATCH_CHUNK_SHIFT, ChunkId
from replicator.engine.subscriptions.cursor_state import CursorState, DirtyChunks
from snapshots.position import Position
from snapshots.position_set import CHUNK_SHIFT
from snapshots.starts import Start

CURSORS: Final = "cursors"
CURSOR_ROWS: Final = "cursor_rows"
FORMAT: Final = 2
_FORMAT_WHOLE: Final = 1
NO_GENERATION: Final = -1
"""Generation that no subscription has."""
_TOPIC = struct.Struct(">I")
_LENGTH = struct.Struct(">I")
_CHUNK = struct.Struct(">cQI")
_BATCH = struct.Struct(">II")
_DELETED: Final = b"d"
_BATCHES: Final = b"b"
_JSON: Final = json.JSONEncoder(separators=(",", ":"))
_quoted: Final = json.encoder.encode_basestring_ascii
_SEPARATOR: Final = b"\0"
"""Byte that no name contains, so that no subscription's rows lie under the prefix of another's."""

RowWrite = tuple[str, bytes, bytes | None]
"""A table, a key, and the new value; None deletes the row."""


class RowChanges(NamedTuple):
    """One request to the writer: delete every row under the ``cleared`` prefixes, then make the ``writes``."""

    writes: Sequence[RowWrite]
    cleared: Sequence[tuple[str, bytes]] = ()

    def __bool__(self) -> bool:
        return bool(self.writes or self.cleared)


class CursorTables(Protocol):
    """Part of the store that loading reads."""

    def cursors(self, topic_id: int) -> dict[str, bytes]: ...

    def cursor_rows(self, topic_id: int) -> Iterator[tuple[bytes, bytes]]: ...


@dataclass(slots=True)
class _Save:
    """A save under way."""

    state: CursorState
    dirty: DirtyChunks
    head: bytes
    generation: int
    restarted: bool
    put: list[tuple[bytes, ChunkId]] = field(default_factory=list)
    deleted: list[tuple[bytes, ChunkId]] = field(default_factory=list)


_NOTHING_DIRTY: Final = DirtyChunks()


class CursorRows:
    """The rows of one subscription: which are stored, and which a save must write.

    One save at a time: :meth:`changes`, then :meth:`saved` or :meth:`failed`.
    """

    __slots__ = ("_generation", "_head", "_key", "_save", "_stored")

    def __init__(self, topic_id: int, name: str) -> None:
        self._key = _TOPIC.pack(topic_id) + name.encode()
        self._head: bytes | None = None
        """Head row as it is stored; None until it is known."""
        self._generation: int | None = None
        self._stored: dict[bytes, list[ChunkId]] = {_DELETED: [], _BATCHES: []}
        """Chunks that have a row, or may have one, in order."""
        self._save: _Save | None = None

    def changes(self, state: CursorState) -> RowChanges:
        """Return the writes that make the present ``state`` durable; none if it is durable already."""
        assert self._save is None, "a save is under way"
        dirty, head, generation = state.dirty, _encode_head(state), state.generation
        restarted = self._generation != generation and self._generation is not None
        if not (dirty.deleted or dirty.batches or restarted or self._stored[_DELETED] or self._stored[_BATCHES]):
            # Only the head may have changed, as by acknowledgements in order.
            self._save = _Save(state, _NOTHING_DIRTY, head, generation, restarted)
            return RowChanges([(CURSORS, self._key, head)] if head != self._head else [])
        state.dirty = DirtyChunks()
        save = self._save = _Save(state, dirty, head, generation, restarted)
        writes: list[RowWrite] = []
        for kind, chunk_ids in ((_DELETED, dirty.deleted), (_BATCHES, dirty.batches)):
            stored = [] if restarted else self._stored[kind]
            passed = stored[: bisect_left(stored, _first_not_passed(kind, state.mark_delete))]
            save.deleted += [(kind, chunk_id) for chunk_id in passed]
            for chunk_id in sorted(chunk_ids):
                value = _ENCODE[kind](state, chunk_id)
                if value is not None:
                    save.put.append((kind, chunk_id))
                    writes.append((CURSOR_ROWS, self._row_key(kind, chunk_id), value))
                elif _contains(stored, chunk_id) and not _contains(passed, chunk_id):
                    save.deleted.append((kind, chunk_id))
        writes += [(CURSOR_ROWS, self._row_key(kind, chunk_id), None) for kind, chunk_id in save.deleted]
        if save.head != self._head:
            writes.append((CURSORS, self._key, save.head))
        return RowChanges(writes, [(CURSOR_ROWS, self._key + _SEPARATOR)] if restarted else [])

    def saved(self) -> None:
        """Note that the changes are durable."""
        save = self._take_save()
        if save.restarted:
            self._stored = {_DELETED: [], _BATCHES: []}
        for kind, chunk_id in save.deleted:
            stored = self._stored[kind]
            del stored[bisect_left(stored, chunk_id)]
        self._note_stored(save.put)
        self._head, self._generation = save.head, save.generation

    def failed(self) -> None:
        """Mark all changes as unsaved again: they were refused, or nobody knows whether they were written."""
        save = self._take_save()
        save.state.dirty.deleted |= save.dirty.deleted
        save.state.dirty.batches |= save.dirty.batches
        self._note_stored(save.put)
        self._head = None

    def deletion(self) -> RowChanges:
        """Return the writes that delete the subscription and all its rows, also those that a save under way writes."""
        return RowChanges([(CURSORS, self._key, None)], [(CURSOR_ROWS, self._key + _SEPARATOR)])

    def _take_save(self) -> _Save:
        save, self._save = self._save, None
        assert save is not None, "no save is under way"
        return save

    def _note_stored(self, rows: list[tuple[bytes, ChunkId]]) -> None:
        for kind, chunk_id in rows:
            if not _contains(self._stored[kind], chunk_id):
                insort(self._stored[kind], chunk_id)

    def _row_key(self, kind: bytes, chunk_id: ChunkId) -> bytes:
        return self._key + _SEPARATOR + _CHUNK.pack(kind, *chunk_id)

    def _load(self, head: bytes, rows: Mapping[tuple[bytes, ChunkId], bytes]) -> CursorState:
        if head[:1] != b"{":
            state = _decode_format_1(head)
            state.dirty.deleted.update(dict.fromkeys(state.individually_deleted.chunk_ids()))
            state.dirty.batches.update(dict.fromkeys(state.batch_acks.chunk_ids()))
        else:
            state = _decode_head(head)
            for (kind, chunk_id), value in rows.items():
                _DECODE[kind](state, chunk_id, value)
            self._head = head
        self._generation = state.generation
        self._note_stored(list(rows))
        state.individually_deleted.discard_through(state.mark_delete)
        state.batch_acks.discard_through(state.mark_delete)
        return state


def load_cursors(store: CursorTables, topic_id: int) -> dict[str, tuple[CursorState, CursorRows]]:
    """Return the stored subscriptions of a topic. Raise :class:`StoreUnusable` for a newer format."""
    rows: dict[str, dict[tuple[bytes, ChunkId], bytes]] = {}
    for key, value in store.cursor_rows(topic_id):
        kind, ledger, chunk = _CHUNK.unpack(key[-_CHUNK.size :])
        owner = key[_TOPIC.size : -_CHUNK.size - len(_SEPARATOR)].decode()
        rows.setdefault(owner, {})[kind, (ledger, chunk)] = value
    loaded: dict[str, tuple[CursorState, CursorRows]] = {}
    for name, head in store.cursors(topic_id).items():
        cursor_rows = CursorRows(topic_id, name)
        loaded[name] = cursor_rows._load(head, rows.get(name, {})), cursor_rows
    return loaded


def rewritten(topic_id: int, name: str, state: CursorState) -> RowChanges:
    """Return the changes that replace all stored rows of a subscription by ``state``."""
    rows = CursorRows(topic_id, name)
    rows._generation = NO_GENERATION  # another generation than the state's, so that all rows are deleted first
    state.dirty = DirtyChunks(
        dict.fromkeys(state.individually_deleted.chunk_ids()), dict.fromkeys(state.batch_acks.chunk_ids())
    )
    return rows.changes(state)


def _first_not_passed(kind: bytes, mark_delete: Position) -> ChunkId:
    """Return the lowest chunk that holds a position above ``mark_delete``."""
    return mark_delete.ledger, (mark_delete.entry + 1) >> _SHIFT[kind]


def _contains(chunk_ids: list[ChunkId], chunk_id: ChunkId) -> bool:
    at = bisect_left(chunk_ids, chunk_id)
    return at < len(chunk_ids) and chunk_ids[at] == chunk_id


def _encode_head(state: CursorState) -> bytes:
    """Encode the head row of a subscription's state.

    Each save writes this row. It is built by hand: a JSON encoder takes ten times as long in the usual case.
    """
    rest = ""
    if state.read_compacted:
        rest = ',"read_compacted":true'
    if state.to_announce:
        rest += ',"untold":true'
    if state.unheard:
        rest += ',"unheard":true'
    if state.unclaimed:
        upto = [f"{_quoted(origin)}:[{ledger},{entry}]" for origin, (ledger, entry) in state.unclaimed.items()]
        rest += f',"unclaimed":{{{",".join(upto)}}}'
    if state.starts:
        starts = [
            f"{_quoted(origin)}:[{incarnation},{position[0]},{position[1]}]"
            for origin, (incarnation, position) in state.starts.items()
        ]
        rest += f',"starts":{{{",".join(starts)}}}'
    if state.rewound is not None:
        rest += f',"rewound":[{state.rewound[0]},{state.rewound[1]}]'
    ledger, entry = state.mark_delete
    properties = _JSON.encode(dict(state.properties)) if state.properties else "{}"
    return (
        f'{{"format":{FORMAT},"generation":{state.generation},"mark_delete":[{ledger},{entry}],'
        f'"replicated":{"true" if state.replicated else "false"},"properties":{properties}{rest}}}'
    ).encode()


def _decode_head(stored: bytes) -> CursorState:
    head = json.loads(stored)
    _check_format(head, FORMAT)
    return CursorState(
        Position(*head["mark_delete"]),
        head["generation"],
        head["replicated"],
        head["properties"],
        read_compacted=head.get("read_compacted", False),
        to_announce=head.get("untold", False),
        unheard=head.get("unheard", False),
        unclaimed={origin: Position(*upto) for origin, upto in head.get("unclaimed", {}).items()} or None,
        starts={
            origin: Start(incarnation, Position(*position))
            for origin, (incarnation, *position) in head.get("starts", {}).items()
        },
        rewound=Position(*head["rewound"]) if "rewound" in head else None,
    )


def _encode_deleted(state: CursorState, chunk_id: ChunkId) -> bytes | None:
    return state.individually_deleted.serialize_chunk(chunk_id)


def _decode_deleted(state: CursorState, chunk_id: ChunkId, stored: bytes) -> None:
    state.individually_deleted.add_serialized(chunk_id[0], stored)


def _encode_batches(state: CursorState, chunk_id: ChunkId) -> bytes | None:
    batches = state.batch_acks.chunk(chunk_id)
    parts = [part for entry, indexes in batches for part in (_BATCH.pack(entry, len(indexes)), indexes)]
    return b"".join(parts) or None


def _decode_batches(state: CursorState, chunk_id: ChunkId, stored: bytes) -> None:
    at = 0
    while at < len(stored):
        entry, size = _BATCH.unpack_from(stored, at)
        at += _BATCH.size
        state.batch_acks.put_serialized(Position(chunk_id[0], entry), stored[at : at + size])
        at += size


_SHIFT: Final = {_DELETED: CHUNK_SHIFT, _BATCHES: BATCH_CHUNK_SHIFT}
_ENCODE: Final = {_DELETED: _encode_deleted, _BATCHES: _encode_batches}
_DECODE: Final = {_DELETED: _decode_deleted, _BATCHES: _decode_batches}


def _decode_format_1(stored: bytes) -> CursorState:
    """Return the state in format 1: a length, a JSON head, and the bitmaps that it lists, one after another."""
    (length,) = _LENGTH.unpack_from(stored)
    at = _LENGTH.size + length
    head = json.loads(stored[_LENGTH.size : at])
    _check_format(head, _FORMAT_WHOLE)
    state = CursorState(Position(*head["mark_delete"]), head["generation"], head["replicated"], head["properties"])
    for ledger, size in head["deleted"]:
        state.individually_deleted.add_serialized(ledger, stored[at : at + size])
        at += size
    for ledger, entry, size in head["batches"]:
        state.batch_acks.put_serialized(Position(ledger, entry), stored[at : at + size])
        at += size
    return state


def _check_format(head: Mapping[str, Any], expected: int) -> None:
    if head["format"] != expected:
        raise StoreUnusable(
            f"the stored cursor of a subscription has format {head['format']}, and this version reads up to {FORMAT}: "
            "use a newer version"
        )
