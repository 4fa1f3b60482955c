"""What a link remembers over a restart, in the store of its worker: how far its topics are, whether it is paused, and
what it was made to leave out.

How far a topic is serves only to tell a destination that lost its copy from one that never had any, and to hold back
from retention no more than is needed before the destination has answered. It is written every few seconds, and only for
topics that moved: a crash loses some seconds of it, which holds back more than needed and skips nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from replicator.engine.engine import Engine
from replicator.engine.log.store_tables import TOPIC_KEY, encode_place
from snapshots.position import BEFORE_ALL, Position

SKIPS_MAX: Final = 1_000
"""Of one link; the oldest are forgotten, the index keeps them all."""
MARKS_AT_ONCE: Final = 1_000
"""Written in one transaction: some milliseconds."""


class LinkMemory:
    """Of the link with that key, in the store of ``engine``."""

    def __init__(self, engine: Engine, key: str) -> None:
        self._engine = engine
        self._key = key
        self._marks = engine.store.link_marks(key)
        self._dirty: dict[int, Position] = {}
        self.paused = bool(engine.store.meta(f"link paused {key}"))
        self.restore_id: str = engine.store.meta(f"link restored {key}") or ""
        """The last restore of the destination that was heard of."""
        self.skips: list[dict[str, Any]] = engine.store.meta(f"link skips {key}") or []
        """What was left out by policy, the newest last: topic, kind, detail, policy, at_ms."""

    def mark(self, topic_id: int) -> Position:
        """How far the topic was; BEFORE_ALL if the destination never had anything of it."""
        return self._marks.get(topic_id, BEFORE_ALL)

    def moved(self, topic_id: int, acknowledged: Position) -> bool:
        """Note that the destination has what the link carries of the topic up to there. Return whether that is news."""
        if self._marks.get(topic_id) == acknowledged:
            return False
        self._marks[topic_id] = self._dirty[topic_id] = acknowledged
        return True

    def forget(self, topic_id: int) -> None:
        """The topic was deleted, with its row."""
        self._marks.pop(topic_id, None)
        self._dirty.pop(topic_id, None)

    async def save(self) -> None:
        """Write what moved since the last time. Raises the store's errors."""
        moved, self._dirty = self._dirty, {}
        rows = list(moved.items())
        for first in range(0, len(rows), MARKS_AT_ONCE):
            await self._engine.writer.put_many(
                [
                    ("link_marks", TOPIC_KEY.pack(topic_id) + self._key.encode(), encode_place(position))
                    for topic_id, position in rows[first : first + MARKS_AT_ONCE]
                ]
            )

    async def set_paused(self, paused: bool) -> None:
        self.paused = paused
        await self._engine.remember(f"link paused {self._key}", paused)

    async def note_restore(self, restore_id: str) -> None:
        self.restore_id = restore_id
        await self._engine.remember(f"link restored {self._key}", restore_id)

    async def note_skip(self, skip: Mapping[str, Any]) -> None:
        self.skips = [*self.skips, dict(skip)][-SKIPS_MAX:]
        await self._engine.remember(f"link skips {self._key}", self.skips)
