"""Stored rows that tell, by origin and producer, in which blocks of a topic sequence ids are.

The rows are few: one for each producer of a block, however many entries it has. :mod:`.sequence_index` describes the
tables, and how the rows are used.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import Any, Final

import lmdb

from replicator.engine.log.store_tables import BLOCK_KEY, TOPIC_KEY
from replicator.engine.producing.deduplication import NONE_YET, SequencedEntry
from replicator.engine.producing.duplicate_chains import trim_duplicates
from snapshots.position import Position

ROWS_LOOKED_AT_MAX: Final = 8
"""Limit of rows that a look-up of one id reads. One is usual; there are more only if the ids of a producer do not
ascend."""
HIGHEST_KEPT_MAX: Final = 10_000

_DIGEST_BYTES: Final = 16
_ROW_KEY_TAIL = struct.Struct(">QQQ")
_ROW = struct.Struct(">Q")
_BLOCK_ITEM = struct.Struct(f">{_DIGEST_BYTES}sQ")
_EPOCH = struct.Struct(">IB")


def trim_block(txn: lmdb.Transaction, tables: dict[str, Any], topic_id: int, first: Position, last: Position) -> int:
    """Delete the rows of a block that is being deleted. Return how many rows that were."""
    key = BLOCK_KEY.pack(topic_id, *first)
    stored = txn.get(key, b"", db=tables["numbered_blocks"])
    txn.delete(key, db=tables["numbered_blocks"])
    rows = 0
    for digest, lowest in _BLOCK_ITEM.iter_unpack(stored):
        txn.delete(_row_key(topic_id, digest, lowest, first), db=tables["numbered"])
        rows += 1
    return rows + trim_duplicates(txn, tables, topic_id, first, last)


class NumberedRows:
    """The rows of one topic. Only the writer's thread uses it, within a transaction."""

    __slots__ = ("_epoch", "_highest", "_topic_id", "on")

    def __init__(self, txn: lmdb.Transaction, tables: dict[str, Any], topic_id: int) -> None:
        self._topic_id = topic_id
        stored = txn.get(TOPIC_KEY.pack(topic_id), db=tables["numbering"])
        self._epoch, on = (0, 0) if stored is None else _EPOCH.unpack(stored)
        self.on = bool(on)
        """Whether deduplication is on."""
        self._highest: dict[tuple[str, str], int] = {}

    def switch(self, txn: lmdb.Transaction, tables: dict[str, Any], *, on: bool) -> None:
        """Turn deduplication on or off for the entries from this position of the log on."""
        if on is self.on:
            return
        self.on = on
        self._epoch += on
        self._highest.clear()
        txn.put(TOPIC_KEY.pack(self._topic_id), _EPOCH.pack(self._epoch, on), db=tables["numbering"])

    def record(
        self,
        txn: lmdb.Transaction,
        tables: dict[str, Any],
        origin: str,
        first: Position,
        entries: Iterable[SequencedEntry | None],
    ) -> dict[str, int]:
        """Write the rows of a block of ``entries`` that begins at ``first``. Return each producer's highest complete
        id."""
        ranges: dict[str, tuple[int, int, int]] = {}
        for entry in entries:
            if entry is None:
                continue
            complete = entry.last if entry.chunk + 1 >= entry.chunks else NONE_YET
            known = ranges.get(entry.producer)
            if known is None:
                ranges[entry.producer] = (entry.first, entry.last, complete)
            else:
                ranges[entry.producer] = (
                    min(known[0], entry.first),
                    max(known[1], entry.last),
                    max(known[2], complete),
                )
        items: list[bytes] = []
        for producer, (lowest, highest, _) in ranges.items():
            self._keep(origin, producer, max(self.known(txn, tables, origin, producer), highest))
            digest = self._digest(origin, producer)
            txn.put(_row_key(self._topic_id, digest, lowest, first), _ROW.pack(highest), db=tables["numbered"])
            items.append(_BLOCK_ITEM.pack(digest, lowest))
        if items:
            txn.put(BLOCK_KEY.pack(self._topic_id, *first), b"".join(items), db=tables["numbered_blocks"])
        return {producer: complete for producer, (_, _, complete) in ranges.items()}

    def known(self, txn: lmdb.Transaction, tables: dict[str, Any], origin: str, producer: str) -> int:
        """Return an id that no entry of the producer from this origin exceeds."""
        known = self._highest.get((origin, producer))
        if known is None:
            rows = self._rows(txn, tables, self._digest(origin, producer), 2**64 - 1)
            known = max((highest for _, highest in rows), default=NONE_YET)
            self._keep(origin, producer, known)
        return known

    def _keep(self, origin: str, producer: str, known: int) -> None:
        if len(self._highest) >= HIGHEST_KEPT_MAX:
            self._highest.clear()
        self._highest[origin, producer] = known

    def _rows(
        self,
        txn: lmdb.Transaction,
        tables: dict[str, Any],
        digest: bytes,
        lowest_max: int,
        rows_max: int = ROWS_LOOKED_AT_MAX,
    ) -> Iterator[tuple[Position, int]]:
        """Yield rows whose lowest id is at or below ``lowest_max``, the highest of them first, up to a limit."""
        prefix = TOPIC_KEY.pack(self._topic_id) + digest
        cursor = txn.cursor(db=tables["numbered"])
        end = prefix + _ROW_KEY_TAIL.pack(lowest_max, 2**64 - 1, 2**64 - 1)
        more = cursor.prev() if cursor.set_range(end) else cursor.last()
        for _ in range(rows_max):
            if not more or not bytes(cursor.key()).startswith(prefix):
                return
            _, ledger, first = _ROW_KEY_TAIL.unpack(cursor.key()[len(prefix) :])
            yield Position(ledger, first), _ROW.unpack(cursor.value())[0]
            more = cursor.prev()

    def blocks(
        self,
        txn: lmdb.Transaction,
        tables: dict[str, Any],
        origin: str,
        producer: str,
        first: int,
        last: int,
        rows_max: int = ROWS_LOOKED_AT_MAX,
    ) -> list[Position]:
        """Return where the blocks begin that may hold ids from ``first`` to ``last`` of a producer."""
        rows = self._rows(txn, tables, self._digest(origin, producer), last, rows_max)
        return [position for position, highest in rows if highest >= first]

    def _digest(self, origin: str, producer: str) -> bytes:
        text = f"{self._epoch}\0{origin}\0{producer}".encode("utf-8", "surrogatepass")
        return blake2b(text, digest_size=_DIGEST_BYTES).digest()


def _row_key(topic_id: int, digest: bytes, lowest: int, first: Position) -> bytes:
    return TOPIC_KEY.pack(topic_id) + digest + _ROW_KEY_TAIL.pack(lowest, *first)
