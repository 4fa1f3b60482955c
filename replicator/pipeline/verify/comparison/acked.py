"""Acknowledgements of a subscription in two clusters, compared over runs of entries. Pure NumPy.

A message is acknowledged if its position is at or before the mark-delete, or in one of the individually deleted ranges,
or its batch index is acknowledged in its entry. :func:`only_acked` finds messages acknowledged in one cluster and not
in the other, in intervals that both have:

1. An interval is cut wherever the state of either cluster changes inside it, and around every entry that is
   acknowledged in part in either.
2. The parts between the cuts are acknowledged as a whole or not at all, on each side.
3. Single entries that are acknowledged in part are compared one by one: there are few.

n intervals against r ranges cost O((n + cuts) log r).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np

from replicator.peering.comparing import SubscriptionState
from replicator.pipeline.verify.comparison.overlaps import ENTRY_BITS, Bools, Int64s
from snapshots.starts import Starts

_NONE: Final = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class Acked:
    """State of one subscription in one topic of one cluster.

    Places are coded as (index of the ledger in ``ledgers``) << 33 | entry.
    """

    mark_delete: tuple[int, int]
    generation: int
    ledgers: Int64s
    """Ledgers with individual or partial acknowledgements, and the ledger of the mark-delete."""
    starts: Int64s
    ends: Int64s
    """Exclusive ends of the disjoint ranges, in order; ``starts`` has their starts."""
    cuts: Int64s
    """Places at which the state may change, in order."""
    parts: Mapping[tuple[int, int], frozenset[int]]
    """Acknowledged batch indexes of the entries that are acknowledged in part."""
    begins: Starts
    """Starts of the subscription by origin: earlier messages count as consumed here, but nobody acknowledged them."""

    @classmethod
    def of(cls, state: SubscriptionState) -> Self:
        ranges = sorted(state.individually_deleted)
        mark = state.mark_delete
        parts = {(ledger, entry): frozenset(indexes) for (ledger, entry), indexes in state.batch_acks.items()}
        in_ledgers = {mark.ledger, *(start.ledger for start, _ in ranges), *(ledger for ledger, _ in parts)}
        ledgers = np.array(sorted(in_ledgers), np.int64)
        of = {ledger: index << ENTRY_BITS for index, ledger in enumerate(ledgers.tolist())}
        starts = np.array([of[start.ledger] + start.entry for start, _ in ranges], np.int64)
        ends = np.array([of[end.ledger] + end.entry + 1 for _, end in ranges], np.int64)
        singles = np.array([of[ledger] + entry for ledger, entry in parts], np.int64)
        after_mark = np.array([of[mark.ledger] + mark.entry + 1], np.int64)
        cuts = np.unique(np.concatenate([starts, ends, singles, singles + 1, after_mark]))
        return cls((mark.ledger, mark.entry), state.generation, ledgers, starts, ends, cuts, parts, state.starts)

    def contains(self, ledgers: Int64s, entries: Int64s) -> Bools:
        """Return, for each entry, whether all of it is acknowledged."""
        marked_ledger, marked_entry = self.mark_delete
        acked: Bools = (ledgers < marked_ledger) | ((ledgers == marked_ledger) & (entries <= marked_entry))
        if len(self.starts):
            places, known = self._coded(ledgers, entries)
            nearest = np.searchsorted(self.starts, places, side="right") - 1
            acked |= known & (nearest >= 0) & (places < self.ends[np.maximum(nearest, 0)])
        return acked

    def offsets(self, ledgers: Int64s, entries: Int64s, counts: Int64s) -> tuple[Int64s, Int64s]:
        """Return the places inside of runs at which the state may change: the run's number, and the offset from its
        start."""
        places, known = self._coded(ledgers, entries)
        low = np.searchsorted(self.cuts, places, side="right")
        high = np.searchsorted(self.cuts, places + counts, side="left")
        spans = np.where(known, high - low, 0)
        runs = np.repeat(np.arange(len(ledgers), dtype=np.int64), spans)
        if not len(runs):
            return _NONE, _NONE
        cuts = np.repeat(low - (np.cumsum(spans) - spans), spans) + np.arange(len(runs))
        return runs, self.cuts[cuts] - places[runs]

    def holds_all(self, ledgers: Int64s, entries: Int64s, counts: Int64s) -> bool:
        """Return whether all of the runs lie at or before the mark-delete; a shortcut for the usual case."""
        marked_ledger, marked_entry = self.mark_delete
        inside = (ledgers < marked_ledger) | ((ledgers == marked_ledger) & (entries + counts - 1 <= marked_entry))
        return bool(inside.all())

    def holds_none(self, ledgers: Int64s, entries: Int64s) -> bool:
        """Return whether nothing is acknowledged from the lowest of the runs on."""
        if len(self.starts) or self.parts:
            return False
        marked_ledger, marked_entry = self.mark_delete
        above = (ledgers > marked_ledger) | ((ledgers == marked_ledger) & (entries > marked_entry))
        return bool(above.all())

    def _coded(self, ledgers: Int64s, entries: Int64s) -> tuple[Int64s, Bools]:
        index = np.minimum(np.searchsorted(self.ledgers, ledgers), len(self.ledgers) - 1)
        return index << ENTRY_BITS | entries, self.ledgers[index] == ledgers


@dataclass(frozen=True, slots=True)
class Runs:
    """Intervals that two clusters have, ``count`` entries each, with their positions at the source and the
    destination."""

    source_ledger: Int64s
    source_entry: Int64s
    destination_ledger: Int64s
    destination_entry: Int64s
    count: Int64s


@dataclass(frozen=True, slots=True)
class AckDifference:
    """Run of entries that is acknowledged at the source and not, or not as much, at the destination."""

    run: int
    offset: int
    count: int
    at_source: frozenset[int] | None
    """Batch indexes acknowledged at the source; None for all."""
    at_destination: frozenset[int]

    def messages(self, sizes: Sequence[int], absent: Mapping[int, frozenset[int]]) -> int:
        """Return the number of messages that differ.

        ``sizes`` are of its entries. ``absent`` has messages that the source lacks of them, by offset from the run's
        start."""
        if not absent and self.at_source is None and not self.at_destination:
            return sum(sizes)
        return sum(
            len((frozenset(range(size)) if self.at_source is None else self.at_source) - self.at_destination - lacking)
            for index, size in enumerate(sizes)
            for lacking in [absent.get(self.offset + index, frozenset())]
        )


def only_acked(source: Acked, destination: Acked | None, runs: Runs) -> Iterator[AckDifference]:
    """Yield the parts of ``runs`` that ``source`` has acknowledged and ``destination`` has not.

    ``destination`` is None if the subscription does not exist there."""
    if not len(runs.count) or source.holds_none(runs.source_ledger, runs.source_entry):
        return
    if destination is not None and destination.holds_all(runs.destination_ledger, runs.destination_entry, runs.count):
        return
    cuts = [source.offsets(runs.source_ledger, runs.source_entry, runs.count)]
    if destination is not None:
        cuts.append(destination.offsets(runs.destination_ledger, runs.destination_entry, runs.count))
    every = np.arange(len(runs.count), dtype=np.int64)
    coded = np.unique(
        np.concatenate([every << ENTRY_BITS, *(numbers << ENTRY_BITS | offsets for numbers, offsets in cuts)])
    )
    run, offset = coded >> ENTRY_BITS, coded & ((1 << ENTRY_BITS) - 1)
    last = np.append(run[1:] != run[:-1], True)
    count = np.where(last, runs.count[run], np.append(offset[1:], 0)) - offset

    at_source = runs.source_ledger[run], runs.source_entry[run] + offset
    at_destination = runs.destination_ledger[run], runs.destination_entry[run] + offset
    here = source.contains(*at_source)
    there = np.zeros(len(run), bool) if destination is None else destination.contains(*at_destination)
    candidates = here & ~there
    if source.parts:
        candidates |= _partly(source, *at_source, count) & ~there
    no_parts: Mapping[tuple[int, int], frozenset[int]] = {}
    parts_there = no_parts if destination is None else destination.parts
    for index in np.flatnonzero(candidates).tolist():
        of_source: frozenset[int] | None = None
        if not here[index]:
            of_source = source.parts[int(at_source[0][index]), int(at_source[1][index])]
        place = int(at_destination[0][index]), int(at_destination[1][index])
        of_destination = parts_there.get(place, frozenset()) if count[index] == 1 else frozenset()
        if of_source is None or of_source - of_destination:
            yield AckDifference(int(run[index]), int(offset[index]), int(count[index]), of_source, of_destination)


def _partly(acked: Acked, ledgers: Int64s, entries: Int64s, counts: Int64s) -> Bools:
    """Return which of the runs are a single entry that is acknowledged in part."""
    found = np.zeros(len(counts), bool)
    single = np.flatnonzero(counts == 1)
    places = zip(ledgers[single].tolist(), entries[single].tolist(), strict=True)
    found[single] = np.fromiter((place in acked.parts for place in places), bool, len(single))
    return found
