"""Repair of missing rows of a worker's store, from blocks, from segments, and from other clusters.

Invariant (DESIGN §3): 2, a block is the same bytes in every cluster. A block whose row is gone is taken from another
cluster only if it is that block: it has the identity that belongs to the position, and fits between its neighbours.

1. Rows that can be computed from blocks are written again: markers, extents, parts, places in segments, high-water
   marks, counters.
2. Each gap between the blocks of a topic is filled in the order of positions. A block that lies in a segment comes back
   from there. For any other block the identity is known: either an extent has it, or the block is this cluster's own,
   and its origin position is its position. Other clusters are asked for that block.
3. A marker of this cluster that no other cluster has was book-keeping of this cluster. A local marker that says nothing
   takes its place.
4. If no cluster has an entry, the filling of its gap ends, and the check still reports the rest. If an operator accepts
   the loss, and all other clusters answered, a local marker takes the place of the entry, and its origin position
   becomes a hole. No cluster claims to have a hole (invariant 5), and subscriptions pass over it. Then the filling goes
   on.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from replicator.engine.errors import BlockCorrupt
from replicator.engine.log.block import ENTRY_IDS_MAX, BlockHeader, BlockKind, BlockView, Buffer, verify_block
from replicator.engine.log.commit.filling import filler_blocks
from replicator.engine.log.row_check import Finding, MissingBlocks, Run
from replicator.engine.log.segments.places import Place, parse_row, placed_value, read_placed
from replicator.engine.log.store import Store
from replicator.engine.log.store_check import BY_A_BACKUP, remedy_of, row_findings
from replicator.engine.log.store_tables import BLOCK_KEY, LOCAL_PREFIX, MARKER_RUN, TopicRecord, read_parts
from replicator.engine.log.stored_blocks import seek_block
from replicator.engine.log.trim import put_holes
from snapshots.position import BEFORE_ALL, Position

ROUNDS_MAX: Final = 1_000
"""Limit of rounds. Each round repairs what one check reports, and a check reports a limited number of rows."""

Ask = Callable[[str, str, int, Position, Callable[[Buffer], bool]], tuple[bytes | None, str]]
"""Asks other clusters for the block of a topic that has an origin, an incarnation and an origin position. The last
argument returns whether a given block is that block. Returns the block, or None and the reason."""


@dataclass(slots=True)
class RowRepairs:
    """Result of :func:`mend_rows`: number of ``blocks`` and of other ``rows`` that were put back.

    ``left`` names what is still gone or wrong, and ``lost`` the entries that were given up.
    """

    blocks: int = 0
    rows: int = 0
    left: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)


def mend_rows(
    store: Store, ask: Ask, *, all_answered: Callable[[], bool] = lambda: True, accept_loss: bool = False
) -> RowRepairs:
    """Repair the rows of a store as far as their content is known. No process may have the store open.

    ``all_answered`` returns whether all clusters that were asked have answered. With ``accept_loss``, entries that no
    cluster has are given up, and named in the result.
    """
    done = RowRepairs()
    records = {record.name: record for record in store.topics()}
    why: dict[str, str] = {}
    for _ in range(ROUNDS_MAX):
        findings = row_findings(store)
        rows = [finding.write for finding in findings if not isinstance(finding, MissingBlocks) and finding.write]
        with store.env.begin(write=True) as txn:
            for table, key, value in rows:
                txn.put(key, value, db=store.tables[table])
        done.rows += len(rows)
        put = 0
        orphans = _without_rows(store)
        for gap in (each for each in findings if isinstance(each, MissingBlocks) and str(each) not in why):
            filling = _GapRepair(store, records[gap.topic], gap, orphans, ask, all_answered, accept_loss)
            reason = filling.fill()
            put += filling.put + len(filling.lost)
            done.blocks += filling.put
            done.lost += filling.lost_runs_text()
            if reason:
                why[str(gap)] = reason
        if not rows and not put:
            done.left = [f"{each}; {_remedy(each, why.get(str(each)))}" for each in findings]
            break
    return done


def _remedy(finding: Finding, why: str | None) -> str:
    return remedy_of(finding) if why is None else f"{why}; {BY_A_BACKUP}"


class _GapRepair:
    """Fills one gap of a topic with blocks."""

    def __init__(
        self,
        store: Store,
        record: TopicRecord,
        gap: MissingBlocks,
        orphans: Mapping[bytes, Place],
        ask: Ask,
        all_answered: Callable[[], bool],
        accept_loss: bool,
    ) -> None:
        self.put = 0
        """Blocks that were put back."""
        self.lost: list[tuple[str, Position]] = []
        """Origin and origin position of each entry that was given up."""
        self._store = store
        self._record = record
        self._gap = gap
        self._ask = ask
        self._all_answered = all_answered
        self._accept_loss = accept_loss
        self._orphans = orphans
        self._extents = sorted(store.extents(record.topic_id), key=lambda extent: extent[3])
        """In the order of their positions here."""

    def fill(self) -> str:
        """Put back the blocks that are known. If some blocks are still missing, return the reason, otherwise an empty
        text."""
        counts = self._counts_at(self._gap.after)
        if counts is None:
            return "nobody counts what lay before it"
        for ledger, first, last in self._runs():
            at = Position(ledger, first)
            while at.entry <= last:
                row, header, why = self._row(at, last - at.entry + 1, counts)
                if row is None or header is None:
                    if not (self._accept_loss and self._all_answered()):
                        return f"{at}: {why}"
                    row, header = self._give_up(at, counts)
                else:
                    self.put += 1
                self._put(at, row, header)
                counts = counts[0] + header.entries, counts[1] + header.messages
                at = Position(ledger, at.entry + header.entries)
        return ""

    def lost_runs_text(self) -> list[str]:
        """Return, in words, each run of entries that were given up, with its topic, origin and positions."""
        runs: list[tuple[str, Position, Position]] = []
        for origin, at in self.lost:
            if runs and runs[-1][0] == origin and runs[-1][2] == Position(at.ledger, at.entry - 1):
                runs[-1] = origin, runs[-1][1], at
            else:
                runs.append((origin, at, at))
        return [
            f"topic {self._record.name}: {origin}'s {first} to {last}: nobody has them" for origin, first, last in runs
        ]

    def _give_up(self, at: Position, counts: tuple[int, int]) -> tuple[bytes, BlockHeader]:
        """Record the origin position of the entry at ``at`` as a hole. Return the row of a marker for ``at``, and the
        marker's header."""
        origin, _, there, _ = self._origin_of(at)
        with self._store.env.begin(write=True) as txn:
            hole = Position(there.ledger, there.entry - 1), there
            put_holes(txn, self._store.tables, self._record.topic_id, origin, [hole])
        self.lost.append((origin, there))
        block = self._filler(at, 1)
        return LOCAL_PREFIX.pack(*counts) + block, verify_block(block)

    def _runs(self) -> list[Run]:
        """Return the missing positions of the gap, in order."""
        gap, runs = self._gap, list(self._gap.known)
        for origin, _, upto in gap.lost:
            if origin == self._store.cluster:
                begin = gap.after.entry + 1 if gap.after.ledger == upto.ledger else 0
                runs.append((upto.ledger, begin, upto.entry))
        rest = 0 if gap.counts is None else gap.counts[0] - sum(last - first + 1 for _, first, last in runs)
        if rest > 0 and gap.after != BEFORE_ALL:
            # No row names these entries, so they were this cluster's messages, right behind the block before the gap.
            runs.insert(0, (gap.after.ledger, gap.after.entry + 1, gap.after.entry + rest))
        return sorted(runs)

    def _counts_at(self, after: Position) -> tuple[int, int] | None:
        """Return the entries and messages up to ``after``, or None if they are not known.

        ``after`` is the last position of a block, or the position up to which the log is trimmed.
        """
        trim = self._store.trim(self._record.topic_id)
        if after == BEFORE_ALL:
            return 0, 0
        if after == trim.through:
            return trim.counts
        with self._store.env.begin(db=self._store.tables["blocks"], buffers=True) as txn:
            cursor = txn.cursor()
            if not seek_block(cursor, self._record.topic_id, after):
                return None
            entries, messages = LOCAL_PREFIX.unpack_from(cursor.value())
            header = parse_row(cursor.value()).header
            return entries + header.entries, messages + header.messages

    def _row(
        self, at: Position, entries_max: int, counts: tuple[int, int]
    ) -> tuple[bytes | None, BlockHeader | None, str]:
        """Return the row that the block at ``at`` had, and its header. If they are not known, return None twice and the
        reason."""
        key = BLOCK_KEY.pack(self._record.topic_id, *at)
        prefix, place = LOCAL_PREFIX.pack(*counts), self._orphans.get(key)
        with self._store.env.begin() as txn:
            marks = txn.get(key, db=self._store.tables["markers"])
            in_part = any(
                each.local_first == at for each in read_parts(txn, self._store.tables["parts"], self._record.topic_id)
            )
        if place is not None:
            try:
                block = self._store.segments.read_unchecked(place)
                header = verify_block(block)
                return placed_value(prefix, place, memoryview(block), header.entries), header, ""
            except BlockCorrupt:
                pass  # other clusters may have the block
        if in_part:
            return None, None, "messages were left out of this block, so that no other cluster has it as it was"
        found, why = self._from_others(at, entries_max)
        own = self._origin_of(at)[0] == self._store.cluster
        if found is None and marks is not None and own and self._all_answered():
            entries = int(MARKER_RUN.unpack(marks)[0])
            found = self._filler(at, min(entries, entries_max))
        if found is None:
            return None, None, why
        return prefix + found, verify_block(found), ""

    def _filler(self, at: Position, entries: int) -> bytes:
        """Return a block of local markers that say nothing, for ``entries`` positions from ``at`` on."""
        _, block = next(filler_blocks(self._store.cluster, self._record.incarnation, at, entries, 0))
        return bytes(block)

    def _origin_of(self, at: Position) -> tuple[str, int, Position, int]:
        """Return the origin, incarnation and origin position of the entry at ``at``.

        The last value is the number of entries, from ``at`` on, whose origin positions follow one another.
        """
        place = bisect_right(self._extents, at, key=lambda extent: extent[3])
        if place:
            origin, incarnation, origin_first, local_first, entries = self._extents[place - 1]
            offset = at.entry - local_first.entry
            if at.ledger == local_first.ledger and offset < entries:
                there = Position(origin_first.ledger, origin_first.entry + offset)
                return origin, incarnation, there, entries - offset
        behind = self._extents[place][3] if place < len(self._extents) else None
        alike = behind.entry - at.entry if behind is not None and behind.ledger == at.ledger else ENTRY_IDS_MAX
        return self._store.cluster, self._record.incarnation, at, alike

    def _from_others(self, at: Position, entries_max: int) -> tuple[bytes | None, str]:
        origin, incarnation, there, alike = self._origin_of(at)
        found: list[bytes] = []

        def fits(block: Buffer) -> bool:
            header = verify_block(block)
            offset = there.entry - header.origin_first.entry
            same = (header.origin, header.incarnation) == (origin, incarnation) and not header.parts_bytes
            if not same or header.origin_first.ledger != there.ledger or not 0 <= offset < header.entries:
                return False
            end = min(header.entries, offset + min(entries_max, alike))
            whole = offset == 0 and end == header.entries
            found.append(bytes(block) if whole else BlockView(block, header).slice(offset, end))
            return True

        _, why = self._ask(self._record.name, origin, incarnation, there, fits)
        return (found[0], "") if found else (None, why)

    def _put(self, at: Position, row: bytes, header: BlockHeader) -> None:
        key, tables = BLOCK_KEY.pack(self._record.topic_id, *at), self._store.tables
        with self._store.env.begin(write=True) as txn:
            txn.put(key, row, db=tables["blocks"])
            if header.kind is not BlockKind.MESSAGES:
                txn.put(key, MARKER_RUN.pack(header.entries), db=tables["markers"])


def _without_rows(store: Store) -> dict[bytes, Place]:
    """Return the places of blocks that lie in segments but have no row in the table ``blocks``, by the key of that
    row."""
    with store.env.begin(buffers=True) as txn:
        blocks = store.tables["blocks"]
        return {
            key: place for place, key in read_placed(txn, store.tables["placed"]) if txn.get(key, db=blocks) is None
        }
