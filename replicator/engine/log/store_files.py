"""Files of a store: its directory, which one process locks, and the LMDB environment in it."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final

import lmdb

from replicator import __version__
from replicator.engine.errors import NoRoomToOpen, StoreUnusable
from replicator.engine.log.disk_room import is_full
from replicator.engine.log.store_tables import FORMATS

READERS_MAX: Final = 512
LOCK_ROW_BYTES: Final = 64
"""Bytes of one reader's row in LMDB's lock file. The file also has a head of a few rows. It must not be made larger
than LMDB makes it."""
OWNER_ONLY: Final = 0o700
"""Permissions of a store's directory, because messages are for nobody else on the host. An embedded Postgres that runs
as root may enter the directory around it."""


EFFECTIVE: Final = os.access in os.supports_effective_ids
"""Whether the system can check the rights of this process, and not only those of its user."""
LOG: Final = "log"
"""Directory, below a cluster's, that contains the whole store. It is moved as one."""
SEGMENTS: Final = "segments"
"""Directory of segments, below that of the log."""
RESTORING: Final = "restoring"
"""Directory beside the log that exists while a backup is restored. Until the restore is complete and checked, no store
is opened or made."""


def check_not_restoring(path: Path) -> None:
    """Raise :class:`StoreUnusable` if a restore into ``path`` was begun and has not ended.

    A worker that opened such a directory would begin with an empty or partial store.
    """
    if is_there(path / RESTORING):
        raise StoreUnusable(
            f"data directory {path}: a backup is being restored here, or its restore was cut off: run `replicator "
            f"backup restore` again (or move {path / RESTORING} away to go on without the backup)"
        )


def check_usable(path: Path) -> None:
    """Check that a store can be made or written in the directory ``path``. Nothing is created.

    Raises :class:`StoreUnusable` if permissions are missing, a parent is no directory, or a restore has not ended.
    """
    check_no_dangling_link(path)
    check_not_restoring(path)
    place = path
    while not is_there(place):
        place = place.parent
    if not place.is_dir():
        raise StoreUnusable(f"data directory {path} cannot be made: {place} is not a directory")
    if not os.access(place, os.W_OK | os.X_OK, effective_ids=EFFECTIVE):
        raise StoreUnusable(f"data directory {path} cannot be written: no permission on {place}")
    for file in _files_of(path):
        if is_there(file) and not may_use(file):
            raise StoreUnusable(f"data directory {path} cannot be used: no permission on {file}")


def _files_of(path: Path) -> Iterator[Path]:
    """Yield the possible files and directories of a store, each directory before its content."""
    segments = path / LOG / SEGMENTS
    yield from (path / "worker.lock", path / LOG, path / LOG / "data.mdb", path / LOG / "lock.mdb", segments)
    if is_there(segments):
        yield from segments.iterdir()


def check_unused(path: Path) -> None:
    """Raise :class:`StoreUnusable` if a process holds the data directory ``path``."""
    if is_in_use(path):
        raise _in_use(path)


def _in_use(path: Path) -> StoreUnusable:
    return StoreUnusable(f"data directory {path} is in use by another worker: stop it first")


def read_meta(path: Path, names: Sequence[str]) -> dict[str, Any]:
    """Return the rows ``names`` of the table ``meta``, by name. No process may have the store open.

    Rows that do not exist are left out; without a store the result is empty. Nothing is created or changed. Raises
    :class:`StoreUnusable` if the store cannot be read.
    """
    file = path / LOG / "data.mdb"
    if not is_there(file):
        return {}
    try:
        env = lmdb.open(str(path / LOG), readonly=True, lock=False, create=False, max_dbs=1)
    except (lmdb.Error, OSError) as error:
        raise StoreUnusable(
            f"data directory {path}: the log cannot be opened: {error}; see that its disk is mounted and whole, or "
            "restore a backup (docs/backup.md)"
        ) from None
    try:
        _check_size(file, env)
        found = {name: read_row(env, path, "meta", name) for name in names}
    except lmdb.Error as error:
        raise _damaged(path, error) from None
    finally:
        env.close()
    return {name: json.loads(row) for name, row in found.items() if row is not None}


