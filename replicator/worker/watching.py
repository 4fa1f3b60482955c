"""Detection of changes in the files that a worker reads: its topology, and the files that the topology names for its
cluster.

Contents are compared, and not times: a mounted ConfigMap or Secret is exchanged as a whole by a symbolic link, whose
new files may bear any time. So a file that is written again with the same content is no change. Looking costs a few
reads of small files, and is done on a thread.

This only sees that something changed. The reload decides what follows (:mod:`replicator.worker.reload`): a file with
mistakes, or a half-written one, changes nothing, and its next change is seen like any other.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import structlog

from replicator.topology import TOPOLOGY_FILE_BYTES_MAX, Topology

LOOK_SECONDS: Final = 5.0
"""Between two looks. Kubernetes itself takes up to a minute to bring a change into a pod."""

log = structlog.get_logger(__name__)


def files_to_watch(topology: Topology, cluster: str) -> tuple[Path, ...]:
    """Return the topology's file, and those that a reload of the worker of ``cluster`` reads again."""
    found: list[Path | None] = [topology.path, topology.auth.passwords]
    if (tokens := topology.auth.tokens) is not None:
        found += [tokens.secret_key, tokens.public_key]
    if (tls := topology.cluster(cluster).tls) is not None:
        found += [tls.certificate, tls.key, tls.ca]
    return tuple(path for path in found if path is not None)


def contents_of(files: Iterable[Path]) -> bytes:
    """Return bytes that differ if a file's content differs. A file that cannot be read counts as a content of its
    own.
    """
    digest = hashlib.sha256()
    for path in files:
        try:
            with path.open("rb") as file:
                content = file.read(TOPOLOGY_FILE_BYTES_MAX + 1)
        except OSError:
            content = None
        digest.update(repr((str(path), None if content is None else hashlib.sha256(content).digest())).encode())
    return digest.digest()


class FileWatcher:
    """Sets ``changed`` when the content of the files of the worker of ``cluster`` differs from the last look. Look once
    as soon as the topology was read, so that no change is missed while the worker starts.
    """

    def __init__(self, cluster: str, changed: asyncio.Event, *, look_seconds: float = LOOK_SECONDS) -> None:
        self._cluster = cluster
        self._changed = changed
        self._look_seconds = look_seconds
        self._named: tuple[Path, ...] = ()
        self._seen = b""

    async def run(self, topology: Callable[[], Topology]) -> None:
        """Look until cancelled, each time at the files that ``topology`` then names."""
        while True:
            await self.look(topology())
            await asyncio.sleep(self._look_seconds)

    async def look(self, topology: Topology) -> None:
        """Look once. If a reload has brought other files, they count as unchanged at this look."""
        named = files_to_watch(topology, self._cluster)
        seen = await asyncio.to_thread(contents_of, named)
        if named == self._named and seen != self._seen:
            log.info("files changed", cluster=self._cluster, files=[str(path) for path in named])
            self._changed.set()
        self._named, self._seen = named, seen
