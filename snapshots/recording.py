"""Mappings of one topic, by peer, and the local snapshots that keep them in the log (DESIGN 4.2, step 4). Pure.

It serves invariant 5: a position is looked up only in mappings that an answer proved.

1. A mapping is used from the moment when it is made: it goes to the peer's table, and to the index.
2. The local snapshot that keeps it for a restart waits for the mappings of the other peers that answer, for one
   interval at most. So in a mesh of N clusters a round of answers has one local snapshot in each, and not N - 1. If a
   cluster stops before, these mappings are lost, and later ones take their place.
3. A local snapshot has the highest local position of its mappings. A mapping is as true at a higher local position:
   more is consumed here then, and no more is claimed there. It covers all messages only if each of its mappings did,
   and no message came since.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from snapshots.mapping import MappingTable, SnapshotMapping
from snapshots.markers import LocalSnapshot
from snapshots.position import Position


class MappingRecorder:
    """Snapshot mappings of one topic with all peers, and for each peer the newest that no local snapshot contains."""

    __slots__ = ("_covered", "_covers", "_due_ms", "_recorded_ms", "_tables", "_unwritten")

    def __init__(self) -> None:
        self._tables: dict[str, MappingTable] = {}
        self._recorded_ms: dict[str, int] = {}
        """For each peer, the time at which its last mapping was recorded."""
        self._unwritten: dict[str, SnapshotMapping] = {}
        """For each peer, its newest mapping that no local snapshot contains."""
        self._covered: frozenset[str] = frozenset()
        """Peers with a mapping that covers all messages of this cluster."""
        self._covers = True
        self._due_ms = 0

    def table(self, peer: str) -> MappingTable:
        """Return the mappings of ``peer``; an empty table if there are none."""
        return self._tables.get(peer) or MappingTable()

    def peers(self) -> list[str]:
        """Return the names of the peers that have mappings."""
        return list(self._tables)

    @property
    def due_ms(self) -> int | None:
        """Time at which the next local snapshot must be written; None if no mapping waits for one."""
        return self._due_ms if self._unwritten else None

    def restore(self, mappings: Iterable[SnapshotMapping]) -> None:
        """Load the mappings that were stored before a restart. Those of each peer come oldest first."""
        by_peer: dict[str, list[SnapshotMapping]] = {}
        for mapping in mappings:
            by_peer.setdefault(mapping.peer, []).append(mapping)
        for peer, its_mappings in by_peer.items():
            assert not self.table(peer), "restore comes first"
            self._tables[peer] = MappingTable.restored(its_mappings)

    def recall(self, snapshot: LocalSnapshot) -> None:
        """Add the mappings of ``snapshot``, a local snapshot that is in the log."""
        for peer, remote in snapshot.clusters.items():
            mapping = SnapshotMapping(snapshot.snapshot_id, snapshot.local, peer, remote)
            self._tables.setdefault(peer, MappingTable()).add(mapping)

    def trim(self, below: Position) -> None:
        """Forget mappings that no mark-delete position at or above ``below`` can use."""
        for table in self._tables.values():
            table.trim(below)

    def lookup(self, peer: str, mark_delete: Position) -> Position | None:
        """Return the position up to which ``peer`` may move its copy of a subscription.

        ``mark_delete`` is the subscription's mark-delete position in this cluster. Return None if no mapping proves a
        position.
        """
        table = self._tables.get(peer)
        mapping = None if table is None else table.lookup(mark_delete)
        return None if mapping is None else mapping.remote

    def has_beyond(self, position: Position) -> bool:
        """Return whether a mapping was recorded with a local position above ``position``."""
        return any(table.newest and table.newest.local > position for table in self._tables.values())

    def recorded_within(self, peer: str, interval_ms: int, now_ms: int) -> bool:
        """Return whether a mapping of ``peer`` was recorded less than ``interval_ms`` ago."""
        recorded_ms = self._recorded_ms.get(peer)
        return recorded_ms is not None and now_ms - recorded_ms < interval_ms

    def is_covered(self, peer: str) -> bool:
        """Return whether a mapping of ``peer`` covers all messages of this cluster."""
        return peer in self._covered

    def record(self, mapping: SnapshotMapping, now_ms: int, interval_ms: int, *, covers: bool) -> bool:
        """Record ``mapping``. Return False if it adds nothing to the earlier mappings of its peer.

        ``covers`` says whether the peer's answer included all messages that this cluster has.
        """
        peer = mapping.peer
        if covers:
            self._covered |= {peer}
        if not self._tables.setdefault(peer, MappingTable()).add(mapping):
            return False
        self._recorded_ms[peer] = now_ms
        if not self._unwritten:
            self._covers, self._due_ms = True, now_ms + interval_ms
        self._covers &= covers
        self._unwritten[peer] = mapping
        return True

    def on_messages(self) -> None:
        """Record that new messages came, so the mappings no longer cover all messages."""
        self._covered = frozenset()
        self._covers = False

    def snapshot(self, now_ms: int, answering: Collection[str]) -> LocalSnapshot | None:
        """Return a local snapshot with all mappings that no local snapshot has yet, or None if it should not be written
        now.

        It is written when it is due, or when every peer in ``answering`` has a mapping in it.
        """
        if not self._unwritten or (self._due_ms > now_ms and not self._unwritten.keys() >= set(answering)):
            return None
        unwritten, self._unwritten = self._unwritten, {}
        newest = max(unwritten.values(), key=lambda each: each.local)
        remotes = {peer: mapping.remote for peer, mapping in unwritten.items()}
        return LocalSnapshot(newest.snapshot_id, newest.local, remotes, self._covers)
