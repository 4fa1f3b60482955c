"""Sources of a backup's pieces: a worker that runs, or the directory of one that does not."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from replicator import __version__
from replicator.backup.errors import BackupDamaged, WorkerNotAsked
from replicator.engine.errors import StoreCopyFailed
from replicator.engine.log.copy_stream import copy_head, read_head, read_pieces
from replicator.engine.log.store import Store
from replicator.engine.log.store_copy import DamagedBlock, Piece, copy_pieces
from replicator.engine.log.store_files import check_there
from replicator.pipeline.worker_connection import WorkerConnection
from snapshots.position import BEFORE_ALL, Position

PATH: Final = "/replication/v1/backup"
STORE_BYTES_MAX: Final = 1 << 40
"""Address space for a store that is only read, or written to very little."""


@dataclass(frozen=True, slots=True)
class StoreCopy:
    """A copy under way: its pieces in order, and between them the blocks that are damaged."""

    head: dict[str, Any]
    pieces: Iterator[Piece | DamagedBlock]


@contextmanager
def of_worker(url: str, known: set[bytes]) -> Iterator[StoreCopy]:
    """Copy the store of the worker at ``url``. Raise :class:`WorkerNotAsked`."""
    with _Backup(url) as connection:
        response = connection.ask(b"".join(known))
        yield StoreCopy(_head(url, response), _told(url, response))


@contextmanager
def of_directory(data: Path, cluster: str, known: set[bytes]) -> Iterator[StoreCopy]:
    """Copy the store in the directory of a worker that does not run. Raise :class:`StoreUnusable`, also while it runs,
    and if there is no store: a volume that is not mounted must not make an empty backup, which in time would replace
    the good ones.
    """
    check_there(data)
    store = Store(data, cluster=cluster, size_max=STORE_BYTES_MAX)
    try:
        now_ms = time.time_ns() // 1_000_000
        head = copy_head(store, ends_of(store), version=__version__, made_at_ms=now_ms, marks=_marks_of(store))
        pieces = copy_pieces(store, known)
        try:
            yield StoreCopy(head, pieces)
        finally:
            pieces.close()
    finally:
        store.close()


def ends_of(store: Store) -> dict[str, tuple[int, Position]]:
    """Return each topic's incarnation and LAC."""
    return {record.name: (record.incarnation, _last(store, record.topic_id)) for record in store.topics()}


def _marks_of(store: Store) -> dict[str, dict[str, Position]]:
    """Return, by topic and origin, the last position of the origin's messages in the store."""
    return {
        record.name: {origin: mark.position for origin, mark in store.high_waters(record.topic_id).items()}
        for record in store.topics()
    }


def _last(store: Store, topic_id: int) -> Position:
    ledgers = store.ledgers(topic_id)
    return Position(ledgers[-1].ledger, ledgers[-1].last) if ledgers else BEFORE_ALL


class _Backup(WorkerConnection):
    def ask(self, known: bytes) -> http.client.HTTPResponse:
        headers = {"Content-Type": "application/octet-stream", **self.shown()}
        try:
            self._connection.request("POST", f"{self._base_path}{PATH}", known, headers)
            response = self._connection.getresponse()
            if response.status == http.HTTPStatus.OK:
                return response
            reason = _reason(response.read(65_536))
        except (OSError, http.client.HTTPException) as error:
            raise WorkerNotAsked(
                f"worker at {self.url} cannot be reached: {error or type(error).__name__}; start "
                "it, or use --offline while it does not run"
            ) from None
        raise WorkerNotAsked(f"worker at {self.url} gives no copy of its store (status {response.status}): {reason}")


def _reason(answer: bytes) -> str:
    try:
        return str(json.loads(answer)["message"])
    except (ValueError, KeyError, TypeError):
        return answer[:200].decode(errors="replace")


def _head(url: str, response: http.client.HTTPResponse) -> dict[str, Any]:
    with _named(url):
        return read_head(response.read)


def _told(url: str, response: http.client.HTTPResponse) -> Iterator[Piece | DamagedBlock]:
    with _named(url):
        yield from read_pieces(response.read)


@contextmanager
def _named(url: str) -> Iterator[None]:
    """Turn an error that ends the copy early into :class:`StoreCopyFailed` with the worker's address."""
    try:
        yield
    except StoreCopyFailed as error:
        raise StoreCopyFailed(f"worker at {url}: no whole copy of its store came: {error}") from None
    except (OSError, http.client.HTTPException) as error:
        raise StoreCopyFailed(
            f"worker at {url}: the copy of the store was cut off: {error or type(error).__name__}; run the command "
            "again"
        ) from None


def check_is_of(head: dict[str, Any], cluster: str) -> None:
    """Raise :class:`BackupDamaged` for the copy of another cluster's store."""
    if head["cluster"] != cluster:
        raise BackupDamaged(
            f"the worker that was asked is of cluster {head['cluster']!r}, not {cluster!r}: correct the address in "
            "the topology"
        )
