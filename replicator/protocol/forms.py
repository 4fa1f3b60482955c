"""Forms of commands: protobuf reads one command, and similar later ones are compared with it. Sans-IO.

A command that comes with every entry has nearly the same bytes as the one before: only the number of the entry differs.

1. :class:`Form` has the bytes of a valid command that protobuf has read, and the places of its numbers.
2. A command of the same size, with the same bytes around its numbers and one whole number at each place, differs from
   it only in these numbers. Nothing else is taken for the same form.
3. A command without a known form goes to protobuf, which decides what it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from replicator.protocol.values import NONE_U64

_NUMBER_BYTES_MAX: Final = 10
_GOES_ON: Final = tuple(int.from_bytes(b"\x80" * size, "little") for size in range(_NUMBER_BYTES_MAX + 1))
"""For each length of a number in bytes, the mask of the bits that say whether another byte follows."""
_LAST: Final = (0, *_GOES_ON[:-1])
"""For each length of a number in bytes, the right value of the bits of :data:`_GOES_ON`: all set, except the last."""


class Form:
    """One command without its numbers. All commands of this form have ``size`` bytes."""

    __slots__ = ("_parts", "_tail", "_tail_at", "size")

    def __init__(self, command: bytes, spans: Sequence[tuple[int, int]]) -> None:
        self.size = len(command)
        self._parts: list[tuple[int, bytes, int, int, int, int]] = []
        at = 0
        for start, stop in spans:
            width = stop - start
            self._parts.append((at, command[at:start], start, stop, _GOES_ON[width], _LAST[width]))
            at = stop
        self._tail_at, self._tail = at, command[at:]

    @classmethod
    def of(cls, command: bytes, paths: Sequence[Sequence[int]]) -> Form | None:
        """Return the form of ``command``: its bytes without the numbers that ``paths`` lead to.

        Later commands with the same bytes need no protobuf. Return None if the numbers do not come in the order of
        ``paths``.

        Each path leads to a number by the numbers of fields. Missing numbers are left out."""
        spans: list[tuple[int, int]] = []
        for path in paths:
            found = _span(command, 0, len(command), path)
            if found is None:
                return None
            if found != _ABSENT:
                spans.append(found)
        if any(later[0] < earlier[1] for earlier, later in pairwise(spans)):
            return None
        return cls(command, spans)

    def numbers(self, data: bytes, at: int) -> tuple[int, ...] | None:
        """Return the numbers of the command of this :attr:`size` in ``data`` at ``at``; None if its form differs."""
        if not data.startswith(self._tail, at + self._tail_at):
            return None
        numbers: tuple[int, ...] = ()
        for same_at, same, start, stop, goes_on, last in self._parts:
            if not data.startswith(same, at + same_at):
                return None
            number = int.from_bytes(data[at + start : at + stop], "little")
            if number & goes_on != last:
                return None
            if number > 0x7F:
                number = _shortened(number)
                if number > NONE_U64:
                    return None
            numbers += (number,)
        return numbers


def _shortened(number: int) -> int:
    """Return a number without the bits that say whether another byte follows."""
    if number < 1 << 24:
        return number & 0x7F | number >> 1 & 0x3F80 | number >> 2 & 0x1FC000
    value = shift = 0
    while number:
        value |= (number & 0x7F) << shift
        number >>= 8
        shift += 7
    return value


_ABSENT: Final = (-1, -1)


def _span(command: bytes, at: int, stop: int, path: Sequence[int]) -> tuple[int, int] | None:
    """Return where the number at ``path`` begins and ends in ``command[at:stop]``.

    Return :data:`_ABSENT` if it is missing, and None if that cannot be told.
    """
    wanted, inside = path[0], path[1:]
    found = _ABSENT
    while at < stop:
        tag, at = _read(command, at)
        start = at
        match tag & 7:
            case 0:
                _, at = _read(command, at)
            case 1:
                at += 8
            case 2:
                size, start = _read(command, at)
                at = start + size
            case 5:
                at += 4
            case _:
                return None
        if tag >> 3 == wanted:
            if tag & 7 != (2 if inside else 0) or found != _ABSENT:
                return None
            found = (start, at)
    return _span(command, *found, inside) if inside and found != _ABSENT else found


def _read(command: bytes, at: int) -> tuple[int, int]:
    """Read the number at ``at``; return it and the place where it ends."""
    value = shift = 0
    while True:
        byte = command[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at
