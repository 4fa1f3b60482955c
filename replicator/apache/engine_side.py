"""The engine's state of one topic's subscriptions, translated to positions of the brokers.

Invariant (DESIGN §3): 5. A message before a subscription's start is neither open nor acknowledged by anybody.

1. An entry can be translated if :class:`EntryMap` knows its position in the engine's log and its position at the
   brokers.
2. An entry is open if it is not acknowledged and lies after the start. The engine counts entries before the start as
   consumed, but may do so a moment after it has received the entry or the start.
3. The position of a broker's cursor is translated to a start for each origin: the last entry of the origin at or
   below that position. Entries that the brokers do not have yet lie after the start.
"""

from __future__ import annotations

from collections.abc import Set
from typing import NamedTuple

from replicator.apache.entry_map import EntryMap
from replicator.apache.reconciling import InEngine, SyncState
from replicator.engine.log.store import Store
from replicator.engine.subscriptions.subscription import Subscription
from replicator.engine.topic import Topic
from snapshots.position import BEFORE_ALL, Position
from snapshots.position_set import PositionSet
from snapshots.starts import FROM_THE_FIRST, Start, Starts, ends_before


class Engines(NamedTuple):
    """State of one subscription in the engine. Positions are those of the engine's log."""

    generation: int
    open: PositionSet
    """Entries with unacknowledged messages. The mark-delete position alone does not show them: markers lie below and
    above it."""
    starts: Starts
    entries: int
    """Value of :attr:`EntryMap.changes` when this state was read."""


class _Translated(NamedTuple):
    """Open entries of one subscription in ``open``, translated to positions of the brokers, with the state they come
    from."""

    engines: Engines
    open: PositionSet


class EngineSide:
    """Translates the engine's state of one topic's subscriptions to positions of the brokers."""

    def __init__(self, store: Store, topic: Topic, entries: EntryMap) -> None:
        self._store = store
        self._topic = topic
        self._entries = entries
        self._translated: dict[str, _Translated] = {}
        """Cached translations by subscription name. Mostly only the brokers' state has changed since the last
        comparison."""

    def engines(self, subscription: Subscription) -> Engines:
        """Return the present state of ``subscription`` in the engine, in positions of the engine's log."""
        state = subscription.cursor.state
        opened = self._topic.log.messages_after(state.mark_delete, state.individually_deleted)
        return Engines(state.generation, opened, dict(state.starts), self._entries.changes)

    def in_engine(self, name: str, engines: Engines, seen: SyncState | None, beyond: Position) -> InEngine:
        """Translate the state ``engines`` of subscription ``name`` to positions of the brokers.

        Acknowledged entries at or below ``beyond``, a position of the brokers, are left out. ``seen`` is the state of
        the last comparison, or None.
        """
        opened = self.open_at_brokers(name, engines)
        acknowledged = self._entries.beyond(beyond).copy()
        acknowledged.difference_update(opened)
        uncovered = PositionSet()
        if seen is not None and opened and seen.starts != engines.starts:
            uncovered = self._entries.up_to(opened, ends_before(seen.starts, self._topic.origins.high_waters()))
        return InEngine(engines.generation, acknowledged, opened, uncovered)

    def open_at_brokers(self, name: str, engines: Engines) -> PositionSet:
        """Return the broker's positions of the entries that are open in the engine; entries that the brokers lack are
        left out."""
        translated = self._translated.get(name)
        if translated is None or translated.engines != engines:
            opened = self._entries.to_broker(engines.open)
            if opened and (ends := ends_before(engines.starts, self._topic.origins.high_waters())):
                opened.difference_update(self._entries.up_to(opened, ends))
            translated = self._translated[name] = _Translated(engines, opened)
        return translated.open

    def first_open(self, subscription: Subscription) -> Position | None:
        """Return the broker's position of the first entry that is open in the engine.

        Return the last entry that both the engine and the brokers have if none is open, and None if they share no
        entry.
        """
        opened = self.open_at_brokers(subscription.name, self.engines(subscription))
        return opened.first() or self._entries.beyond(BEFORE_ALL).last()

    def starts_below(self, position: Position) -> dict[str, Start]:
        """Return, by origin, the start of a subscription whose cursor at the broker began at ``position``.

        The engine must have read all entries of the brokers up to ``position``, inclusive.
        """
        ends = self._entries.ends_at(position)
        starts = self._topic.starting.at(self._topic, self._store, BEFORE_ALL)
        for origin, mark in self._topic.origins.high_waters().items():
            start = Start(mark.incarnation, ends[origin]) if origin in ends else FROM_THE_FIRST
            starts[origin] = max(start, starts.get(origin, FROM_THE_FIRST))
        return starts

    def keep(self, names: Set[str]) -> None:
        """Drop the cached translations of all subscriptions except ``names``."""
        for name in self._translated.keys() - names:
            del self._translated[name]
