"""JSON of many megabytes, read and written on a thread while the event loop goes on.

The decoder and the encoder in C keep the interpreter until they are done, also on a thread: a second for 50,000 rows.
Those in Python give it up between two values. They take twice as long.
"""

from __future__ import annotations

import asyncio
import json
from json import scanner
from typing import Any, Final

AT_ONCE_BYTES: Final = 32 * 1024
"""A text of this size is read on the event loop, in half a millisecond."""


class _Decoder(json.JSONDecoder):
    def __init__(self) -> None:
        super().__init__()
        self.scan_once = scanner.py_make_scanner(self)  # type: ignore[attr-defined]  # its stub lacks it


def loads_by_steps(text: str | bytes | bytearray) -> Any:
    """Return the value of a JSON text, as :func:`json.loads` does. Call it on a thread."""
    return json.loads(text, cls=_Decoder)


async def loads_aside(text: bytes) -> Any:
    """Return the value of a JSON text, as :func:`json.loads` does. Read it on a thread unless it is small."""
    return json.loads(text) if len(text) <= AT_ONCE_BYTES else await asyncio.to_thread(loads_by_steps, text)


def dumps_by_steps(value: object) -> bytes:
    """Return ``value`` as a JSON text, as :func:`json.dumps` does. Call it on a thread."""
    return "".join(json.JSONEncoder().iterencode(value)).encode()
