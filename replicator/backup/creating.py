"""Making a backup.

1. Look which chunks are at the destination.
2. Ask for a copy of the store, without those. Each piece that comes is written as a chunk, several at once.
3. Blocks that the store itself has not whole are named in the manifest; the rest is a backup all the same.
4. When all have come and are written, the manifest is written. It is what makes it a backup: a copy that is cut off
   leaves chunks, which the next one uses.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from dataclasses import replace

from replicator.backup.chunks import AT_ONCE, Chunks
from replicator.backup.destination import Destination, Progress
from replicator.backup.errors import BackupError
from replicator.backup.locks import CREATE, Lock
from replicator.backup.manifest import (
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
"""Gives the copy, when told which pieces are there already."""


def create(destination: Destination, cluster: str, source: Source, progress: Progress = lambda _: None) -> Manifest:
    """Make a backup of ``cluster``. Raises :class:`BackupError`, and what the source raises."""
    with Lock(destination, cluster, CREATE) as lock:
        chunks = Chunks(destination, cluster)
        chunks.load()
        with source(chunks.known) as copy:
            check_is_of(copy.head, cluster)
            manifest = Manifest(
                id=new_id(copy.head["made_at_ms"]),
                cluster=cluster,
                store_id=copy.head["store_id"],
                store_format=copy.head["store_format"],
                made_at_ms=copy.head["made_at_ms"],
                version=copy.head["version"],
                files=(),
                topics={name: TopicMark(row["incarnation"], row["lac"]) for name, row in copy.head["topics"].items()},
            )
            files, damaged, written = _keep(copy, chunks, lock, progress)
        manifest = replace(
            manifest,
            files=files,
            damaged=tuple(damaged),
            written_bytes=written,
            format=FORMAT_WITH_DAMAGE if damaged else manifest.format,
        )
        _check_all_there(destination, cluster, manifest)
        Manifests(destination, cluster).write(manifest)
        return manifest


def _keep(
    copy: StoreCopy, chunks: Chunks, lock: Lock, progress: Progress
) -> tuple[list[FileChunks], list[MissingBlock], int]:
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
            lock.renew()
        written += sum(each.result() for each in waiting)
    return [FileChunks(name, rows) for name, rows in files.items()], damaged, written


def _check_all_there(destination: Destination, cluster: str, manifest: Manifest) -> None:
    """Somebody may have deleted chunks by hand while this one was counting on them."""
    there = Chunks(destination, cluster)
    there.load()
    if missing := manifest.digests() - there.known:
        raise BackupError(f"{len(missing)} chunks of the backup went from {destination.url} meanwhile: make it again")
