"""Tombstones: records of deleted replicated subscriptions of a topic, each with its generation. Pure.

Invariants (DESIGN §3): 6, an announcement from before a deletion does not bring the subscription back: the deletion has
the next generation, and a subscription that is made again has the generation after that; 11, a topic keeps at most
:data:`TOMBSTONES_MAX` tombstones.

========== ======================= ===============================================
table      key                     value
========== ======================= ===============================================
tombstones topic id | subscription generation u64 | time of deletion u64 (ms)
========== ======================= ===============================================

The highest bit of the time is set if the deletion was not forced, so that a cluster with consumers keeps the
subscription. The release before this one reads that bit as part of the time, and so only drops such a tombstone later.

A row is written in the transaction that deletes the subscription. It is deleted in the transaction that stores the next
subscription of that name. Beyond the limit the oldest tombstone is dropped. An update of that subscription that is
still on its way would then create the subscription again, which loses nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from replicator.engine.subscriptions.cursor_rows import RowWrite

TOMBSTONES: Final = "tombstones"
TOMBSTONES_MAX: Final = 1_000
"""Limit of tombstones of a topic; each takes about 200 bytes. New subscription names without end are rare."""
_TOPIC = struct.Struct(">I")
_ROW = struct.Struct(">QQ")
_UNLESS_IN_USE: Final = 1 << 63


class Tombstones(Mapping[str, int]):
    """Generations of deleted subscriptions by name, the oldest deletion first.

    Store the rows of :meth:`writes` before :meth:`note`.
    """

    __slots__ = ("_clock_ms", "_generations", "_topic_id", "_unless_in_use")

    def __init__(self, topic_id: int, rows: Iterable[tuple[str, bytes]], wall_clock_ms: Callable[[], int]) -> None:
        """Load the tombstones. ``rows`` are names and values as they are stored."""
        self._topic_id = topic_id
        self._clock_ms = wall_clock_ms
        decoded = [(*_ROW.unpack(value), name) for name, value in rows]
        decoded.sort(key=lambda row: row[1] & ~_UNLESS_IN_USE)
        self._generations: dict[str, int] = {name: generation for generation, _, name in decoded}
        self._unless_in_use: dict[str, None] | None = None
        """Names whose deletion was not forced; None if there are none, as for most topics."""
        for _, deleted_ms, name in decoded:
            if deleted_ms & _UNLESS_IN_USE:
                self._mark(name, unless_in_use=True)

    def __getitem__(self, name: str) -> int:
        return self._generations[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._generations)

    def __len__(self) -> int:
        return len(self._generations)

    def unless_in_use(self, name: str) -> bool:
        """Return whether the deletion of ``name`` was not forced, so that a cluster with consumers keeps the
        subscription."""
        return self._unless_in_use is not None and name in self._unless_in_use

    def writes(self, name: str, generation: int, *, unless_in_use: bool) -> list[RowWrite]:
        """Return the rows that store the tombstone of ``name``. Call :meth:`note` once they are stored."""
        deleted = self._clock_ms() | (_UNLESS_IN_USE if unless_in_use else 0)
        row: RowWrite = (TOMBSTONES, self._key(name), _ROW.pack(generation, deleted))
        return [row, *((TOMBSTONES, self._key(oldest), None) for oldest in self._too_many(name))]

    def note(self, name: str, generation: int, *, unless_in_use: bool) -> None:
        """Remember the tombstone of ``name``, whose rows (:meth:`writes`) are stored."""
        for oldest in self._too_many(name):
            self.forget(oldest)
        self._generations.pop(name, None)
        self._generations[name] = generation
        self._mark(name, unless_in_use=unless_in_use)

    def removal(self, name: str) -> list[RowWrite]:
        """Return the rows that delete the tombstone of ``name``; empty if there is none. Call :meth:`forget` once
        stored."""
        return [(TOMBSTONES, self._key(name), None)] if name in self._generations else []

    def forget(self, name: str) -> None:
        """Forget the tombstone of ``name``, because the subscription was created again."""
        self._generations.pop(name, None)
        self._mark(name, unless_in_use=False)

    def _mark(self, name: str, *, unless_in_use: bool) -> None:
        if unless_in_use:
            self._unless_in_use = self._unless_in_use or {}
            self._unless_in_use[name] = None
        elif self._unless_in_use is not None:
            self._unless_in_use.pop(name, None)

    def _too_many(self, newest: str) -> list[str]:
        others = [name for name in self._generations if name != newest]
        return others[: max(0, len(others) + 1 - TOMBSTONES_MAX)]

    def _key(self, name: str) -> bytes:
        return _TOPIC.pack(self._topic_id) + name.encode()
