"""What is announced of messages that links left out, and of batches of which they left out a part. Pure.

Invariant (DESIGN §3): 5. A cluster claims nothing of what it does not have, though it counts as consumed here: there is
nothing to deliver of it.

1. Ranges are announced around the batches that are here in part: what lies between the first and the last of them
   goes as a set of positions, so that a filter that takes a part of every batch makes no list of ranges.
2. Of such a batch that is consumed here the messages that are here are announced, by their indexes. Whole states do
   that for the newest :data:`PARTS_ANNOUNCED_MAX`, whose blocks are to be read: of older ones nothing is claimed, which
   repeats them at worst. Changes announce as many at a time, until all are announced.
3. What others say of messages that are not here means nothing here. A hub keeps it, and passes it on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from pyroaring import BitMap

from replicator.engine.errors import BlockCorrupt
from replicator.engine.log.parts import PartlyHere
from snapshots.ack_vector import OriginAcks, Range, merged_ranges, within
from snapshots.position import Position
from snapshots.position_set import PositionSet

PARTS_ANNOUNCED_MAX: Final = 1_000
"""Some microseconds each where they share blocks, 0.3 ms where each is in a block of its own."""
PARTS_HEARD_MAX: Final = 100_000
"""Entries of which a hub keeps what it hears and does not have, of one subscription and origin; a row is written whole,
so more would make each update slow."""
_ENTRY_MAX: Final = (1 << 32) - 1

Batches = Mapping[Position, BitMap]


def announce_around(acks: OriginAcks, partly: PositionSet) -> None:
    """Take batches that are here in part out of what ``acks`` claims by ranges; every range lies in one ledger."""
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
    parts: PartlyHere, positions: PositionSet, batches: Batches
) -> tuple[PositionSet, Batches, PositionSet]:
    """What may be told of consumed ``positions`` and of the indexes ``batches``: the entries that are here whole, by
    their indexes the others, and those others that are too many to be told at once."""
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
    """What ``acks`` says of messages in ``holes``, and of the batches ``partly``."""
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
