"""Restoring a backup, as a whole or not at all.

1. The data directory is locked, as by a worker. If it has a store already, the restore is refused, unless the operator
   asked to move that store aside.
2. All chunks are written into a directory ``restoring`` beside the store. While ``restoring`` exists, no worker starts
   on the data directory.
3. The written store is opened and checked: it must belong to the cluster, and have each topic up to the position that
   the manifest names.
4. The store gets the mark of a restored store (:mod:`replicator.engine.restored`), with the order in which to restore
   clusters that were lost together (:mod:`replicator.backup.restore_order`). Then its directory is moved into place in
   one step. A restore that is interrupted before leaves ``restoring``, and the next restore begins anew.
"""

from __future__ import annotations

import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Final

from replicator.backup.chunks import Chunks
from replicator.backup.destination import Destination, Progress, sync_directory
from replicator.backup.errors import BackupDamaged, BackupError, DirectoryUnusable
from replicator.backup.manifest import FileChunks, Manifest, Manifests
from replicator.backup.restore_order import restored_beside
from replicator.backup.sources import STORE_BYTES_MAX, ends_of
from replicator.engine.errors import StoreUnusable
from replicator.engine.log.store import Store
from replicator.engine.log.store_check import check_store
from replicator.engine.log.store_copy import DATA_FILE, is_store_file
from replicator.engine.log.store_files import LOG, OWNER_ONLY, RESTORING, is_there, lock_directory, read_meta
from replicator.engine.log.store_tables import FORMATS
from replicator.engine.restored import MARK, RestoredMark, SiblingBackup, mark_of, put_mark
from snapshots.position import BEFORE_ALL, Position

PROBLEMS_MAX: Final = 100
_USE_ANOTHER_BACKUP: Final = "use another backup (`replicator backup list` shows them)"
REPLACED: Final = "replaced"


@dataclass(slots=True)
class BackupCheck:
    """Result of checking a backup."""

    manifest: Manifest
    problems: list[str] = field(default_factory=list)
    """Problems besides the blocks that the manifest lists as damaged."""
    topics: int = 0
    blocks: int = 0


class RemainingStep(Enum):
    """Steps left to do in the directory of a cluster that begins with a backup."""

    ALL = "all"
    """It has no store, or a restore was cut off before the store was in place."""
    RECLAIM = "reclaim"
    """The backup is restored; the other clusters were not all asked yet."""
    NOTHING = "nothing"
    """It has a store."""


def remaining_step(data: Path) -> RemainingStep:
    """Return what is left to do in the directory ``data``.

    If a restore was cut off right after it had moved its store into place, that restore is ended. Raises
    :class:`StoreUnusable` if the store cannot be read, and :class:`DirectoryUnusable`.
    """
    if not is_there(data / LOG):
        return RemainingStep.ALL
    mark = mark_of(read_meta(data, (MARK,)).get(MARK))
    is_restored = mark is not None and bool(mark.backup) and mark.settled_at_ms is None
    if is_there(data / RESTORING):
        if not is_restored or is_there(data / RESTORING / LOG):
            return RemainingStep.ALL
        try:
            shutil.rmtree(data / RESTORING)
            sync_directory(data)
        except OSError as error:
            raise DirectoryUnusable(
                f"{data / RESTORING}, which a finished restore left behind, cannot be removed: "
                f"{error.strerror or error}"
            ) from error
    return RemainingStep.RECLAIM if is_restored else RemainingStep.NOTHING


