"""Bridges that stand still while verify waits. Pure.

A bridge that made progress may be about to bring the rest. One that had something to do, and did nothing of it during
the whole wait, will not bring it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from replicator.pipeline.verify.brokers.bridges import BridgedTopic, BridgeState
from replicator.pipeline.verify.comparison.scope import Standing
from snapshots.position import Position

Key = tuple[str, str]
"""Cluster and topic."""


@dataclass(slots=True)
class Progress:
    """Progress of all bridges from :meth:`begin` to :meth:`end`. Call ``end`` only if the wait took all of its time."""

    unread: set[Key] = field(default_factory=set)
    """Topics at brokers whose entries the bridge did not read, though there were some."""
    unpublished: set[Key] = field(default_factory=set)
    """Topics whose waiting entries the bridge did not publish at the brokers."""
    _first: dict[Key, BridgedTopic] = field(default_factory=dict)
    _ends: Mapping[Key, Position] = field(default_factory=dict)

    def begin(self, bridges: Mapping[str, BridgeState], ends: Mapping[Key, Position]) -> None:
        """Note the state before the wait. ``ends`` has the last entries at the brokers."""
        self._first = {(name, topic): each for name, bridge in bridges.items() for topic, each in bridge.topics.items()}
        self._ends = ends

    def end(self, bridges: Mapping[str, BridgeState]) -> None:
        """Compare the state after the wait with that before it."""
        for (name, topic), first in self._first.items():
            now = bridges[name].topics.get(topic)
            if now is None:
                continue
            end = self._ends.get((name, topic))
            if end is not None and now.read_through == first.read_through < end:
                self.unread.add((name, topic))
            if first.waits and now.waits and now.published == first.published:
                self.unpublished.add((name, topic))

    def unpublished_origins(self, name: str, topic: str, standing: Standing) -> set[str]:
        """Return the origins in the worker's log, which has this ``standing``, if the bridge publishes nothing."""
        return set(standing.high_water or ()) if (name, topic) in self.unpublished else set()
