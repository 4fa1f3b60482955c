"""Faults of a directed link, and the time at which a piece of its bytes may arrive. Pure; the proxy of
:mod:`replicator.drills.faults` acts on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final


class Flow(Enum):
    """Direction of the bytes in a link's connections."""

    FORTH = "forth"
    """From the link's source to its destination."""
    BACK = "back"
    """From the link's destination to its source: the answers."""


BOTH: Final = frozenset(Flow)


@dataclass(frozen=True, slots=True)
class LinkFault:
    """Fault of a link. By default the link is healthy."""

    cut: bool = False
    """Whether open connections are reset, and new ones are refused."""
    refuse: bool = False
    """Whether new connections are refused, while open ones go on."""
    black_hole: frozenset[Flow] = frozenset()
    """Directions in which nothing passes, unnoticed: connections stay open and silent."""
    delay_ms: int = 0
    """Delay in each direction."""
    rate_bytes: int | None = None
    """Bytes per second in each direction of each connection; None for no limit."""

    @property
    def refuses(self) -> bool:
        return self.cut or self.refuse

    @property
    def breaks(self) -> bool:
        """Return whether copies do not arrive at all, rather than late."""
        return self.refuses or bool(self.black_hole)


HEALTHY: Final = LinkFault()
CUT: Final = LinkFault(cut=True)
BLACK_HOLE: Final = LinkFault(black_hole=BOTH)


class Shaper:
    """Computes when pieces of one direction of a connection are due; they stay in order."""

    __slots__ = ("_due_s", "_free_s")

    def __init__(self) -> None:
        self._free_s = 0.0
        self._due_s = 0.0

    def due_s(self, now_s: float, size_bytes: int, fault: LinkFault) -> float:
        """Return when a piece that comes at ``now_s`` has passed: after the piece before it, at the link's rate, and
        with its delay.
        """
        sending_s = 0.0 if fault.rate_bytes is None else size_bytes / fault.rate_bytes
        self._free_s = max(self._free_s, now_s) + sending_s
        self._due_s = max(self._due_s, self._free_s + fault.delay_ms / 1000)
        return self._due_s
