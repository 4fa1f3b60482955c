"""Index of mappings and states, for people and tools. The sync never reads it (invariant 9)."""

from __future__ import annotations

from typing import Protocol

from snapshots.mapping import SnapshotMapping
from snapshots.position import Position


class Index(Protocol):
    """Index as subscription sync writes it. Its methods never wait; if it is overloaded, it drops changes."""

    def mapping_recorded(self, topic: str, mapping: SnapshotMapping) -> None: ...

    def subscription_moved(
        self, topic: str, name: str, generation: int, mark_delete: Position, *, replicated: bool
    ) -> None: ...

    def subscription_deleted(self, topic: str, name: str, generation: int | None = None) -> None: ...

    def topic_deleted(self, topic: str) -> None: ...

    def extents_recorded(
        self, topic: str, origin: str, incarnation: int, origin_first: Position, local_first: Position, entries: int
    ) -> None: ...

    def extents_trimmed(self, topic: str, local_through: Position) -> None: ...
