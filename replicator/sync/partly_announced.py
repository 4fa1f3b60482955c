"""Announcements about messages that links left out, and about batches that are here only in part. Pure.

Invariant (DESIGN §3): 5. A cluster claims no messages that it does not have. Such messages count as consumed here,
because there is nothing to deliver.

1. Announced ranges leave out the batches that are here in part. Positions between the first and the last such batch
   are announced as a set, because a filter that takes a part of every batch would make a long list of ranges.
2. If such a batch is consumed here, the indexes of its messages that are here are announced. For that its block must be
   read. So a whole state announces only the newest :data:`PARTS_ANNOUNCED_MAX` such batches; at worst the older ones
   are delivered again. Changes announce as many at a time, until all are announced.
3. Acknowledgements by others of messages that are not here have no effect here. A hub keeps them, and passes them on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from pyroaring import BitMap

from replicator.engine.errors import BlockCorrupt
from replicator.engine.log.parts import PartialBatches
from snapshots.ack_vector import OriginAcks, Range, merged_ranges, within
from snapshots.position import Position
from snapshots.position_set import PositionSet

PARTS_ANNOUNCED_MAX: Final = 1_000
"""Most partial batches announced at once: some microseconds each if they share blocks, 0.3 ms each if they do not."""
PARTS_HEARD_MAX: Final = 100_000
"""Most entries that a hub lacks and for which it keeps acknowledgements, by subscription and origin. More would make
each update slow, because a row is written whole."""
_ENTRY_MAX: Final = (1 << 32) - 1

Batches = Mapping[Position, BitMap]


def announce_around(acks: OriginAcks, partly: PositionSet) -> None:
    """Remove the batches ``partly`` from the ranges that ``acks`` claims. Every range must lie in one ledger."""
    if not partly:
        return
    ranges: list[Range] = []
    for after, upto in acks.ranges:
        first, last = partly.next_after(after), partly.highest_through(upto)
        if first is None or last is None or first > upto:
            ranges.append((after, upto))
            continue
        assert after.ledger == upto.ledger
        ranges += [(after, Position(first.ledger, first.entry - 1)), (last, upto)]
        between = PositionSet()
        between.add_range(upto.ledger, first.entry, last.entry)
        between.difference_update(partly)
        acks.positions.update(between)
    acks.ranges = merged_ranges(ranges)


def announce_parts(
    parts: PartialBatches, positions: PositionSet, batches: Batches
) -> tuple[PositionSet, Batches, PositionSet]:
    """Return what to announce of consumed ``positions`` and of the acknowledged indexes ``batches``.

    The result has three parts: entries that are here whole, indexes of batches that are here in part, and partial
    batches that must wait, because they are too many to announce at once."""
    partly = positions.common(parts.local)
    if not partly:
        return positions, batches, partly
    whole = positions.copy()
    whole.difference_update(partly)
    announced, left = dict(batches), partly.copy()
    for position in _newest(partly, PARTS_ANNOUNCED_MAX):
        left.discard(position)
        try:
            announced[position] = parts.present(position)
        except BlockCorrupt:  # what cannot be read cannot be claimed
            continue
    return whole, announced, left


def of_missing(acks: OriginAcks, holes: list[Range], partly: PositionSet) -> OriginAcks:
    """Return the part of ``acks`` about messages in ``holes``, and about the batches ``partly``."""
    found = OriginAcks(acks.incarnation, within(acks.ranges, holes))
    for after, upto in holes:
        for ledger in acks.positions.ledgers():
            if after.ledger <= ledger <= upto.ledger:
                first = after.entry + 1 if ledger == after.ledger else 0
                last = upto.entry if ledger == upto.ledger else _ENTRY_MAX
                found.positions.add_entries(ledger, acks.positions.entries_in(ledger, max(first, 0), last))
    found.positions.update(partly.common(acks.positions))
    for after, upto in acks.ranges if partly else ():
        covered = partly.copy()
        covered.discard_through(after)
        covered.discard_above(upto)
        found.positions.update(covered)
    found.batches = {at: each for at, each in acks.batches.items() if at in partly or _lies_in(at, holes)}
    if len(found.positions) > PARTS_HEARD_MAX:
        kept = PositionSet()
        for position in _newest(found.positions, PARTS_HEARD_MAX):
            kept.add(position)
        found.positions = kept
    return found


def _lies_in(position: Position, holes: Iterable[Range]) -> bool:
    return any(after < position <= upto for after, upto in holes)


def _newest(positions: PositionSet, count: int) -> Iterator[Position]:
    for ledger, entries in sorted(positions.by_ledger(), key=lambda each: each[0], reverse=True):
        taken = entries[max(len(entries) - count, 0) :]
        yield from (Position(ledger, entry) for entry in taken)
        count -= len(taken)
        if count <= 0:
            return
