"""Standard error for what a process says while it works: a line that cannot be written is lost, and nothing else is.

The disk that holds the log may be full, and the terminal or the pipe at its other end may have gone. Whoever logs a
line is in the middle of something else, which must go on.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import TextIO


class _LossyStream(io.TextIOBase):
    """Text stream to a file descriptor. It has no buffer, and drops what cannot be written, without an error."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def write(self, text: str) -> int:
        left = memoryview(text.encode("utf-8", "backslashreplace"))
        with contextlib.suppress(OSError):
            while left:
                left = left[os.write(self._descriptor, left) :]
        return len(text)


def standard_error() -> TextIO:
    """Return a stream to standard error that drops lines which cannot be written, without an error."""
    return _LossyStream(sys.stderr.fileno())  # type: ignore[return-value]  # rich and structlog only write, and ask isatty
