"""Positions: an entry's place in one topic of one cluster.

This module owns the value type that every other part shares, its text form ``ledger:entry``, and :data:`BEFORE_ALL`.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from snapshots.errors import InvalidPosition

_MAX_U64 = 2**64 - 1
_TEXT = re.compile(r"(\d{1,20}):(-1|\d{1,20})")


class Position(NamedTuple):
    """Position ``ledger:entry``. Positions are ordered inside one topic of one cluster, and cannot be compared across
    clusters.

    ``entry`` is -1 for the place before the first entry of a ledger.
    """

    ledger: int
    entry: int

    def __str__(self) -> str:
        return f"{self.ledger}:{self.entry}"

    @classmethod
    def parse(cls, text: str) -> Position:
        """Return the position that ``text``, ``ledger:entry``, names. Raise :class:`InvalidPosition`, with the text."""
        match = _TEXT.fullmatch(text)
        if match is None:
            raise InvalidPosition(text)
        position = cls(int(match[1]), int(match[2]))
        if position.ledger > _MAX_U64 or position.entry > _MAX_U64:
            raise InvalidPosition(text)
        return position


BEFORE_ALL = Position(0, -1)
"""Position below every entry's position: ledger ids start at 1."""
