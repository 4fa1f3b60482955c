"""Files of segments: preallocated, and written past the page cache if the file system allows it.

Invariant (DESIGN §3): 1, :meth:`SegmentFile.sync` returns when all written bytes are durable. After a failed sync the
file is not written again, because nobody knows which bytes reached the disk. Nothing is confirmed that was written to a
file which was deleted or replaced while it was open: a restart would not find it.

File systems differ in the alignment that writes past the page cache need, and some refuse such writes. A test write
finds out. If it is refused, writes go through the page cache, which only costs speed.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from errno import ENOSPC
from pathlib import Path
from typing import Final

from replicator.engine.errors import BlockCorrupt
from replicator.engine.log.disk_room import DiskRoom, is_full
from replicator.engine.log.store_files import identity

READ_AHEAD_BYTES: Final = 8 * 1024 * 1024
"""Bytes that the kernel is asked to read ahead, for readers that catch up."""
PAGE_BYTES: Final = mmap.PAGESIZE
_NAME: Final = re.compile(r"([0-9]{10})\.segment")


@dataclass(frozen=True, slots=True)
class WriteMethod:
    """How segments are written in a directory. ``reason`` says why they are not written past the page cache, if they
    are not."""

    direct: bool
    alignment: int
    reason: str = ""


def probe(directory: Path) -> WriteMethod:
    """Find out how segments can be written in ``directory``. No file stays behind."""
    name = directory / "probe"
    alignment = max(PAGE_BYTES, os.statvfs(directory).f_bsize)
    alignment = alignment if alignment <= 65_536 and not alignment % PAGE_BYTES else PAGE_BYTES
    try:
        file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_DIRECT, 0o600)
    except OSError as error:
        return WriteMethod(False, PAGE_BYTES, f"O_DIRECT is refused: {error.strerror}")
    try:
        with mmap.mmap(-1, alignment) as page:
            os.pwrite(file, page, 0)
        return WriteMethod(True, alignment)
    except OSError as error:
        if is_full(error):  # it would be taken if there were room: that is no reason to be slow later
            return WriteMethod(True, alignment)
        return WriteMethod(False, PAGE_BYTES, f"a write by O_DIRECT is refused: {error.strerror}")
    finally:
        os.close(file)
        with contextlib.suppress(OSError):
            name.unlink()


def segment_name(number: int) -> str:
    return f"{number:010}.segment"


def segment_number(name: str) -> int | None:
    """Return the number of the segment whose file has this name, or None if it is not a segment's file."""
    match = _NAME.fullmatch(name)
    return None if match is None else int(match[1])


def listed(directory: Path) -> Iterator[tuple[int, int]]:
    """Yield number and size of each segment's file. A file that is deleted meanwhile may be missing."""
    with os.scandir(directory) as entries:
        for entry in entries:
            if (number := segment_number(entry.name)) is not None:
                try:
                    size = entry.stat().st_size
                except FileNotFoundError:
                    continue
                yield number, size


def check_access(directory: Path, number: int) -> None:
    """Raise :class:`PermissionError` if this user may not read and write a segment. Its blocks would otherwise seem
    damaged."""
    path = directory / segment_name(number)
    if not os.access(path, os.R_OK | os.W_OK, effective_ids=os.access in os.supports_effective_ids):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))


def preallocate(directory: Path, number: int, capacity: int) -> None:
    """Make the file of a segment durably, with all its disk blocks. If that fails, raise :class:`OSError` and leave no
    file."""
    if not DiskRoom.of(os.statvfs(directory)).takes_segment(capacity):
        raise OSError(ENOSPC, os.strerror(ENOSPC))
    path = directory / segment_name(number)
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        try:
            os.posix_fallocate(file, 0, capacity)
            os.fsync(file)
        finally:
            os.close(file)
        sync_directory(directory)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def delete(path: Path) -> None:
    """Delete a segment's file. If that fails, the next start finds the file, and its segment is free."""
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


def sync_directory(directory: Path) -> None:
    file = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


class SegmentGone(Exception):
    """A segment's file was deleted or replaced while it was written. A restart would not find what was written."""


class SegmentFile:
    """The open file of one segment. One thread at a time may write it, and any thread may read it."""

    def __init__(self, directory: Path, number: int, *, direct: bool) -> None:
        self.number = number
        self.path = directory / segment_name(number)
        self._asked_ahead = (0, 0)
        """Range that the kernel was last asked to read ahead."""
        self._writing = os.open(self.path, os.O_RDWR | (os.O_DIRECT if direct else 0))
        try:
            self._identity = identity(self._writing)
            self._reading = os.open(self.path, os.O_RDONLY)
        except BaseException:
            os.close(self._writing)
            raise

    def close(self) -> None:
        for file in (self._writing, self._reading):
            with contextlib.suppress(OSError):  # what counts was synced; and the descriptor is closed all the same
                os.close(file)

    def write(self, offset: int, content: memoryview) -> None:
        """Write all of ``content``, which is aligned as the medium requires. Raise :class:`OSError`."""
        while content:
            written = os.pwrite(self._writing, content, offset)
            if written == len(content):
                return
            written -= written % PAGE_BYTES  # the rest has to begin aligned
            if written <= 0:
                raise OSError(
                    f"{self.path}: the disk takes no more than a part of a page at {offset}, so that it is probably "
                    "full: make room on it"
                )
            offset, content = offset + written, content[written:]

    def sync(self) -> None:
        """Make all written bytes durable. After :class:`OSError` or :class:`SegmentGone` the file must not be used any
        more."""
        os.fdatasync(self._writing)
        if (deleted_or_replaced := self.gone()) is not None:
            raise SegmentGone(
                f"the file {self.path}, a segment of the store with messages, was {deleted_or_replaced} while the "
                "worker runs: see that nothing else changes files in the data directory"
            )

    def gone(self) -> str | None:
        """Return "deleted" or "replaced" if the file in the directory is not this one any more, else None."""
        try:
            found = identity(self.path)
        except FileNotFoundError:
            return "deleted"
        return None if found == self._identity else "replaced"

    def read(self, offset: int, buffer: memoryview, *, ahead: bool = True) -> None:
        """Fill the buffer from ``offset`` on. With ``ahead``, ask the kernel to read what follows. Raise
        :class:`BlockCorrupt` if the disk cannot read it."""
        size, done = len(buffer), 0
        try:
            while done < size:
                read = os.preadv(self._reading, [buffer[done:]], offset + done)
                if not read:
                    raise BlockCorrupt(
                        f"the segment {self.path}, which holds messages, is cut short: it ends before byte "
                        f"{offset + size}; `replicator store check` says what is missing"
                    )
                done += read
            if ahead:
                self._read_ahead(offset, offset + size)
        except OSError as error:
            raise BlockCorrupt(
                f"the segment {self.path}, which holds messages, cannot be read at byte {offset}: {error.strerror}; "
                "look at its disk"
            ) from None

    def _read_ahead(self, begin: int, end: int) -> None:
        """Ask the kernel for more once half of the last range is read. Asking costs nearly as much as a read from the
        page cache."""
        asked_begin, asked_end = self._asked_ahead
        if asked_begin <= begin and end + READ_AHEAD_BYTES // 2 <= asked_end:
            return
        self._asked_ahead = begin, end + READ_AHEAD_BYTES
        os.posix_fadvise(self._reading, end, READ_AHEAD_BYTES, os.POSIX_FADV_WILLNEED)
