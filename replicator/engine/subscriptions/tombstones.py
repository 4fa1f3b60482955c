"""Which replicated subscriptions of a topic were deleted, and with which generation. Pure.

Invariants (DESIGN §3): 6, what was said of a subscription before it was deleted does not bring it back: a deletion
counts as the next generation, and a subscription that is made again has the one after that; 11, a topic keeps
:data:`TOMBSTONES_MAX` of them.

========== ======================= ===============================================
table      key                     value
========== ======================= ===============================================
tombstones topic id | subscription generation u64 | time of deletion u64 (ms)
========== ======================= ===============================================

A row is written in the transaction that deletes the subscription, and deleted in the one that stores the next one of
that name. One more than the limit drops the oldest: an update of that subscription that is still on its way would then
make it again, which loses nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from replicator.engine.subscriptions.cursor_rows import RowWrite

TOMBSTONES: Final = "tombstones"
TOMBSTONES_MAX: Final = 1_000
"""A topic; about 200 bytes each. Names of subscriptions are rarely made up anew without end."""
_TOPIC = struct.Struct(">I")
_ROW = struct.Struct(">QQ")


class Tombstones(Mapping[str, int]):
    """The generations by subscription name, the oldest deletion first. Rows are written first, then noted here."""

    __slots__ = ("_clock_ms", "_generations", "_topic_id")

    def __init__(self, topic_id: int, rows: Iterable[tuple[str, bytes]], wall_clock_ms: Callable[[], int]) -> None:
        """``rows`` are names and values as they are stored."""
        self._topic_id = topic_id
        self._clock_ms = wall_clock_ms
        decoded = sorted(((*_ROW.unpack(value), name) for name, value in rows), key=lambda row: row[1])
        self._generations: dict[str, int] = {name: generation for generation, _, name in decoded}

    def __getitem__(self, name: str) -> int:
        return self._generations[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._generations)

    def __len__(self) -> int:
        return len(self._generations)

    def writes(self, name: str, generation: int) -> list[RowWrite]:
        """What stores a tombstone; then :meth:`note` it."""
        row: RowWrite = (TOMBSTONES, self._key(name), _ROW.pack(generation, self._clock_ms()))
        return [row, *((TOMBSTONES, self._key(oldest), None) for oldest in self._too_many(name))]

    def note(self, name: str, generation: int) -> None:
        """The rows are stored."""
        for oldest in self._too_many(name):
            del self._generations[oldest]
        self._generations.pop(name, None)
        self._generations[name] = generation

    def removal(self, name: str) -> list[RowWrite]:
        """What removes a tombstone, if there is one; then :meth:`forget` it."""
        return [(TOMBSTONES, self._key(name), None)] if name in self._generations else []

    def forget(self, name: str) -> None:
        """The subscription is there again."""
        self._generations.pop(name, None)

    def _too_many(self, newest: str) -> list[str]:
        others = [name for name in self._generations if name != newest]
        return others[: max(0, len(others) + 1 - TOMBSTONES_MAX)]

    def _key(self, name: str) -> bytes:
        return _TOPIC.pack(self._topic_id) + name.encode()
