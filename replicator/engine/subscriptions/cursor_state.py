"""What is stored of a cursor, and how it changes: each change is noted, to be saved and to be told to others. Pure.

Invariants (DESIGN §3): 6, nothing is ever taken out of the state but by mark-delete passing it, or by a new generation.
A start that moves back (DESIGN 4.7) takes out what nobody acknowledged;
5, only what was consumed here, or what others may not know, is noted as unannounced.

The methods change one thing and make the notes that belong to it:

1. ``dirty`` names the chunks to save. What mark-delete has passed needs no note: it is deleted with the next save.
2. ``unannounced`` has what other clusters were not told of; it exists only while the subscription is replicated. With
   the first note ``to_announce`` is set, which is stored, so that a worker that starts again knows that it has to
   announce.
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
    """Which chunks of the state have changed since they were saved.

    Keys of dicts, as a set that is empty takes 216 bytes, and there are two for each subscription.
    """

    deleted: dict[ChunkId, None] = field(default_factory=dict)
    batches: dict[ChunkId, None] = field(default_factory=dict)


@dataclass(slots=True)
class CursorState:
    """The state of one subscription in one topic. Only its own methods and those of
    :class:`~replicator.engine.subscriptions.cursor.Cursor` change it, so that the notes are complete."""

    mark_delete: Position = BEFORE_ALL
    """All up to here is consumed."""
    generation: int = FIRST_GENERATION
    replicated: bool = False
    properties: Mapping[str, str] = field(default_factory=dict)
    individually_deleted: PositionSet = field(default_factory=PositionSet)
    """Entries beyond ``mark_delete`` that are consumed as a whole."""
    batch_acks: BatchAcks = field(default_factory=BatchAcks)
    """The acknowledged indexes of batches in which some messages are acknowledged."""
    dirty: DirtyChunks = field(default_factory=DirtyChunks, compare=False)
    read_compacted: bool = False
    """Whether the subscription reads the compacted view."""
    unannounced: Unannounced | None = field(default=None, compare=False)
    """What changed here and others were not told of; None unless the subscription is replicated."""
    to_announce: bool = field(default=False, compare=False)
    """Stored: others may not know all of this. Set with a change, and cleared some time after they were told."""

    unclaimed: Mapping[str, Position] | None = None
    """By origin, up to where this generation begins here only because older messages are trimmed: nobody consumed them
    in it, and others may have them. None if there are none."""
    starts: Starts = field(default_factory=dict)
    """By origin, where this generation begins; nobody consumed what lies before. A generation that a seek began, and a
    cursor that an earlier version stored, have none: all up to ``mark_delete`` counts as consumed."""
    rewound: Position | None = field(default=None, compare=False)
    """Up to here entries may be unconsumed because the start moved back, though consumers got later ones."""

    def __post_init__(self) -> None:
        if self.replicated and self.unannounced is None:
            self.unannounced = Unannounced(whole=self.to_announce)

    # Changes.

    def consume(self, position: Position) -> None:
        """The entry beyond mark-delete is consumed as a whole."""
        if self.batch_acks.pop(position, None) is not None:
            self.dirty.batches[batch_chunk_of(position)] = None
        self.individually_deleted.add(position)
        self.dirty.deleted[chunk_of(position)] = None
        unannounced = self.unannounced
        if unannounced is not None:
            self.to_announce = True
            unannounced.note(position)

    def consume_all(self, positions: PositionSet, *, announce: bool) -> None:
        """The entries beyond mark-delete are consumed as a whole; with ``announce`` they are noted as unannounced."""
        self._forget_batches(positions)
        self.individually_deleted.update(positions)
        self.dirty.deleted.update(dict.fromkeys(positions.chunk_ids()))
        if announce and (unannounced := self.note_unannounced()) is not None:
            unannounced.note_set(positions)

    def put_batch(self, position: Position, indexes: BitMap, *, announce: bool) -> None:
        """These messages of the batch are acknowledged, others are not."""
        self.batch_acks[position] = indexes
        self.dirty.batches[batch_chunk_of(position)] = None
        if announce and (unannounced := self.note_unannounced()) is not None:
            unannounced.note_batch(position)

    def begin(self, generation: int, mark_delete: Position, *, announce: bool) -> None:
        """Start a generation in which all up to ``mark_delete`` is consumed, and nothing else."""
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
        """Count ``positions`` as not consumed, as the start is earlier now. ``passed`` are the entries between the new
        ``mark_delete`` and the one that was."""
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

    def outlive(self, generation: int) -> None:
        """Go on as it is after a deletion of that generation: everything is told anew, in the generation after it."""
        self.generation = generation + 1
        # Rows of an earlier generation are deleted with the next save, so all are written again.
        self.dirty.deleted.update(dict.fromkeys(self.individually_deleted.chunk_ids()))
        self.dirty.batches.update(dict.fromkeys(self.batch_acks.chunk_ids()))
        self.note_all()

    def _forget_batches(self, whole: PositionSet) -> None:
        """These entries are consumed as a whole: which of their messages were is of no interest any more."""
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

    # What others are to be told.

    def note_unannounced(self) -> Unannounced | None:
        """Where to note a change; None if nobody is to be told."""
        if self.unannounced is not None:
            self.to_announce = True
        return self.unannounced

    def set_replicated(self, replicated: bool) -> None:
        """Tell others from now on, beginning with the whole state; or not any more."""
        self.replicated = self.to_announce = replicated
        self.unannounced = Unannounced(whole=True) if replicated else None

    def note_all(self) -> None:
        """The whole state is to be told."""
        if (unannounced := self.note_unannounced()) is not None:
            unannounced.note_all()

    def note_heard(self) -> None:
        """Others said something that is to be told on, of messages that are not in this log. It is kept elsewhere."""
        if (unannounced := self.note_unannounced()) is not None:
            unannounced.heard = True

    def take_unannounced(self) -> Unannounced:
        """What changed here since the last call; empty if nothing has, or if nobody is to be told.

        A batch that is consumed as a whole by now, also by what others said, is among the positions.
        """
        unannounced = self.unannounced
        if not unannounced:
            return Unannounced()
        self.unannounced = Unannounced()
        for position in list(unannounced.batches):
            if position <= self.mark_delete or position in self.individually_deleted:
                unannounced.note(position)
        return unannounced

    def announce_later(self, positions: PositionSet) -> None:
        """These of what was taken could not be told yet."""
        if positions and (unannounced := self.note_unannounced()) is not None:
            unannounced.note_set(positions)

    def note_announced(self) -> bool:
        """What was taken is known to be told for good. Returns whether nothing is left to tell."""
        if not self.unannounced:
            self.to_announce = False
        return not self.to_announce
