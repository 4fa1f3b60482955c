"""Reader of the markers in one topic's log. A restarted worker reads them to learn again what it knew."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import structlog

from replicator.engine.errors import BlockCorrupt, EngineError
from replicator.engine.log.block import BlockKind, BlockView
from replicator.engine.log.entry import decode_entry
from replicator.engine.log.requests import AppendedBlock
from replicator.engine.log.stored_blocks import StoredBlock
from replicator.engine.topic import Topic
from replicator.engine.types import END_LEDGER
from replicator.running.pacing import Pace
from snapshots.errors import MarkerCorrupt
from snapshots.mapping import SnapshotMapping
from snapshots.markers import LocalSnapshot, Marker, SubscriptionsUpdate, decode_marker
from snapshots.position import BEFORE_ALL, Position
from snapshots.position_set import PositionSet

RESTORE_MARKERS_MAX: Final = 100_000
"""Most markers that are read back from the log. They take seconds, and cover hours of a busy topic."""
OWN_MARKERS_MAX: Final = 2_000
"""Most markers that are read again to see what this cluster wrote. They take a tenth of a second in one turn."""
PIECE_MARKERS: Final = 200
"""Markers that are read back at once, which takes some milliseconds."""
PAGE_BYTES: Final = 1 << 20
SMALL_PAGE_BYTES: Final = 1 << 14
"""Size of a page that is read while clients are served: some hundred blocks of one marker each."""
RUN_BYTES: Final = 1 << 26

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Counters:
    """Counters of failures, for all topics of a worker."""

    updates_ignored: int = 0
    markers_corrupt: int = 0
    answers_unprovable: int = 0


class Recalled(NamedTuple):
    """Facts that a start needs, read back from the markers at the end of a topic's log."""

    mappings: list[SnapshotMapping]
    """Mappings of the log's local snapshots, oldest first."""
    unannounced: set[str]
    """Names with a tombstone for which no marker announces the deletion."""
    markers: int
    """Number of markers that were read."""


