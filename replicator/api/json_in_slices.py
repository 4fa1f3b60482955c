"""JSON of clients, read so that nobody else waits for it: with pauses, or only if it is small or plain.

One call of the standard reader takes 0.2 s for 16 MB of text, and several times as long for 16 MB of empty lists.
Nobody else has a turn meanwhile, not even from another thread: the reader holds the interpreter's lock.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from json import JSONDecodeError
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any, Final

from replicator.running.pacing import Pace

SMALL_BYTES: Final = 32 * 1024
"""A body of this size is read at once, in half a millisecond."""
AT_ONCE_CHARACTERS: Final = 8 * 1024
"""An object or a list of this size inside a larger body is read at once, in a millisecond at most."""
_FIRST_CHARACTERS: Final = 512
_SPACE: Final = re.compile(r"[ \t\n\r]*")
_MARKS: Final = "[{,:"
MARKS_MAX: Final = 1_000_000
"""Most brackets, braces, commas and colons outside the strings of a body: 10,000 messages have 100 each. More values
take so much memory that Python's search for unused objects stops the event loop."""
_COUNTED_AT_ONCE: Final = 256 * 1024
"""Characters that are counted at once, in half a millisecond."""
_read: Final = json.JSONDecoder().raw_decode


class TooManyValues(ValueError):
    """A text with more values than it may have."""


def check_values(text: str, marks_max: int) -> None:
    """Raise :class:`TooManyValues` if ``text`` has more than ``marks_max`` of the characters that separate and open
    values: brackets, braces, commas and colons. Those in strings do not count.

    The time to read JSON grows with these, and hardly with the length of its strings.
    """
    if len(text) <= marks_max or (len(text) <= _COUNTED_AT_ONCE and _marks(text, 0, len(text)) <= marks_max):
        return
    for _ in _walk(text, marks_max):
        pass


async def _check_values(text: str, marks_max: int, pace: Pace) -> None:
    """Do as :func:`check_values`, with pauses."""
    marks = 0
    for at in range(0, len(text), _COUNTED_AT_ONCE):
        marks += _marks(text, at, at + _COUNTED_AT_ONCE)
        await pace.step()
    if marks > marks_max:
        for _ in _walk(text, marks_max):
            if pace.due:
                await pace.pause()


def _walk(text: str, marks_max: int) -> Iterator[None]:
    """Do as :func:`check_values`, string by string. Yield between them."""
    marks = at = 0
    while True:
        string = text.find('"', at)
        until = len(text) if string < 0 else string
        marks += max(1, _marks(text, at, until))  # 1: strings without anything between them end the walk, too
        if marks > marks_max:
            raise TooManyValues(
                f"its JSON has more than about {marks_max // 2:,} values, counting all fields and items"
            )
        if string < 0:
            return
        at = text.find('"', string + 1) + 1
        if at and text[at - 2] == "\\":  # maybe that quote belongs to the string
            try:
                _, at = scanstring(text, string + 1, True)
            except ValueError:
                return  # whoever reads it stops here, too
        if not at:
            return
        yield


def _marks(text: str, at: int, until: int) -> int:
    return sum([text.count(mark, at, until) for mark in _MARKS])


async def json_in_slices(body: bytes | bytearray, pace: Pace, marks_max: int = MARKS_MAX) -> Any:
    """Return what :func:`json.loads` returns, and raise what it raises; :class:`TooManyValues` for a body with more
    than ``marks_max`` brackets, braces, commas and colons outside its strings.

    Fields of large objects, and elements of large lists, are read one by one. In between, others have their turn.
    """
    if len(body) <= SMALL_BYTES:
        return json.loads(body)
    text = body.decode(json.detect_encoding(body), "surrogatepass")
    await _check_values(text, marks_max, pace)
    found, at = await _Sliced(text, pace).value(_after_space(text, 0))
    at = _after_space(text, at)
    if at != len(text):
        raise JSONDecodeError("Extra data", text, at)
    return found


class _Sliced:
    """One text that is read with pauses."""

    __slots__ = ("_characters", "_pace", "_text")

    def __init__(self, text: str, pace: Pace) -> None:
        self._text = text
        self._pace = pace
        self._characters = _FIRST_CHARACTERS
        """Guess of the size of the next object or list: twice that of the one before."""

    async def value(self, at: int) -> tuple[Any, int]:
        """Return the value at a position, and the position behind it."""
        return self._small(at) or await self._large(at)

    async def _large(self, at: int) -> tuple[Any, int]:
        """Return the object or the list at a position, which :meth:`_small` left, and the position behind it."""
        await self._pace.step()
        return await (self._list(at) if self._text[at] == "[" else self._object(at))

    def _small(self, at: int) -> tuple[Any, int] | None:
        """Return the value at a position, and the position behind it; None if it is large, or malformed, and no
        scalar."""
        if self._text[at : at + 1] not in ("[", "{"):
            return _read(self._text, at)
        for characters in (min(self._characters, AT_ONCE_CHARACTERS), AT_ONCE_CHARACTERS):
            try:
                found, end = _read(self._text[at : at + characters])
            except JSONDecodeError:
                continue
            self._characters = max(_FIRST_CHARACTERS, 2 * end)
            return found, at + end
        return None

    async def _object(self, at: int) -> tuple[dict[str, Any], int]:
        text, pace = self._text, self._pace
        found: dict[str, Any] = {}
        at = _after_space(text, at + 1)
        more = text[at : at + 1] != "}"
        while more:
            if text[at : at + 1] != '"':
                raise JSONDecodeError("Expecting property name enclosed in double quotes", text, at)
            name, at = _read(text, at)
            at = _after_space(text, at)
            if text[at : at + 1] != ":":
                raise JSONDecodeError("Expecting ':' delimiter", text, at)
            at = _after_space(text, at + 1)
            found[name], at = self._small(at) or await self._large(at)
            at, more = _next(text, at, "}")
            if pace.due:
                await pace.pause()
        return found, at + 1

    async def _list(self, at: int) -> tuple[list[Any], int]:
        text, pace = self._text, self._pace
        found: list[Any] = []
        at = _after_space(text, at + 1)
        more = text[at : at + 1] != "]"
        while more:
            value, at = self._small(at) or await self._large(at)
            found.append(value)
            at, more = _next(text, at, "]")
            if pace.due:
                await pace.pause()
        return found, at + 1


def _next(text: str, at: int, end: str) -> tuple[int, bool]:
    """Return where the next value begins, and True; or where the ``end`` is, and False."""
    at = _after_space(text, at)
    if text[at : at + 1] == ",":
        return _after_space(text, at + 1), True
    if text[at : at + 1] == end:
        return at, False
    raise JSONDecodeError("Expecting ',' delimiter", text, at)


def _after_space(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    return at if space is None else space.end()
