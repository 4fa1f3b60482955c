"""Which batches are acknowledged as a whole, at brokers that may not know single messages of a batch. Sans-IO.

A broker of others keeps acknowledged indexes of a batch only if it is set to. So what is acknowledged of each batch is
remembered here, and when it is all of it, the entry is acknowledged whole.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from pyroaring import BitMap

from replicator.engine.types import Ack
from snapshots.position import Position

REMEMBERED_MAX: Final = 100_000
"""Batches that are acknowledged in part. Past it the oldest are forgotten: the broker delivers them again."""


class WholeEntries:
    """The batches of one consumer."""

    __slots__ = ("_acked",)

    def __init__(self) -> None:
        self._acked: dict[Position, BitMap] = {}

    def acknowledged(self, ack: Ack) -> Ack:
        """What to send for ``ack``: with all that was acknowledged of its batch before, or the whole entry."""
        if ack.batch_indexes is None:
            self._acked.pop(ack.position, None)
            return ack
        together = self._acked.setdefault(ack.position, BitMap())
        together.update(ack.batch_indexes)
        if len(together) >= ack.batch_size:
            del self._acked[ack.position]
            return Ack(ack.position)
        if len(self._acked) > REMEMBERED_MAX:
            del self._acked[next(iter(self._acked))]
        return replace(ack, batch_indexes=tuple(together))

    def acknowledged_through(self, position: Position) -> None:
        """All before this entry is acknowledged."""
        for earlier in [each for each in self._acked if each < position]:
            del self._acked[earlier]

    def clear(self) -> None:
        """The subscription was put elsewhere."""
        self._acked.clear()
