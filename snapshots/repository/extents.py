"""Extent segments: the exact mapping, a thousand runs a row (docs/adr/0022).

1. The runs of one topic, origin and incarnation ascend on both sides, so they are cut into segments of
   :data:`SEGMENT_RUNS`. Only the last segment grows; it is written again as a whole under the same key, its start.
2. A look-up finds the one segment whose bounds enclose the position, by an index on either side, and unpacks it.
3. Many positions are sorted once and cut by the bounds of the segments; numpy translates each part.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from sqlalchemy import and_, delete, func, select, text, tuple_
from sqlalchemy.sql import ColumnElement

from snapshots.extents import ENTRY_BITS, Extent, ExtentTable, Numbers
from snapshots.models import ExtentSegmentRow
from snapshots.position import Position
from snapshots.repository.rows import Rows, batches

SEGMENT_RUNS: Final = 1_024
"""Runs in one segment: some kilobytes, which are rewritten while it grows, and read by a look-up."""
SEGMENTS_AT_ONCE: Final = 256
"""Segments read in one query of a bulk translation: a megabyte."""

_SEGMENT_OF_LOCAL: Final = text(
    """
    WITH RECURSIVE keys AS (
        (SELECT origin, incarnation FROM extent_segments WHERE cluster = :cluster AND topic = :topic
         ORDER BY origin, incarnation LIMIT 1)
        UNION ALL
        SELECT following.origin, following.incarnation FROM keys, LATERAL (
            SELECT origin, incarnation FROM extent_segments WHERE cluster = :cluster AND topic = :topic
            AND (origin, incarnation) > (keys.origin, keys.incarnation) ORDER BY origin, incarnation LIMIT 1
        ) AS following
    )
    SELECT keys.origin, keys.incarnation, segment.packed FROM keys, LATERAL (
        SELECT local_ledger, local_entry, packed FROM extent_segments WHERE cluster = :cluster AND topic = :topic
        AND origin = keys.origin AND incarnation = keys.incarnation
        AND (local_last_ledger, local_last_entry) >= (:ledger, :entry)
        ORDER BY local_last_ledger, local_last_entry LIMIT 1
    ) AS segment
    WHERE (segment.local_ledger, segment.local_entry) <= (:ledger, :entry)
    """
)
"""Query for the segments at a local position. Each origin's is found by the index: a topic has few origins and many
segments."""


class ExtentKey(NamedTuple):
    """Key of one mapping: entries that ``topic`` had at ``origin`` in its life ``incarnation``."""

    topic: str
    origin: str
    incarnation: int


class Segment(NamedTuple):
    """Segment to be written. ``start`` is the first origin position that it had when it was begun."""

    key: ExtentKey
    start: Position
    table: ExtentTable


@dataclass(frozen=True, slots=True)
class SegmentBounds:
    """Segment without its runs. ``start`` is its key: the first origin position it had when it was begun."""

    start: Position
    origin_last: Position
    local_first: Position
    local_last: Position
    entries: int
    runs: int


def segments_of(extents: Iterable[Extent], *, runs_max: int = SEGMENT_RUNS) -> Iterator[ExtentTable]:
    """Yield tables of ``runs_max`` runs each; the last one may have fewer."""
    table = ExtentTable()
    for extent in extents:
        if len(table) == runs_max and not _goes_on(table, extent):
            yield table
            table = ExtentTable()
        table.append(*extent)
    if len(table):
        yield table


def _goes_on(table: ExtentTable, extent: Extent) -> bool:
    """Return whether ``extent`` lengthens the table's last run."""
    last = table.last
    assert last is not None
    return last.origin_last == _before(extent.origin_first) and last.local_last == _before(extent.local_first)


def _before(position: Position) -> Position:
    return Position(position.ledger, position.entry - 1)


