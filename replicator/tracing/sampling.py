"""Which messages begin a trace here, decided when they are published. Pure; clock and chance are passed in.

Whoever publishes asks once for all messages of a call, and the answer is mostly one comparison:

1. How many messages are passed over before the next one that is sampled is drawn beforehand, from the geometric
   distribution: as if each message were drawn by itself with that probability.
2. A call with fewer messages only makes that number smaller.
3. No more messages are traced a second than a limit (invariant 11, DESIGN §3), whoever decided that they are sampled:
   producers may say so of all of theirs. What is over the limit is counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

_NEVER: Final = 2**62
"""So many messages are passed over at a rate of 0."""


class Sampler:
    """Of all topics of a worker. ``rate`` is the probability of each message, ``chance`` gives numbers in [0, 1)."""

    __slots__ = (
        "_chance",
        "_clock",
        "_left",
        "_log_passed",
        "_passed_over",
        "_refilled_at",
        "per_second",
        "rate",
        "skipped",
        "traced",
    )

    def __init__(self, rate: float, per_second: int, clock: Callable[[], float], chance: Callable[[], float]) -> None:
        assert 0 <= rate <= 1
        self.traced = 0
        """Messages that were let through by :meth:`admit`."""
        self.skipped = 0
        """Messages that were sampled, and not traced because there were too many."""
        self._clock = clock
        self._chance = chance
        self._left = float(per_second)
        self._refilled_at = clock()
        self.change(rate, per_second)

    def change(self, rate: float, per_second: int) -> None:
        """Another rate and another limit hold from now on."""
        self.rate = rate
        self.per_second = per_second
        self._log_passed = math.log1p(-rate) if rate < 1 else -math.inf
        self._passed_over = self._gap()

    def pick(self, messages: int) -> Sequence[int]:
        """The numbers of those of the next so many messages that begin a trace."""
        at = self._passed_over
        if at >= messages:
            self._passed_over = at - messages
            return ()
        picked: list[int] = []
        while at < messages:
            picked.append(at)
            at += 1 + self._gap()
        self._passed_over = at - messages
        return picked

    def admit(self, messages: int) -> int:
        """How many of so many sampled messages are traced; the others are over the limit."""
        now = self._clock()
        self._left = min(float(self.per_second), self._left + (now - self._refilled_at) * self.per_second)
        self._refilled_at = now
        admitted = min(messages, int(self._left))
        self._left -= admitted
        self.traced += admitted
        self.skipped += messages - admitted
        return admitted

    def _gap(self) -> int:
        """How many messages are passed over before the next one."""
        if self.rate <= 0:
            return _NEVER
        if self.rate >= 1:
            return 0
        return min(_NEVER, int(math.log(1 - self._chance()) / self._log_passed))
