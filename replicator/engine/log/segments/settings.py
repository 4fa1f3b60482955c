"""How large segments are and which bodies go there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SEGMENT_BYTES: Final = 256 * 1024 * 1024
SEGMENT_BYTES_MIN: Final = 64 * 1024
SEGMENT_BYTES_MAX: Final = 16 * 1024**3
FIRST_BYTES: Final = 16 * 1024 * 1024
"""The first segment of a store; later ones are as large as all that are there, up to the setting."""
BODY_BYTES_MIN: Final = 64 * 1024
GROUP_BYTES_MIN: Final = 512 * 1024
"""A group that has less is committed faster without a segment: that has a sync of its own (docs/benchmarks.md)."""
RECENT_BYTES_MAX: Final = 128 * 1024 * 1024
FREE_KEPT: Final = 2


@dataclass(frozen=True, slots=True)
class SegmentSettings:
    """``segment_bytes`` is the size of the largest. 0: bodies of any size lie in the store's table; those that are in
    segments stay there."""

    segment_bytes: int = SEGMENT_BYTES
    body_bytes_min: int = BODY_BYTES_MIN
    """Blocks of that size and larger ones go to segments,"""
    group_bytes_min: int = GROUP_BYTES_MIN
    """if all that is appended by their transaction has at least that size."""
    recent_bytes_max: int = RECENT_BYTES_MAX
    """Memory for what was written last."""
    free_kept: int = FREE_KEPT
    """Segments in which nothing lives that stay on the disk to be used again; further ones are deleted."""

    def sizes(self, appended_bytes: int) -> range:
        """Of the blocks that go to segments in a transaction that appends about so much: none, if it is not worth its
        sync."""
        return (
            range(self.body_bytes_min, self.segment_bytes + 1) if appended_bytes >= self.group_bytes_min else range(0)
        )
