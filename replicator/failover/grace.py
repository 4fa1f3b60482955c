"""Grace of a planned switch: the time in which consumers may finish. Sans-IO.

Consumers get nothing more, so they hold less and less. An acknowledgement that is under way when they are disconnected
is lost, and the other cluster delivers its message again. So the grace is over

1. at once when they hold nothing, as at an idle cluster;
2. :data:`QUIET_SECONDS` after they held less for the last time: what they still hold, they keep;
3. after :data:`GRACE_SECONDS_MAX` in any case: producers are refused meanwhile.
"""

from __future__ import annotations

from typing import Final

QUIET_SECONDS: Final = 1.0
"""Clients collect acknowledgements for 100 ms; where the machine is busy they come many times later. An application
that keeps messages for long makes a switch this much longer."""
GRACE_SECONDS_MAX: Final = 2.0
"""Limit of the grace for applications that go on acknowledging. The other cluster delivers again what they did not
acknowledge.
"""


class ConsumerGrace:
    """Time that consumers get to acknowledge what they hold, before a planned switch to another cluster goes on.

    It begins at ``now``, in seconds of the clock that :meth:`is_over` is given as well. It is over when consumers hold
    nothing, when they have not held less for :data:`QUIET_SECONDS`, or after :data:`GRACE_SECONDS_MAX`.
    """

    def __init__(self, now: float) -> None:
        self._began = self._less_at = now
        self._held_entries: int | None = None

    def is_over(self, held_entries: int, now: float) -> bool:
        """Return whether consumers that hold so many entries have had their time."""
        if self._held_entries is None or held_entries < self._held_entries:
            self._held_entries, self._less_at = held_entries, now
        return not held_entries or now - self._less_at >= QUIET_SECONDS or now - self._began >= GRACE_SECONDS_MAX
