"""Unacknowledged entries of consumers of a Shared or Key_Shared subscription, and limits on them. Pure.

Invariant 11 (DESIGN §3): unacknowledged messages are limited for each consumer and for the subscription. At a limit
dispatch to the consumer, or all dispatch, pauses until half of the limit is left. So dispatch does not go on with one
message at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import takewhile
from typing import NamedTuple

from replicator.engine.subscriptions.dispatch.dispatcher import ConsumerState
from replicator.engine.subscriptions.dispatch.plan import UnackedLimits
from snapshots.position import Position
from snapshots.position_set import PositionSet


class HeldEntry(NamedTuple):
    """One entry that a consumer holds."""

    consumer_id: int
    unacked: int
    """Number of its messages that are not acknowledged."""
    key_hash: int


class HeldEntries:
    """All entries that consumers hold, by position, and the counts by consumer."""

    __slots__ = ("_consumers", "_entries", "_limits", "_positions", "blocked", "unacked_messages")

    def __init__(self, consumers: dict[int, ConsumerState], limits: UnackedLimits) -> None:
        self._consumers = consumers
        self._limits = limits
        self._entries: dict[Position, HeldEntry] = {}
        self._positions = PositionSet()
        self.unacked_messages = 0
        self.blocked = False
        """Whether the subscription has too many unacknowledged messages."""

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, position: Position) -> bool:
        return position in self._entries

    @property
    def paused(self) -> bool:
        """Return whether a limit of unacknowledged messages stops deliveries to a consumer or to the whole
        subscription.
        """
        limit = self._limits.per_consumer
        if self.blocked or limit is None or self.unacked_messages <= limit // 2:  # too few for a consumer's limit
            return self.blocked
        return any(state.blocked for state in self._consumers.values())

    def items(self) -> Iterator[tuple[Position, HeldEntry]]:
        return iter(self._entries.items())

    def get(self, position: Position) -> HeldEntry | None:
        return self._entries.get(position)

    def add(self, position: Position, entry: HeldEntry) -> None:
        assert position not in self._entries, f"{position} is out already"
        self._entries[position] = entry
        self._positions.add(position)
        state = self._consumers[entry.consumer_id]
        state.pending.add(position)
        self._count(state, entry.unacked)

    def remove(self, position: Position) -> HeldEntry | None:
        entry = self._entries.pop(position, None)
        if entry is None:
            return None
        self._positions.discard(position)
        state = self._consumers.get(entry.consumer_id)
        if state is not None:  # else it has left, and its state with it
            state.pending.discard(position)
        self._count(state, -entry.unacked)
        return entry

    def remove_through(self, position: Position) -> list[HeldEntry]:
        """Remove and return all entries up to ``position``. Each consumer's counts are updated once."""
        if not self._entries:
            return []
        removed, unacked = self._take(takewhile(lambda held: held <= position, self._positions))
        if removed:
            self._positions.discard_through(position)
            for consumer_id, messages in unacked.items():
                state = self._consumers[consumer_id]
                state.pending.discard_through(position)
                self._count(state, -messages)
        return removed

    def remove_all(self, positions: PositionSet) -> list[HeldEntry]:
        """Remove and return the entries at ``positions`` that consumers hold. Each consumer's counts are updated
        once."""
        removed, unacked = self._take(out := self._positions.common(positions))
        if removed:
            self._positions.difference_update(out)
            for consumer_id, messages in unacked.items():
                state = self._consumers[consumer_id]
                state.pending.difference_update(out)
                self._count(state, -messages)
        return removed

    def _take(self, positions: Iterable[Position]) -> tuple[list[HeldEntry], Counter[int]]:
        """Return the entries at ``positions``, and the number of their messages by consumer."""
        removed: list[HeldEntry] = []
        unacked: Counter[int] = Counter()
        for held in positions:
            entry = self._entries.pop(held)
            removed.append(entry)
            unacked[entry.consumer_id] += entry.unacked
        return removed, unacked

    def shrink(self, position: Position, unacked: int) -> None:
        """Note that some messages of an entry are acknowledged, and ``unacked`` are not."""
        entry = self._entries.get(position)
        if entry is not None:
            self._entries[position] = entry._replace(unacked=unacked)
            self._count(self._consumers[entry.consumer_id], unacked - entry.unacked)

    def clear(self) -> None:
        self._entries.clear()
        self._positions = PositionSet()
        self.unacked_messages = 0
        self.blocked = False
        for state in self._consumers.values():
            state.pending = PositionSet()
            state.unacked_messages = 0
            state.blocked = False

    def set_limits(self, limits: UnackedLimits) -> None:
        self._limits = limits
        self._count(None, 0)
        for state in self._consumers.values():
            self._count(state, 0)

    def _count(self, state: ConsumerState | None, change: int) -> None:
        self.unacked_messages += change
        self.blocked = _blocked(self.blocked, self.unacked_messages, self._limits.per_subscription)
        if state is not None:
            state.unacked_messages += change
            state.blocked = _blocked(state.blocked, state.unacked_messages, self._limits.per_consumer)


def _blocked(before: bool, unacked: int, limit: int | None) -> bool:
    if limit is None:
        return False
    return unacked > limit // 2 if before else unacked >= limit
