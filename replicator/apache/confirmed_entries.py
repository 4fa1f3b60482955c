"""The bridge's own entries that the brokers have confirmed. The bridge need not read them again. Sans-IO.

Invariants (DESIGN §3): 2, an entry is passed over only if the broker's confirmation says that it is the very next
one, so that nobody else's entry lies before it; 11, what is kept is bounded.

The bridge reads a topic through one cursor, and publishes into the same topic. Its own entries would all come back to
it, which costs a broker as much as another consumer. A confirmation says where an entry lies. While entries of its own
follow one another without a gap, the bridge moves its cursor over them, and grants the broker no permits: brokers never
send entries that were acknowledged before. A gap is an entry of somebody else, the end of a ledger, or an entry that
brokers show to nobody. At a gap, and some time after the last confirmation, the bridge reads on from there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from replicator.apache.stamps import Identity
from snapshots.position import BEFORE_ALL, Position

HOLD_SECONDS: Final = 0.05
"""Time after the last confirmation for which the bridge waits for another own entry, before it reads on."""
HOLD_UNDER_WAY_SECONDS: Final = 1.0
"""Longest wait for the confirmation of a published entry, before the bridge reads on. If an application's message was
stored before that entry, the confirmation shows a gap. So the message is late by the time of one confirmation only."""
AHEAD_MAX: Final = 10_000
"""Most confirmations kept beyond a gap. If there are more, all are forgotten, and the entries are read."""
LEDGERS_END: Final = 1 << 63
"""Bound of real ledger ids. A broker that drops an entry as a duplicate confirms it at a position beyond this."""


class Confirmation(NamedTuple):
    """Confirmed entry of the bridge, with its position at the brokers."""

    position: Position
    identity: Identity
    messages: int


class ConfirmedEntries:
    """Confirmed entries of one topic. The bridge's publisher adds them, and its reader takes them."""

    def __init__(self) -> None:
        self._ahead: deque[Confirmation] = deque()
        """Confirmations that the reader has not reached, in the order of the brokers."""
        self._under_way = 0
        self._gap = False
        self._wake: Callable[[], None] | None = None

    # For the publisher.

    def sent(self) -> None:
        """Record that one more entry is under way."""
        self._under_way += 1

    def confirm(self, position: Position, identity: Identity, messages: int) -> None:
        """Record that the entry lies at ``position``. Confirmations come in the order in which entries were sent."""
        self._under_way -= 1
        if self._wake is None:
            return
        last = self._ahead[-1].position if self._ahead else BEFORE_ALL
        if not last < position < Position(LEDGERS_END, 0) or len(self._ahead) >= AHEAD_MAX:
            self._ahead.clear()  # they are not forgotten by the broker: the reader gets to them
        else:
            self._ahead.append(Confirmation(position, identity, messages))
        self._wake()

    def over(self) -> None:
        """Record that the producer has ended: its other entries will not be confirmed."""
        self._under_way = 0
        if self._wake is not None:
            self._wake()

    # For the reader.

    def open(self, wake: Callable[[], None]) -> None:
        """Keep confirmations from now on. ``wake`` is called when something has changed."""
        self._wake = wake

    def close(self) -> None:
        self._wake = None
        self._ahead.clear()

    def after(self, reached: Position) -> list[Confirmation]:
        """Remove and return the own entries that follow ``reached`` without a gap."""
        ahead, following = self._ahead, []
        while ahead and ahead[0].position <= reached:
            ahead.popleft()
        while ahead and ahead[0].position == Position(reached.ledger, reached.entry + 1):
            following.append(ahead.popleft())
            reached = following[-1].position
        self._gap = bool(ahead)
        return following

    def expected(self, found: bool) -> bool:
        """Return whether the next entry is likely the bridge's own, so that a confirmation will tell of it.

        It is if own entries are under way or were ``found`` just now, and :meth:`after` saw no gap."""
        return (found or self._under_way > 0) and not self._gap

    def hold_seconds(self) -> float:
        """Return how long the bridge waits for the :meth:`expected` entry, before it reads on."""
        return HOLD_UNDER_WAY_SECONDS if self._under_way > 0 else HOLD_SECONDS
