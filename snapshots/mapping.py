"""Snapshot mappings of one topic and one peer, thinned so that every lag finds one.

A mapping says: "when the mark-delete position here has passed ``local``, everything in the peer up to ``remote`` is
consumed" (DESIGN 4.2). The table answers one question: which is the best mapping for this mark-delete position? It
serves invariant 5 (a mapping above the mark-delete position is never handed out) and invariant 11 (it holds at most
:data:`MAPPINGS_MAX`), whatever the subscription's lag.

Algorithm of thinning:

1. Mappings are numbered 0, 1, 2, … as they come. A mapping's *age* is the number of later mappings.
2. Number ``s`` stays while ``age <= DENSE * 2**z``, where ``z`` is the count of trailing zero bits of ``s``. So
   the newest ``DENSE`` are all there, then every second one, then every fourth, …
3. When number ``n`` comes, exactly one can be over its age: of the numbers with ``z`` trailing zeros only
   ``n - 1 - DENSE * 2**z`` has just reached ``DENSE * 2**z + 1``, and it has ``z`` trailing zeros only if
   ``n - 1`` has. So an add drops at most one, found by bisection.
4. The oldest is kept in any case, until :meth:`MappingTable.trim` says that nobody lags so far.

Consequence: if the best mapping ever added for a mark-delete position has age ``d``, the table still has one of age at
most ``d + d / 7``, or its oldest. (Some number of age in ``[d, d + 2**k - 1]`` has ``k`` trailing zeros. It is kept if
``d + 2**k - 1 <= DENSE * 2**k``. For the smallest such ``k`` > 0, ``2**k - 1 < 2 * d / (DENSE - 1)``.) A cache of the
newest few, as in the field's standard design, finds nothing for a subscription that lags (upstream issues 24300,
25044).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from snapshots.position import Position

DENSE: Final = 16
"""Age up to which all mappings are kept. Each doubling of age beyond it keeps half as many. Must be even."""
MAPPINGS_MAX: Final = 512
"""Limit of mappings in one table: 17 dense, 8 for each of 60 doublings, and the oldest; about 100 bytes each."""
_RESTORED_NEXT: Final = 2**62
"""Number of the newest restored mapping. It is so round that every age below gets its own trailing zeros."""


@dataclass(frozen=True, slots=True)
class SnapshotMapping:
    """Mapping of two positions: every message of ``peer``'s log up to ``remote`` lies in the log here up to ``local``.

    So whoever has consumed up to ``local`` here has consumed up to ``remote`` there.
    """

    snapshot_id: str
    local: Position
    peer: str
    remote: Position


class MappingTable:
    """Mappings of one (topic, peer), oldest first; both positions strictly ascending."""

    def __init__(self) -> None:
        # Three lists of one length, so that bisection compares bare values.
        self._mappings: list[SnapshotMapping] = []
        self._locals: list[Position] = []
        self._numbers: list[int] = []
        self._next_number = 0

    @classmethod
    def restored(cls, mappings: Sequence[SnapshotMapping]) -> MappingTable:
        """Return a table of the mappings that an earlier one had kept, oldest first; at most the newest that it can
        hold.

        They get the ages that a thinned table has. If they counted as adjacent, each restart would thin the old ones
        again.
        """
        table = cls()
        table._next_number = _RESTORED_NEXT + 1
        for mapping in mappings:
            table._append_if_newer(mapping)
        excess = max(0, len(table) - (MAPPINGS_MAX - DENSE))
        del table._mappings[:excess], table._locals[:excess]
        table._numbers = [_RESTORED_NEXT - _age_of_rank(rank) for rank in range(len(table) - 1, -1, -1)]
        return table

    def __len__(self) -> int:
        return len(self._mappings)

    def __iter__(self) -> Iterator[SnapshotMapping]:
        """Iterate over the mappings, oldest first."""
        return iter(self._mappings)

    @property
    def newest(self) -> SnapshotMapping | None:
        return self._mappings[-1] if self._mappings else None

    def add(self, mapping: SnapshotMapping) -> bool:
        """Add a newer mapping, and drop at most one old one. Return False, and add nothing, if it says nothing new.

        It says nothing new if its remote position is not above the newest's (an older mapping gives as much for less),
        or its local one is below it (a later answer has overtaken it). One with the newest's local position and a
        higher remote one replaces it.
        """
        newest = self.newest
        if newest is not None and newest.local == mapping.local and newest.remote < mapping.remote:
            self._mappings[-1] = mapping
            return True
        if not self._append_if_newer(mapping):
            return False
        number = self._next_number
        self._next_number += 1
        self._numbers.append(number)
        self._drop_overaged(number)
        assert len(self._mappings) == len(self._locals) == len(self._numbers) <= MAPPINGS_MAX
        return True

    def lookup(self, mark_delete: Position) -> SnapshotMapping | None:
        """Return the newest mapping whose local position is at or below ``mark_delete``; None if all are above."""
        index = bisect_right(self._locals, mark_delete)
        if index == 0:
            return None
        found = self._mappings[index - 1]
        assert found.local <= mark_delete
        return found

    def trim(self, below: Position) -> int:
        """Forget mappings that no lookup at ``below`` or above can return; return their number."""
        useless = max(0, bisect_right(self._locals, below) - 1)
        del self._mappings[:useless], self._locals[:useless], self._numbers[:useless]
        return useless

    def _append_if_newer(self, mapping: SnapshotMapping) -> bool:
        newest = self.newest
        if newest is not None and (mapping.local <= newest.local or mapping.remote <= newest.remote):
            return False
        self._mappings.append(mapping)
        self._locals.append(mapping.local)
        return True

    def _drop_overaged(self, number: int) -> None:
        """Drop the mapping that became too old when mapping ``number`` came, if there is one.

        A mapping is too old if more than ``DENSE * 2**z`` later ones came, where ``2**z`` is the greatest power of two
        that divides its number. The oldest mapping stays in any case.
        """
        before = number - 1
        if before <= 0:
            return
        overaged = before - DENSE * (before & -before)
        index = bisect_left(self._numbers, overaged)
        # Index 0 is the oldest: kept (step 4).
        if 0 < index < len(self._numbers) and self._numbers[index] == overaged:
            del self._mappings[index], self._locals[index], self._numbers[index]


def _age_of_rank(rank: int) -> int:
    """Return how many mappings were added after the ``rank``-th newest one of a thinned table (0 is the newest)."""
    if rank <= DENSE:
        return rank
    doubling, step = divmod(rank - DENSE - 1, DENSE // 2)
    return (DENSE << doubling) + ((step + 1) << (doubling + 1))
