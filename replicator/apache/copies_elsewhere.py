"""Answers of the other clusters: what they have of the messages that producers publish at this cluster's brokers. Pure.

Invariant (DESIGN §3): 2. A worker whose store has nothing of a topic may be a new one beside brokers that were put back
or set up anew. Then other clusters have messages at positions that the brokers give to other messages. A cluster that
has never answered is unknown: it is not one that has nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from replicator.apache.shown import EntryProperties
from replicator.engine.log.store_tables import HighWater
from snapshots.position import BEFORE_ALL, Position


class EntryFingerprint(NamedTuple):
    """Values that tell a known entry from others."""

    publish_time_ms: int
    sequence_id: int

    def is_same(self, found: EntryProperties | None) -> bool:
        """Return whether ``found`` can be this entry. The brokers show nobody an entry if it is None."""
        return found is None or found.may_be(self.publish_time_ms, self.sequence_id)


class Copy(NamedTuple):
    """State of one topic in another cluster."""

    mark: HighWater
    """The life of the topic, and the position up to which the cluster has it."""
    newest: Position = BEFORE_ALL
    """Position of the newest message there."""
    content: EntryFingerprint | None = None
    """The message at :attr:`newest`; None if the cluster does not say."""
    untold: bool = False
    """Whether the cluster cannot say it, such as because it has trimmed that message. False for a cluster of an earlier
    version, which does not know the question."""


class Copies(NamedTuple):
    """Answers about one topic."""

    known: tuple[Copy, ...] = ()
    """State of the topic in each cluster that has something of it, the newest life first."""
    silent: tuple[str, ...] = ()
    """Clusters that have never answered this store."""
    waits: bool = False
    """Whether the worker is still waiting for the silent clusters, which may be starting."""


Elsewhere = Callable[[str], Awaitable[Copies]]
