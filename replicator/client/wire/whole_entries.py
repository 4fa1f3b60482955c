"""Batches that are acknowledged completely, for brokers that may not support batch indexes. Sans-IO.

Other brokers keep acknowledged indexes of a batch only if they are configured to. So this module remembers the
acknowledged messages of each batch. When all are acknowledged, the entry is acknowledged whole.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from pyroaring import BitMap

from replicator.engine.types import Ack
from snapshots.position import Position

REMEMBERED_MAX: Final = 100_000
"""Limit of remembered, partly acknowledged batches. Past it the oldest are forgotten: the broker delivers them
again."""


class WholeEntries:
    """Partly acknowledged batches of one consumer."""

    __slots__ = ("_acked",)

    def __init__(self) -> None:
        self._acked: dict[Position, BitMap] = {}

    def acknowledged(self, ack: Ack) -> Ack:
        """Return the acknowledgement to send for ``ack``: with all earlier ones of its batch, or of the whole entry."""
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
        """Forget the batches before this entry, which are all acknowledged."""
        for earlier in [each for each in self._acked if each < position]:
            del self._acked[earlier]

    def clear(self) -> None:
        """Forget all batches, because the subscription moved by a seek or reset."""
        self._acked.clear()
