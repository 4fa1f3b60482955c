"""Locks at a destination. Several backups may be made at the same time, but nothing may be pruned meanwhile: a chunk
that no finished backup needs may belong to a backup that is being made.

Invariant: while a holder has a lock, no other holder has a lock that excludes it; if that is violated, the holder
notices before its next step.

1. A holder first writes a lock file of its own, and then looks for the files of others. Of two holders that exclude
   each other, at least one sees the other's file.
2. A thread writes the file again each :data:`RENEW_SECONDS`, whatever the holder is doing.
3. If a file was not written for :data:`STALE_SECONDS`, its holder was killed, and the file is deleted. The age of the
   file is the time of the looker's own file minus its time, both by the clock of the destination. At a destination that
   tells no times, such a file stays until somebody deletes it by hand.
4. A holder has lost its lock if it did not renew the lock for :data:`LOST_SECONDS`, or if its file is gone. The holder
   checks that (:meth:`Lock.look`) before each step that needs the lock.
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
"""A holder gives up its lock long before another holder may take it, so that a deletion under way has time to end."""
RENEW_SECONDS: Final = 60

Clock = Callable[[], float]
"""Returns seconds since a fixed moment."""


def boottime_seconds() -> float:
    """Return seconds by a clock that also counts while the machine is suspended, and that nobody can set."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Lock:
    """Lock at a destination, held and renewed while its context is entered.

    Entering raises :class:`BackupError` if another holder excludes this lock.
    """

    def __init__(self, destination: Destination, cluster: str, kind: str, *, clock: Clock = boottime_seconds) -> None:
        self._destination = destination
        self._root = f"{cluster}/{LOCKS}"
        self._kind = kind
        self._name = f"{kind}-{secrets.token_hex(6)}.json"
        self._path = f"{self._root}/{self._name}"
        self._clock = clock
        self._renewed = 0.0
        """Beginning of the last write that reached the destination: by its clock, the file is no older than that."""
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
        with suppress(DestinationUnavailable):  # the file goes stale by itself, and the holder's work is done
            self._destination.delete([self._path])

    def look(self) -> None:
        """Raise :class:`LockLost` if this lock is lost: it was not renewed in time, or its file is gone from the
        destination."""
        silent = self._clock() - self._renewed
        if silent > LOST_SECONDS:
            raise self._lost(f"the file of this command's lock was not renewed for {silent:.0f} s")
        if self._destination.read(self._path) is None:
            raise self._lost("somebody deleted it")

    def hold(self) -> None:
        """Check the lock, and take it again if it was lost. Raises :class:`BackupError` if another holder excludes it
        now."""
        try:
            self.look()
        except LockLost:
            self._take()

    def renew(self) -> None:
        """Write the lock file again. Raises :class:`LockLost` if the lock was lost before."""
        with self._writing:
            self.look()
            began = self._clock()
            self._write()
            if self._clock() - self._renewed > LOST_SECONDS:  # the write itself took too long
                raise self._lost("the place of backups did not answer in time")
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
        # Earlier versions, which do not ask the destination's clock, compute the age from this time.
        self._destination.write(self._path, json.dumps({"at": time.time()}).encode())

    def _check_alone(self) -> None:
        now = self._destination.written_at(self._path)
        for name in self._destination.sizes(self._root):
            path = f"{self._root}/{name}"
            if name == self._name or (self._kind == CREATE and not name.startswith(PRUNE)):
                continue
            written = self._destination.written_at(path)
            if written is None and self._destination.read(path) is None:
                continue  # its holder deleted the file meanwhile
            age = None if now is None or written is None else max(now - written, 0.0)
            if age is not None and age > STALE_SECONDS:
                self._destination.delete([path])
                continue
            raise self._lock_error(path, age)

    def _lock_error(self, path: str, age: float | None) -> BackupError:
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