def restore(
    destination: Destination,
    cluster: str,
    data: Path,
    *,
    backup: str | None = None,
    replace: bool = False,
    progress: Progress = lambda _: None,
) -> tuple[Manifest, RestoredMark, Path | None]:
    """Restore a backup, the newest if none is named, into the directory ``data`` of a cluster. Also return where a
    former store was moved. Raise :class:`BackupError` or :class:`StoreUnusable`.
    """
    manifests = Manifests(destination, cluster)
    manifest = manifests.read(backup or manifests.newest())
    _check_format(manifest)
    with _writable(data, manifest):
        lock = lock_directory(data)
        try:
            if is_there(data / LOG) and not replace:
                raise BackupError(
                    f"{data} has a store already: restore into another directory, or give --replace to move it aside"
                )
            restoring = data / RESTORING
            with _cleanup_on_failure(data, restoring):
                problems = _write_files(destination, manifest, restoring, progress)
                if problems:
                    raise BackupDamaged(
                        f"backup {manifest.id} cannot be restored: {'; '.join(problems[:3])}; {_USE_ANOTHER_BACKUP}"
                    )
                beside = restored_beside(destination, manifest)
                mark = RestoredMark(uuid.uuid4().hex, manifest.id, manifest.made_at_ms, time.time_ns() // 1_000_000)
                _check_and_mark(restoring, manifest, mark, beside)
                aside = _move_into_place(data)
        finally:
            lock.close()
    return manifest, mark, aside


@contextmanager
def _writable(directory: Path, manifest: Manifest) -> Iterator[None]:
    """Check that the directory can be written. Raise :class:`DirectoryUnusable`."""
    try:
        yield
    except OSError as error:
        raise DirectoryUnusable(
            f"the backup cannot be unpacked into {directory}: {error.strerror or error}; backup {manifest.id} needs "
            f"{manifest.size / 1e6:.0f} MB there"
        ) from error


@contextmanager
def _cleanup_on_failure(data: Path, restoring: Path) -> Iterator[None]:
    """Clean up after a failure. If a whole store is in place, the worker may go on with it, and nothing is left behind.
    Otherwise ``restoring`` stays, so that no worker starts with an empty store.
    """
    goes_on = (data / LOG).exists() and not restoring.exists()
    shutil.rmtree(restoring, ignore_errors=True)
    try:
        restoring.mkdir(mode=OWNER_ONLY)
        sync_directory(data)
        yield
    except BaseException:
        if goes_on and (data / LOG).exists():
            shutil.rmtree(restoring, ignore_errors=True)
        raise


def _check_format(manifest: Manifest) -> None:
    if manifest.store_format not in FORMATS:
        raise BackupError(
            f"backup {manifest.id} is of a store with format {manifest.store_format}, this version reads "
            f"{' and '.join(map(str, FORMATS))}: restore it with version {manifest.version} of the replicator"
        )
    names = [file.name for file in manifest.files]
    if names[:1] != [DATA_FILE] or not all(map(is_store_file, names)) or len(set(names)) < len(names):
        odd = [name for name in names if not is_store_file(name)] or names
        raise BackupError(
            f"backup {manifest.id} lists files as no store of this version has them, such as {', '.join(odd[:3])}: "
            f"restore it with version {manifest.version}, which made it, or use another backup"
        )


def _write_files(destination: Destination, manifest: Manifest, directory: Path, progress: Progress) -> list[str]:
    """Write the store's files. Return the damaged ones, up to :data:`PROBLEMS_MAX`."""
    chunks = Chunks(destination, manifest.cluster)
    chunks.load()
    problems: list[str] = []
    done = 0
    for file in manifest.files:
        place = directory / file.name
        place.parent.mkdir(mode=OWNER_ONLY, parents=True, exist_ok=True)
        with os.fdopen(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as writing:
            for piece, size, problem in _read(chunks, file):
                if problem is not None:
                    problems.append(problem)
                    if len(problems) >= PROBLEMS_MAX:
                        return problems
                elif piece.count(0) == size:
                    writing.seek(size, os.SEEK_CUR)  # pages that were never written take no room
                else:
                    writing.write(piece)
                done += size
                progress(done)
            writing.truncate(file.size)
            writing.flush()
            os.fsync(writing.fileno())
        sync_directory(place.parent)
    return problems


def _read(chunks: Chunks, file: FileChunks) -> Iterator[tuple[bytes, int, str | None]]:
    at = 0
    wanted = [(bytes.fromhex(digest), size) for digest, size in file.chunks]
    for (_, size), piece in zip(wanted, chunks.get_all(wanted), strict=True):
        if isinstance(piece, BackupDamaged):
            yield b"", size, f"{file.name} at byte {at}: {piece}"
        else:
            yield piece, size, None
        at += size


def _check_and_mark(directory: Path, manifest: Manifest, mark: RestoredMark, beside: Sequence[SiblingBackup]) -> None:
    """Check the restored store, and write its mark. Raise :class:`BackupDamaged`."""
    with _opened(directory, manifest) as store:
        if problems := list(_lacking(store, manifest)):
            raise BackupDamaged(f"backup {manifest.id} is not whole: {'; '.join(problems[:3])}; {_USE_ANOTHER_BACKUP}")
        put_mark(store, mark, beside)


@contextmanager
def _opened(directory: Path, manifest: Manifest) -> Iterator[Store]:
    try:
        store = Store(directory, cluster=manifest.cluster, size_max=STORE_BYTES_MAX)
    except StoreUnusable as error:
        raise BackupDamaged(
            f"the store of backup {manifest.id} cannot be opened: {error}; {_USE_ANOTHER_BACKUP}"
        ) from None
    try:
        yield store
    finally:
        store.close()


def _lacking(store: Store, manifest: Manifest) -> Iterator[str]:
    """Yield texts about topics that the backup claims and the store in it lacks."""
    ends = ends_of(store)
    for name, mark in manifest.topics.items():
        incarnation, last = ends.get(name, (None, BEFORE_ALL))
        if incarnation is not None and incarnation > mark.incarnation:
            continue  # it was deleted and made anew while it was copied
        if incarnation != mark.incarnation or last < Position.parse(mark.lac):
            yield f"topic {name} ends at {last}, and should reach {mark.lac}"


def _move_into_place(data: Path) -> Path | None:
    aside = None
    if (data / LOG).exists():
        aside = data / f"{REPLACED}-{time.time_ns() // 1_000_000}"
        aside.mkdir(mode=OWNER_ONLY)
        try:
            (data / LOG).rename(aside / LOG)
        except OSError:  # the directory belongs to another user
            aside.rmdir()
            raise
        sync_directory(data)
    (data / RESTORING / LOG).rename(data / LOG)
    sync_directory(data)
    shutil.rmtree(data / RESTORING)
    sync_directory(data)
    return aside


def verify(
    destination: Destination,
    cluster: str,
    scratch: Path,
    *,
    backup: str | None = None,
    progress: Progress = lambda _: None,
    on_topic: Callable[[str], None] = lambda _: None,
) -> BackupCheck:
    """Read all of a backup, open the store in it below ``scratch``, and check each of its blocks.

    Raises :class:`BackupError` where there is no such backup, or it cannot be looked at; what is wrong with one that
    can is in the result.
    """
    manifests = Manifests(destination, cluster)
    manifest = manifests.read(backup or manifests.newest())
    _check_format(manifest)
    checked = BackupCheck(manifest)
    with _writable(scratch, manifest):
        checked.problems += _write_files(destination, manifest, scratch, progress)
    if checked.problems:
        return checked
    try:
        with _writable(scratch, manifest), _opened(scratch, manifest) as store:
            checked.problems += _lacking(store, manifest)
            found = check_store(store, on_topic)
        checked.topics, checked.blocks = found.topics, found.blocks
        known = {(block.topic, block.first) for block in manifest.damaged}
        found.damaged = [each for each in found.damaged if (each.topic, str(each.first)) not in known]
        checked.problems += found.problems
    except BackupDamaged as error:
        checked.problems.append(str(error))
    return checked
