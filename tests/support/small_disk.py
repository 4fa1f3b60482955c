"""A small file system of a test's own, which is really full when it is filled."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

DISK_BYTES = 96 * 1024 * 1024


class Disk:
    """A small file system."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._filler = path / "filler"

    def fill(self) -> None:
        """Fill the disk, so that nobody gets a byte of it any more, root or not."""
        file = os.open(self._filler, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            for size in (1 << 20, 4096, 1):
                with suppress(OSError):
                    while os.write(file, b"x" * size):
                        pass
            os.fsync(file)
        finally:
            os.close(file)

    def make_room(self) -> None:
        self._filler.unlink()

    def leave(self, free: int) -> None:
        """About so many bytes of it are free for anybody, and the rest is taken."""
        if self._filler.exists():
            self.make_room()
        self.fill()
        for _ in range(2):  # a file system may keep some of it for itself
            found = os.statvfs(self.path)
            lacking = max(0, free - found.f_bavail * found.f_frsize)
            os.truncate(self._filler, max(0, self._filler.stat().st_size - lacking))


@contextmanager
def small_disk(kind: str, directory: Path) -> Iterator[Disk]:
    """Mount a file system of a ``kind`` below ``directory``: ``tmpfs``, or ``ext4`` in a file. Skip if that cannot be
    done here."""
    place = directory / "disk"
    place.mkdir()
    if kind == "tmpfs":
        options = ["-t", "tmpfs", "-o", f"size={DISK_BYTES}", "full-disk"]
    else:
        image = directory / "image"
        with image.open("wb") as file:
            file.truncate(DISK_BYTES)
        made = subprocess.run(["mkfs.ext4", "-q", "-F", image], check=False, capture_output=True, text=True)
        if made.returncode:
            pytest.skip(f"no ext4 can be made here: {made.stderr.strip()}")
        options = ["-o", "loop", str(image)]
    mounted = subprocess.run(["mount", *options, place], check=False, capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    try:
        yield Disk(place)
    finally:
        subprocess.run(["umount", place], check=True)
