"""Stored state of a cursor. Its changes are noted, to be saved and to be announced to other clusters. Pure.

Invariants (DESIGN §3): 6, nothing leaves the state unless mark-delete passes it, or a new generation begins. A start
that moves back is an exception (DESIGN 4.7): then entries that nobody acknowledged become unconsumed. 5, a change is
noted as unannounced only if it is an acknowledgement that was made here, or one that other clusters may not know.

Each method makes one change and the notes that belong to it:

1. ``dirty`` names the chunks to save. Entries that mark-delete has passed need no note: the next save deletes them.
2. ``unannounced`` has the changes that other clusters do not know yet. It exists only while the subscription is
   replicated. The first change sets ``to_announce``, which is stored. So a worker that restarts knows that it has
   changes to announce.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from pyroaring import BitMap

from replicator.engine.subscriptions.batch_acks import BatchAcks, ChunkId, batch_chunk_of
from replicator.engine.subscriptions.unannounced import Unannounced
from snapshots.position import BEFORE_ALL, Position
from snapshots.position_set import PositionSet, chunk_of
from snapshots.starts import Starts

FIRST_GENERATION: Final = 1


@dataclass(slots=True)
class DirtyChunks:
    """The chunks of the state that have changed since they were saved.

    They are keys of dicts, because an empty set takes 216 bytes, and each subscription would have two.
    """

    deleted: dict[ChunkId, None] = field(default_factory=dict)
    batches: dict[ChunkId, None] = field(default_factory=dict)


@dataclass(slots=True)
class CursorState:
    """The state of one subscription in one topic. Only its own methods and those of
    :class:`~replicator.engine.subscriptions.cursor.Cursor` change it, so that the notes are complete."""

    mark_delete: Position = BEFORE_ALL
    """Position up to which everything is consumed."""
    generation: int = FIRST_GENERATION
    replicated: bool = False
    properties: Mapping[str, str] = field(default_factory=dict)
    individually_deleted: PositionSet = field(default_factory=PositionSet)
    """Entries beyond ``mark_delete`` that are consumed as a whole."""
    batch_acks: BatchAcks = field(default_factory=BatchAcks)
    """Acknowledged indexes of partly acknowledged batches."""
    dirty: DirtyChunks = field(default_factory=DirtyChunks, compare=False)
    read_compacted: bool = False
    """Whether the subscription reads the compacted view."""
    unannounced: Unannounced | None = field(default=None, compare=False)
    """Changes that are not announced to other clusters yet; None unless the subscription is replicated."""
    to_announce: bool = field(default=False, compare=False)
    """Whether other clusters may not know all changes. It is stored. A change sets it, and it is cleared some time
    after the change was announced."""

    unclaimed: Mapping[str, Position] | None = None
    """By origin, the position up to which entries count as consumed only because they were trimmed. Nobody consumed
    them in this generation, and other clusters may have them. None if there are none."""
    starts: Starts = field(default_factory=dict)
    """By origin, the start in this generation; nobody consumed the messages before it. A seek begins a generation that
    starts before the first message of each origin that it knows (:func:`~snapshots.starts.of_a_seek`). In a cursor that
    an earlier version stored it is empty. In both cases all up to ``mark_delete`` counts as consumed."""
    unheard: bool = field(default=False, compare=False)
    """Whether this cluster turned replication on, without knowing what other clusters had of the subscription. A
    deletion from before does not count then. It is false once a generation of another cluster was adopted."""
    made_here: bool = field(default=False, compare=False)
    """Whether this process made the subscription, without knowing what other clusters had of it, as in ``unheard``. It
    is not stored, so a cluster that was restored from a backup hears of deletions since."""
    rewound: Position | None = field(default=None, compare=False)
    """Last position that consumers may have passed when the start moved back. Entries up to it may be unconsumed,
    though consumers received later ones. None if there are none."""

    def __post_init__(self) -> None:
        if self.replicated and self.unannounced is None:
            self.unannounced = Unannounced(whole=self.to_announce)

    # Changes.

    def consume(self, position: Position) -> None:
        """Mark an entry after mark-delete as consumed as a whole."""
        if self.batch_acks and self.batch_acks.pop(position, None) is not None:
            self.dirty.batches[batch_chunk_of(position)] = None
        self.individually_deleted.add(position)
        self.dirty.deleted[chunk_of(position)] = None
        unannounced = self.unannounced
        if unannounced is not None:
            self.to_announce = True
            unannounced.note(position)

    def consume_next(self, position: Position) -> None:
        """Advance mark-delete to ``position``, the entry directly after it.

        No entry after mark-delete may be acknowledged, in whole or in part.
        """
        assert not self.individually_deleted
        assert not self.batch_acks
        self.mark_delete = position
        if self.unannounced is not None:
            self.to_announce = True
            self.unannounced.note(position)

    def consume_all(self, positions: PositionSet, *, announce: bool) -> None:
        """Mark entries after mark-delete as consumed as a whole. With ``announce``, note them as unannounced."""
        self._forget_batches(positions)
        self.individually_deleted.update(positions)
        self.dirty.deleted.update(dict.fromkeys(positions.chunk_ids()))
        if announce and (unannounced := self.note_unannounced()) is not None:
            unannounced.note_set(positions)

    def put_batch(self, position: Position, indexes: BitMap, *, announce: bool) -> None:
        """Set which messages of a partly acknowledged batch are acknowledged."""
        self.batch_acks[position] = indexes
        self.dirty.batches[batch_chunk_of(position)] = None
        if announce and (unannounced := self.note_unannounced()) is not None:
            unannounced.note_batch(position)

    def begin(self, generation: int, mark_delete: Position, *, announce: bool) -> None:
        """Begin a generation in which all up to ``mark_delete`` is consumed, and nothing else."""
        self.generation = generation
        self.unclaimed = self.rewound = None
        self.starts = {}
        self.mark_delete = mark_delete
        self.individually_deleted = PositionSet()
        self.batch_acks = BatchAcks()
        if self.unannounced is not None:
            self.unannounced = Unannounced(whole=announce)
            self.to_announce |= announce

    def uncover(self, positions: PositionSet, mark_delete: Position, passed: PositionSet) -> None:
        """Count the entries at ``positions`` as unconsumed, because the start moved back.

        ``mark_delete`` is the new mark-delete position. ``passed`` are the messages between the new and the old one.
        """
        highest = positions.last()
        assert highest is not None
        self.rewound = max(highest, self.mark_delete, self.rewound or BEFORE_ALL)
        if mark_delete < self.mark_delete:
            self.mark_delete = mark_delete
            self.individually_deleted.update(passed)
            self.dirty.deleted.update(dict.fromkeys(passed.chunk_ids()))
        self.individually_deleted.difference_update(positions)
        self.dirty.deleted.update(dict.fromkeys(positions.chunk_ids()))
        if self.unannounced is not None:
            self.unannounced.forget(positions)

    @property
    def may_outlive(self) -> bool:
        """Return whether a deletion that other clusters made before does not count."""
        return self.unheard or self.made_here

    def outlive(self, generation: int) -> None:
        """Keep the state although another cluster deleted the subscription in ``generation``.

        The subscription gets the next generation, and its whole state is announced again.
        """
        self.generation = generation + 1
        # Rows of an earlier generation are deleted with the next save, so all are written again.
        self.dirty.deleted.update(dict.fromkeys(self.individually_deleted.chunk_ids()))
        self.dirty.batches.update(dict.fromkeys(self.batch_acks.chunk_ids()))
        if self.unannounced is not None:
            self.unannounced = Unannounced(whole=True)  # a new note, as listeners may have been told of the old one
            self.to_announce = True

    def _forget_batches(self, whole: PositionSet) -> None:
        """Drop the acknowledged indexes of batches that are now consumed as a whole."""
        batch_acks = self.batch_acks
        if not batch_acks:
            return
        done: Iterable[Position] = (
            [position for position in whole if position in batch_acks]
            if len(whole) < len(batch_acks)
            else [position for position in batch_acks if position in whole]
        )
        for position in done:
            del batch_acks[position]
            self.dirty.batches[batch_chunk_of(position)] = None

    # Changes to announce to other clusters.

    def note_unannounced(self) -> Unannounced | None:
        """Return where to note a change, and set ``to_announce``. Return None if the subscription is not replicated."""
        if self.unannounced is not None:
            self.to_announce = True
        return self.unannounced

    def set_replicated(self, replicated: bool) -> None:
        """Begin to announce the state to other clusters, beginning with the whole state; or stop announcing it."""
        self.replicated = self.to_announce = self.unheard = replicated
        self.unannounced = Unannounced(whole=True) if replicated else None

    def note_all(self) -> None:
        """Note that the whole state is to be announced."""
        if (unannounced := self.note_unannounced()) is not None:
            unannounced.note_all()

    def note_heard(self) -> None:
        """Note that other clusters told something about messages that are not in this log, and that must be passed on.
        It is kept elsewhere."""
        if (unannounced := self.note_unannounced()) is not None:
            unannounced.heard = True

    def take_unannounced(self) -> Unannounced:
        """Return what changed since the last call. Return nothing if nothing changed, or if the subscription is not
        replicated.

        A batch that is consumed as a whole by now is among the positions, even if a part of it was announced before.
        """
        unannounced = self.unannounced
        if unannounced is None:
            return Unannounced()
        self.unannounced = Unannounced()  # also where nothing is left: listeners are told once of each
        for position in list(unannounced.batches):
            if position <= self.mark_delete or position in self.individually_deleted:
                unannounced.note(position)
        return unannounced

    def announce_later(self, positions: PositionSet) -> None:
        """Note the positions of a taken change again, because they could not be announced yet."""
        if positions and (unannounced := self.note_unannounced()) is not None:
            unannounced.note_set(positions)

    def note_announced(self) -> bool:
        """Note that the changes that were taken are announced durably. Return whether no change is left to announce."""
        if not self.unannounced:
            self.to_announce = False
        return not self.to_announce
