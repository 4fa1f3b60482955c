"""What the brokers have confirmed of the bridge's own entries: the bridge need not read these again. Sans-IO.

Invariants (DESIGN §3): 2, an entry is passed over only where the broker's confirmation says that it is the very next
one, so that nobody else's lies before it; 11, what is kept is bounded.

The bridge reads a topic through one cursor, and publishes into the same topic. Its own entries would all come back to
it, which costs a broker as much as another consumer. A confirmation says where an entry lies. While entries of its own
follow one another without a gap, the bridge moves its cursor over them, and grants the broker no permits: what is
acknowledged before the broker has sent it is never sent. A gap is an entry of somebody else, the end of a ledger, or
what brokers show to nobody. Then, and some time after the last confirmation, the bridge reads on from there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from replicator.apache.stamps import Identity
from snapshots.position import BEFORE_ALL, Position

HOLD_SECONDS: Final = 0.05
"""So long after the last confirmation the bridge waits for another entry to be published, and then reads on."""
HOLD_UNDER_WAY_SECONDS: Final = 1.0
"""So long it waits for a confirmation of what is published. A message of an application that was stored before that is
seen as a gap as soon as the confirmation comes, so that it is late by no more than a broker takes to confirm."""
AHEAD_MAX: Final = 10_000
"""Confirmations beyond a gap that are kept; past it all of them are forgotten, and the entries are read."""
LEDGERS_END: Final = 1 << 63
"""A broker that drops an entry as a duplicate confirms it at a position that is none."""


class Confirmation(NamedTuple):
    """An entry of the bridge's own, and where it lies at the brokers."""

    position: Position
    identity: Identity
    messages: int


class Confirmed:
    """Between who publishes into a topic and who reads it."""

    def __init__(self) -> None:
        self._ahead: deque[Confirmation] = deque()
        """In the order of the brokers; the reader has not got there."""
        self._under_way = 0
        self._gap = False
        self._wake: Callable[[], None] | None = None

    # Who publishes.

    def sent(self) -> None:
        """One more entry is under way."""
        self._under_way += 1

    def confirm(self, position: Position, identity: Identity, messages: int) -> None:
        """The entry lies there. They come in the order in which they were sent, each after its :meth:`sent`."""
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
        """The producer has ended: nothing of it is confirmed any more."""
        self._under_way = 0
        if self._wake is not None:
            self._wake()

    # Who reads.

    def open(self, wake: Callable[[], None]) -> None:
        """From now on confirmations are kept; ``wake`` is called when something has changed."""
        self._wake = wake

    def close(self) -> None:
        self._wake = None
        self._ahead.clear()

    def after(self, reached: Position) -> list[Confirmation]:
        """The entries of the bridge's own that follow ``reached`` without a gap; they are the caller's."""
        ahead, following = self._ahead, []
        while ahead and ahead[0].position <= reached:
            ahead.popleft()
        while ahead and ahead[0].position == Position(reached.ledger, reached.entry + 1):
            following.append(ahead.popleft())
            reached = following[-1].position
        self._gap = bool(ahead)
        return following

    def expected(self, found: bool) -> bool:
        """Whether what comes next is likely to be an entry of the bridge's own, which a confirmation is going to tell:
        some are under way, or some were ``found`` just now, and :meth:`after` saw no gap before others."""
        return (found or self._under_way > 0) and not self._gap

    def hold_seconds(self) -> float:
        """How long the bridge waits for what is :meth:`expected`, before it reads on."""
        return HOLD_UNDER_WAY_SECONDS if self._under_way > 0 else HOLD_SECONDS
