"""Hold of a link on its source's log: it keeps what the destination has not confirmed, within the link's quota."""

from __future__ import annotations

from collections.abc import Iterable

from replicator.engine.engine import Engine
from replicator.engine.topic import Topic
from replicator.engine.upkeep.hold_quota import HoldQuota
from replicator.topology import Link
from snapshots.position import Position


class Holding:
    """Holds one link's logs in ``engine`` back from retention, under the name ``holder``."""

    def __init__(self, engine: Engine, link: Link) -> None:
        self._engine = engine
        self._quota = HoldQuota(link.hold_bytes, link.hold_seconds, link.on_hold_exceeded)
        self.holder = f"link to {link.destination}" + (f" ({link.name})" if link.name else "")

    def begin(self, topic: Topic, confirmed: Position) -> None:
        """Begin to hold ``topic``. The destination has confirmed everything up to ``confirmed``."""
        topic.holds.positions[self.holder] = confirmed
        if self._quota.limited:
            topic.holds.quotas[self.holder] = self._quota

    def move(self, topic: Topic, confirmed: Position) -> None:
        """Record that the destination has confirmed everything up to ``confirmed``."""
        topic.holds.positions[self.holder] = confirmed
        if topic.holds.exceeded:
            self._engine.maintenance.hold_moved(topic)

    def release(self, topic: Topic) -> None:
        """Stop holding ``topic``."""
        topic.holds.positions.pop(self.holder, None)
        topic.holds.quotas.pop(self.holder, None)
        if topic.holds.exceeded.pop(self.holder, None) is not None:
            topic.holds.set_exceeded(topic.holds.exceeded)

    def exceeded(self, names: Iterable[str]) -> list[str]:
        """Return those topics in ``names`` for which the link holds back more than its quota allows."""
        found = map(self._engine.find, names)
        return [topic.name for topic in found if topic is not None and self.holder in topic.holds.exceeded]
