"""Deleting old backups, and the chunks that no backup needs any more."""

from __future__ import annotations

from dataclasses import dataclass

from replicator.backup.chunks import Chunks
from replicator.backup.destination import Destination
from replicator.backup.locks import PRUNE, Clock, Lock, boottime_seconds
from replicator.backup.manifest import Manifests


@dataclass(frozen=True, slots=True)
class Pruned:
    """Deleted backups and chunks."""

    backups: list[str]
    chunks: int
    freed_bytes: int


def prune(destination: Destination, cluster: str, keep: int, *, clock: Clock = boottime_seconds) -> Pruned:
    """Delete all backups except the newest ``keep`` ones and the newest undamaged one, and the chunks that only they
    need.

    While a store is damaged, all its backups are damaged. They must not push out the last undamaged backup.

    Raises :class:`BackupError` if a backup is being made, and :class:`BackupDamaged`, before anything is deleted, if a
    manifest cannot be read. Raises :class:`LockLost`, and deletes nothing more, if the lock is lost between two
    deletions: a backup that is being made may need these chunks.
    """
    assert keep > 0
    with Lock(destination, cluster, PRUNE, clock=clock) as lock:
        manifests = Manifests(destination, cluster)
        needed: set[bytes] = set()
        ids = manifests.ids()
        kept: list[str] = []
        whole = False
        for backup in ids:
            if len(kept) >= keep and whole:
                break
            manifest = manifests.read(backup)
            if len(kept) < keep or not manifest.damaged:
                kept.append(backup)
                needed |= manifest.digests()
                whole = whole or not manifest.damaged
        gone = [backup for backup in ids if backup not in kept]
        # Delete manifests before chunks, so that each manifest that is left has all its chunks.
        manifests.delete(gone, lock.look)
        chunks = Chunks(destination, cluster)
        chunks.delete_unfinished(lock.look)
        chunks.load()
        unneeded = chunks.known - needed
        freed = sum(map(chunks.stored_size, unneeded))
        chunks.delete(unneeded, lock.look)
        return Pruned(gone, len(unneeded), freed)
