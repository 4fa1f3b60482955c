"""Mending rows of a worker's store that are gone: by what the blocks say, from segments, and from other clusters.

Invariant (DESIGN §3): 2, a block is the same bytes in every cluster. A block whose row is gone is taken from another
cluster only if it is the one that lay there: its identity is that of the position, and it fits between its neighbours.

1. Rows that blocks tell are made again from them: markers, extents, parts, places in segments, marks, counters.
2. For each gap of a topic's blocks the missing positions are gone through in order. A block that lies in a segment
   comes back from there. The identity of another one is known: the extents have it, or it is this cluster's own, whose
   origin position is its position. Other clusters are asked for it.
3. Markers of this cluster that no other cluster has were its own book-keeping. Local markers that say nothing take
   their place.
4. What nobody has ends the mending of its gap, and stays named by the check. Where an operator accepts the loss, and
   all other clusters have answered, local markers take the place of such an entry, and its origin position becomes a
   hole: no cluster claims to have it (invariant 5), subscriptions pass over it, and the rest of the gap is mended.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import lmdb

from replicator.engine.errors import BlockCorrupt
from replicator.engine.log.block import BlockHeader, BlockKind, BlockView, Buffer, build_block, verify_block
from replicator.engine.log.commit.reclaiming import FILLER_MARKER
from replicator.engine.log.entry import encode_entry
from replicator.engine.log.row_check import Finding, MissingBlocks, Run
from replicator.engine.log.segments.places import Place, parse_row, placed_value, read_placed
from replicator.engine.log.store import Store
from replicator.engine.log.store_check import BY_A_BACKUP, remedy_of, row_findings
from replicator.engine.log.store_tables import BLOCK_KEY, LOCAL_PREFIX, MARKER_RUN, TopicRecord, read_parts
from replicator.engine.log.stored_blocks import seek_block
from replicator.engine.log.trim import put_holes
from replicator.metadata.metadata_pb2 import MessageMetadata
from snapshots.position import BEFORE_ALL, Position

ROUNDS_MAX: Final = 1_000
"""A round mends what a check names at once; a check names a bounded number of rows."""

Ask = Callable[[str, str, int, Position, Callable[[Buffer], bool]], tuple[bytes | None, str]]
"""Asks other clusters for the block of a topic with an origin, an incarnation and an origin position. The last argument
tells whether a block is the one. Returns the block, or why there is none."""


@dataclass(slots=True)
class MendedRows:
    """``blocks`` and other ``rows`` were put back; ``left`` names what is still gone or wrong, ``lost`` what was given
    up."""

    blocks: int = 0
    rows: int = 0
    left: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)


def mend_rows(
    store: Store, ask: Ask, *, all_answered: Callable[[], bool] = lambda: True, accept_loss: bool = False
) -> MendedRows:
    """Mend the rows of a store that nobody has open, as far as they are known.

    ``all_answered`` tells whether each cluster that was asked has answered so far. With ``accept_loss`` entries that
    nobody has are given up, and named.
    """
    done = MendedRows()
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
        for gap in (each for each in findings if isinstance(each, MissingBlocks) and str(each) not in why):
            filling = _Filling(store, records[gap.topic], gap, ask, all_answered, accept_loss)
            reason = filling.fill()
            put += filling.put + len(filling.lost)
            done.blocks += filling.put
            done.lost += filling.lost_in_words()
            if reason:
                why[str(gap)] = reason
        if not rows and not put:
            done.left = [f"{each}; {_remedy(each, why.get(str(each)))}" for each in findings]
            break
    return done


def _remedy(finding: Finding, why: str | None) -> str:
    return remedy_of(finding) if why is None else f"{why}; {BY_A_BACKUP}"


class _Filling:
    """Puts back the blocks of one gap."""

    def __init__(
        self,
        store: Store,
        record: TopicRecord,
        gap: MissingBlocks,
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
        self._extents = list(store.extents(record.topic_id))

    def fill(self) -> str:
        """Put back what is known. Return why not all is, if some is still missing."""
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

    def lost_in_words(self) -> list[str]:
        """Return for each run of entries that were given up its topic, origin and positions."""
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
        """Return the row of a marker that takes the place of an entry, whose origin position becomes a hole."""
        origin, _, there, _ = self._origin_of(at)
        with self._store.env.begin(write=True) as txn:
            hole = Position(there.ledger, there.entry - 1), there
            put_holes(txn, self._store.tables, self._record.topic_id, origin, [hole])
        self.lost.append((origin, there))
        block = _fillers(self._store.cluster, self._record.incarnation, at, 1)
        return LOCAL_PREFIX.pack(*counts) + block, verify_block(block)

    def _runs(self) -> list[Run]:
        """Return the positions that are missing, in order."""
        gap, runs = self._gap, list(self._gap.known)
        for origin, _, upto in gap.lost:
            if origin == self._store.cluster:
                begin = gap.after.entry + 1 if gap.after.ledger == upto.ledger else 0
                runs.append((upto.ledger, begin, upto.entry))
        rest = 0 if gap.counts is None else gap.counts[0] - sum(last - first + 1 for _, first, last in runs)
        if rest > 0 and gap.after != BEFORE_ALL:
            # No row names them, so they were messages of this cluster. They followed the block before them.
            runs.insert(0, (gap.after.ledger, gap.after.entry + 1, gap.after.entry + rest))
        return sorted(runs)

    def _counts_at(self, after: Position) -> tuple[int, int] | None:
        """Return the entries and messages up to ``after``, which ends a block or is where the log was trimmed."""
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
        """Return the row of the block at ``at`` as it was, its header, and why it is not known, if it is not."""
        key = BLOCK_KEY.pack(self._record.topic_id, *at)
        prefix = LOCAL_PREFIX.pack(*counts)
        with self._store.env.begin() as txn:
            place = _place_of(txn, self._store, key)
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
                pass  # others may have it
        if in_part:
            return None, None, "messages were left out of this block, so that no other cluster has it as it was"
        found, why = self._from_others(at, entries_max)
        own = self._origin_of(at)[0] == self._store.cluster
        if found is None and marks is not None and own and self._all_answered():
            entries = int(MARKER_RUN.unpack(marks)[0])
            found = _fillers(self._store.cluster, self._record.incarnation, at, min(entries, entries_max))
        if found is None:
            return None, None, why
        return prefix + found, verify_block(found), ""

    def _origin_of(self, at: Position) -> tuple[str, int, Position, int]:
        """Return origin, incarnation and origin position of the entry at ``at``, and how many entries follow alike."""
        for origin, incarnation, origin_first, local_first, entries in self._extents:
            offset = at.entry - local_first.entry
            if at.ledger == local_first.ledger and 0 <= offset < entries:
                there = Position(origin_first.ledger, origin_first.entry + offset)
                return origin, incarnation, there, entries - offset
        behind = [first.entry for _, _, _, first, _ in self._extents if first.ledger == at.ledger and first > at]
        return self._store.cluster, self._record.incarnation, at, min(behind, default=1 << 32) - at.entry

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


def _place_of(txn: lmdb.Transaction, store: Store, key: bytes) -> Place | None:
    return next((place for place, of in read_placed(txn, store.tables["placed"]) if of == key), None)


def _fillers(cluster: str, incarnation: int, first: Position, entries: int) -> bytes:
    metadata = MessageMetadata(producer_name="replicator", sequence_id=0, publish_time=0, marker_type=FILLER_MARKER)
    return build_block(
        kind=BlockKind.LOCAL_MARKERS,
        origin=cluster,
        incarnation=incarnation,
        origin_first=first,
        publish_time_ms=0,
        entries=[encode_entry(metadata, b"")] * entries,
        batch_sizes=[0] * entries,
    )
