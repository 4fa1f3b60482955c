"""Settings of segments: their sizes, and the bodies that go there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SEGMENT_BYTES: Final = 256 * 1024 * 1024
SEGMENT_BYTES_MIN: Final = 64 * 1024
SEGMENT_BYTES_MAX: Final = 16 * 1024**3
FIRST_BYTES: Final = 16 * 1024 * 1024
"""Size of the first segment of a store. Later ones are as large as all existing ones together, up to the setting."""
BODY_BYTES_MIN: Final = 64 * 1024
GROUP_BYTES_MIN: Final = 512 * 1024
"""Smaller groups do not use segments: a segment needs a sync of its own, so they commit faster without
(docs/benchmarks.md)."""
RECENT_BYTES_MAX: Final = 128 * 1024 * 1024
FREE_KEPT: Final = 2


@dataclass(frozen=True, slots=True)
class SegmentSettings:
    """Settings of segments. ``segment_bytes`` is the size of the largest segment. With 0, new bodies of any size go to
    the store's table; bodies in segments stay there."""

    segment_bytes: int = SEGMENT_BYTES
    body_bytes_min: int = BODY_BYTES_MIN
    """Smallest block that goes to a segment."""
    group_bytes_min: int = GROUP_BYTES_MIN
    """Bytes that a transaction must append for its blocks to go to segments."""
    recent_bytes_max: int = RECENT_BYTES_MAX
    """Memory for the bytes that were written last."""
    free_kept: int = FREE_KEPT
    """Number of free segments that stay on the disk to be used again. Further ones are deleted."""

    def sizes(self, appended_bytes: int) -> range:
        """Return the sizes of blocks that go to segments in a transaction that appends ``appended_bytes``. The range is
        empty if the transaction is too small to be worth a segment's sync."""
        return (
            range(self.body_bytes_min, self.segment_bytes + 1) if appended_bytes >= self.group_bytes_min else range(0)
        )
