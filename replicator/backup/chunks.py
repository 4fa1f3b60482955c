"""Chunks: pieces of stores, kept once each under the name of their hash.

A chunk's file is ``chunks/ab/<sha256 of the piece>-<size of the file>``. So a piece that many backups have in common is
kept once, and a file that was cut off is told from a whole one by its size alone. In the file is one byte that says how
it is packed, the length of the piece, and the piece.
"""

from __future__ import annotations

import hashlib
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

import pyarrow as pa

from replicator.backup.destination import AT_ONCE, Destination
from replicator.backup.errors import BackupDamaged

CHUNKS: Final = "chunks"
PIECE_BYTES_MAX: Final = 64 * 1024 * 1024
"""A chunk that says it is longer is wrong."""
_HEAD = struct.Struct("<cI")
_PLAIN: Final = b"P"
_ZSTD: Final = b"Z"


class Chunks:
    """The chunks of one cluster at a destination."""

    def __init__(self, destination: Destination, cluster: str) -> None:
        self._destination = destination
        self._root = f"{cluster}/{CHUNKS}"
        self._names: dict[bytes, str] = {}
        """Names of the chunks that are whole at the destination, by digest."""
        self._lock = threading.Lock()

    def load(self) -> None:
        """List the chunks at the destination that were written completely, and forget all that was known before."""
        found = {
            digest: name
            for name, size in self._destination.sizes(self._root).items()
            if (digest := _digest_of(name, size)) is not None
        }
        with self._lock:
            self._names = found

    @property
    def known(self) -> set[bytes]:
        return set(self._names)

    def stored_size(self, digest: bytes) -> int:
        """Return the size of a chunk at the destination in bytes."""
        return int(self._names[digest].rpartition("-")[2])

    def put(self, digest: bytes, piece: bytes) -> int:
        """Keep a piece; returns how many bytes were written, 0 if it was there."""
        with self._lock:
            if digest in self._names:
                return 0
        content = pack(piece)
        name = _name(digest, len(content))
        self._destination.write(f"{self._root}/{name}", content)
        with self._lock:
            self._names[digest] = name
        return len(content)

    def get(self, digest: bytes, size: int) -> bytes:
        """Return the piece of that hash and size. Raise :class:`BackupDamaged`."""
        name = self._names.get(digest)
        content = None if name is None else self._destination.read(f"{self._root}/{name}")
        if name is None or content is None:
            raise BackupDamaged(
                f"chunk {self._root}/{digest.hex()} is missing at {self._destination.url}, or was cut off: backups "
                "that need it cannot be restored"
            )
        try:
            piece = unpack(content)
        except (ValueError, OSError, pa.ArrowException) as error:
            raise BackupDamaged(f"chunk {self._root}/{name} of backups cannot be unpacked: {error}") from None
        if len(piece) != size or hashlib.sha256(piece).digest() != digest:
            raise BackupDamaged(f"chunk {self._root}/{name} of backups is damaged: its hash is not the one in its name")
        return piece

    def get_all(self, wanted: Iterable[tuple[bytes, int]]) -> Iterator[bytes | BackupDamaged]:
        """Yield the pieces in order, some fetched ahead; for a damaged one, yield the error."""
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="chunks") as pool:
            waiting: list[Future[bytes]] = []
            for digest, size in wanted:
                waiting.append(pool.submit(self.get, digest, size))
                if len(waiting) >= AT_ONCE:
                    yield _result(waiting.pop(0))
            while waiting:
                yield _result(waiting.pop(0))

    def delete(self, digests: Iterable[bytes], before_each: Callable[[], None]) -> None:
        """Delete chunks, several at the same time. Calls ``before_each`` before each one."""
        self._destination.delete((f"{self._root}/{self._names.pop(digest)}" for digest in digests), before_each)

    def delete_unfinished(self, before_each: Callable[[], None]) -> None:
        """Delete files that killed writers left behind. Calls ``before_each`` before each one."""
        self._destination.delete_unfinished(self._root, before_each)
        torn = [
            f"{self._root}/{name}"
            for name, size in self._destination.sizes(self._root).items()
            if _digest_of(name, size) is None
        ]
        self._destination.delete(torn, before_each)


def pack(piece: bytes) -> bytes:
    packed = pa.compress(piece, codec="zstd", asbytes=True)
    kind, content = (_ZSTD, packed) if len(packed) < len(piece) else (_PLAIN, piece)
    return _HEAD.pack(kind, len(piece)) + content


def unpack(content: bytes) -> bytes:
    """Unpack a chunk. Raise :class:`ValueError` or Arrow's errors."""
    if len(content) < _HEAD.size:
        raise ValueError("it is too short")
    kind, size = _HEAD.unpack_from(content)
    if size > PIECE_BYTES_MAX:
        raise ValueError(
            f"the chunk's head says {size} bytes, and a chunk has at most {PIECE_BYTES_MAX}: it is damaged"
        )
    packed = content[_HEAD.size :]
    if kind == _PLAIN:
        return packed
    if kind != _ZSTD:
        raise ValueError(
            f"the chunk is packed in a way that this version does not know, {kind!r}: it is damaged or of a newer "
            "version"
        )
    unpacked: bytes = pa.decompress(packed, decompressed_size=size, codec="zstd", asbytes=True)
    return unpacked


def _result(future: Future[bytes]) -> bytes | BackupDamaged:
    try:
        return future.result()
    except BackupDamaged as error:
        return error


def _name(digest: bytes, stored: int) -> str:
    return f"{digest.hex()[:2]}/{digest.hex()}-{stored}"


def _digest_of(name: str, size: int) -> bytes | None:
    """Return the digest in a file's name; None if the file is not a whole chunk."""
    text, _, stored = name.rpartition("/")[2].partition("-")
    try:
        digest = bytes.fromhex(text)
    except ValueError:
        return None
    return digest if stored == str(size) and name == _name(digest, size) else None
