"""State of a link that its worker stores, so that it survives a restart.

It has the acknowledged position of each topic, whether the link is paused, and the messages that it was made to leave
out: a list for operators, and for each topic the ranges that count as decided. The pause is a setting of the cluster:
other clusters keep it, and a new store takes it back.

The position of a topic has two uses. It tells a destination that lost its copy from one that never had any. And it
holds back from retention no more than is needed, before the destination has answered. The position is written every few
seconds, only for topics that moved. A crash loses some seconds of it: that holds back more than needed, and skips
nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from replicator.engine.cluster_settings.own import PAUSED
from replicator.engine.cluster_settings.state import Kind
from replicator.engine.engine import Engine
from replicator.engine.log.left_out import Hole
from replicator.engine.log.store_tables import TOPIC_KEY, accepted_row, encode_place
from snapshots.position import BEFORE_ALL, Position

SKIPS_MAX: Final = 1_000
"""Most skips of one link that are remembered. The oldest are forgotten; the index keeps them all."""
MARKS_AT_ONCE: Final = 1_000
"""Positions that one transaction writes. It takes some milliseconds."""


class LinkMemory:
    """Stored state of the link ``key`` in the store of ``engine``."""

    def __init__(self, engine: Engine, key: str) -> None:
        self._engine = engine
        self._key = key
        self._marks, self._accepted = engine.store.link_rows(key)
        self._dirty: dict[int, Position] = {}
        self.paused = self.stored_pause()
        self.restore_id: str = engine.store.meta(f"link restored {key}") or ""
        """Id of the last restore of the destination that this link heard of."""
        self.skips: list[dict[str, Any]] = engine.store.meta(f"link skips {key}") or []
        """Messages that a policy left out, the newest last. Each has topic, kind, detail, policy and at_ms."""

    def mark(self, topic_id: int) -> Position:
        """Return the acknowledged position of a topic; BEFORE_ALL if the destination never had anything of it."""
        return self._marks.get(topic_id, BEFORE_ALL)

    def moved(self, topic_id: int, acknowledged: Position) -> bool:
        """Note that the destination has everything up to ``acknowledged`` that the link carries of the topic.

        Return whether that is new.
        """
        if self._marks.get(topic_id) == acknowledged:
            return False
        self._marks[topic_id] = self._dirty[topic_id] = acknowledged
        return True

    def forget(self, topic_id: int) -> None:
        """Forget the position of a topic that was deleted. Its row in the store is deleted already."""
        self._marks.pop(topic_id, None)
        self._accepted.pop(topic_id, None)
        self._dirty.pop(topic_id, None)

    async def save(self) -> None:
        """Write the positions of topics that moved since the last save. Raises the store's errors."""
        moved, self._dirty = self._dirty, {}
        rows = list(moved.items())
        for first in range(0, len(rows), MARKS_AT_ONCE):
            await self._engine.writer.put_many(
                [
                    ("link_marks", TOPIC_KEY.pack(topic_id) + self._key.encode(), encode_place(position))
                    for topic_id, position in rows[first : first + MARKS_AT_ONCE]
                ]
            )

    def accepted(self, topic_id: int) -> Mapping[str, Hole]:
        """Return, by origin, the range (after, upto] of messages that a policy or an operator last left out of a topic.

        The destination has nothing that says so before a later block of the origin comes to it.
        """
        return self._accepted.get(topic_id, {})

    async def note_skips(
        self,
        skips: Sequence[Mapping[str, Any]],
        *,
        topic_id: int = 0,
        missing: Mapping[str, Hole] | None = None,
    ) -> None:
        """Remember, in one transaction, what was left out, and by origin the range of the topic's messages that the
        destination may lack from now on.

        A range that goes on where an earlier one ended is joined to it: the destination lacks both. Raises the store's
        errors. Then ``skips`` are remembered only if ``missing`` is None: they are done and will not be noted again.
        The next call stores them.
        """
        told = [*self.skips, *map(dict, skips)][-SKIPS_MAX:]
        accepted = dict(self.accepted(topic_id))
        if missing is None:
            self.skips = told
        rows = [("meta", f"link skips {self._key}".encode(), json.dumps(told).encode())]
        for origin, (after, upto) in (missing or {}).items():
            before = accepted.get(origin)
            if before is not None and before[1] >= after:
                accepted[origin] = min(before[0], after), max(before[1], upto)
            else:
                accepted[origin] = after, upto
        if missing:
            rows.append(("link_marks", *accepted_row(topic_id, self._key, accepted)))
        await self._engine.writer.put_many(rows)
        self.skips = told
        if missing:
            self._accepted[topic_id] = accepted

    def stored_pause(self) -> bool:
        """Return whether the store says that the link is paused."""
        return bool(self._engine.store.meta(f"{PAUSED}{self._key}"))

    async def set_paused(self, paused: bool) -> None:
        self.paused = paused
        changed = self._engine.cluster_settings.changed
        async with changed.changing():
            await self._engine.remember(f"{PAUSED}{self._key}", paused)
            self.paused = paused  # settings that were put back meanwhile may have said otherwise
            changed(Kind.LINKS, self._key)

    async def note_restore(self, restore_id: str) -> None:
        self.restore_id = restore_id
        await self._engine.remember(f"link restored {self._key}", restore_id)
