"""When a cluster asks for snapshots, of one topic (DESIGN 4.2, docs/adr/0068). Pure.

It serves invariants 7 (an idle topic gets no markers) and 8 (whoever does not answer delays nobody for ever).

1. Who published asks, or who cannot wait for who did: at once, but for the interval between two requests.
2. Messages of a peer that asks by itself are *uncovered* until an answer of each cluster that we could ask covers them.
   We wait for these answers. If the peer does not ask within :data:`PATIENCE_INTERVALS`, or not all have answered in
   time after it asked, we ask.
3. What a cluster has said covers what is here until the next message comes. So nobody asks what all know.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

PATIENCE_INTERVALS: Final = 5
"""A peer that asks does so within an interval and a round trip. After so many, it is not waited for."""
TIMEOUTS_WAITED_MAX: Final = 10
"""A peer that asks again and again, as messages keep coming, is waited for no longer: some cluster may not hear it."""


class Asking:
    """Whether to ask, and from when on."""

    __slots__ = ("_moved", "_patience_ms", "_requested_ms", "_uncovered", "_waiting_since_ms")

    def __init__(self) -> None:
        self._moved = False
        """Messages came since the last request that nobody else asks about."""
        self._uncovered: frozenset[str] = frozenset()
        """Of whom no answer covers what is here."""
        self._waiting_since_ms = 0
        """When the first message came that others ask about."""
        self._patience_ms = 0
        """Until when they are waited for."""
        self._requested_ms: int | None = None

    @property
    def wanted(self) -> bool:
        """Whether there is something to ask about."""
        return self._moved or bool(self._uncovered)

    def due_ms(self, now_ms: int, interval_ms: int) -> int:
        """When to ask, if that is wanted."""
        earliest_ms = now_ms if self._requested_ms is None else self._requested_ms + interval_ms
        return earliest_ms if self._moved else max(earliest_ms, self._patience_ms)

    def on_messages(self, asked: frozenset[str], now_ms: int, interval_ms: int, *, others_ask: bool) -> None:
        """Messages came; ``asked`` are those whom we could ask. Whose they are asks by itself if ``others_ask``."""
        if not others_ask:
            self._moved = True
        elif not self._uncovered:
            self._waiting_since_ms, self._patience_ms = now_ms, now_ms + PATIENCE_INTERVALS * interval_ms
        self._uncovered = asked

    def on_peers(self, asked: frozenset[str], *, ask: bool) -> None:
        """From now on we could ask these; with ``ask`` we do, since some of them know nothing yet."""
        self._uncovered &= asked
        self._moved |= ask

    def on_asked(self, now_ms: int, timeout_ms: int) -> None:
        """A peer has asked."""
        self._patience_ms = min(now_ms + timeout_ms, self._waiting_since_ms + TIMEOUTS_WAITED_MAX * timeout_ms)

    def is_uncovered(self, cluster: str) -> bool:
        return cluster in self._uncovered

    def on_covered(self, clusters: Collection[str]) -> None:
        """These have said that they have every message that is here."""
        if self._uncovered:
            self._uncovered = self._uncovered.difference(clusters)
            if not self._uncovered:
                self._moved = False

    def on_request(self, now_ms: int) -> None:
        """We ask, about all that is here."""
        self._requested_ms = now_ms
        self.on_request_stands(about_all=True)

    def on_request_stands(self, *, about_all: bool) -> None:
        """A request of ours stands in the log after the last message; links carry it after what we published. It is
        ``about_all`` if others' messages were here, too, when it was decided."""
        self._moved = False
        if about_all:
            self._uncovered = frozenset()
