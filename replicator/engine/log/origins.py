"""Progress of each origin in one topic: the position up to which its messages are here, and what links left out.

Invariant (DESIGN §3): 2, messages of an origin come exactly once and in its order. So one position for each origin says
how far it is here. The writer owns the rows. This module is the event loop's view of the durable rows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from replicator.engine.log.block import BlockKind
from replicator.engine.log.commit.putting_back import put_back_between
from replicator.engine.log.extent_rows import extent_keys, lives, oldest_lives
from replicator.engine.log.left_out import Hole, LeftOutNote
from replicator.engine.log.log_index import LogIndex
from replicator.engine.log.parts import PartialBatches
from replicator.engine.log.store import Store
from replicator.engine.log.store_tables import HighWater
from replicator.engine.log.topic_reading import TopicReading
from replicator.engine.log.writer import AppendedBlock
from snapshots.position import BEFORE_ALL, Position
from snapshots.position_set import PositionSet

BETWEEN: Final = "between"
"""Stands for a life in the names of :meth:`Origins.earlier_lives`: messages put back between ledgers of the newest
life."""


class Origins:
    """The clusters whose messages are in one topic, this one among them."""

    __slots__ = (
        "_between",
        "_earlier",
        "_high_waters",
        "_ledger",
        "_left_out",
        "_log",
        "_message_vector",
        "_reading",
        "_store",
        "_topic_id",
        "ledgers_begun",
    )

    def __init__(self, topic_id: int, log: LogIndex, store: Store, reading: TopicReading) -> None:
        self._topic_id = topic_id
        self._log = log
        self._store = store
        self._reading = reading
        self._high_waters = dict(store.high_waters(topic_id))
        self._message_vector = store.message_vector(topic_id, self._high_waters)
        self._left_out: dict[str, tuple[Hole, ...]] = {}
        """For each origin, the cached ranges that links left out. A new hole drops them."""
        self._earlier: dict[str, Position] | None = None
        """See :meth:`earlier_lives`; None while it is not known."""
        self._between: list[Position] | None = None
        """Last position of each ledger that was put back between ledgers, as stored; None until it is read."""
        self._ledger = log.last.ledger
        self.ledgers_begun = 0
        """Counter that grows when a block begins another ledger, here or at its origin."""
        self._load_parts()

    def vector(self) -> dict[str, Position]:
        """Return, for each origin, the highest origin position that is here. Local markers do not count."""
        return {origin: high_water.position for origin, high_water in self._high_waters.items()}

    def message_vector(self) -> dict[str, Position]:
        """Return, for each origin, the position of its newest block of messages here. Markers do not count."""
        return dict(self._message_vector)

    def high_waters(self) -> Mapping[str, HighWater]:
        """Return the high-water mark of each origin, including this cluster."""
        return self._high_waters

    def high_water(self, origin: str) -> HighWater | None:
        return self._high_waters.get(origin)

    def earlier_lives(self) -> Mapping[str, Position]:
        """Return the last position of each earlier life that is here, by ``origin/incarnation``.

        Messages that a reclaim put back between ledgers of this cluster's newest life count as one more life, named
        ``origin/between``. No origin's name has a slash, so these names cannot be mistaken for origins.
        """
        if self._earlier is None:
            marks = self._high_waters
            self._earlier = {}
            oldest = oldest_lives(self._store, self._topic_id, marks)
            if any(incarnation < marks[origin].incarnation for origin, incarnation in oldest.items()):  # which is rare
                self._earlier = {
                    f"{origin}/{life.incarnation}": life.last
                    for origin, each in lives(self._store, self._topic_id).items()
                    for life in each
                    if origin in marks and life.incarnation < marks[origin].incarnation
                }
            if (own := marks.get(self._store.cluster)) is not None:
                self._earlier.update(self._put_back(own.incarnation))
        return self._earlier

    def _put_back(self, incarnation: int) -> dict[str, Position]:
        """Return the newest message of each earlier life of this cluster that a reclaim put back, by
        ``origin/incarnation``."""
        found: dict[str, Position] = {}
        for ledger, first, last in self._log.runs_between(BEFORE_ALL, Position(incarnation, 0)):
            end = Position(ledger, last)
            heads = self._store.block_heads(self._topic_id, Position(ledger, first - 1), end, blocks_max=1)
            newest = self._store.newest_message(self._topic_id, self._store.cluster, end)
            if heads and newest is not None:
                found[f"{self._store.cluster}/{heads[0].header.incarnation}"] = newest
        if ends := self._put_back_between():
            found[f"{self._store.cluster}/{BETWEEN}"] = ends[-1]
        return found

    def _put_back_between(self) -> list[Position]:
        """Return the last position of each ledger that a reclaim put back between ledgers of the newest life, in order.

        Ledgers that are trimmed are left out.
        """
        if self._between is None:
            self._between = put_back_between(self._store, self._topic_id)
        return [end for end in self._between if self._log.trimmed < end]

    def newest_of_earlier_lives(self, origins: Collection[str]) -> dict[str, list[Position]]:
        """Return, by origin, the newest message of each earlier life that is here, in order.

        The newest message of each ledger that was put back between ledgers of this cluster's newest life is one of
        them: others can lack it, too, and have later ones. One cluster can have what the next one lacks, so no ledger
        stands for another. Only ``origins`` are looked at. Those without an earlier life are left out.
        """
        cluster, first = self._store.cluster, self._log.first
        own = self._high_waters.get(cluster)
        has_own = own is not None and first is not None and first.ledger < own.incarnation  # put back by a reclaim
        between = self._put_back_between() if cluster in origins else []
        has_own |= bool(between)
        if not has_own and all(origin == cluster for origin in origins):
            return {}  # the usual case, and no question to the store
        places = [(cluster, end) for end in between]
        for name, last in self.earlier_lives().items():
            origin, _, life = name.rpartition("/")
            if origin in origins and life.isdecimal():
                places.append((origin, last))
        found: dict[str, list[Position]] = {}
        for origin, last in sorted(places, key=lambda each: each[1]):
            place = last if origin == cluster else self._store.floor(self._topic_id, origin, last)
            newest = None if place is None else self._store.newest_message(self._topic_id, origin, place)
            if newest is not None and newest not in (of_origin := found.setdefault(origin, [])):
                of_origin.append(newest)
        return {origin: positions for origin, positions in found.items() if positions}

    def lacks(self, origin: str, position: Position) -> bool:
        """Return whether ``position`` of ``origin`` was never in this log, and no recorded hole explains that."""
        is_hole = any(after < position <= upto for after, upto in self.left_out(origin))
        return not is_hole and not self.had(origin, position)

    def had(self, origin: str, position: Position) -> bool:
        """Return whether the entry of ``origin`` at ``position`` is here or was trimmed, in whatever life of the
        topic."""
        ends = self._store.trim(self._topic_id).ends.get(origin, ())
        if any(end.ledger == position.ledger and position <= end for end in ends):
            return True
        if origin == self._store.cluster:
            return position in self._log
        incarnations = [each for name, each in extent_keys(self._store, self._topic_id) if name == origin]
        return any(self._store.translate(self._topic_id, origin, each, position) is not None for each in incarnations)

    def left_out(self, origin: str) -> list[Hole]:
        """Return the ranges (after, upto] that links may have left out of an origin's messages.

        They reach up to its high-water mark here, in origin positions, in order and disjoint.
        """
        return list(self.holes(origin))

    def holes(self, origin: str) -> tuple[Hole, ...]:
        """Return the same as a tuple, which is one object until another hole comes."""
        holes = self._left_out.get(origin)
        if holes is None:
            holes = self._left_out[origin] = self._store.left_out(self._topic_id, origin)
        return holes

    def partly_left_out(self, origin: str) -> PositionSet:
        """Return the origin positions of batches that lack messages, because a link left them out."""
        found = None if self._log.parts is None else self._log.parts.origins.get(origin)
        return PositionSet() if found is None else found

    # What the topic tells.

    def committed(self, blocks: Sequence[AppendedBlock]) -> None:
        """Record that ``blocks`` are durable, and in the log."""
        for appended in blocks:
            header = appended.header
            origin, last = header.origin, header.origin_last
            if header.kind is BlockKind.MESSAGES:
                self._message_vector[origin] = last
            if appended.position.ledger != self._ledger:
                self._ledger = appended.position.ledger
                self.ledgers_begun += 1
            if header.kind is not BlockKind.LOCAL_MARKERS:
                before = self._high_waters.get(origin)
                if before is None or before.position.ledger != last.ledger:
                    self.ledgers_begun += 1
                    self._earlier = None
                incarnation = header.incarnation
                if before is not None and incarnation < before.incarnation:  # the block is of an earlier life
                    incarnation, self._earlier = before.incarnation, None
                self._high_waters[origin] = HighWater(incarnation, last)
            if appended.hole:
                self._left_out.pop(origin, None)
            if appended.partly:
                self._note_parts(origin, header.origin_first, appended.position, appended.partly)

    def passed_over(self, notes: Sequence[LeftOutNote]) -> None:
        """Record stored notes: a link left out everything it had not sent up to a position, or a later life was taken
        up."""
        for note in notes:
            self._left_out.pop(note.origin, None)
            self._earlier = None
            before = self._high_waters.get(note.origin) or HighWater(note.incarnation, note.upto)
            self._high_waters[note.origin] = HighWater(  # blocks may have followed the note in the same commit
                max(before.incarnation, note.incarnation), max(before.position, note.upto)
            )

    def trimmed(self) -> None:
        """Record that the log was trimmed. Trimmed batches that lack messages count as holes now."""
        self._earlier = None
        if self._log.parts is not None:
            self._left_out.clear()
            self._load_parts()

    def _load_parts(self) -> None:
        self._log.parts = None
        for row in self._store.parts(self._topic_id):
            self._note_parts(row.origin, row.origin_first, row.local_first, row.entries)

    def _note_parts(self, origin: str, origin_first: Position, local_first: Position, entries: Sequence[int]) -> None:
        parts = self._log.parts
        if parts is None:
            parts = self._log.parts = PartialBatches(self._reading.absent, self._reading.batch_size)
        for entry in entries:
            parts.add(
                Position(local_first.ledger, local_first.entry + entry),
                origin,
                Position(origin_first.ledger, origin_first.entry + entry),
            )
