"""Large JSON, read with pauses: one call of the standard reader takes 0.2 s for 16 MB, and nobody else has a turn."""

from __future__ import annotations

import json
import re
from json import JSONDecodeError
from typing import Any, Final

from replicator.running.pacing import Pace

SMALL_BYTES: Final = 32 * 1024
"""A body of this size is read at once, in half a millisecond."""
_SPACE: Final = re.compile(r"[ \t\n\r]*")
_read: Final = json.JSONDecoder().raw_decode


async def json_in_slices(body: bytes | bytearray, pace: Pace) -> Any:
    """Return what :func:`json.loads` returns, and raise what it raises.

    Fields of the outermost object, and elements of lists in them, are read one by one. In between, others have their
    turn.
    """
    if len(body) <= SMALL_BYTES:
        return json.loads(body)
    text = body.decode(json.detect_encoding(body), "surrogatepass")
    at = _after_space(text, 0)
    if text[at : at + 1] != "{":
        return json.loads(text)
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
        if text[at : at + 1] == "[":
            found[name], at = await _list(text, at, pace)
        else:
            found[name], at = _read(text, at)
        at, more = _next(text, at, "}")
        await pace.step()
    at = _after_space(text, at + 1)
    if at != len(text):
        raise JSONDecodeError("Extra data", text, at)
    return found


async def _list(text: str, at: int, pace: Pace) -> tuple[list[Any], int]:
    found: list[Any] = []
    at = _after_space(text, at + 1)
    more = text[at : at + 1] != "]"
    while more:
        value, at = _read(text, at)
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
