"""Deleting old backups, and the chunks that no backup needs any more."""

from __future__ import annotations

from dataclasses import dataclass

from replicator.backup.chunks import Chunks
from replicator.backup.destination import Destination
from replicator.backup.locks import PRUNE, Clock, Lock, seconds_awake_or_not
from replicator.backup.manifest import Manifests


@dataclass(frozen=True, slots=True)
class Pruned:
    """What was deleted."""

    backups: list[str]
    chunks: int
    freed_bytes: int


def prune(destination: Destination, cluster: str, keep: int, *, clock: Clock = seconds_awake_or_not) -> Pruned:
    """Keep the newest ``keep`` backups, and the newest whole one: while a store is damaged, all that are made of it are
    not whole, and must not push out the last that is. Raises :class:`BackupError` while a backup is being made, and
    :class:`BackupDamaged` before anything is deleted, where it is not known which chunks a backup needs.

    Looks before each deletion whether the lock is still its own. If it is not, raises :class:`LockLost` and deletes
    nothing more: a backup may be in the making that counts on these chunks.
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
        manifests.delete(gone, lock.look)  # before their chunks: what has a manifest is whole
        chunks = Chunks(destination, cluster)
        chunks.delete_unfinished(lock.look)
        chunks.load()
        unneeded = chunks.known - needed
        freed = sum(map(chunks.stored_size, unneeded))
        chunks.delete(unneeded, lock.look)
        return Pruned(gone, len(unneeded), freed)
