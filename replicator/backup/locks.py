"""Locks at a destination. Backups may be made side by side, but nothing is pruned meanwhile: a chunk that no backup has
yet may be one that the next one counts on.

Invariant: while one holds a lock, nobody else holds one that excludes it, or the holder notices before it goes on.

1. Each holder writes a file of its own first, and then looks for others. Of two that exclude each other at least one
   sees the other.
2. A thread writes the file again each :data:`RENEW_SECONDS`, whatever the holder does meanwhile.
3. A file that was not written for :data:`STALE_SECONDS` is of a holder that was killed, and is deleted. Its age is the
   time of the looker's own file less its time, both by the clock of the destination. A destination that tells no times
   keeps such a file until somebody deletes it by hand.
4. A holder that has not renewed its lock for :data:`LOST_SECONDS`, or whose file is gone, has lost it. It looks before
   whatever must not be done without the lock.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Final

from replicator.backup.destination import Destination
from replicator.backup.errors import BackupError, DestinationUnavailable, LockLost

CREATE: Final = "create"
PRUNE: Final = "prune"
LOCKS: Final = "locks"
STALE_SECONDS: Final = 900
LOST_SECONDS: Final = STALE_SECONDS // 2
"""A holder gives its lock up long before another may take it: a deletion that is under way then has time to end."""
RENEW_SECONDS: Final = 60

Clock = Callable[[], float]
"""Gives seconds since some moment."""


def seconds_awake_or_not() -> float:
    """Return seconds of a clock that goes on while the machine is suspended, and that nobody sets."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Lock:
    """A lock that is held, and renewed, while it is entered.

    Entering raises :class:`BackupError` where somebody else is in the way."""

    def __init__(
        self, destination: Destination, cluster: str, kind: str, *, clock: Clock = seconds_awake_or_not
    ) -> None:
        self._destination = destination
        self._root = f"{cluster}/{LOCKS}"
        self._kind = kind
        self._name = f"{kind}-{secrets.token_hex(6)}.json"
        self._path = f"{self._root}/{self._name}"
        self._clock = clock
        self._renewed = 0.0
        """When the last write began that reached the destination: its clock has the file no older than that."""
        self._writing = threading.Lock()
        self._left = threading.Event()
        self._renewer = threading.Thread(target=self._renew_often, name="backup-lock", daemon=True)

    def __enter__(self) -> Lock:
        self._take()
        self._renewer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left.set()
        self._renewer.join()
        with suppress(DestinationUnavailable):  # it goes stale by itself, and what was to be done is done
            self._destination.delete([self._path])

    def look(self) -> None:
        """Raise :class:`LockLost` unless this lock is still held, as its file at the destination says."""
        silent = self._clock() - self._renewed
        if silent > LOST_SECONDS:
            raise self._lost(f"it was not renewed for {silent:.0f} s")
        if self._destination.read(self._path) is None:
            raise self._lost("somebody deleted it")

    def hold(self) -> None:
        """Look, and take the lock again if it was lost. Raises :class:`BackupError` if somebody is in the way."""
        try:
            self.look()
        except LockLost:
            self._take()

    def renew(self) -> None:
        """Write the file again, unless the lock was lost: then raise :class:`LockLost`."""
        with self._writing:
            self.look()
            began = self._clock()
            self._write()
            if self._clock() - self._renewed > LOST_SECONDS:  # so long did the write take
                raise self._lost("the destination did not answer in time")
            self._renewed = began

    def _renew_often(self) -> None:
        while not self._left.wait(RENEW_SECONDS):
            with suppress(DestinationUnavailable, LockLost):  # the holder finds out when it looks
                self.renew()

    def _take(self) -> None:
        with self._writing:
            began = self._clock()
            self._write()
            self._renewed = began
        try:
            self._check_alone()
            self.look()
        except BaseException:
            with suppress(DestinationUnavailable):
                self._destination.delete([self._path])
            raise

    def _write(self) -> None:
        # Versions that do not ask the destination's clock reckon the age by this time.
        self._destination.write(self._path, json.dumps({"at": time.time()}).encode())

    def _check_alone(self) -> None:
        now = self._destination.written_at(self._path)
        for name in self._destination.sizes(self._root):
            path = f"{self._root}/{name}"
            if name == self._name or (self._kind == CREATE and not name.startswith(PRUNE)):
                continue
            written = self._destination.written_at(path)
            if written is None and self._destination.read(path) is None:
                continue  # it is gone by now
            age = None if now is None or written is None else max(now - written, 0.0)
            if age is not None and age > STALE_SECONDS:
                self._destination.delete([path])
                continue
            raise self._in_the_way(path, age)

    def _in_the_way(self, path: str, age: float | None) -> BackupError:
        doing = "prunes" if path.startswith(f"{self._root}/{PRUNE}") else "makes a backup"
        if age is None:
            return BackupError(
                f"{self._destination.url}: somebody else {doing} there: try again when that is done (this place tells "
                f"no times of files: if who did so was killed, delete {path} by hand)"
            )
        return BackupError(
            f"{self._destination.url}: somebody else {doing} there, and was heard of {age:.0f} s ago: try "
            f"again when that is done (who was killed counts for {STALE_SECONDS // 60} minutes)"
        )

    def _lost(self, why: str) -> LockLost:
        return LockLost(f"{self._destination.url}: lost the lock {self._path}: {why}; run `replicator backup` again")
