"""A bridge that passes over its own entries where they are confirmed, beside a broker that stores, confirms and
delivers at its own pace (:mod:`replicator.apache.confirmed_entries`)."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from replicator.apache.confirmed_entries import LEDGERS_END, ConfirmedEntries
from replicator.apache.stamps import Identity
from snapshots.position import BEFORE_ALL, Position


class Model:
    """A topic at a broker, and the bridge's reader, put simply: what is delivered in order, then what is confirmed to
    follow. Each event takes a number of entries."""

    def __init__(self) -> None:
        self.confirmed = ConfirmedEntries()
        self.confirmed.open(lambda: None)
        self.stored: list[tuple[Position, Identity | None]] = []
        """Entries of the broker, in its order; None is an application's entry."""
        self.unconfirmed: list[tuple[Position, Identity]] = []
        self.ledger, self.next_entry, self.next_number = 3, 0, 0
        self.delivered = 0
        """Number of stored entries that the broker has sent, or need not send because they are acknowledged."""
        self.reached = BEFORE_ALL
        self.read: list[tuple[Position, Identity | None]] = []

    def an_application_publishes(self, entries: int) -> None:
        for _ in range(entries):
            self._store(None)

    def the_bridge_publishes(self, entries: int) -> None:
        for _ in range(entries):
            self.confirmed.sent()
            identity = self._identity()
            self.unconfirmed.append((self._store(identity), identity))

    def the_broker_confirms(self, entries: int) -> None:
        for position, identity in self.unconfirmed[:entries]:
            self.confirmed.confirm(position, identity, 1)
        del self.unconfirmed[:entries]

    def the_broker_drops_a_duplicate(self, entries: int) -> None:
        self.the_broker_confirms(len(self.unconfirmed))
        self.confirmed.sent()
        nowhere = Position(2 * LEDGERS_END - 1, -1) if entries > 3 else BEFORE_ALL
        self.confirmed.confirm(nowhere, Identity("b", 1, Position(70, 0)), 1)

    def the_broker_begins_a_ledger(self, _entries: int) -> None:
        self.ledger, self.next_entry = self.ledger + 2, 0

    def the_producer_ends(self, _entries: int) -> None:
        self.unconfirmed.clear()
        self.confirmed.over()

    def the_bridge_reads(self, entries: int) -> None:
        while self.delivered < len(self.stored) and self.stored[self.delivered][0] <= self.reached:
            self.delivered += 1  # acknowledged before they were sent
        for position, identity in self.stored[self.delivered : self.delivered + entries]:
            self.delivered += 1
            self._take(position, identity)
        for position, identity, _ in self.confirmed.after(self.reached):
            self._take(position, identity)

    def the_bridge_reads_what_is_confirmed(self, _entries: int) -> None:
        self.the_bridge_reads(0)

    def the_bridge_begins_to_read_anew(self, _entries: int) -> None:
        self.confirmed.close()
        self.delivered = 0
        self.confirmed.open(lambda: None)

    def _identity(self) -> Identity:
        self.next_number += 1
        return Identity("b", 1, Position(70, self.next_number))

    def _store(self, identity: Identity | None) -> Position:
        position = Position(self.ledger, self.next_entry)
        self.next_entry += 1
        self.stored.append((position, identity))
        return position

    def _take(self, position: Position, identity: Identity | None) -> None:
        if position > self.reached:
            self.reached = position
            self.read.append((position, identity))


EVENTS = (
    Model.an_application_publishes,
    Model.the_bridge_publishes,
    Model.the_broker_confirms,
    Model.the_broker_drops_a_duplicate,
    Model.the_broker_begins_a_ledger,
    Model.the_producer_ends,
    Model.the_bridge_reads,
    Model.the_bridge_reads_what_is_confirmed,
    Model.the_bridge_begins_to_read_anew,
)


@settings(max_examples=max(300, settings().max_examples))
@given(st.lists(st.tuples(st.integers(0, len(EVENTS) - 1), st.integers(1, 6)), min_size=40, max_size=80))
def test_invariant_2_all_is_taken_once_and_in_order(events: Sequence[tuple[int, int]]) -> None:
    model = Model()
    for event, entries in events:
        EVENTS[event](model, entries)
        assert model.read == model.stored[: len(model.read)]
    model.the_producer_ends(0)
    assert not model.confirmed.expected(False)  # nothing is waited for
    model.the_bridge_reads(len(model.stored))
    assert model.read == model.stored
