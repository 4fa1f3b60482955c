"""The engine's side of the subscriptions of one topic, in the positions of the brokers.

Invariant (DESIGN §3): 5. What lies before a subscription's start is neither open nor acknowledged by anybody.

1. An entry of the engine's log has a place at the brokers if the map of entries knows it on both sides.
2. Open is what is not acknowledged and does not lie before the start. The engine passes over what lies before it, but
   may do so a moment after it has got the entry, or the start.
3. Where a broker's cursor starts becomes a start by origin: of each origin the last entry that lies at or below it.
   Whatever the brokers do not have yet comes after the start.
"""

from __future__ import annotations

from collections.abc import Set
from typing import NamedTuple

from replicator.apache.entry_map import EntryMap
from replicator.apache.reconciling import InEngine, Seen
from replicator.engine.log.store import Store
from replicator.engine.subscriptions.subscription import Subscription
from replicator.engine.topic import Topic
from snapshots.position import BEFORE_ALL, Position
from snapshots.position_set import PositionSet
from snapshots.starts import FROM_THE_FIRST, Start, Starts, ends_before


class Engines(NamedTuple):
    """The state of a subscription in the engine from which a decision follows."""

    generation: int
    open: PositionSet
    """Its messages that are not acknowledged. The mark-delete position says less: it passes over markers, too."""
    starts: Starts
    entries: int
    """:attr:`EntryMap.changes`."""


class _Translated(NamedTuple):
    """The open entries of a subscription in the engine, as positions of the brokers."""

    engines: Engines
    open: PositionSet


class EngineSide:
    """The subscriptions that the engine has of one topic."""

    def __init__(self, store: Store, topic: Topic, entries: EntryMap) -> None:
        self._store = store
        self._topic = topic
        self._entries = entries
        self._translated: dict[str, _Translated] = {}
        """Kept by name, as mostly only the brokers' side has changed when a subscription is compared."""

    def engines(self, subscription: Subscription) -> Engines:
        """Return the present state of a subscription."""
        state = subscription.cursor.state
        opened = self._topic.log.messages_after(state.mark_delete, state.individually_deleted)
        return Engines(state.generation, opened, dict(state.starts), self._entries.changes)

    def in_engine(self, name: str, engines: Engines, seen: Seen | None, beyond: Position) -> InEngine:
        """Translate a state. Acknowledged entries count only where they lie ``beyond`` a position of the brokers."""
        opened = self.open_at_brokers(name, engines)
        acknowledged = self._entries.beyond(beyond).copy()
        acknowledged.difference_update(opened)
        uncovered = PositionSet()
        if seen is not None and opened and seen.starts != engines.starts:
            uncovered = self._entries.up_to(opened, ends_before(seen.starts, self._incarnations()))
        return InEngine(engines.generation, acknowledged, opened, uncovered)

    def open_at_brokers(self, name: str, engines: Engines) -> PositionSet:
        """Return where the open entries lie at the brokers, those that do."""
        translated = self._translated.get(name)
        if translated is None or translated.engines != engines:
            opened = self._entries.to_broker(engines.open)
            if opened and (ends := ends_before(engines.starts, self._incarnations())):
                opened.difference_update(self._entries.up_to(opened, ends))
            translated = self._translated[name] = _Translated(engines, opened)
        return translated.open

    def first_open(self, subscription: Subscription) -> Position | None:
        """Return the first entry at the brokers that is open in the engine.

        It is the last one there if none is open, and None if nothing lies on both sides.
        """
        opened = self.open_at_brokers(subscription.name, self.engines(subscription))
        return opened.first() or self._entries.beyond(BEFORE_ALL).last()

    def starts_below(self, position: Position) -> dict[str, Start]:
        """Return, by origin, where a subscription starts whose cursor has its start at a position of the brokers.

        All up to there must have been read.
        """
        ends = self._entries.ends_at(position)
        starts = self._topic.starting.at(self._topic, self._store, BEFORE_ALL)
        for origin, incarnation in self._incarnations().items():
            start = Start(incarnation, ends[origin]) if origin in ends else FROM_THE_FIRST
            starts[origin] = max(start, starts.get(origin, FROM_THE_FIRST))
        return starts

    def keep(self, names: Set[str]) -> None:
        """Forget what is kept of subscriptions other than these."""
        for name in self._translated.keys() - names:
            del self._translated[name]

    def _incarnations(self) -> dict[str, int]:
        """Return, by origin, the life of the topic there that is here."""
        return {origin: each.incarnation for origin, each in self._topic.origins.high_waters().items()}
