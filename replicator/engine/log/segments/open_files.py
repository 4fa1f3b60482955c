"""Open files of segments: those in use, and some of those that were used last.

Invariant (DESIGN §3): 11, a store of many segments holds a bounded number of descriptors. A file is never closed while
somebody reads or writes it, because its descriptor could then belong to another file.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from errno import EBADF
from pathlib import Path
from typing import Final

from replicator.engine.log.segments.files import SegmentFile, segment_name

OPEN_MAX: Final = 64
"""Limit of open segments. Each has two descriptors; by default a process may have 1,024."""


@dataclass(slots=True)
class _Open:
    file: SegmentFile
    users: int = 0
    kept: bool = True


class OpenFiles:
    """Open files of segments. Safe to use from several threads."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, _Open] = OrderedDict()
        self._closed = False

    @contextmanager
    def using(self, number: int, *, direct: bool) -> Iterator[SegmentFile]:
        """Yield the open file of segment ``number``, and keep it open meanwhile. Raise :class:`OSError`."""
        found = self._begin(number, direct=direct)
        try:
            yield found.file
        finally:
            with self._lock:
                found.users -= 1
                if not found.users and not found.kept:
                    found.file.close()

    def _begin(self, number: int, *, direct: bool) -> _Open:
        with self._lock:
            if self._closed:
                raise OSError(EBADF, "the store is closed")
            found = self._kept.get(number)
            if found is None:
                found = self._kept[number] = _Open(SegmentFile(self._directory, number, direct=direct))
            else:
                self._kept.move_to_end(number)
            found.users += 1
            while len(self._kept) > OPEN_MAX:
                self._drop(next(iter(self._kept)))
            return found

    def gone(self, number: int) -> bool:
        """Return whether the file of a segment is missing or, if the segment is open, whether another file has replaced
        it."""
        with self._lock:
            found = self._kept.get(number)
        if found is not None:
            return found.file.gone() is not None
        return not (self._directory / segment_name(number)).exists()

    def forget(self, number: int) -> None:
        """Close the file of a deleted segment as soon as it is not in use."""
        with self._lock:
            if number in self._kept:
                self._drop(number)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for number in list(self._kept):
                self._drop(number)

    def _drop(self, number: int) -> None:
        found = self._kept.pop(number)
        found.kept = False
        if not found.users:
            found.file.close()
