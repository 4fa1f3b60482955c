"""Sampling: it chooses, at publish, the messages that begin a trace. Pure; clock and chance are passed in.

It is called once for all messages of a publish, and mostly answers with one comparison:

1. The number of messages before the next sampled one is drawn beforehand, from the geometric distribution: as if each
   message were drawn by itself with that probability.
2. A call with fewer messages only makes that number smaller.
3. The number of traced messages a second is limited (invariant 11, DESIGN §3), whoever sampled them: producers may
   mark all of theirs as sampled. Messages over the limit are counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

_NEVER: Final = 2**62
"""Number of messages that are passed over at a rate of 0."""


class Sampler:
    """Sampler for all topics of a worker.

    ``rate`` is the probability of each message; ``chance`` gives numbers in [0, 1)."""

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
        """Number of messages that :meth:`admit` admitted."""
        self.skipped = 0
        """Number of sampled messages that were not traced because there were too many."""
        self._clock = clock
        self._chance = chance
        self._left = float(per_second)
        self._refilled_at = clock()
        self.change(rate, per_second)

    def change(self, rate: float, per_second: int) -> None:
        """Set another rate and another limit."""
        self.rate = rate
        self.per_second = per_second
        self._log_passed = math.log1p(-rate) if rate < 1 else -math.inf
        self._passed_over = self._gap()

    def pick(self, messages: int) -> Sequence[int]:
        """Return the indexes of the next ``messages`` messages that begin a trace."""
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
        """Return how many of ``messages`` sampled messages are traced; the others are over the limit."""
        now = self._clock()
        self._left = min(float(self.per_second), self._left + (now - self._refilled_at) * self.per_second)
        self._refilled_at = now
        admitted = min(messages, int(self._left))
        self._left -= admitted
        self.traced += admitted
        self.skipped += messages - admitted
        return admitted

    def _gap(self) -> int:
        """Draw the number of messages to pass over before the next sampled one."""
        if self.rate <= 0:
            return _NEVER
        if self.rate >= 1:
            return 0
        return min(_NEVER, int(math.log(1 - self._chance()) / self._log_passed))
