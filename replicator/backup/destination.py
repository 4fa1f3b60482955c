"""Storage of backups: a directory, or any place that fsspec knows (``s3://…``, ``gs://…``, ``sftp://…``).

Files are small and are written whole. In a directory each is written under another name, synced and renamed, so that a
file that is there is whole; elsewhere that is the business of the service, and names tell how long a file must be.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from fsspec import AbstractFileSystem
from fsspec.asyn import AsyncFileSystem
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from replicator.backup.errors import BackupError, DestinationUnavailable
from replicator.engine.log.store_files import dangling_link
from replicator.topology import mask_password

UNFINISHED: Final = ".unfinished-"
"""Part of the names of files that are being written into a directory."""
AT_ONCE: Final = 8
"""Chunks that are read, written or deleted at the same time. Each takes a megabyte of memory."""


class Destination:
    """One place. Paths are relative to it, with ``/`` between their parts. Its methods raise
    :class:`DestinationUnavailable`; they may be called on several threads."""

    def __init__(self, url: str) -> None:
        """Open the destination at ``url``.

        Raises :class:`BackupError` if no installed package supports the URL, and :class:`DestinationUnavailable` if the
        volume of a directory is not mounted.
        """
        self.url = _shown(url)
        """URL for messages, without a password."""
        self._password = _password(url)
        with self._named():
            try:
                self._fs, self._root = url_to_fs(url, use_listings_cache=False)
            except (ImportError, ValueError, TypeError) as error:
                raise BackupError(
                    f"--at {self.url} cannot be opened: {self._masked(error)}; a directory needs nothing, other places "
                    "their fsspec package"
                ) from None
        self._local = isinstance(self._fs, LocalFileSystem)
        link = dangling_link(Path(str(self._root))) if self._local else None
        if link is not None:  # a directory whose volume is not mounted must not look like one without backups
            raise DestinationUnavailable(
                f"{self.url}: {link} is a symbolic link to {link.readlink()}, which is not there: mount its volume"
            )

    def read(self, path: str) -> bytes | None:
        """Return the content of a file; None if there is none."""
        with self._named(path):
            try:
                content: bytes = self._fs.cat_file(self._place(path))
            except FileNotFoundError:
                return None
            return content

    def write(self, path: str, content: bytes) -> None:
        """Write a whole file, over an existing one."""
        with self._named(path):
            place = self._place(path)
            if self._local:
                _write_locally(Path(place), content)
                return
            with contextlib.suppress(FileExistsError):
                self._fs.makedirs(self._fs._parent(place), exist_ok=True)
            self._fs.pipe_file(place, content)

    def sizes(self, path: str) -> dict[str, int]:
        """Return the files below a directory, relative to it, with their sizes; none if it does not exist."""
        with self._named(path):
            place = self._place(path).rstrip("/")
            names = ((name.removeprefix(f"{place}/"), size) for name, size in self._found(place))
            return {name: size for name, size in names if UNFINISHED not in name}

    def directories(self) -> list[str]:
        """Return the names of the top directories."""
        with self._named(""):
            try:
                rows = self._fs.ls(str(self._root), detail=True)
            except FileNotFoundError:
                return []
            return sorted(str(row["name"]).rstrip("/").rpartition("/")[2] for row in rows if row["type"] == "directory")

    def written_at(self, path: str) -> float | None:
        """Return when a file was last written, in seconds by the clock of the destination.

        Only the difference between two such times has a meaning. Return None if the file is gone, or if the destination
        has no such times.
        """
        with self._named(path):
            try:
                at: datetime = self._fs.modified(self._place(path))
            except (FileNotFoundError, NotImplementedError, KeyError):
                return None
            return (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp()

    def delete(self, paths: Iterable[str], before_each: Callable[[], None] = lambda: None) -> None:
        """Delete files, up to :data:`AT_ONCE` at the same time. A file that is gone already is no error.

        ``before_each`` is called before each file, on any thread. Once it raises, no further file is deleted.
        """

        def delete_one(path: str) -> None:
            before_each()
            with self._named(path), contextlib.suppress(FileNotFoundError):
                self._fs.rm_file(self._place(path))

        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="deleting") as pool:
            running: set[Future[None]] = set()
            try:
                for path in paths:
                    if len(running) >= AT_ONCE:
                        finished, running = wait(running, return_when=FIRST_COMPLETED)
                        for each in finished:
                            each.result()
                    running.add(pool.submit(delete_one, path))
                for each in running:
                    each.result()
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def delete_unfinished(self, path: str, before_each: Callable[[], None] = lambda: None) -> None:
        """Delete files that killed writers left half-written in a directory. Calls ``before_each`` before each file."""
        if self._local:
            with self._named(path):
                for place in Path(self._place(path)).rglob(f"*{UNFINISHED}*"):
                    before_each()
                    place.unlink(missing_ok=True)

    def _found(self, place: str) -> Iterator[tuple[str, int]]:
        """Yield the files below a directory. Raise an error for one that cannot be listed: fsspec's own walk would skip
        it, so that its files look deleted and might be pruned.
        """
        fs = self._fs
        generic = fs._find if isinstance(fs, AsyncFileSystem) else fs.find
        if generic.__func__ not in (AsyncFileSystem._find, AbstractFileSystem.find):  # the service lists it at once
            with contextlib.suppress(FileNotFoundError):
                yield from ((name, int(each["size"] or 0)) for name, each in fs.find(place, detail=True).items())
            return
        waiting = [place]
        while waiting:
            at = waiting.pop()
            with contextlib.suppress(FileNotFoundError):
                for each in fs.ls(at, detail=True):
                    name = str(each["name"]).rstrip("/")
                    if name == at:
                        continue
                    if each["type"] == "directory":
                        waiting.append(name)
                    else:
                        yield name, int(each["size"] or 0)

    def _place(self, path: str) -> str:
        return f"{str(self._root).rstrip('/')}/{path}"

    @contextmanager
    def _named(self, path: str = "") -> Iterator[None]:
        where = f"{self.url}: {path}" if path else self.url
        try:
            yield
        except BackupError:
            raise
        except OSError as error:
            raise DestinationUnavailable(
                f"{where}: the place of backups cannot be used: {self._masked(error.strerror or error)}"
            ) from None
        except Exception as error:  # each package has its own: botocore's, aiohttp's, paramiko's, Google's
            raise DestinationUnavailable(
                f"{where}: the place of backups cannot be used: {type(error).__name__}: {self._masked(error)}"
            ) from error

    def _masked(self, text: object) -> str:
        shown = str(text)
        return shown.replace(self._password, "***") if self._password else shown


def _shown(url: str) -> str:
    return mask_password(url) if "://" in url else url


def _password(url: str) -> str | None:
    try:
        return urlsplit(url).password
    except ValueError:
        return None


def _write_locally(place: Path, content: bytes) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    unfinished = place.with_name(f"{place.name}{UNFINISHED}{secrets.token_hex(4)}")
    try:
        with unfinished.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(place)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    sync_directory(place.parent)


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


Progress = Callable[[int], None]
"""Told how many bytes were handled so far."""
