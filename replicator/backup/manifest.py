"""Manifests: each makes a backup of chunks. A manifest is written last, so that what has none is no backup.

Its file is ``backups/<id>.json``: a line with the hash of the rest, and the rest.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from replicator.backup.destination import Destination
from replicator.backup.errors import BackupDamaged, BackupError
from snapshots.errors import InvalidPosition
from snapshots.position import Position

BACKUPS: Final = "backups"
FORMAT: Final = 1
"""Format of manifests and chunks; a version that does not know it refuses."""
FORMAT_WITH_DAMAGE: Final = 2
"""Format of a backup that is not whole; a version that would not tell its user refuses it."""
FORMATS: Final = (FORMAT, FORMAT_WITH_DAMAGE)
_ID: Final = re.compile(r"[0-9]{8}T[0-9]{9}Z-[0-9a-f]{6}")


@dataclass(frozen=True, slots=True)
class TopicMark:
    """Position at which a topic's log ended when the copying began: everything up to it is in the backup."""

    incarnation: int
    lac: str
    marks: Mapping[str, str] = field(default_factory=dict)
    """Newest position of each origin in the backup. Former versions wrote none."""


@dataclass(frozen=True, slots=True)
class FileChunks:
    """A file of the store: its chunks in order, each with the hash and size of its piece."""

    name: str
    chunks: Sequence[tuple[str, int]]

    @property
    def size(self) -> int:
        return sum(size for _, size in self.chunks)


@dataclass(frozen=True, slots=True)
class MissingBlock:
    """A block that was damaged in the store, or could not be read, so that it is not in the backup as it was."""

    topic: str
    first: str
    last: str
    reason: str

    def __str__(self) -> str:
        return f"{self.topic} at {self.first}" + (f" to {self.last}" if self.last != self.first else "")


@dataclass(frozen=True, slots=True)
class Manifest:
    """One backup."""

    id: str
    cluster: str
    store_id: str
    store_format: int
    made_at_ms: int
    """Time when the copying began."""
    version: str
    """Version of the service that made the backup."""
    files: Sequence[FileChunks]
    topics: Mapping[str, TopicMark] = field(default_factory=dict)
    written_bytes: int = 0
    """Bytes that this backup added to the destination."""
    damaged: Sequence[MissingBlock] = ()
    """Blocks that the backup lacks, because they were damaged in the store. In the restored store these blocks are
    known as damaged.
    """
    format: int = FORMAT

    @property
    def made_at(self) -> str:
        return shown_time(self.made_at_ms)

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    def digests(self) -> set[bytes]:
        return {bytes.fromhex(digest) for file in self.files for digest, _ in file.chunks}


def new_id(now_ms: int, newest: str | None = None) -> str:
    """Return a new id. Ids are in the order of time, to the millisecond.

    The id comes after the id ``newest`` also if the clock was ahead when that backup was made. Otherwise the new backup
    would count as an old one, which `prune` deletes and `restore` passes over.
    """
    now_ms = max(now_ms, 0 if newest is None else time_of(newest) + 1)
    at = datetime.fromtimestamp(now_ms // 1000, UTC)
    return f"{at:%Y%m%dT%H%M%S}{now_ms % 1000:03}Z-{secrets.token_hex(3)}"


def time_of(backup: str) -> int:
    """Return the time in an id, in milliseconds since 1970; 0 if it names no time."""
    try:
        at = datetime.strptime(backup[:15], "%Y%m%dT%H%M%S").replace(tzinfo=UTC)
    except ValueError:
        return 0
    return int(at.timestamp()) * 1000 + int(backup[15:18])


def shown_time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(sep=" ", timespec="seconds")


def encode_manifest(manifest: Manifest) -> bytes:
    row = asdict(manifest)
    if not manifest.damaged:  # as versions write and read it that know of no damage
        del row["damaged"]
    body = json.dumps(row, separators=(",", ":")).encode()
    return hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def decode_manifest(content: bytes, where: str) -> Manifest:
    """Read a manifest. Raise :class:`BackupDamaged`, or :class:`BackupError` for one of a newer version."""
    digest, _, body = content.partition(b"\n")
    if hashlib.sha256(body).hexdigest().encode() != digest:
        raise BackupDamaged(f"manifest {where} is damaged, or was cut off: it is no backup; use another backup")
    try:
        row: dict[str, Any] = json.loads(body)
        if row["format"] not in FORMATS:
            raise BackupError(
                f"manifest {where} has format {row['format']}, this version reads {' and '.join(map(str, FORMATS))}: "
                "use the version that made this backup"
            )
        files = [
            FileChunks(each["name"], [(bytes.fromhex(digest).hex(), int(size)) for digest, size in each["chunks"]])
            for each in row["files"]
        ]
        topics = {
            name: TopicMark(
                int(mark["incarnation"]),
                str(mark["lac"]),
                {str(origin): str(Position.parse(at)) for origin, at in mark.get("marks", {}).items()},
            )
            for name, mark in row["topics"].items()
        }
        damaged = tuple(
            MissingBlock(**{name: str(text) for name, text in each.items()}) for each in row.get("damaged", ())
        )
        return Manifest(**{**row, "files": files, "topics": topics, "damaged": damaged})
    except (ValueError, KeyError, TypeError, AttributeError, InvalidPosition) as error:
        raise BackupDamaged(f"manifest {where} cannot be read: {error!r:.200}; use another backup") from None


class Manifests:
    """The backups of one cluster at a destination."""

    def __init__(self, destination: Destination, cluster: str) -> None:
        self._destination = destination
        self._cluster = cluster
        self._root = f"{cluster}/{BACKUPS}"

    def ids(self) -> list[str]:
        """Return the ids of the backups, the newest first, damaged ones included."""
        names = (name.removesuffix(".json") for name in self._destination.sizes(self._root))
        return sorted((name for name in names if _ID.fullmatch(name)), reverse=True)

    def read(self, backup: str) -> Manifest:
        """Read a backup's manifest. Raise :class:`BackupDamaged`, or :class:`BackupError` if there is none."""
        if not _ID.fullmatch(backup):
            raise BackupError(
                f"{backup!r} is not the id of a backup: `replicator backup list` shows those that are there"
            )
        path = f"{self._root}/{backup}.json"
        content = self._destination.read(path)
        if content is None:
            raise BackupError(
                f"{self._destination.url} has no backup {backup} of {self._cluster}: `replicator backup list` shows "
                "those that are there"
            )
        manifest = decode_manifest(content, path)
        if (manifest.id, manifest.cluster) != (backup, self._cluster):
            raise BackupDamaged(
                f"manifest {path} says that it is backup {manifest.id} of {manifest.cluster}: it was renamed or "
                "moved; put it back, or use another backup"
            )
        return manifest

    def newest(self) -> str:
        """Return the id of the newest backup. Raise :class:`BackupError` if there is none."""
        ids = self.ids()
        if not ids:
            raise BackupError(
                f"{self._destination.url} has no backup of {self._cluster}: is it the right place, and the right "
                "cluster?"
            )
        return ids[0]

    def write(self, manifest: Manifest) -> None:
        self._destination.write(f"{self._root}/{manifest.id}.json", encode_manifest(manifest))

    def delete(self, backups: Iterable[str], before_each: Callable[[], None] = lambda: None) -> None:
        """Delete manifests, so that their chunks are no backups any more. Calls ``before_each`` before each one."""
        self._destination.delete((f"{self._root}/{backup}.json" for backup in backups), before_each)


def clusters_at(destination: Destination) -> list[str]:
    """Return the clusters with a backup at the destination."""
    return [name for name in destination.directories() if Manifests(destination, name).ids()]
