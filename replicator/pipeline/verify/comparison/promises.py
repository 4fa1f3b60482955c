"""Check of snapshot mappings, whose promises may be broken. Pure NumPy.

A mapping promises: "when my mark-delete passes L, everything in peer P up to R is consumed". It is broken if a message
in P's log up to R lies after L at home, or is not there. Messages come as runs that are contiguous in both logs:

1. Of a run at P's ``p``, that lies at home from ``h`` on, the part up to R counts; it ends at home at
   ``h + min(length - 1, R - p)``, as both go up together.
2. If a whole run is below R, the mapping is wrong if the run's end at home is past L. Of all mappings with R at or
   above the run's end only the lowest L matters: most runs are done with one look at a running minimum.
3. A mapping whose R is inside a run is compared with that run alone. There are few.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from replicator.pipeline.verify.comparison.overlaps import ENTRY_BITS, Bools, Int64s
from snapshots.mapping import SnapshotMapping

_NOWHERE: Final = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Promises:
    """Mappings of one topic, home and peer, in the order of their remote positions."""

    mappings: tuple[SnapshotMapping, ...]

    @classmethod
    def of(cls, mappings: Sequence[SnapshotMapping]) -> Promises:
        return cls(tuple(sorted(mappings, key=lambda mapping: (mapping.remote, mapping.local))))

    def broken(
        self, at_peer: tuple[Int64s, Int64s], at_home: tuple[Int64s, Int64s], is_home: Bools, count: Int64s
    ) -> dict[int, int]:
        """Return the mappings that a run breaks, by index, each with the number of the first such run.

        ``at_peer`` and ``at_home`` are the ledgers and entries at which the runs begin.
        """
        codes = _Codes.of(self.mappings)
        begins = codes.code(*at_peer, codes.peer_ledgers)
        ends = codes.code(at_peer[0], at_peer[1] + count - 1, codes.peer_ledgers)
        at_end = np.where(is_home, codes.code(at_home[0], at_home[1] + count - 1, codes.home_ledgers), _NOWHERE)
        found: dict[int, int] = {}

        lowest = np.minimum.accumulate(codes.local[::-1])[::-1]
        first_above = np.searchsorted(codes.remote, ends, side="left")
        below = first_above < len(codes.remote)
        bad = np.flatnonzero(below & (at_end > lowest[np.minimum(first_above, len(lowest) - 1)]))
        for run in bad.tolist():
            for index in range(int(first_above[run]), len(codes.remote)):
                if index not in found and at_end[run] > codes.local[index]:
                    found[index] = run
            if len(found) == len(self.mappings):
                return found

        first_inside = np.searchsorted(codes.remote, begins, side="left")
        for run in np.flatnonzero(first_inside < first_above).tolist():
            for index in range(int(first_inside[run]), int(first_above[run])):
                reach = codes.remote[index] - begins[run]
                home = codes.code_one(int(at_home[0][run]), int(at_home[1][run] + reach), codes.home_ledgers)
                if index not in found and (not is_home[run] or home > codes.local[index]):
                    found[index] = run
        return found


@dataclass(frozen=True, slots=True)
class _Codes:
    """Positions as numbers, in order: (rank of the ledger among those of the mappings) << 34, and the entry.

    A ledger between two of them has an odd rank.
    """

    remote: Int64s
    local: Int64s
    peer_ledgers: Int64s
    home_ledgers: Int64s

    @classmethod
    def of(cls, mappings: Sequence[SnapshotMapping]) -> _Codes:
        peer = np.unique(np.array([mapping.remote.ledger for mapping in mappings], np.int64))
        home = np.unique(np.array([mapping.local.ledger for mapping in mappings], np.int64))
        remote = [cls.code_one(*mapping.remote, peer) for mapping in mappings]
        local = [cls.code_one(*mapping.local, home) for mapping in mappings]
        return cls(np.array(remote, np.int64), np.array(local, np.int64), peer, home)

    @staticmethod
    def code(ledgers: Int64s, entries: Int64s, known: Int64s) -> Int64s:
        rank = np.searchsorted(known, ledgers)
        inside = known[np.minimum(rank, len(known) - 1)] == ledgers
        coded: Int64s = ((2 * rank + inside) << (ENTRY_BITS + 1)) + entries
        return coded

    @staticmethod
    def code_one(ledger: int, entry: int, known: Int64s) -> int:
        return int(_Codes.code(np.array([ledger]), np.array([entry]), known)[0])


def by_pair(
    mappings: Mapping[int, Sequence[SnapshotMapping]], numbers: Mapping[str, int]
) -> dict[tuple[int, int], Promises]:
    """Return the mappings of one topic by home and peer, for peers that are compared."""
    pairs: dict[tuple[int, int], list[SnapshotMapping]] = {}
    for home, of_home in mappings.items():
        for mapping in of_home:
            if mapping.peer in numbers:
                pairs.setdefault((home, numbers[mapping.peer]), []).append(mapping)
    return {pair: Promises.of(each) for pair, each in pairs.items()}