class Extents(Rows):
    """Part of the repository that holds the exact mapping."""

    async def write_segments(self, segments: Sequence[Segment]) -> None:
        """Write segments, all or none. A segment replaces one of the same mapping with the same start."""
        rows = [
            {**self._key_columns(key), **_bounds_columns(start, table), "packed": table.pack()}
            for key, start, table in segments
        ]
        await self._upsert(ExtentSegmentRow, rows, "written_at")

    async def extent_keys(self, topic: str | None = None) -> list[ExtentKey]:
        """Return the keys of all mappings with segments, or only those of ``topic``."""
        row = ExtentSegmentRow
        query = select(row.topic, row.origin, row.incarnation).where(row.cluster == self._cluster).distinct()
        if topic is not None:
            query = query.where(row.topic == topic)
        async with self._connection() as connection:
            found = (await connection.execute(query)).all()
        return sorted(ExtentKey(*each) for each in found)

    async def segment_bounds(self, keys: Sequence[ExtentKey]) -> dict[ExtentKey, list[SegmentBounds]]:
        """Return the segments of each mapping in ``keys``, without their runs, in order of their starts."""
        row = ExtentSegmentRow
        query = select(
            row.topic,
            row.origin,
            row.incarnation,
            row.origin_ledger,
            row.origin_entry,
            row.origin_last_ledger,
            row.origin_last_entry,
            row.local_ledger,
            row.local_entry,
            row.local_last_ledger,
            row.local_last_entry,
            row.entries,
            row.runs,
        ).where(row.cluster == self._cluster, tuple_(row.topic, row.origin, row.incarnation).in_(keys))
        async with self._looking_up() as connection:
            rows = (await connection.execute(query.order_by(row.origin_ledger, row.origin_entry))).all()
        found: dict[ExtentKey, list[SegmentBounds]] = {key: [] for key in keys}
        for topic, origin, incarnation, a, b, c, d, e, f, g, h, entries, runs in rows:
            bounds = SegmentBounds(Position(a, b), Position(c, d), Position(e, f), Position(g, h), entries, runs)
            found[ExtentKey(topic, origin, incarnation)].append(bounds)
        return found

    async def delete_segments(self, key: ExtentKey, *, start: Position | None = None) -> int:
        """Remove all segments of a mapping, or those from the one with ``start`` on; return their number."""
        row = ExtentSegmentRow
        statement = delete(row).where(self._of(key))
        if start is not None:
            statement = statement.where(tuple_(row.origin_ledger, row.origin_entry) >= tuple_(*start))
        async with self._connection() as connection:
            return int((await connection.execute(statement)).rowcount)

    async def prune_extents(self, topic: str, local_through: Position) -> int:
        """Remove the segments of a topic that lie wholly at or below ``local_through``; return their number."""
        row = ExtentSegmentRow
        statement = delete(row).where(
            row.cluster == self._cluster,
            row.topic == topic,
            tuple_(row.local_last_ledger, row.local_last_entry) <= tuple_(*local_through),
        )
        async with self._connection() as connection:
            return int((await connection.execute(statement)).rowcount)

    async def prune_extents_not_written_since(self, topic: str, moment: datetime) -> int:
        """Remove the segments of a topic that were last written before ``moment``; return their number."""
        row = ExtentSegmentRow
        statement = delete(row).where(row.cluster == self._cluster, row.topic == topic, row.written_at < moment)
        async with self._connection() as connection:
            return int((await connection.execute(statement)).rowcount)

    async def count_extents(self, topic: str | None = None) -> tuple[int, int, int]:
        """Return the numbers of segments, runs and entries in the exact mapping, of all topics or of one."""
        row = ExtentSegmentRow
        query = select(func.count(), func.coalesce(func.sum(row.runs), 0), func.coalesce(func.sum(row.entries), 0))
        query = query.where(row.cluster == self._cluster)
        if topic is not None:
            query = query.where(row.topic == topic)
        async with self._connection() as connection:
            segments, runs, entries = (await connection.execute(query)).one()
        return int(segments), int(runs), int(entries)

    # Look-ups.

    async def to_local(self, key: ExtentKey, position: Position) -> Position | None:
        """Translate an origin position to a local one of this cluster; None if the entry is not here.

        Raises :class:`ExtentsCorrupt`, like the other look-ups.
        """
        row = ExtentSegmentRow
        query = (
            select(row.packed)
            .where(self._of(key), tuple_(row.origin_ledger, row.origin_entry) <= tuple_(*position))
            .order_by(row.origin_ledger.desc(), row.origin_entry.desc())
            .limit(1)
        )
        async with self._looking_up() as connection:
            packed = (await connection.execute(query)).scalar_one_or_none()
        return None if packed is None else _unpacked(packed).to_local(position)

    async def to_origin(self, topic: str, position: Position) -> tuple[ExtentKey, Position] | None:
        """Translate a position of this cluster to its origin's key and position; None if the entry was not copied."""
        parameters = {
            "cluster": self._cluster,
            "topic": topic,
            "ledger": position.ledger,
            "entry": position.entry,
        }
        async with self._looking_up() as connection:
            found = (await connection.execute(_SEGMENT_OF_LOCAL, parameters)).all()
        for origin, incarnation, packed in found:
            if (at_origin := _unpacked(packed).to_origin(position)) is not None:
                return ExtentKey(topic, origin, incarnation), at_origin
        return None

    async def to_local_many(
        self, key: ExtentKey, ledgers: Numbers, entries: Numbers
    ) -> tuple[Numbers, Numbers, npt.NDArray[np.bool_]]:
        """Translate many origin positions to local ones, and return ``(ledgers, entries, found)``.

        Where ``found`` is False, the entry is not here, and the other two values have no meaning.
        """
        return await self._many(key, ledgers, entries, to_local=True)

    async def to_origin_many(
        self, key: ExtentKey, ledgers: Numbers, entries: Numbers
    ) -> tuple[Numbers, Numbers, npt.NDArray[np.bool_]]:
        """Translate many local positions to origin positions; see :meth:`to_local_many`."""
        return await self._many(key, ledgers, entries, to_local=False)

    async def _many(
        self, key: ExtentKey, ledgers: Numbers, entries: Numbers, *, to_local: bool
    ) -> tuple[Numbers, Numbers, npt.NDArray[np.bool_]]:
        """Translate many positions of one side to the other, as :meth:`to_local_many`, by step 3 of this module."""
        to_ledgers, to_entries = np.zeros(len(ledgers), np.uint64), np.zeros(len(ledgers), np.uint64)
        found = np.zeros(len(ledgers), np.bool_)
        if not len(ledgers):
            return to_ledgers, to_entries, found
        known_ledgers, ranks = np.unique(ledgers, return_inverse=True)
        keys = ranks.astype(np.uint64) << np.uint64(ENTRY_BITS) | np.asarray(entries, np.uint64)
        order = np.argsort(keys)
        keys = keys[order]
        lowest, highest = (
            Position(int(known_ledgers[int(edge) >> ENTRY_BITS]), int(edge) & ((1 << ENTRY_BITS) - 1))
            for edge in (keys[0], keys[-1])
        )
        async with self._connection() as connection:
            wanted = self._segments_between(key, lowest, highest, to_local=to_local)
            rows = (await connection.execute(wanted)).all()
            for batch in batches(rows, SEGMENTS_AT_ONCE):
                starts = [tuple(row[:2]) for row in batch]
                row = ExtentSegmentRow
                packed_query = select(row.packed).where(
                    self._of(key), tuple_(row.origin_ledger, row.origin_entry).in_(starts)
                )
                packed_rows = await connection.execute(packed_query.order_by(row.origin_ledger, row.origin_entry))
                for bounds, packed in zip(batch, packed_rows.scalars(), strict=True):
                    low = np.searchsorted(keys, _key(known_ledgers, Position(*bounds[2:4])))
                    high = np.searchsorted(keys, _key(known_ledgers, Position(bounds[4], bounds[5] + 1)))
                    part = order[low:high]
                    if not len(part):
                        continue
                    table = _unpacked(packed)
                    many = table.to_local_many if to_local else table.to_origin_many
                    to_ledgers[part], to_entries[part], found[part] = many(ledgers[part], entries[part])
        return to_ledgers, to_entries, found

    def _segments_between(self, key: ExtentKey, lowest: Position, highest: Position, *, to_local: bool) -> Any:
        """Return a query for the segments that reach into the range from ``lowest`` to ``highest``, in order.

        Its rows have the segment's start, and its bounds on the side of the range: the origin's with ``to_local``.
        """
        row = ExtentSegmentRow
        first = (row.origin_ledger, row.origin_entry) if to_local else (row.local_ledger, row.local_entry)
        last = (
            (row.origin_last_ledger, row.origin_last_entry)
            if to_local
            else (row.local_last_ledger, row.local_last_entry)
        )
        query = select(row.origin_ledger, row.origin_entry, *first, *last).where(
            self._of(key), tuple_(*first) <= tuple_(*highest), tuple_(*last) >= tuple_(*lowest)
        )
        return query.order_by(row.origin_ledger, row.origin_entry)

    def _of(self, key: ExtentKey) -> ColumnElement[bool]:
        row = ExtentSegmentRow
        return and_(
            row.cluster == self._cluster,
            row.topic == key.topic,
            row.origin == key.origin,
            row.incarnation == key.incarnation,
        )

    def _key_columns(self, key: ExtentKey) -> dict[str, Any]:
        return {"cluster": self._cluster, "topic": key.topic, "origin": key.origin, "incarnation": key.incarnation}


