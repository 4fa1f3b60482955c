"""Making a backup.

1. List the chunks that are at the destination.
2. Ask for a copy of the store without these chunks. Write each piece of the copy as a chunk, several at once.
3. Name blocks that are damaged in the store itself in the manifest. The backup is usable without them.
4. When all chunks are written, list the destination again. If a chunk is gone, ask for another copy, without the chunks
   that are there now.
5. Write the manifest. Only a manifest makes chunks a backup. A copy that is interrupted before leaves chunks that the
   next backup uses.
6. List the destination once more. If a chunk is gone, delete the manifest, and begin again at 2.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from itertools import chain, islice
from typing import Final

from replicator.backup.chunks import Chunks
from replicator.backup.destination import AT_ONCE, Destination, Progress
from replicator.backup.errors import BackupError
from replicator.backup.locks import CREATE, Clock, Lock, boottime_seconds
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
from replicator.engine.log.copy_stream import DIGEST_BYTES, KNOWN_BYTES_MAX
from replicator.engine.log.store_copy import DamagedBlock

Source = Callable[[set[bytes]], AbstractContextManager[StoreCopy]]
"""Returns a copy of the store without the chunks whose digests it is given. It is called again for each further
copy."""
COPIES_MAX: Final = 3
"""Copies for one backup. If chunks are gone again after so many copies, something deletes them that ignores the locks,
such as a rule of the bucket."""


def create(
    destination: Destination,
    cluster: str,
    source: Source,
    progress: Progress = lambda _: None,
    *,
    clock: Clock = boottime_seconds,
) -> Manifest:
    """Make a backup of ``cluster``. Raises :class:`BackupError`, and what the source raises."""
    with Lock(destination, cluster, CREATE, clock=clock) as lock:
        chunks = Chunks(destination, cluster)
        chunks.load()
        manifests = Manifests(destination, cluster)
        written = 0
        for _ in range(COPIES_MAX):
            manifest = _copied(cluster, source, chunks, progress, manifests)
            written += manifest.written_bytes
            manifest = replace(manifest, written_bytes=written)
            if _is_whole(manifest, chunks, lock) and _stays_whole(manifest, manifests, chunks, lock):
                return manifest
        raise BackupError(
            f"chunks that the backup needs disappeared from {destination.url} while it was made, {COPIES_MAX} times: "
            "find out who deletes them, and make the backup again"
        )


def _copied(cluster: str, source: Source, chunks: Chunks, progress: Progress, manifests: Manifests) -> Manifest:
    """Write the chunks that the destination lacks. Return the manifest, without writing it."""
    with source(_digests_to_name(chunks, manifests)) as copy:
        check_is_of(copy.head, cluster)
        files, damaged, written = _keep(copy, chunks, progress)
        return Manifest(
            id=new_id(copy.head["made_at_ms"], next(iter(manifests.ids()), None)),
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


def _digests_to_name(chunks: Chunks, manifests: Manifests) -> set[bytes]:
    """Return the digests to name to the source: those of all chunks at the destination, or as many as a worker takes.

    Those of the newest backup come first, because the store most likely still has these pieces. A piece that is not
    named is sent, though it is there already.
    """
    known, most = chunks.known, KNOWN_BYTES_MAX // DIGEST_BYTES
    if len(known) <= most:
        return known
    newest: set[bytes] = set()
    for backup in manifests.ids():
        with suppress(BackupError):  # it is damaged, of a newer version, or was deleted just now
            newest = manifests.read(backup).digests() & known
            break
    return set(islice(chain(newest, known - newest), most))


def _is_whole(manifest: Manifest, chunks: Chunks, lock: Lock) -> bool:
    """Return whether every chunk of the backup is at the destination. Hold the lock, and list the chunks anew.

    Raises :class:`BackupError` if the lock was lost and a prune excludes it now.
    """
    lock.hold()
    chunks.load()
    return manifest.digests() <= chunks.known


def _stays_whole(manifest: Manifest, manifests: Manifests, chunks: Chunks, lock: Lock) -> bool:
    """Write the manifest, and delete it again if a chunk is gone. Return whether the manifest stays.

    If this lock was lost just before, a prune may have taken its own lock. It does not know this manifest, and may have
    deleted chunks of it.
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
