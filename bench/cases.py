"""Cases to measure: message sizes, in producer batches and one by one, and how many messages a run takes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

RUNS: Final = 3
"""The median of three is not moved by one run that something else on the machine disturbed."""
PENDING_BYTES_MAX: Final = 32 * 1024 * 1024
"""Bytes that a producer keeps unconfirmed at most: as many as one group commit of a worker takes."""
PENDING_MESSAGES_MAX: Final = 20_000


@dataclass(frozen=True, slots=True)
class Case:
    """Messages of ``size_bytes``; ``batched`` in producer batches of the client's default limits, else one an entry."""

    size_name: str
    size_bytes: int
    batched: bool
    messages: int
    """Messages to publish, in :data:`RUNS` equal parts."""
    copied_messages: int
    """Number of messages in the backlog that is copied."""

    @property
    def name(self) -> str:
        return f"{self.size_name}/{'batched' if self.batched else 'single'}"

    @property
    def topic(self) -> str:
        return f"persistent://bench/default/{self.name.replace('/', '-')}"

    def of_copies(self) -> Case:
        """Return this case with ``copied_messages`` as its number of messages."""
        return replace(self, messages=self.copied_messages)

    @property
    def pending_messages_max(self) -> int:
        return max(16, min(PENDING_MESSAGES_MAX, PENDING_BYTES_MAX // self.size_bytes))

    @property
    def unit(self) -> str:
        """Return the unit of rates: ``msg/s`` for small messages, ``MB/s`` (10**6 bytes of payload) for large ones."""
        return "msg/s" if self.size_bytes < 10_000 else "MB/s"

    def rate(self, messages: int, seconds: float) -> float:
        """Return the rate of ``messages`` in ``seconds``, in :attr:`unit`."""
        return messages / seconds if self.unit == "msg/s" else messages * self.size_bytes / 1e6 / seconds

    def mb_s(self, rate: float) -> float:
        """Convert a rate in :attr:`unit` to MB of payload a second."""
        return rate * self.size_bytes / 1e6 if self.unit == "msg/s" else rate


_SIZES: Final = (
    ("100B", 100, (1_800_000, 5_400_000), (450_000, 1_800_000)),
    ("1kB", 1_000, (450_000, 1_800_000), (180_000, 720_000)),
    ("100kB", 100_000, (9_000, 18_000), (9_000, 18_000)),
)
"""Name and bytes of a message, then numbers of messages (published, copied) in batches and one by one. A copy takes a
second or more, since the destination needs half a second to start meanwhile."""
CASES: Final = tuple(
    Case(name, size, batched, *counts)
    for name, size, many, few in _SIZES
    for batched, counts in ((True, many), (False, few))
)
