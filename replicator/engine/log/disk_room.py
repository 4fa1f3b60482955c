"""Free space of a disk, and how much of it each kind of write may take.

Invariant (DESIGN §3): 11, large writes stop first, then all appends; writes that make room stop last.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from errno import EDQUOT, ENOSPC
from typing import Final

RESERVE_BYTES: Final = 32 * 1024 * 1024
"""Reserve behind the last page of the table. It lasts for thousands of acknowledgements after the disk is full, since
most of them go to free pages."""
APPENDS_LEAVE_BYTES: Final = 32 * 1024 * 1024
"""Bytes of the disk that appends leave free: Postgres, logs and staging may need them."""
SEGMENTS_LEAVE_BYTES: Final = 64 * 1024 * 1024
"""Bytes of the disk that new segments leave free: more, so that small appends still fit."""
GROWTH_BYTES: Final = 16 * 1024 * 1024
"""Bytes by which the table grows at once, in less than a millisecond."""


def is_full(error: OSError) -> bool:
    """Return whether ``error`` says that the disk has no room left, or that a quota is used up."""
    return error.errno in (ENOSPC, EDQUOT)


@dataclass(frozen=True, slots=True)
class DiskRoom:
    """Free and total bytes of a disk, and how much must stay free. On a small disk that is a share of its size."""

    free: int
    total: int

    @classmethod
    def of(cls, found: os.statvfs_result) -> DiskRoom:
        return cls(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)

    @property
    def reserve(self) -> int:
        return min(RESERVE_BYTES, self.total // 8)

    @property
    def growth(self) -> int:
        return min(GROWTH_BYTES, self.total // 16)

    @property
    def append_reserve_bytes(self) -> int:
        return min(APPENDS_LEAVE_BYTES, self.total // 8)

    @property
    def segments_leave(self) -> int:
        return min(SEGMENTS_LEAVE_BYTES, self.total // 4)

    def takes_segment(self, capacity: int) -> bool:
        """Return whether the disk has room for a new segment of ``capacity`` bytes and for the bytes that must stay
        free.

        The code that refuses a body and the code that reports a full disk both use this rule, so that they agree.
        """
        return self.free >= capacity + self.segments_leave
