"""What of a partition's messages is done, and up to where that may be committed. Pure.

Kafka knows one offset a group and partition: everything before it is consumed. An application that finishes messages
out of order commits up to the first that is not done. What is done behind it is acknowledged when that one is, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

Partition = str
"""One partition a topic: its name is the topic's."""


@dataclass(slots=True)
class _Received:
    offset: int
    done: bool = False


@dataclass(slots=True)
class _Partition:
    outstanding: deque[_Received] = field(default_factory=deque)
    by_offset: dict[int, _Received] = field(default_factory=dict)


class DoneOffsets:
    """Of one consumer, in the order in which it received."""

    def __init__(self) -> None:
        self._partitions: dict[Partition, _Partition] = {}

    def received(self, partition: Partition, offset: int) -> None:
        of = self._partitions.setdefault(partition, _Partition())
        row = of.by_offset[offset] = _Received(offset)
        of.outstanding.append(row)

    def done(self, messages: Iterable[tuple[Partition, int]]) -> None:
        """What is not outstanding, such as after a rebalance, is no concern any more."""
        for partition, offset in messages:
            of = self._partitions.get(partition)
            if of is not None and offset in of.by_offset:
                of.by_offset[offset].done = True

    def take(self) -> tuple[dict[Partition, int], set[tuple[Partition, int]]]:
        """The offset to commit of each partition that has a new one, and the messages that it covers anew."""
        offsets: dict[Partition, int] = {}
        covered: set[tuple[Partition, int]] = set()
        for partition, of in self._partitions.items():
            while of.outstanding and of.outstanding[0].done:
                row = of.outstanding.popleft()
                del of.by_offset[row.offset]
                covered.add((partition, row.offset))
                offsets[partition] = row.offset + 1
        return offsets, covered

    def forget(self, partitions: Iterable[Partition]) -> None:
        """They were taken away: what is outstanding of them comes again, here or elsewhere."""
        for partition in partitions:
            self._partitions.pop(partition, None)