class MarkerLog:
    """Reads the markers of ``topic``. Unreadable markers, and damaged blocks of them, are counted and passed over: a
    worker starts although it has some."""

    def __init__(self, topic: Topic, counted: Counters) -> None:
        self._topic = topic
        self._counted = counted

    def markers(self, stored: StoredBlock, sought: Collection[bytes] = ()) -> Iterator[tuple[Position, Marker]]:
        """Yield the markers of a block that this cluster can read, each with its position.

        With ``sought``, pass over entries that hold none of these bytes, without decoding them.
        """
        view = BlockView(stored.block, stored.header)
        for index, entry in enumerate(view.entries()):
            if sought and not _holds_any(bytes(entry), sought):
                continue
            position = Position(stored.position.ledger, stored.position.entry + index)
            try:
                metadata, payload = decode_entry(entry, check=False)
                marker = decode_marker(metadata.marker_type, payload)
            except (EngineError, MarkerCorrupt) as error:
                self._counted.markers_corrupt += 1
                log.warning("marker cannot be read", topic=self._topic.name, position=str(position), reason=str(error))
                continue
            if marker is not None:
                yield position, marker

    def appended(self, block: AppendedBlock) -> list[StoredBlock]:
        """Return a block of markers that was just committed: from memory, or from the store if it is large."""
        if block.block is None:
            return self.blocks(block.position, block.last)
        return [StoredBlock(block.position, block.header, block.block)]

    def blocks(self, first: Position, last: Position) -> list[StoredBlock]:
        """Return the blocks of a run of markers."""
        before = Position(first.ledger, first.entry - 1)
        try:
            return self._topic.reading.blocks(before, last, bytes_max=RUN_BYTES, from_memory=True)[0]
        except BlockCorrupt:
            return [stored for page in self.pages(before, last) for stored in page]

    def pages(self, after: Position, upto: Position) -> Iterator[list[StoredBlock]]:
        """Yield the blocks in (``after``, ``upto``], in pages."""
        for blocks, _ in self._topic.reading.pages(after, upto, bytes_max=PAGE_BYTES, damaged=self._cannot_be_read):
            yield blocks

    def _cannot_be_read(self, position: Position, error: BlockCorrupt) -> None:
        self._counted.markers_corrupt += 1
        log.warning("markers cannot be read", topic=self._topic.name, position=str(position), reason=str(error))

    def newest_first(self, markers_max: int = RESTORE_MARKERS_MAX) -> Iterator[StoredBlock]:
        """Yield the blocks of markers from the end of the log back, with about ``markers_max`` markers."""
        left, lowest = markers_max, Position(END_LEDGER, 0)
        for first, last in self._pieces_back():
            for stored in reversed(self.blocks(first, last)):
                if left <= 0:
                    return
                if stored.position < lowest:  # else it lies in the piece before, too
                    lowest = stored.position
                    left -= stored.header.entries
                    yield stored

    def _pieces_back(self) -> Iterator[tuple[Position, Position]]:
        """Yield the first and last position of each run of markers, from the end of the log back. Long runs come in
        pieces."""
        for ledger, entries in reversed(list(self._topic.log.markers.by_ledger())):
            for end in range(len(entries), 0, -PIECE_MARKERS):
                piece = PositionSet()
                piece.add_entries(ledger, entries[max(0, end - PIECE_MARKERS) : end])
                yield from reversed(list(piece.runs()))

    def before_newest(self, markers_max: int | None = None) -> Position:
        """Return the position before the newest ``markers_max`` markers, by default :data:`RESTORE_MARKERS_MAX`."""
        left = markers_max or RESTORE_MARKERS_MAX
        for ledger, entries in reversed(list(self._topic.log.markers.by_ledger())):
            if len(entries) >= left:
                return Position(ledger, entries[len(entries) - left] - 1)
            left -= len(entries)
        return BEFORE_ALL

    def next_run(self, after: Position, upto: Position) -> tuple[Position, Position] | None:
        """Return the first and last position of the next run of markers in (``after``, ``upto``]; None if there is
        none."""
        markers = self._topic.log.markers
        first = markers.next_after(after)
        if first is None or first > upto:
            return None
        return first, min(markers.run_end(first), upto)

    def page(self, first: Position, last: Position) -> tuple[list[StoredBlock], Position]:
        """Return as many blocks of a run of markers as are read in about a millisecond, and the last position in them.
        If the first block is damaged, return no blocks, and the last position in that block."""
        pages = self._topic.reading.pages(
            Position(first.ledger, first.entry - 1),
            last,
            bytes_max=SMALL_PAGE_BYTES,
            from_memory=True,
            damaged=self._cannot_be_read,
        )
        return next(pages, ([], last))  # nothing is left of a topic that is being deleted

    def last_message(self) -> Position:
        """Return the position before the markers at the end of the log. It lies at or above the last message."""
        shape = self._topic.log
        position = shape.last
        for first, last in self._pieces_back():
            if last != position:
                break
            position = shape.clamp(Position(first.ledger, first.entry - 1))
        return position

    async def recall(
        self, peers: Collection[str], relays: Callable[[str], bool], markers_max: int, pace: Pace
    ) -> Recalled:
        """Read back what a start needs to know, at most about ``markers_max`` markers.

        Mappings are complete once each of ``peers`` has one at or below the mark-delete position of every replicated
        subscription. A deletion that a marker of another cluster announces does not count if this cluster ``relays``
        the announcements of that cluster.
        """
        topic = self._topic
        floor = min(
            (each.cursor.mark_delete for each in topic.subscriptions.values() if each.replicated),
            default=topic.log.last,
        )
        found, read = list[SnapshotMapping](), 0
        missing, unsettled, none_yet = dict(topic.subscriptions.tombstones), set(peers), True
        for stored in self.newest_first(markers_max):
            await pace.step()
            read += stored.header.entries
            kind, origin = stored.header.kind, stored.header.origin
            if kind is BlockKind.LOCAL_MARKERS and (unsettled or none_yet):
                for mapping in self._mappings_back(stored):
                    found.append(mapping)
                    if mapping.local <= floor:
                        none_yet = False
                        unsettled.discard(mapping.peer)
            elif kind is BlockKind.MARKERS and missing and (origin == topic.cluster or not relays(origin)):
                for name, generation in self._deletions(stored):
                    if missing.get(name) == generation:
                        del missing[name]
            if not (unsettled or none_yet or missing):
                break
        return Recalled(found[::-1], set(missing), read)

    def _mappings_back(self, stored: StoredBlock) -> Iterator[SnapshotMapping]:
        """Yield the mappings of the local snapshots in a block, newest first."""
        for _, marker in reversed(list(self.markers(stored))):
            if isinstance(marker, LocalSnapshot):
                for peer, remote in marker.clusters.items():
                    yield SnapshotMapping(marker.snapshot_id, marker.local, peer, remote)

    def _deletions(self, stored: StoredBlock) -> Iterator[tuple[str, int]]:
        """Yield the name and generation of each deletion that a block announces."""
        for _, marker in self.markers(stored):
            for update in marker.updates if isinstance(marker, SubscriptionsUpdate) else ():
                if update.deleted:
                    yield update.subscription, update.generation


def _holds_any(entry: bytes, sought: Collection[bytes]) -> bool:
    return any(each in entry for each in sought)
