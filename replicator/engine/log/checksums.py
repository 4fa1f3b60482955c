"""CRC32C of any buffer, without a copy where a copy would cost more than it saves."""

from __future__ import annotations

from typing import Final

import google_crc32c
import numpy as np

COPIED_BYTES_MAX: Final = 4096


def crc32c(content: bytes | bytearray | memoryview, before: int = 0) -> int:
    """The checksum of what had the checksum ``before``, followed by ``content``.

    The library takes bytes, and arrays, which are views; of a few kilobytes a copy is made sooner than an array.
    """
    if isinstance(content, bytes):
        return int(google_crc32c.extend(before, content))
    if len(content) <= COPIED_BYTES_MAX:
        return int(google_crc32c.extend(before, bytes(content)))
    return int(google_crc32c.extend(before, np.frombuffer(content, np.uint8)))
