"""Permits of a client that the engine may have, so that a slow reader fills no memory. Sans-IO.

The engine sends what it has permits for, without asking how fast the socket is (invariant 11). So:

1. The engine gets no permits while the socket does not take more, and gives back those that it has: else each of a
   thousand consumers of one connection would fill the buffer with what it was granted before.
2. It gets at most as many at once as fit in :data:`GRANT_BYTES_MAX`, by the largest entry of late, within
   :data:`GRANT_MESSAGES_MIN` and :data:`GRANT_MESSAGES_MAX`. The memory of a large entry fades by half a delivery.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from replicator.engine.types import Delivery
from replicator.protocol.errors import OutOfOrder

PERMITS_MAX: Final = 1_000_000
"""Limit of permits that a client may give without getting anything."""
GRANT_BYTES_MAX: Final = 16 * 1024 * 1024
GRANT_MESSAGES_MIN: Final = 16
"""Smallest number of messages granted at once. It is lower if so many of the largest entry would exceed
:data:`LARGE_GRANT_BYTES_MAX`."""
LARGE_GRANT_BYTES_MAX: Final = 96 * 1024 * 1024
GRANT_MESSAGES_MAX: Final = 1_000
"""Largest number of messages granted at once: enough that the engine saves work when messages are small."""


class Permits:
    """Permits of one consumer. ``requested``, ``more`` and ``unblocked`` return how many to grant the engine now;
    ``blocked`` returns how many it must give back."""

    __slots__ = ("_blocked", "_entry_bytes", "_granted", "_requested")

    def __init__(self, entry_bytes_max: int) -> None:
        """Make the permits. ``entry_bytes_max`` is the assumed size of the first entries, whose real size is not
        known.
        """
        self._requested = 0
        self._granted = 0
        self._blocked = False
        self._entry_bytes = entry_bytes_max

    @property
    def unused(self) -> int:
        """Return the permits that the client gave and that are not used yet."""
        return max(0, self._requested + self._granted)

    def requested(self, permits: int) -> int:
        """Add permits that the client gave; return how many to grant the engine now.

        Raise :class:`OutOfOrder` for a number below 1, or if the client gives more than :data:`PERMITS_MAX`.
        """
        if permits <= 0 or self._requested + permits > PERMITS_MAX:
            raise OutOfOrder(
                f"the consumer asks for {permits} more messages (permits), and may ask for 1 to {PERMITS_MAX} that "
                "were not sent yet: its client is wrong"
            )
        self._requested += permits
        return self._grant()

    def used(self, deliveries: Sequence[Delivery]) -> int:
        """Count permits for entries that the engine sends to the socket now; return how many messages these are.
        Batches are not split, so it may use more permits than it has.
        """
        messages, largest = 0, max(self._entry_bytes // 2, 1)
        for delivery in deliveries:  # most often one
            messages += delivery.batch_size
            if len(delivery.entry) > largest:
                largest = len(delivery.entry)
        self._granted -= messages
        self._entry_bytes = largest
        return messages

    def more(self) -> int:
        """Return permits to grant after the socket took the entries; none if it was :meth:`blocked` meanwhile."""
        return self._grant()

    def blocked(self) -> int:
        """Stop granting: the socket takes no more for now. Return how many permits the engine must give back."""
        self._blocked = True
        returned = max(0, self._granted)
        self._granted -= returned
        self._requested += returned
        return returned

    def unblocked(self) -> int:
        self._blocked = False
        return self._grant()

    def _grant(self) -> int:
        if self._blocked or self._requested == 0:
            return 0
        least = min(GRANT_MESSAGES_MIN, max(1, LARGE_GRANT_BYTES_MAX // self._entry_bytes))
        fitting = min(max(GRANT_BYTES_MAX // self._entry_bytes, least), GRANT_MESSAGES_MAX)
        permits = max(0, min(self._requested, fitting - self._granted))
        self._requested -= permits
        self._granted += permits
        return permits
