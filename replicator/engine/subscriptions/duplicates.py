"""Duplicates in one subscription: the entries of one message are acknowledged as one. Pure.

Invariants (DESIGN §3): 5, an entry is consumed with its duplicate only: they are the same message; 6, consuming more
never takes anything back, so merging stays commutative, associative and idempotent.

1. Only the first entry of a message is delivered (:attr:`DuplicateEntries.hidden`), to whoever comes whenever.
2. When one entry is consumed, however that came about, all others are: those that lie at or below the mark-delete
   position are anyway, the rest become individually deleted.
3. When messages of a batch are acknowledged, they are so in all its entries.
4. What is consumed by that is told to other clusters, whoever said that the first one is: the rule is this cluster's,
   and others may not know that the two are one message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pyroaring import BitMap

from replicator.engine.log.duplicates import DuplicateEntries
from replicator.engine.subscriptions.batch_acks import BatchAcks
from replicator.engine.subscriptions.cursor_state import CursorState
from snapshots.position import Position


def consume_others(
    links: DuplicateEntries, state: CursorState, consumed: Iterable[Position], is_consumed: Callable[[Position], bool]
) -> dict[Position, None]:
    """``consumed`` are: so are all other entries of their messages. Returns those that became so now."""
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
    """Some messages of the batch at ``position`` are acknowledged: they are so in all entries that have it.

    Returns the entries that changed by that. With a ``batch_size`` the entries are consumed if together they have all
    of its messages: a part of it was acknowledged in this entry, the rest in that.
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
    """Which entries are consumed because others of their messages are."""
    found: dict[Position, None] = {}
    for position in consumed:
        for other in links.others(position):
            if not is_consumed(other):
                found[other] = None
    return found


def _shared_indexes(
    links: DuplicateEntries, batch_acks: BatchAcks, position: Position
) -> tuple[BitMap, list[Position]]:
    """All indexes that are acknowledged in any entry of the batch at ``position``, and the entries that lack some."""
    entries = [position, *links.others(position)]
    acked = [batch_acks.get(entry) or BitMap() for entry in entries]
    union = BitMap.union(*acked)
    return union, [entry for entry, indexes in zip(entries, acked, strict=True) if indexes != union]
