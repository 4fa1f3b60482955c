"""Write rates of the disk, through the page cache and past it, in the same run as the figures compared with them.

Writes are as large as a large group of a worker's log. Past the page cache (``O_DIRECT``) they go into a file whose
place was taken beforehand, and each is followed by a sync, as each group is. Through the page cache once without a
sync, which is what a system may reach that promises none, and once with one after each write. Linux only.
"""

from __future__ import annotations

import asyncio
import errno
import mmap
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.measurement import Measurement

WRITE_BYTES: Final = 8 * 1024 * 1024
FILE_BYTES: Final = 512 * 1024 * 1024
RUNS: Final = 3
PAST_THE_CACHE: Final = "disk, past the page cache"
_PATTERN_BYTES: Final = 1024 * 1024
"""Length of the written pattern. It is random, so that neither file system nor disk can compress it."""


@dataclass(frozen=True, slots=True)
class DiskLimits:
    """Write rates of a disk, in MB/s, one a run; ``past_mb_s`` is empty if the file system refuses ``O_DIRECT``."""

    through_mb_s: tuple[float, ...]
    through_synced_mb_s: tuple[float, ...]
    past_mb_s: tuple[float, ...]

    def measurements(self, group: str) -> list[Measurement]:
        found = {
            "through-page-cache": self.through_mb_s,
            "through-page-cache-synced": self.through_synced_mb_s,
            "past-page-cache": self.past_mb_s,
        }
        return [Measurement(f"{group}/disk/{name}", "MB/s", runs) for name, runs in found.items() if runs]

    def beside(self, name: str, mb_s: tuple[float, ...]) -> list[Measurement]:
        """Return one measurement ``name``, which compares the rates ``mb_s`` with the disk's rates past the page cache.

        Return an empty list if the disk's rates are not known.
        """
        return [Measurement(name, "MB/s", mb_s, PAST_THE_CACHE, self.past_mb_s)] if self.past_mb_s else []


async def settle() -> None:
    """Write out all that waits in the page cache, so that a copy does not share the disk with its own backlog."""
    await asyncio.to_thread(os.sync)


def measure_disk(directory: Path) -> DiskLimits:
    """Return the write rates of the disk of ``directory``. This takes some ten seconds, and 512 MiB of the disk."""
    with mmap.mmap(-1, WRITE_BYTES) as written:  # begins with a page, as O_DIRECT wants it
        written.write(os.urandom(_PATTERN_BYTES) * (WRITE_BYTES // _PATTERN_BYTES))
        return DiskLimits(
            _runs(lambda path: _write(path, written, flags=0, synced=False, preallocated=False), directory),
            _runs(lambda path: _write(path, written, flags=0, synced=True, preallocated=False), directory),
            _runs(lambda path: _write(path, written, flags=os.O_DIRECT, synced=True, preallocated=True), directory),
        )


def _runs(once: Callable[[Path], float], directory: Path) -> tuple[float, ...]:
    path = directory / "disk-probe"
    rates = []
    for _ in range(RUNS):
        try:
            rates.append(once(path))
        except OSError as error:
            if error.errno != errno.EINVAL:  # else this file system has no O_DIRECT
                raise
            return ()
        finally:
            path.unlink(missing_ok=True)
            os.sync()  # the next run does not wait for what this one left
    return tuple(rates)


def _write(path: Path, written: mmap.mmap, *, flags: int, synced: bool, preallocated: bool) -> float:
    """Write a new file of :data:`FILE_BYTES`; return MB a second.

    ``written`` is what each write repeats, ``flags`` are those of ``open``. ``synced`` syncs after each write;
    ``preallocated`` takes the file's place on the disk beforehand.
    """
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | flags, 0o600)
    try:
        if preallocated:
            os.posix_fallocate(file, 0, FILE_BYTES)
            os.fsync(file)
        began = time.perf_counter()
        for offset in range(0, FILE_BYTES, WRITE_BYTES):
            at = offset
            while at < offset + WRITE_BYTES:
                at += os.pwrite(file, memoryview(written)[at - offset :], at)
            if synced:
                os.fdatasync(file)
        return FILE_BYTES / 1e6 / (time.perf_counter() - began)
    finally:
        os.close(file)
