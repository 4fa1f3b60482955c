"""Entries that one producer of the bridge has sent to the brokers, and that no answer has confirmed yet.

Invariant (DESIGN §3): 11, what is sent and not confirmed is bounded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from replicator.apache.confirmed_entries import LEDGERS_END, ConfirmedEntries
from replicator.apache.publish_budget import InFlightEntries
from replicator.apache.stamps import Identity
from replicator.client.errors import PulsarException
from snapshots.position import Position


class Renewed(Exception):
    """Signal that the producer must be opened anew."""


class Sent(NamedTuple):
    """Entry that was sent."""

    bytes: int
    identity: Identity
    messages: int


class Refused(Exception):
    """Error for an entry that the brokers refused, or that exceeds one of their limits. ``reason`` says why."""

    def __init__(self, entry: Sent, reason: str) -> None:
        super().__init__(reason)
        self.entry = entry
        self.reason = reason


class EntriesInFlight:
    """The entries that one producer has sent, and that no answer has confirmed yet.

    ``news`` is set when the producer is over. ``renewed`` returns whether another producer must take its place.
    ``begins`` is called after each answer that confirms entries. ``dropped`` is called for each entry that the broker
    dropped as a duplicate.
    """

    def __init__(
        self,
        news: asyncio.Event,
        confirmed: ConfirmedEntries,
        room: InFlightEntries,
        renewed: Callable[[], bool],
        begins: Callable[[], None],
        dropped: Callable[[Identity], None],
    ) -> None:
        self._news = news
        self._confirmed = confirmed
        self._room = room
        self._renewed = renewed
        self._begins = begins
        self._dropped = dropped
        self._sent: dict[int, Sent] = {}
        self._error: Exception | None = None
        self._answered = asyncio.Event()

    @property
    def waits(self) -> bool:
        """Return whether an answer to a sent entry is still to come."""
        return bool(self._sent)

    def check(self) -> None:
        """Raise the error that ended the producer, or :class:`Renewed` if another producer must take its place."""
        if self._error is not None:
            raise self._error
        if self._renewed():
            raise Renewed

    async def room(self, size: int) -> None:
        """Wait until an entry of this size may be sent. Raises the same errors as :meth:`check`."""
        while not self._room.fits(size):
            self.check()
            self._answered.clear()
            await self._answered.wait()
        self.check()

    async def landed(self) -> None:
        """Wait until all sent entries are answered. Raises the same errors as :meth:`check`."""
        while self._sent:
            self.check()
            self._answered.clear()
            await self._answered.wait()
        self.check()

    def sent(self, number: int, entry: Sent) -> None:
        self._sent[number] = entry
        self._room.sent(entry.bytes)
        self._confirmed.sent()

    def on_receipts(self, entry_ids: Sequence[int], positions: Sequence[Position]) -> None:
        for number, position in zip(entry_ids, positions, strict=True):
            entry = self._sent.pop(number)
            self._room.confirmed(entry.bytes)
            self._confirmed.confirm(position, entry.identity, entry.messages)
            if position.ledger >= LEDGERS_END:
                self._dropped(entry.identity)
        self._begins()
        self._answered.set()

    def on_refused(self, entry_id: int, error: PulsarException) -> None:
        self._over(Refused(self._sent.pop(entry_id), f"{type(error).__name__}: {error}"))

    def on_lost(self, error: PulsarException) -> None:
        self._over(error)

    def _over(self, error: Exception) -> None:
        self._error = self._error or error
        self._answered.set()
        self._news.set()
