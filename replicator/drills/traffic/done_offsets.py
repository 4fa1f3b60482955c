"""Messages of a partition that are done, and the offset that may be committed for them. Pure.

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
    """Offsets of one consumer, in the order in which it received them."""

    def __init__(self) -> None:
        self._partitions: dict[Partition, _Partition] = {}

    def received(self, partition: Partition, offset: int) -> None:
        of = self._partitions.setdefault(partition, _Partition())
        row = of.by_offset[offset] = _Received(offset)
        of.outstanding.append(row)

    def done(self, messages: Iterable[tuple[Partition, int]]) -> None:
        """Note that messages are done. Ignore those that are not outstanding, for example after a rebalance."""
        for partition, offset in messages:
            of = self._partitions.get(partition)
            if of is not None and offset in of.by_offset:
                of.by_offset[offset].done = True

    def take(self) -> tuple[dict[Partition, int], set[tuple[Partition, int]]]:
        """Return the offset to commit for each partition that has a new one, and the messages that it newly covers."""
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
        """Forget partitions that were taken away: their outstanding messages come again, here or elsewhere."""
        for partition in partitions:
            self._partitions.pop(partition, None)
