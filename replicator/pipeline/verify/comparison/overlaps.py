"""Overlaps of runs of entries in several clusters, cut at the begin and end of every run. Pure NumPy.

A *piece* is a run of entries of one origin as it lies in one cluster: a block, or its part in one cell. Clusters may
have cut the same entries into other blocks, may lack some, and may have some twice. So

1. all begins and ends of pieces of one *group* (topic, origin, incarnation, ledger of the origin) are its bounds;
   the caller adds others, such as the place where a cluster's copy was cut;
2. between two consecutive bounds every piece has all entries or none: an *interval*;
3. a *cover* says that a piece has an interval, and where.

n pieces cost O(n log n), and as many covers as pieces if clusters agree on their blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

ENTRY_BITS: Final = 33
"""Bits of an entry in a code. An entry's id has 32 bits, and a run may end one above the highest."""


@dataclass(frozen=True, slots=True)
class Pieces:
    """Pieces as arrays of one length. ``start`` and ``count`` are entries at the origin; ``group`` is dense, from 0."""

    group: Int64s
    start: Int64s
    count: Int64s
    cluster: Int64s
    ledger: Int64s
    entry: Int64s
    """First entry of the piece in its cluster's ledger."""
    messages: Int64s
    sizes: tuple[bytes | None, ...]
    """Batch sizes of its entries as little-endian u32; None if all are the same."""

    def __len__(self) -> int:
        return len(self.group)


@dataclass(frozen=True, slots=True)
class Overlaps:
    """Intervals in the order of groups and entries, and the covers in the order of intervals and local positions."""

    group: Int64s
    start: Int64s
    count: Int64s
    messages: Int64s
    """Number of messages in the interval; the largest if clusters differ on the sizes of batches."""
    cover_interval: Int64s
    cover_piece: Int64s
    cover_entry: Int64s
    """Local entry at which the interval begins in the cover's piece."""
    first_cover: Int64s
    """First cover of each interval in each cluster (2-d); -1 if the cluster does not have it."""
    copies: Int64s
    """Number of copies of each interval in each cluster."""

    def __len__(self) -> int:
        return len(self.group)

    def at(self, pieces: Pieces, cluster: int) -> tuple[Bools, Int64s, Int64s]:
        """Return which intervals a cluster has, and the local ledger and entry of their first copies (0 for the
        others)."""
        covers = self.first_cover[:, cluster]
        here = covers >= 0
        return (
            here,
            np.where(here, pieces.ledger[self.cover_piece[covers]], 0),
            np.where(here, self.cover_entry[covers], 0),
        )


def overlaps(pieces: Pieces, clusters: int, bounds: tuple[Int64s, Int64s] | None = None) -> Overlaps:
    """Cut ``pieces`` of ``clusters`` clusters at one another's ends, and at ``bounds`` (groups and entries)."""
    starts = pieces.group << ENTRY_BITS | pieces.start
    ends = pieces.group << ENTRY_BITS | (pieces.start + pieces.count)
    edges = [starts, ends]
    if bounds is not None:
        edges.append(bounds[0] << ENTRY_BITS | bounds[1])
    cuts = np.unique(np.concatenate(edges))
    low, high = np.searchsorted(cuts, starts), np.searchsorted(cuts, ends)
    spans = high - low
    cover_piece = np.repeat(np.arange(len(pieces), dtype=np.int64), spans)
    cover_cut = np.repeat(low - (np.cumsum(spans) - spans), spans) + np.arange(len(cover_piece))
    cover_entry = pieces.entry[cover_piece] + (cuts[cover_cut] - starts[cover_piece])
    order = np.lexsort((cover_entry, pieces.ledger[cover_piece], pieces.cluster[cover_piece], cover_cut))
    cover_piece, cover_cut, cover_entry = cover_piece[order], cover_cut[order], cover_entry[order]

    used, cover_interval = np.unique(cover_cut, return_inverse=True)
    begins = cuts[used]
    count = np.where(used + 1 < len(cuts), cuts[np.minimum(used + 1, len(cuts) - 1)], begins) - begins
    cluster = pieces.cluster[cover_piece]
    place = cover_interval * clusters + cluster
    copies = np.bincount(place, minlength=len(used) * clusters).reshape(len(used), clusters)
    first_cover = np.full(len(used) * clusters, -1, np.int64)
    first_cover[place[::-1]] = np.arange(len(place))[::-1]
    messages = np.zeros(len(used), np.int64)
    of_covers = _messages_of(pieces, spans, cover_piece, cover_entry, count[cover_interval])
    np.maximum.at(messages, cover_interval, of_covers)
    return Overlaps(
        begins >> ENTRY_BITS,
        begins & ((1 << ENTRY_BITS) - 1),
        count,
        messages,
        cover_interval.astype(np.int64),
        cover_piece,
        cover_entry,
        first_cover.reshape(len(used), clusters),
        copies.astype(np.int64),
    )


def messages_in(pieces: Pieces, piece: int, offset: int, count: int) -> int:
    """Return the number of messages in ``count`` entries of a piece, from its ``offset``-th on."""
    sizes = pieces.sizes[piece]
    if sizes is None:
        return int(pieces.messages[piece]) // int(pieces.count[piece]) * count
    return int(np.frombuffer(sizes, "<u4", count, 4 * offset).sum(dtype=np.int64))


def _messages_of(pieces: Pieces, spans: Int64s, cover_piece: Int64s, cover_entry: Int64s, counts: Int64s) -> Int64s:
    """Return, for each cover, the number of messages in its interval."""
    found = pieces.messages[cover_piece] // np.maximum(pieces.count[cover_piece], 1) * counts
    whole = spans[cover_piece] == 1
    found[whole] = pieces.messages[cover_piece[whole]]
    for cover in np.flatnonzero(~whole).tolist():
        piece = int(cover_piece[cover])
        if pieces.sizes[piece] is not None:
            offset = int(cover_entry[cover] - pieces.entry[piece])
            found[cover] = messages_in(pieces, piece, offset, int(counts[cover]))
    return found
