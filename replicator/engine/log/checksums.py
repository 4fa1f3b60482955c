"""CRC32C of any buffer, without a copy where a copy would cost more than it saves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import google_crc32c
import numpy as np

COPIED_BYTES_MAX: Final = 4096
_extend: Final[Callable[[int, Any], int]] = google_crc32c.extend


def crc32c(content: bytes | bytearray | memoryview, before: int = 0) -> int:
    """Return the checksum of ``content`` appended to data whose checksum is ``before``.

    The library takes bytes and arrays. Copying a few kilobytes into bytes is faster than making an array view.
    """
    if isinstance(content, bytes):
        return _extend(before, content)
    if len(content) <= COPIED_BYTES_MAX:
        return _extend(before, bytes(content))
    return _extend(before, np.frombuffer(content, np.uint8))
