"""What a link holds back: a source's log is not trimmed above what the destination has confirmed, as far as the link's
quota lets it."""

from __future__ import annotations

from collections.abc import Iterable

from replicator.engine.engine import Engine
from replicator.engine.topic import Topic
from replicator.engine.upkeep.hold_quota import HoldQuota
from replicator.topology import Link
from snapshots.position import Position


class Holding:
    """Of one link, in ``engine``. ``holder`` is the name under which it holds logs back from retention."""

    def __init__(self, engine: Engine, link: Link) -> None:
        self._engine = engine
        self._quota = HoldQuota(link.hold_bytes, link.hold_seconds, link.on_hold_exceeded)
        self.holder = f"link to {link.destination}" + (f" ({link.name})" if link.name else "")

    def begin(self, topic: Topic, confirmed: Position) -> None:
        """The link takes up the topic, of which the destination had all up to there."""
        topic.holds.positions[self.holder] = confirmed
        if self._quota.limited:
            topic.holds.quotas[self.holder] = self._quota

    def move(self, topic: Topic, confirmed: Position) -> None:
        """The destination has all up to there now."""
        topic.holds.positions[self.holder] = confirmed
        if topic.holds.exceeded:
            self._engine.maintenance.hold_moved(topic)

    def release(self, topic: Topic) -> None:
        """Hold nothing of the topic back any more."""
        topic.holds.positions.pop(self.holder, None)
        topic.holds.quotas.pop(self.holder, None)
        if topic.holds.exceeded.pop(self.holder, None) is not None:
            topic.holds.set_exceeded(topic.holds.exceeded)

    def exceeded(self, names: Iterable[str]) -> list[str]:
        """The topics of these of which the link holds back more than it may."""
        found = map(self._engine.find, names)
        return [topic.name for topic in found if topic is not None and self.holder in topic.holds.exceeded]
