"""How many bytes of blocks lie below a position, for logs of any length. Pure.

The store counts entries and messages with each block, not bytes. So the sizes of blocks are added up as they are read
once, and the sum is kept at every :data:`SAMPLE_BLOCKS`-th block: whoever asks reads the headers from the sample before
a position on, a bounded number, and adds them. Nothing of it is stored; it is made again after a restart for those
policies that ask for sizes.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

from replicator.engine.log.block import BlockSpan
from snapshots.position import Position

SAMPLE_BLOCKS: Final = 64
"""A million blocks are 16,000 samples, some megabytes; a question reads 64 headers, a tenth of a millisecond."""


class LogSizes:
    """The sums of one log, counted from ``start``: the place up to which it is trimmed."""

    __slots__ = ("_blocks", "_sums", "_throughs", "reached", "size_bytes", "start")

    def __init__(self, start: Position) -> None:
        self.start = start
        self.reached = start
        """The end of the last block that was added."""
        self.size_bytes = 0
        """Of all that were added."""
        self._blocks = 0
        self._throughs = [start]
        self._sums = [0]

    def add(self, block: BlockSpan) -> None:
        """The block that follows those that were added."""
        assert block.last > self.reached
        self.reached = block.last
        self.size_bytes += block.size_bytes
        self._blocks += 1
        if self._blocks % SAMPLE_BLOCKS == 0:
            self._throughs.append(block.last)
            self._sums.append(self.size_bytes)

    def sample(self, position: Position) -> tuple[Position, int]:
        """The highest sample at or below ``position``: the end of a block, and the bytes up to there."""
        at = max(0, bisect_right(self._throughs, position) - 1)
        return self._throughs[at], self._sums[at]

    def trim(self, upto: Position, size_bytes: int) -> None:
        """The blocks up to ``upto``, which have ``size_bytes``, are gone."""
        at = bisect_right(self._throughs, upto)
        self.start = upto
        self.size_bytes -= size_bytes
        self._throughs = [upto, *self._throughs[at:]]
        self._sums = [0, *(total - size_bytes for total in self._sums[at:])]
