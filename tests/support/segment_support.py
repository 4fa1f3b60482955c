"""Stores whose bodies lie in small segments, checks of their invariants, and a disk under segments that fails on
demand."""

from __future__ import annotations

import os
import random
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from replicator.engine.engine import EngineSettings
from replicator.engine.log.segments import files
from replicator.engine.log.segments.places import parse_row, read_placed
from replicator.engine.log.segments.settings import FREE_KEPT, SegmentSettings
from replicator.engine.log.store import Store
from replicator.engine.log.store_files import LOG, SEGMENTS

SMALL: Final = SegmentSettings(segment_bytes=64 * 1024, body_bytes_min=1, group_bytes_min=1, recent_bytes_max=64 * 1024)
"""Settings by which every body is in a segment, boundaries are crossed often, and most reads come from the disk."""


def small_segments(**limits: Any) -> EngineSettings:
    return EngineSettings(segments=SMALL, **limits)


def path_of(file: int) -> Path:
    """Return the path behind a file descriptor."""
    return Path(f"/proc/self/fd/{file}").readlink()


def segments_of(directory: Path) -> Path:
    return directory / LOG / SEGMENTS


def check_places(store: Store) -> None:
    """Check that the store's rows and its memory agree on the segments, and that no places overlap."""
    with store.env.begin(db=store.tables["blocks"], buffers=True) as txn:
        rows = [(bytes(key), parse_row(value).place) for key, value in txn.cursor()]
        placed = [(place, key) for place, key in read_placed(txn, store.tables["placed"])]
    assert sorted((place, key) for key, place in rows if place is not None) == placed
    for (before, _), (after, _) in pairwise(placed):
        assert before.segment < after.segment or before.offset + before.size <= after.offset, f"{after} overlaps"
    live: Counter[int] = Counter()
    for place, _ in placed:
        live[place.segment] += place.size
    space = store.segments.space
    assert {each.number: each.live for each in space.segments.values() if each.live} == dict(live)


def check_no_segment_leaks(store: Store) -> None:
    """Check, after a commit that freed something and while nobody reads, that no segment is leaked."""
    store.segments.wait_for_deleted()
    space = store.segments.space
    directory = segments_of(store.path)
    there = {number for number, _ in files.listed(directory)} if directory.is_dir() else set()
    with store.env.begin() as txn:
        needed = {place.segment for place, _ in read_placed(txn, store.tables["placed"])}
    needed |= {space.open.number} if space.open is not None else set()
    made_ahead = store.segments._making is not None
    assert len(there - needed) <= FREE_KEPT + made_ahead, f"{sorted(there - needed)} are of no use"


Fault = Callable[..., Any]


class FaultyDisk:
    """Stand-in for module ``os`` in the module that does the file calls of segments. A fault gets the arguments of the
    call; it raises, or returns the call's result, or :data:`AS_USUAL`."""

    def __init__(self) -> None:
        self.faults: dict[str, Fault] = {}
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if not callable(real) or isinstance(real, type):
            return real

        def call(*arguments: Any, **named: Any) -> Any:
            self.calls[name] += 1
            fault = self.faults.get(name)
            answer = AS_USUAL if fault is None else fault(*arguments)
            return real(*arguments, **named) if answer is AS_USUAL else answer

        return call


AS_USUAL: Final = object()


@contextmanager
def faulty_disk(disk: Any = None) -> Iterator[Any]:
    disk = disk or FaultyDisk()
    with patch.object(files, "os", disk):
        yield disk


def failing(number: int, *, after: int = 0) -> Fault:
    """Return a fault: the calls after the first so many fail with that error."""
    left = [after]

    def fault(*_: Any) -> Any:
        if left[0]:
            left[0] -= 1
            return AS_USUAL
        raise OSError(number, os.strerror(number))

    return fault


@dataclass(frozen=True)
class _Unsynced:
    """Bytes that a write replaced and that no sync has made durable yet."""

    file: Path
    offset: int
    before: bytes


class CutPower:
    """Stand-in for ``os``, like :class:`FaultyDisk`, that can copy the directory as a power cut may leave it: each page
    that was not synced is there, or is not.

    LMDB syncs by itself, so its commits are copied as they are. The copy is made before the ``cut_at``-th write or sync
    of a segment, when the store's transaction is not committed yet.
    """

    def __init__(self, directory: Path, copy: Path, cut_at: int, chance: random.Random, *, keep: float) -> None:
        self.directory = directory
        self.copy = copy
        self.on_cut: Callable[[], None] = lambda: None
        self._left = cut_at
        self._chance = chance
        self._keep = keep
        """Probability with which a page that was not synced is there. One in between is torn."""
        self._lock = threading.RLock()
        self._unsynced: list[_Unsynced] = []
        self._files: set[Path] = set()
        """Files whose names and sizes are not durable yet."""

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def open(self, path: Any, flags: int, *mode: int) -> int:
        file = os.open(path, flags, *mode)
        if flags & os.O_EXCL:
            with self._lock:
                self._files.add(Path(path))
        return file

    def fsync(self, file: int) -> None:
        with self._lock:
            os.fsync(file)
            if path_of(file) == segments_of(self.directory):
                self._files.clear()

    def pwrite(self, file: int, content: memoryview, offset: int) -> int:
        with self._lock:
            self._count_down()
            path = path_of(file)
            if files.segment_number(path.name) is not None:
                with path.open("rb") as old:
                    old.seek(offset)
                    self._unsynced.append(_Unsynced(path, offset, old.read(len(content))))
            return os.pwrite(file, content, offset)

    def fdatasync(self, file: int) -> None:
        with self._lock:
            self._count_down()
            os.fdatasync(file)
            path = path_of(file)
            self._unsynced = [each for each in self._unsynced if each.file != path]

    def _count_down(self) -> None:
        self._left -= 1
        if self._left == 0:
            self.cut()

    def cut(self) -> None:
        with self._lock:
            self._left = 0
            self.on_cut()
            shutil.copytree(self.directory, self.copy)
            for each in reversed(self._unsynced):
                place = self.copy / each.file.relative_to(self.directory)
                with place.open("r+b") as file:
                    for at in range(0, len(each.before), files.PAGE_BYTES):
                        if self._chance.random() >= self._keep:
                            file.seek(each.offset + at)
                            file.write(each.before[at : at + files.PAGE_BYTES])
            for path in self._files:
                place = self.copy / path.relative_to(self.directory)
                if self._chance.random() >= self._keep:
                    place.unlink(missing_ok=True)
