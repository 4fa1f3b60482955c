"""Duplicates in one subscription: the entries of one message are acknowledged as one. Pure.

Invariants (DESIGN §3): 5, this rule consumes an entry only together with its duplicate, which is the same message; 6,
it never makes an entry unconsumed, so merging stays commutative, associative and idempotent.

1. Consumers receive only the first entry of a message (:attr:`DuplicateEntries.hidden`).
2. When one entry is consumed, for whatever reason, all others are. Those at or below the mark-delete position are
   consumed anyway; the rest become individually deleted.
3. Acknowledged messages of a batch count as acknowledged in all its entries.
4. Entries that this rule consumes are announced to other clusters, even if another cluster acknowledged the first
   entry: other clusters may not know that the entries are one message.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from pyroaring import BitMap

from replicator.engine.log.duplicates import DuplicateEntries
from replicator.engine.log.log_index import LogIndex
from replicator.engine.subscriptions.batch_acks import BatchAcks
from replicator.engine.subscriptions.cursor_state import CursorState
from snapshots.position import BEFORE_ALL, Position


class DuplicateTracking:
    """Part of a cursor that follows duplicates; :class:`~replicator.engine.subscriptions.cursor.Cursor` is all of
    it."""

    __slots__ = ("_followed", "_log", "_state")

    def __init__(self, log: LogIndex, state: CursorState) -> None:
        self._log = log
        self._state = state
        self._followed: dict[Position, None] = {}

    def is_consumed(self, position: Position) -> bool:
        """Return whether the entry is consumed as a whole."""
        raise NotImplementedError

    def advance(self) -> bool:
        """Move the mark-delete position as far as possible."""
        raise NotImplementedError

    def join_duplicates(self, pairs: Sequence[tuple[Position, Position]]) -> bool:
        """Record that messages of the log came again as other entries. Return whether any of the messages is consumed.

        Each pair has the positions of the earlier and of the later entry.
        """
        joined = False
        for earlier, _ in pairs:
            if self.is_consumed(earlier):
                joined |= self._follow_duplicates((earlier,))
            elif earlier in self._state.batch_acks:
                self._share_batch(earlier, None)
        if joined:
            self.advance()
        assert all(not self.is_consumed(earlier) or self.is_consumed(later) for earlier, later in pairs)
        return joined

    @property
    def followed(self) -> Collection[Position]:
        """Entries that changed since :meth:`take_followed` only because one of their duplicates changed."""
        return self._followed.keys()

    def take_followed(self) -> dict[Position, None]:
        """Return the entries that became consumed since the last call only because another entry of their message
        did."""
        followed, self._followed = self._followed, {}
        return followed

    def _follow_duplicates(self, consumed: Iterable[Position]) -> bool:
        """Mark all other entries of the messages at ``consumed`` as consumed. Return whether there were any."""
        if self._log.duplicates is None:
            return False
        found = consume_others(self._log.duplicates, self._state, consumed, self.is_consumed)
        self._followed.update(found)
        return bool(found)

    def _share_batch(self, position: Position, batch_size: int | None) -> None:
        """Copy the partial acknowledgement of a batch to all other entries that contain the batch."""
        if self._log.duplicates is not None:
            self._followed.update(
                share_batch(self._log.duplicates, self._state, position, batch_size, self.is_consumed)
            )

    def _follow_all_duplicates(self) -> None:
        """Apply the rules for duplicates to the whole state, after it was loaded or moved."""
        duplicates, state = self._log.duplicates, self._state
        if duplicates is None:
            return
        self._follow_duplicates(duplicates.between(BEFORE_ALL, state.mark_delete))
        self._follow_duplicates(duplicates.among(state.individually_deleted))
        for position in [each for each in duplicates.members if each in state.batch_acks]:
            self._share_batch(position, None)


def consume_others(
    links: DuplicateEntries, state: CursorState, consumed: Iterable[Position], is_consumed: Callable[[Position], bool]
) -> dict[Position, None]:
    """Mark all other entries of the messages at ``consumed`` as consumed. Return the entries that became consumed by
    that."""
    found = _to_consume(links, consumed, is_consumed)
    for position in found:
        state.consume(position)
    return found


def share_batch(
    links: DuplicateEntries,
    state: CursorState,
    position: Position,
    batch_size: int | None,
    is_consumed: Callable[[Position], bool],
) -> dict[Position, None]:
    """Copy the acknowledged indexes of the batch at ``position`` to all other entries of the batch.

    Return the entries that changed. With a ``batch_size``, the entries become consumed if their acknowledged indexes
    together are complete, such as when a part was acknowledged in one entry and the rest in another.
    """
    if position not in links.members:
        return {}
    union, lacking = _shared_indexes(links, state.batch_acks, position)
    if batch_size is not None and len(union) >= batch_size:
        found = consume_others(links, state, (position,), is_consumed)
        return found | consume_others(links, state, (next(links.others(position)),), is_consumed)
    changed: dict[Position, None] = {}
    for entry in lacking:
        if not is_consumed(entry):
            state.put_batch(entry, union, announce=True)
            changed[entry] = None
    return changed


def _to_consume(
    links: DuplicateEntries, consumed: Iterable[Position], is_consumed: Callable[[Position], bool]
) -> dict[Position, None]:
    """Return the entries that become consumed because other entries of their messages are."""
    found: dict[Position, None] = {}
    for position in consumed:
        for other in links.others(position):
            if not is_consumed(other):
                found[other] = None
    return found


def _shared_indexes(
    links: DuplicateEntries, batch_acks: BatchAcks, position: Position
) -> tuple[BitMap, list[Position]]:
    """Return all indexes that are acknowledged in any entry of the batch at ``position``, and the entries that lack
    some."""
    entries = [position, *links.others(position)]
    acked = [batch_acks.get(entry) or BitMap() for entry in entries]
    union = BitMap.union(*acked)
    return union, [entry for entry, indexes in zip(entries, acked, strict=True) if indexes != union]