def _bounds_columns(start: Position, table: ExtentTable) -> dict[str, Any]:
    first, last = table.first, table.last
    assert first is not None
    assert last is not None
    assert start <= first.origin_first, f"a segment that starts at {start} has {first}"
    return {
        "origin_ledger": start.ledger,
        "origin_entry": start.entry,
        "origin_last_ledger": last.origin_last.ledger,
        "origin_last_entry": last.origin_last.entry,
        "local_ledger": first.local_first.ledger,
        "local_entry": first.local_first.entry,
        "local_last_ledger": last.local_last.ledger,
        "local_last_entry": last.local_last.entry,
        "entries": table.entries,
        "runs": len(table),
    }


def _unpacked(packed: bytes) -> ExtentTable:
    return ExtentTable.unpack(packed, runs_max=SEGMENT_RUNS)


def _key(known_ledgers: Numbers, position: Position) -> np.uint64:
    """Return the key of ``position``: its ledger's rank in ``known_ledgers``, then its entry id.

    If its ledger is not known, return the lowest key of the next known one.
    """
    rank = int(np.searchsorted(known_ledgers, np.uint64(position.ledger)))
    if rank < len(known_ledgers) and known_ledgers[rank] == position.ledger:
        return np.uint64((rank << ENTRY_BITS) + position.entry)
    return np.uint64(rank << ENTRY_BITS)
