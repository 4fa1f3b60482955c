"""Making a backup.

1. Look which chunks are at the destination.
2. Ask for a copy of the store, without those. Each piece that comes is written as a chunk, several at once.
3. Blocks that the store itself has not whole are named in the manifest; the rest is a backup all the same.
4. When all have come and are written, look again that each chunk is there. Where one has gone, ask for another copy,
   without what is there now.
5. The manifest is written. It is what makes it a backup: a copy that is cut off leaves chunks, which the next one uses.
6. Look once more. If a chunk has gone, delete the manifest, and begin again at 2.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from typing import Final

from replicator.backup.chunks import Chunks
from replicator.backup.destination import AT_ONCE, Destination, Progress
from replicator.backup.errors import BackupError
from replicator.backup.locks import CREATE, Clock, Lock, seconds_awake_or_not
from replicator.backup.manifest import (
    FORMAT,
    FORMAT_WITH_DAMAGE,
    FileChunks,
    Manifest,
    Manifests,
    MissingBlock,
    TopicMark,
    new_id,
)
from replicator.backup.sources import StoreCopy, check_is_of
from replicator.engine.log.store_copy import DamagedBlock

Source = Callable[[set[bytes]], AbstractContextManager[StoreCopy]]
"""Gives the copy, when told which pieces are there already. It is called again for each further copy."""
COPIES_MAX: Final = 3
"""Copies for one backup. Chunks that go again and again are deleted by something that knows no locks, such as a rule of
the bucket."""


def create(
    destination: Destination,
    cluster: str,
    source: Source,
    progress: Progress = lambda _: None,
    *,
    clock: Clock = seconds_awake_or_not,
) -> Manifest:
    """Make a backup of ``cluster``. Raises :class:`BackupError`, and what the source raises."""
    with Lock(destination, cluster, CREATE, clock=clock) as lock:
        chunks = Chunks(destination, cluster)
        chunks.load()
        manifests = Manifests(destination, cluster)
        written = 0
        for _ in range(COPIES_MAX):
            manifest = _copied(cluster, source, chunks, progress)
            written += manifest.written_bytes
            manifest = replace(manifest, written_bytes=written)
            if _is_whole(manifest, chunks, lock) and _stays_whole(manifest, manifests, chunks, lock):
                return manifest
        raise BackupError(
            f"chunks that the backup needs went from {destination.url} while it was made, {COPIES_MAX} times: find out "
            "who deletes them, and make it again"
        )


def _copied(cluster: str, source: Source, chunks: Chunks, progress: Progress) -> Manifest:
    """Write the chunks that the destination lacks. Return the manifest, which is not written yet."""
    with source(chunks.known) as copy:
        check_is_of(copy.head, cluster)
        files, damaged, written = _keep(copy, chunks, progress)
        return Manifest(
            id=new_id(copy.head["made_at_ms"]),
            cluster=cluster,
            store_id=copy.head["store_id"],
            store_format=copy.head["store_format"],
            made_at_ms=copy.head["made_at_ms"],
            version=copy.head["version"],
            files=files,
            topics={
                name: TopicMark(row["incarnation"], row["lac"], row.get("marks", {}))
                for name, row in copy.head["topics"].items()
            },
            damaged=tuple(damaged),
            written_bytes=written,
            format=FORMAT_WITH_DAMAGE if damaged else FORMAT,
        )


def _is_whole(manifest: Manifest, chunks: Chunks, lock: Lock) -> bool:
    """Return whether every chunk of the backup is at the destination, listed anew while the lock is held.

    Raises :class:`BackupError` if the lock was lost and somebody prunes now.
    """
    lock.hold()
    chunks.load()
    return manifest.digests() <= chunks.known


def _stays_whole(manifest: Manifest, manifests: Manifests, chunks: Chunks, lock: Lock) -> bool:
    """Write the manifest, and delete it again if a chunk went meanwhile. Return whether it stays.

    A `prune` that took over a lost lock just before does not know the manifest, and may have deleted its chunks.
    """
    manifests.write(manifest)
    try:
        whole = _is_whole(manifest, chunks, lock)
    except BackupError:
        with suppress(BackupError):
            manifests.delete([manifest.id])
        raise
    if not whole:
        manifests.delete([manifest.id])
    return whole


def _keep(copy: StoreCopy, chunks: Chunks, progress: Progress) -> tuple[list[FileChunks], list[MissingBlock], int]:
    files: dict[str, list[tuple[str, int]]] = {}
    damaged: list[MissingBlock] = []
    done = written = 0
    waiting: set[Future[int]] = set()
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="chunks") as pool:
        for piece in copy.pieces:
            if isinstance(piece, DamagedBlock):
                damaged.append(MissingBlock(piece.topic, str(piece.first), str(piece.last), piece.reason))
                continue
            files.setdefault(piece.file, []).append((piece.digest.hex(), piece.size))
            if piece.content is not None:
                waiting.add(pool.submit(chunks.put, piece.digest, piece.content))
            if len(waiting) >= 2 * AT_ONCE:
                finished, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                written += sum(each.result() for each in finished)
            done += piece.size
            progress(done)
        written += sum(each.result() for each in waiting)
    return [FileChunks(name, rows) for name, rows in files.items()], damaged, written
