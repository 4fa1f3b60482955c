"""Settings of other clusters, as this cluster keeps them for a cluster that loses its disk.

Invariants (DESIGN §3): 11, rows and stores of a cluster are limited; 13, kept settings are whole, because each message
is one transaction, and they are replaced only as :mod:`.state` says.

Table ``kept_settings``: the key ``cluster NUL store NUL`` has the head in JSON. Followed by a hash of kind and name, it
has one row, as ``[kind, name, text]`` in JSON.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Any, Final

import lmdb
import structlog

from replicator.engine.cluster_settings.state import (
    Changes,
    KeptState,
    Key,
    SettingsHead,
    SettingsMessage,
    Verdict,
    changed_digest,
    digest_of,
    dropped,
    judge,
)
from replicator.engine.errors import EngineError
from replicator.engine.log.store import Store
from replicator.engine.log.writer import Writer

TABLE: Final = "kept_settings"
ROWS_MAX: Final = 100_000
"""Most rows of one cluster's settings: 10,000 topics with policies and permissions of their own, five times."""
CLUSTERS_MAX: Final = 100
"""Most clusters whose settings are kept; a topology has far fewer."""
_HASH_BYTES: Final = 16
_END: Final = b"\xff" * (_HASH_BYTES + 1)

log = structlog.get_logger(__name__)


class SettingsRefused(EngineError):
    """Settings of another cluster are malformed, or there are too many of them."""


class KeptSettings:
    """Settings of other clusters that one store keeps. All methods run on the engine's event loop."""

    def __init__(self, store: Store, writer: Writer) -> None:
        self._store = store
        self._writer = writer
        self._one_by_one = asyncio.Lock()
        self.heads: dict[tuple[str, str], SettingsHead] = {}
        """For each cluster and store, the version of the settings that are kept."""
        self._rows: dict[tuple[str, str], int] = {}
        """For each cluster and store whose rows were counted, their number."""
        with store.env.begin(db=store.tables[TABLE]) as txn:
            cursor = txn.cursor()
            more = cursor.first()
            while more:
                prefix = bytes(cursor.key())
                head = SettingsHead.of_json(json.loads(bytes(cursor.value())))
                self.heads[head.cluster, head.store] = head
                more = cursor.set_range(prefix + _END)

    def of(self, cluster: str) -> list[SettingsHead]:
        """Return the versions of the settings that are kept for ``cluster``, one for each of its stores."""
        return [head for (name, _), head in self.heads.items() if name == cluster]

    def states(self, cluster: str) -> list[KeptState]:
        """Return the settings that are kept for ``cluster``, with their rows: one state for each of its stores."""
        with self._store.env.begin(db=self._store.tables[TABLE]) as txn:
            return [KeptState(head, _read(txn, head)) for head in self.of(cluster)]

    async def take(self, told: SettingsMessage) -> Verdict:
        """Keep what a cluster told about its own settings, in one transaction.

        Raises :class:`SettingsRefused`, and errors of the store; nothing was changed then.
        """
        async with self._one_by_one:
            head = told.head
            key = head.cluster, head.store
            kept = self.heads.get(key)
            verdict = judge(kept, told)
            if verdict is not None or told.changes is None:
                return verdict or Verdict.WHOLE
            prefix = _prefix(head)
            cleared: list[tuple[str, bytes]] = [(TABLE, prefix)] if told.base is None else []
            if told.base is None:
                rows = {name: text for name, text in told.changes.items() if text is not None}
                had, count = 0, len(rows)
                if await asyncio.to_thread(digest_of, rows) != head.digest:
                    raise SettingsRefused(
                        f"the settings that {head.cluster} sent do not match the checksum (digest) that it sent with "
                        "them: run the same version in all clusters"
                    )
            else:
                before = self._before(head, list(told.changes))
                if changed_digest(told.base, before, told.changes) != head.digest:
                    return Verdict.WHOLE
                had = self._rows[key] if key in self._rows else self._count(head)
                count = had + sum(
                    (told.changes[name] is not None) - (text is not None) for name, text in before.items()
                )
            if count > max(had, ROWS_MAX):
                raise SettingsRefused(
                    f"{head.cluster} has {count} settings, more than the {ROWS_MAX} that this cluster keeps "
                    "of another one: run the same version in all clusters, or take some settings away there"
                )
            if kept is None and len({name for name, _ in self.heads} | {head.cluster}) > CLUSTERS_MAX:
                raise SettingsRefused(
                    f"the settings of {head.cluster} are not kept here: this cluster keeps those of {CLUSTERS_MAX} "
                    "other clusters already, the limit; link fewer clusters"
                )
            gone = dropped(self.of(head.cluster), head)
            cleared += [(TABLE, _prefix(self.heads[head.cluster, store])) for store in gone]
            head_row = TABLE, prefix, json.dumps(head.as_json()).encode()
            writes = await asyncio.to_thread(_writes, prefix, told.changes)
            await self._writer.put_many([head_row, *writes], cleared=cleared)
            for store in gone:
                del self.heads[head.cluster, store]
                self._rows.pop((head.cluster, store), None)
            self.heads[key], self._rows[key] = head, count
            log.info("settings of a cluster kept", of=head.cluster, version=head.version, rows=len(told.changes))
            return Verdict.KEPT

    def _count(self, head: SettingsHead) -> int:
        with self._store.env.begin(db=self._store.tables[TABLE]) as txn:
            return sum(1 for _ in _rows(txn, head))

    def _before(self, head: SettingsHead, keys: Sequence[Key]) -> dict[Key, str | None]:
        prefix = _prefix(head)
        with self._store.env.begin(db=self._store.tables[TABLE]) as txn:
            stored = {key: txn.get(prefix + _hash(key)) for key in keys}
        return {key: None if row is None else json.loads(bytes(row))[2] for key, row in stored.items()}


def _writes(prefix: bytes, changes: Changes) -> list[tuple[str, bytes, bytes | None]]:
    return [
        (TABLE, prefix + _hash(key), None if text is None else json.dumps([str(key[0]), key[1], text]).encode())
        for key, text in changes.items()
    ]


def _prefix(head: SettingsHead) -> bytes:
    return f"{head.cluster}\0{head.store}\0".encode()


def _hash(key: Key) -> bytes:
    return blake2b(f"{key[0]}\0{key[1]}".encode(), digest_size=_HASH_BYTES).digest()


def _read(txn: lmdb.Transaction, head: SettingsHead) -> dict[Key, str]:
    found: dict[Key, str] = {}
    for row in _rows(txn, head):
        kind, name, text = json.loads(row)
        found[kind, name] = text
    return found


def _rows(txn: lmdb.Transaction, head: SettingsHead) -> Iterator[bytes]:
    """Yield the rows that are kept with ``head``, not parsed."""
    prefix = _prefix(head)
    cursor: Any = txn.cursor()
    more = cursor.set_range(prefix + b"\0" * _HASH_BYTES)
    while more and bytes(cursor.key()).startswith(prefix):
        yield bytes(cursor.value())
        more = cursor.next()
