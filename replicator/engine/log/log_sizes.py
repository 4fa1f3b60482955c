"""Sums of block sizes, which give the bytes of blocks below a position, for logs of any length. Pure.

The store counts entries and messages with each block, not bytes. So block sizes are added up while the blocks are read
once, and the sum is kept at every :data:`SAMPLE_BLOCKS`-th block. A query then reads the headers from the sample before
a position on, a bounded number, and adds their sizes. The sums are not stored. After a restart they are made again if a
policy needs sizes.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

from replicator.engine.log.block import BlockSpan
from snapshots.position import Position

SAMPLE_BLOCKS: Final = 64
"""Number of blocks from one sample to the next. A million blocks have 16,000 samples, some megabytes. A query reads 64
headers, a tenth of a millisecond."""


class LogSizes:
    """Sums of block sizes of one log, counted from ``start``, the position up to which the log is trimmed."""

    __slots__ = ("_blocks", "_sums", "_throughs", "reached", "size_bytes", "start")

    def __init__(self, start: Position) -> None:
        self.start = start
        self.reached = start
        """End of the last added block."""
        self.size_bytes = 0
        """Bytes of all blocks that were added."""
        self._blocks = 0
        self._throughs = [start]
        self._sums = [0]

    def add(self, block: BlockSpan) -> None:
        """Add the next block of the log."""
        assert block.last > self.reached
        self.reached = block.last
        self.size_bytes += block.size_bytes
        self._blocks += 1
        if self._blocks % SAMPLE_BLOCKS == 0:
            self._throughs.append(block.last)
            self._sums.append(self.size_bytes)

    def sample(self, position: Position) -> tuple[Position, int]:
        """Return the highest sample at or below ``position``: the end of a block, and the bytes up to there."""
        at = max(0, bisect_right(self._throughs, position) - 1)
        return self._throughs[at], self._sums[at]

    def trim(self, upto: Position, size_bytes: int) -> None:
        """Remove the trimmed blocks up to ``upto``, which have ``size_bytes``."""
        at = bisect_right(self._throughs, upto)
        self.start = upto
        self.size_bytes -= size_bytes
        self._throughs = [upto, *self._throughs[at:]]
        self._sums = [0, *(total - size_bytes for total in self._sums[at:])]
