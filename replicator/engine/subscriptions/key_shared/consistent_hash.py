"""Consistent hashing: each consumer has 100 points of a ring. Shares are about even, and all give some to a newcomer.

It makes invariant 3 of DESIGN §3 possible: each hash has one owner, which depends on the connected consumers, and not
on the order in which they came.

1. The ring is all 32-bit hashes, 0 after 2³²-1. A consumer's points are the hashes of its name + "1" to name + "100".
2. A key belongs to the first point at or after its own hash, clockwise.
3. Several consumers can share a point: by chance, as ``pod-1`` + "11" is also ``pod-11`` + "1", or all 100 points if
   two consumers have the same name. They are sorted by name, then id, and a key goes to the one at index
   ``hash % number of them``.

Movement: a join moves keys from all consumers to the newcomer only; a leave moves only the leaver's keys. Exception: if
two or more share a point already, one more changes the divisor of rule 3, so keys of that point's arc also move among
those that were there. That takes three consumers of one name, or a rare accident.

Balance: with distinct names each consumer's share is between half of the mean and twice the mean. A share is the sum of
100 random arcs, about Gamma-distributed with a standard deviation of 10 % of the mean. It falls below the lower bound
with a probability of at most 4e-9, and above the upper one of 5e-14. Consumers of one name divide a single share.

Source: seed 000, "Auto-split Consistent Hashing".
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Final

from replicator.engine.subscriptions.key_shared.hashing import HASH_SPACE, key_hash
from replicator.engine.subscriptions.key_shared.tiling import refuse_sticky_ranges
from replicator.engine.types import HashRange, KeySharedPolicy

POINTS_PER_CONSUMER: Final = 100
"""Points of each consumer, as upstream. Shares differ by about 10 %, and a consumer takes 1.2 kB of memory."""
_SHARED: Final = -1
"""Owner of a point that several consumers have."""


class ConsistentHashSelector:
    """Implements :class:`~replicator.engine.subscriptions.key_shared.selector.KeySelector`."""

    hash_space: Final = HASH_SPACE

    def __init__(self) -> None:
        self.version = 0
        self._names: dict[int, str] = {}
        # Parallel: the points in ascending order, and the consumer at each. A join copies both, of arrays at
        # once; of lists it would touch each of a hundred thousand numbers.
        self._points = array("I")
        self._owners = array("q")
        self._shared: dict[int, tuple[int, ...]] = {}
        """Consumers of each point that several have. The owner of such a point is :data:`_SHARED`."""

    def add(self, consumer_id: int, name: str, policy: KeySharedPolicy) -> None:
        """Add a consumer. Raise :class:`InvalidHashRanges` if it has sticky ranges."""
        assert consumer_id not in self._names
        refuse_sticky_ranges(name, policy)
        self._names[consumer_id] = name
        fresh: list[int] = []
        at: list[int] = []
        for point in _points(name):
            index = bisect_left(self._points, point)
            if index < len(self._points) and self._points[index] == point:
                self._add_owner(index, consumer_id)
            else:
                fresh.append(point)
                at.append(index)
        self._points = _inserted(self._points, at, fresh)
        self._owners = _inserted(self._owners, at, [consumer_id] * len(at))
        self.version += 1

    def remove(self, consumer_id: int) -> None:
        """Remove a consumer. Its keys go to the owners of the next points."""
        emptied: list[int] = []
        for point in _points(self._names.pop(consumer_id)):
            index = bisect_left(self._points, point)
            if (standing := self._shared.get(point)) is None:
                assert self._owners[index] == consumer_id
                emptied.append(index)
                continue
            left = tuple(other for other in standing if other != consumer_id)
            if len(left) > 1:
                self._shared[point] = left
            else:
                del self._shared[point]
                self._owners[index] = left[0]
        self._points = _deleted(self._points, emptied)
        self._owners = _deleted(self._owners, emptied)
        self.version += 1

    def select(self, key_hash: int) -> int | None:
        """Return the consumer at the next point clockwise, or None without consumers."""
        points = self._points
        if not points:
            return None
        # Counted from the end: past the last point the index is 0, the first point, which closes the ring.
        index = bisect_left(points, key_hash) - len(points)
        if (owner := self._owners[index]) != _SHARED:
            return owner
        standing = self._shared[points[index]]
        return standing[key_hash % len(standing)]

    def ranges(self) -> dict[int, list[HashRange]]:
        """Return each consumer's arcs of 0..2³²-1, with touching arcs joined. An arc of several consumers is listed for
        each."""
        owned: dict[int, list[HashRange]] = {consumer_id: [] for consumer_id in self._names}
        for arc, owners in self._arcs():
            for consumer_id in owners:
                mine = owned[consumer_id]
                if mine and mine[-1].end + 1 == arc.start:
                    mine[-1] = HashRange(mine[-1].start, arc.end)
                else:
                    mine.append(arc)
        return owned

    def record(self, consumer_id: int, messages: int, now_seconds: float) -> None:
        """Ignore the load."""

    def _arcs(self) -> Iterator[tuple[HashRange, tuple[int, ...]]]:
        """Yield all hashes in ascending order, as the arcs that end at each point, with their owners."""
        start = 0
        for index, point in enumerate(self._points):
            yield HashRange(start, point), self._standing(index)
            start = point + 1
        if self._points and start < HASH_SPACE:
            yield HashRange(start, HASH_SPACE - 1), self._standing(0)

    def _standing(self, index: int) -> tuple[int, ...]:
        """Return the consumers at a point of the ring; ``index`` is the point's index."""
        return self._shared.get(self._points[index]) or (self._owners[index],)

    def _add_owner(self, index: int, consumer_id: int) -> None:
        together = (*self._standing(index), consumer_id)
        self._shared[self._points[index]] = tuple(sorted(together, key=lambda other: (self._names[other], other)))
        self._owners[index] = _SHARED


def _points(name: str) -> list[int]:
    """Return a consumer's points, ascending and without repetition."""
    return sorted({key_hash(f"{name}{number}".encode()) for number in range(1, POINTS_PER_CONSUMER + 1)})


# One insertion for each point would move the whole tail a hundred times; these copy each array once.


def _inserted(values: array[int], at: Sequence[int], fresh: Sequence[int]) -> array[int]:
    """Return ``values`` with ``fresh[i]`` inserted before index ``at[i]``. ``at`` is ascending."""
    result = array(values.typecode)
    done = 0
    for index, value in zip(at, fresh, strict=True):
        result += values[done:index]
        result.append(value)
        done = index
    result += values[done:]
    return result


def _deleted(values: array[int], at: Sequence[int]) -> array[int]:
    """Return ``values`` without the items at the ascending indexes ``at``."""
    result = array(values.typecode)
    done = 0
    for index in at:
        result += values[done:index]
        done = index + 1
    result += values[done:]
    return result