def check_head(path: Path, cluster: str, head: Mapping[str, Any]) -> None:
    """Check that this version can read the store, and that the store belongs to ``cluster``.

    ``head`` is the row of the store with its format, version and cluster. Raises :class:`StoreUnusable`.
    """
    if head["format"] not in FORMATS:
        raise StoreUnusable(
            f"data directory {path} has store format {head['format']}, written by replicator "
            f"{head.get('version', 'of another version')}; this is {__version__}, which reads formats "
            f"{' and '.join(map(str, FORMATS))}: use the version that wrote it or a newer one, or restore a backup "
            "that this version made (docs/upgrade.md)"
        )
    if head["cluster"] != cluster:
        raise StoreUnusable(
            f"data directory {path} belongs to cluster {head['cluster']!r}, not {cluster!r}: "
            "give each cluster its own directory"
        )


def is_there(path: Path) -> bool:
    """Return whether a file or directory exists. Raises :class:`StoreUnusable` if this user may not look there."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise StoreUnusable(f"{path} cannot be looked at: {error.strerror} (as user {os.geteuid()})") from None
    return True


def may_use(path: Path) -> bool:
    """Return whether this user may read and write a file, or a directory and what is in it."""
    wanted = os.R_OK | os.W_OK | (os.X_OK if path.is_dir() else 0)
    return os.access(path, wanted, effective_ids=EFFECTIVE)


def dangling_link(path: Path) -> Path | None:
    """Return the first symbolic link in ``path`` whose target does not exist, or None if there is no such link."""
    with suppress(OSError):
        if path.exists():  # so does the target of each link in it
            return None
    for each in (path, *path.parents):
        try:
            if each.is_symlink() and not each.exists():
                return each
        except OSError:  # no permission; the code that opens the path reports it
            return None
    return None


def check_no_dangling_link(path: Path) -> None:
    """Raise :class:`StoreUnusable` if a symbolic link in ``path`` leads to a volume that is not mounted.

    Otherwise a worker would make an empty directory there, and begin with an empty store.
    """
    link = dangling_link(path)
    if link is not None:
        raise StoreUnusable(
            f"data directory {path}: {link} is a symbolic link to {link.readlink()}, which is not there: mount its "
            "volume, or make that directory"
        )


def check_there(path: Path) -> None:
    """Raise :class:`StoreUnusable` if ``path`` has no store. A command that only reads a store must not create one."""
    check_no_dangling_link(path)
    if not is_there(path / LOG / "data.mdb"):
        raise StoreUnusable(
            f"{path} has no store (no {LOG}/data.mdb): is it the right directory, and its disk mounted?"
        )


def lock_directory(path: Path) -> IO[bytes]:
    """Lock the directory for this process. A second worker on it is refused."""
    check_no_dangling_link(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = (path / "worker.lock").open("ab")
    except OSError as error:
        raise unusable_store(path, error) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise _in_use(path) from None
    with suppress(OSError):  # it is for people to read; a disk without room for it is no reason not to start
        os.ftruncate(lock.fileno(), 0)
        os.write(lock.fileno(), f"{os.getpid()}\n".encode())
    return lock


def is_in_use(path: Path) -> bool:
    """Return whether a process holds the data directory ``path``. Nothing is created or changed."""
    try:
        with (path / "worker.lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # it is not there, or of another user
        return False
    return False


def open_environment(path: Path, size_max: int, tables_max: int) -> lmdb.Environment:
    """Return the environment below ``path``, created if there is none. Raise :class:`StoreUnusable`."""
    try:
        _allocate_lock_file(path / LOG)
        env = lmdb.open(
            str(path / LOG),
            map_size=size_max,
            max_dbs=tables_max,
            max_readers=READERS_MAX,
            sync=True,
            metasync=True,
            mode=OWNER_ONLY,
        )
        (path / LOG).chmod(OWNER_ONLY)  # one that was made before is closed to others too
    except lmdb.DiskError:
        raise no_room(path) from None
    except OSError as error:
        raise unusable_store(path, error) from None
    except lmdb.Error as error:
        raise StoreUnusable(
            f"data directory {path}: the log cannot be opened: {error}; see that its disk is mounted and whole, or "
            "restore a backup (docs/backup.md)"
        ) from None
    try:
        _check_size(path / LOG / "data.mdb", env)
        env.reader_check()
    except lmdb.Error as error:
        env.close()
        raise _damaged(path, error) from None
    except BaseException:
        env.close()
        raise
    return env


def _allocate_lock_file(directory: Path) -> None:
    """Allocate the disk blocks of LMDB's table of readers. LMDB would make and map a sparse file. On a full disk, the
    first reader whose row has no disk block would then end the process by a bus error.

    The file is closed before LMDB opens it, because a close ends all locks that the process has on the file.
    """
    directory.mkdir(mode=OWNER_ONLY, parents=True, exist_ok=True)
    file = os.open(directory / "lock.mdb", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.posix_fallocate(file, 0, READERS_MAX * LOCK_ROW_BYTES)
    except OSError as error:
        if is_full(error):
            raise
    finally:
        os.close(file)


def open_tables(env: lmdb.Environment, path: Path, names: Sequence[str]) -> dict[str, Any]:
    """Return the tables ``names``, and create missing ones in one transaction, because each commit waits for the disk.

    Raises :class:`StoreUnusable`.
    """
    try:
        with env.begin(write=True) as txn:
            return {name: env.open_db(name.encode(), txn=txn) for name in names}
    except lmdb.Error as error:
        raise _damaged(path, error) from None


def read_row(env: lmdb.Environment, path: Path, table: str, key: str) -> bytes | None:
    """Return one row, or None if the table or the row does not exist. Nothing is created. Raises
    :class:`StoreUnusable`."""
    try:
        database = env.open_db(table.encode(), create=False)
        with env.begin(db=database) as txn:
            return txn.get(key.encode())
    except lmdb.NotFoundError:
        return None
    except lmdb.Error as error:
        raise _damaged(path, error) from None


def check_new(env: lmdb.Environment, path: Path) -> None:
    """Raise :class:`StoreUnusable` if a store has topics, but lacks the row with its id and format.

    That row is then lost. Writing a new one would give the store another id.
    """
    try:
        with env.begin(db=env.open_db(b"topics", create=False)) as txn:
            has_topics = txn.cursor().first()
    except lmdb.NotFoundError:
        return
    except lmdb.Error as error:
        raise _damaged(path, error) from None
    if has_topics:
        raise StoreUnusable(
            f"data directory {path}: the log has topics, and lacks the row that says whose store it is: data.mdb is "
            "damaged; restore a backup (docs/backup.md)"
        )


def _damaged(path: Path, error: lmdb.Error) -> StoreUnusable:
    if isinstance(error, lmdb.DiskError):  # LMDB's own name of ENOSPC
        return no_room(path)
    return StoreUnusable(f"data directory {path}: the log is damaged: {error}; restore a copy")


def no_room(path: Path) -> NoRoomToOpen:
    return NoRoomToOpen(f"data directory {path}: its disk is full: make room on it")


def unusable_store(path: Path, error: OSError) -> StoreUnusable:
    """Return the error for a data directory at which the system refused an operation, with the file and the user."""
    if is_full(error):
        return no_room(path)
    where = path if error.filename is None else error.filename
    denied = f" (as user {os.geteuid()})" if isinstance(error, PermissionError) else ""
    return StoreUnusable(f"data directory {path} cannot be used: {where}: {error.strerror or error}{denied}")


def identity(file: Path | int) -> tuple[int, int]:
    """Return the identity of a file, given by path or descriptor. A different file with the same name has another
    identity."""
    status = os.fstat(file) if isinstance(file, int) else file.stat()
    return status.st_dev, status.st_ino


def _check_size(file: Path, env: lmdb.Environment) -> None:
    """Raise :class:`StoreUnusable` if the file was cut short. The first access to a missing page would end the process
    by a bus error."""
    needed = (env.info()["last_pgno"] + 1) * env.stat()["psize"]
    if (size := file.stat().st_size) < needed:
        raise StoreUnusable(f"{file} is cut short: it has {size} of {needed} bytes; restore a backup (docs/backup.md)")
