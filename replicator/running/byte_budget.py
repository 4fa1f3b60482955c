"""Budget of bytes that many holders share: a claim waits until it fits, and is never refused.

1. A claim is granted if it fits into what is left, and if its holder then has at most a quarter of the budget.
2. A claim of more than a quarter is *large*. It is granted when no other is. Small ones may join it where they fit.
3. Claims are granted in the order in which they came. A claim by which its holder would get more than a quarter is
   passed over. If another claim does not fit, all claims behind it wait. So a large claim does not wait for ever.
4. A holder that keeps bytes for :data:`HELD_SECONDS_MAX` while others wait for :data:`PATIENCE_SECONDS` is cut off, the
   one that has kept them for longest first. So a client that stops reading cannot stop the others.

:class:`ByteBudget` decides; it has no clock. :class:`WaitingBudget` lets tasks wait, on one event loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from replicator.running.short_tasks import complete

UNPACKED_BYTES_MAX: Final = 128 * 1024 * 1024
"""Default of the budget for what clients have decompressed: two of the largest messages."""
UNPACKED_BYTES_MIN: Final = 8 * 1024 * 1024
"""Smallest such budget: each of four connections then has room for a batch of 2 MiB."""
UNPACKED_BYTES_LIMIT: Final = 64 * 1024**3
"""Largest such budget: more than a worker's memory is a mistake."""
SHARES: Final = 4
"""Number of parts of a budget; one holder may have one part. Four holders that work at once use two cores."""
PATIENCE_SECONDS: Final = 10.0
"""Time for which a claim waits before a holder is cut off for it. It is enough to send a large message."""
HELD_SECONDS_MAX: Final = 30.0
"""Time after which a holder counts as a client that has stopped reading."""


@dataclass(eq=False, slots=True)
class Claim:
    """Claim of ``size_bytes`` bytes of a budget by one holder, which waits or is granted."""

    holder: object
    size_bytes: int
    cut: Callable[[], None]
    """Function that ends the holder, if it keeps the bytes for too long."""
    asked_at: float = 0.0
    granted_at: float | None = None
    was_cut: bool = False
    granted: asyncio.Future[None] | None = field(default=None, repr=False)


class ByteBudget:
    """Budget of ``bytes_max`` bytes: decides which claims are granted, and which holder is cut off."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.share_bytes = max(1, bytes_max // SHARES)
        self.used_bytes = 0
        self._held: Counter[object] = Counter()
        self._granted: dict[Claim, None] = {}
        self._waiting: dict[Claim, None] = {}

    @property
    def waiting(self) -> int:
        """Return the number of claims that are not granted yet."""
        return len(self._waiting)

    def ask(self, claim: Claim, now: float) -> list[Claim]:
        """Put ``claim`` into the line. Return the claims that are granted now, perhaps this one among them."""
        claim.asked_at = now
        self._waiting[claim] = None
        return self._grant(now)

    def give_back(self, claim: Claim, now: float) -> list[Claim]:
        """End ``claim``, whether it was granted or not. Return the claims that are granted now.

        A claim may be ended more than once.
        """
        if claim in self._granted:
            del self._granted[claim]
            self.used_bytes -= claim.size_bytes
            self._held[claim.holder] -= claim.size_bytes
            if self._held[claim.holder] <= 0:
                del self._held[claim.holder]
        else:
            self._waiting.pop(claim, None)
        return self._grant(now)

    def waiting_of(self, holder: object) -> list[Claim]:
        """Return the claims of ``holder`` that are not granted yet."""
        return [claim for claim in self._waiting if claim.holder is holder]

    def overdue(self, now: float) -> Claim | None:
        """Return a claim whose holder must be cut off now; None if there is none. Each claim is returned only once."""
        first = next((claim for claim in self._waiting if not self._exceeds_share(claim)), None)
        if first is None or now - first.asked_at < PATIENCE_SECONDS:
            return None
        for claim in self._granted:  # in the order of their grants
            if now - (claim.granted_at or now) < HELD_SECONDS_MAX:
                return None
            if not claim.was_cut:
                claim.was_cut = True
                return claim
        return None

    def _grant(self, now: float) -> list[Claim]:
        granted: list[Claim] = []
        for claim in list(self._waiting):
            if self._exceeds_share(claim):
                continue
            if not self._fits(claim):
                break
            del self._waiting[claim]
            self._granted[claim] = None
            self.used_bytes += claim.size_bytes
            self._held[claim.holder] += claim.size_bytes
            claim.granted_at = now
            granted.append(claim)
        return granted

    def _exceeds_share(self, claim: Claim) -> bool:
        held = self._held.get(claim.holder, 0)
        return held > 0 and held + claim.size_bytes > self.share_bytes

    def _fits(self, claim: Claim) -> bool:
        if claim.size_bytes > self.share_bytes:
            return self.used_bytes == 0
        return self.used_bytes + claim.size_bytes <= self.bytes_max


class WaitingBudget:
    """Budget whose claims are awaited. Only the event loop that asks for the first claim may ask for others."""

    def __init__(self, bytes_max: int) -> None:
        self._budget = ByteBudget(bytes_max)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def bytes_max(self) -> int:
        return self._budget.bytes_max

    @property
    def used_bytes(self) -> int:
        return self._budget.used_bytes

    @property
    def waiting(self) -> int:
        return self._budget.waiting

    async def take(self, holder: object, size_bytes: int, cut: Callable[[], None]) -> Claim:
        """Return a claim once it is granted. The caller must end it by :meth:`give_back`.

        ``cut`` is called if the holder keeps the bytes for too long while others wait.
        """
        self._loop = asyncio.get_running_loop()
        claim = Claim(holder, size_bytes, cut)
        claim.granted = self._loop.create_future()
        self._tell(self._budget.ask(claim, self._loop.time()))
        self._watch()
        try:
            await claim.granted
        except BaseException:
            self._end(claim)
            raise
        return claim

    def give_back(self, claim: Claim) -> None:
        """End ``claim``. Any thread may call this, and more than once."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed, and nobody waits on it
                self._loop.call_soon_threadsafe(self._end, claim)

    def gone(self, holder: object) -> None:
        """End the claims of ``holder`` that wait: its connection is over. :meth:`take` raises ConnectionResetError."""
        for claim in self._budget.waiting_of(holder):
            if claim.granted is not None:
                complete(claim.granted, ConnectionResetError("the connection is over"))

    def _end(self, claim: Claim) -> None:
        assert self._loop is not None
        self._tell(self._budget.give_back(claim, self._loop.time()))

    def _tell(self, granted: list[Claim]) -> None:
        for claim in granted:
            if claim.granted is not None:
                complete(claim.granted, None)

    def _watch(self) -> None:
        if self._budget.waiting and self._timer is None and self._loop is not None:
            self._timer = self._loop.call_later(1.0, self._look)

    def _look(self) -> None:
        assert self._loop is not None
        self._timer = None
        if (claim := self._budget.overdue(self._loop.time())) is not None:
            claim.cut()
        self._watch()


class ThreadBudget:
    """Budget for work on threads. A claim for more than the whole budget is granted when there is no other."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used_bytes = 0
        self._changed = threading.Condition()

    @contextmanager
    def held(self, size_bytes: int) -> Iterator[None]:
        """Hold ``size_bytes`` of the budget while the ``with`` block runs. Block this thread until they are free."""
        with self._changed:
            self._changed.wait_for(lambda: not self.used_bytes or self.used_bytes + size_bytes <= self.bytes_max)
            self.used_bytes += size_bytes
        try:
            yield
        finally:
            with self._changed:
                self.used_bytes -= size_bytes
                self._changed.notify_all()
