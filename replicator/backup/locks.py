"""Who works at a destination. Backups may be made side by side, but nothing is pruned meanwhile: a chunk that no backup
has yet may be one that the next one counts on.

Each writes a file of its own first, and then looks for others. Of two that exclude each other at least one sees the
other. A file that was not renewed for :data:`STALE_SECONDS` is of somebody who was killed.
"""

from __future__ import annotations

import json
import secrets
import time
from types import TracebackType
from typing import Final

from replicator.backup.destination import Destination
from replicator.backup.errors import BackupError

CREATE: Final = "create"
PRUNE: Final = "prune"
LOCKS: Final = "locks"
STALE_SECONDS: Final = 900
RENEW_SECONDS: Final = 60


class Lock:
    """Held while it is entered. Raises :class:`BackupError` where somebody else is in the way."""

    def __init__(self, destination: Destination, cluster: str, kind: str) -> None:
        self._destination = destination
        self._root = f"{cluster}/{LOCKS}"
        self._kind = kind
        self._name = f"{kind}-{secrets.token_hex(6)}.json"
        self._renewed = 0.0

    def __enter__(self) -> Lock:
        self._write()
        try:
            self._check_alone()
        except BaseException:
            self._destination.delete([f"{self._root}/{self._name}"])
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._destination.delete([f"{self._root}/{self._name}"])

    def renew(self) -> None:
        """To be called often; it writes now and then."""
        if time.monotonic() - self._renewed > RENEW_SECONDS:
            self._write()

    def _write(self) -> None:
        self._destination.write(f"{self._root}/{self._name}", json.dumps({"at": time.time()}).encode())
        self._renewed = time.monotonic()

    def _check_alone(self) -> None:
        for name in self._destination.sizes(self._root):
            if name == self._name or (self._kind == CREATE and not name.startswith(PRUNE)):
                continue
            content = self._destination.read(f"{self._root}/{name}")
            if content is None:
                continue
            age = time.time() - _at(content)
            if age > STALE_SECONDS:
                self._destination.delete([f"{self._root}/{name}"])
                continue
            doing = "prunes" if name.startswith(PRUNE) else "makes a backup"
            raise BackupError(
                f"{self._destination.url}: somebody else {doing} there, and was heard of {max(age, 0):.0f} s ago: try "
                f"again when that is done (who was killed counts for {STALE_SECONDS // 60} minutes)"
            )


def _at(content: bytes) -> float:
    try:
        return float(json.loads(content)["at"])
    except (ValueError, KeyError, TypeError):
        return 0.0
