"""Settings of this cluster itself: which rows changed, and the version of the whole.

Invariants (DESIGN §3): 11, a change costs what changed, and no more rows are noted than exist; 13, each version that
peers are told is stored first, so no version is used for two states.

1. Code that changes a tenant, a namespace, partitions, policies of a topic, permissions or the pause of a link notes
   the row.
2. :meth:`OwnSettings.settle` reads the noted rows. If they differ, it stores the next version, and returns the rows.
3. A change that nobody settled before the worker ended is found by its digest at the next start.
4. Rows that only operators change have a digest of their own. If it changes, somebody set something in this version.
   What a store took back is no such change.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

from replicator.engine.cluster_settings.changed import ChangedSettings
from replicator.engine.cluster_settings.state import (
    SET_BY_OPERATORS,
    Changes,
    KeptState,
    Key,
    Kind,
    SettingsHead,
    SettingsMessage,
    bare_hash,
    digest_text,
    hash_of,
)
from replicator.engine.errors import EngineError
from replicator.engine.log.store import Store
from replicator.engine.log.writer import Writer
from replicator.engine.policies_codec import encode_overrides
from replicator.engine.topic_name import parse_topic
from replicator.engine.topics.catalog_index import CatalogIndex
from replicator.engine.topics.grants import GrantTable
from replicator.engine.topics.loaded_topics import LoadedTopics
from replicator.engine.topics.namespace_policies import encode_namespace_policies
from replicator.engine.topics.partitions import PartitionedTopic

VERSION: Final = "settings version"
"""Key of the row in the table ``meta`` with the version, the digest and the store of the settings."""
TAKEN: Final = "settings taken"
"""Key of the row in the table ``meta`` that says what a new store took back; see :mod:`.putting_back`."""
PAUSED: Final = "link paused "
"""Beginning of the key of a row in the table ``meta`` that says whether a link is paused; the link's key follows."""
PAUSED_TEXT: Final = '{"paused": true}'
"""Text of the settings row of a paused link. A link that is not paused has no row."""
ROWS_A_TURN: Final = 500
"""Rows that are read for a peer before other tasks of the event loop run."""
HISTORY_ROWS_MAX: Final = 10_000
"""Most changed rows that are remembered for peers that lack only the last changes; some megabytes."""


class OwnSettings:
    """Settings of one engine's cluster. All methods run on the engine's event loop."""

    def __init__(
        self,
        store: Store,
        writer: Writer,
        index: CatalogIndex,
        grants: GrantTable,
        loaded: LoadedTopics,
        changed: ChangedSettings,
        wall_clock_ms: Callable[[], int],
    ) -> None:
        self.cluster = store.cluster
        self.changed = changed
        self._store = store
        self._writer = writer
        self._index = index
        self._grants = grants
        self._loaded = loaded
        self._wall_clock_ms = wall_clock_ms
        self._settling, self._telling = asyncio.Lock(), asyncio.Lock()
        self._hashes: dict[Key, int] | None = None
        """Hash of each row; None before the first look at all rows."""
        self._total = 0
        self._set_total = 0
        """Sum of the hashes of rows that operators set; see :data:`~.state.SET_BY_OPERATORS`."""
        self._set_rows = 0
        """Number of rows that somebody set; see :func:`bare_hash`."""
        self._history: deque[tuple[str, Changes]] = deque()
        """Last changes, each with the digest of the settings before it."""
        self._history_rows = 0
        row = store.meta(VERSION) or {"set": digest_text(0)}
        self.version: int = row.get("version", 0)
        self.set_at: int = row.get("set_at", self.version)
        """Version in which somebody last set something; 0 if nobody did."""
        self.set_in: str = row.get("set_in", row.get("store", ""))
        """Store in which somebody last set something."""
        self._stored_set: str | None = row.get("set")
        """Digest of rows that operators set, at the last version; None if it is what the next look finds."""
        self._stored_digest: str = row.get("digest", "")
        self._stored_of: str = row.get("store", "")
        self.earlier: Mapping[str, int] = row.get("earlier", {})
        """For each earlier store of this cluster, the version of its settings that is known here."""

    @property
    def digest(self) -> str:
        return digest_text(self._total)

    def head(self) -> SettingsHead | None:
        """Return the version as it is told; None if nothing was ever set."""
        if not self.version:
            return None
        store = self._store.head["store_id"]
        return SettingsHead(
            self.cluster, store, self.version, self.digest, self.earlier, self.set_at, self.set_in or store
        )

    async def told(self, known: str | None) -> SettingsMessage | None:
        """Return all settings with their version; None if nothing was ever set.

        ``known`` is the digest of the settings that a peer keeps of this store. If it is remembered, only the changes
        since are returned.
        """
        async with self._telling:  # whoever asks often waits for others who ask
            await self.settle()
            while self.changed.keys:
                await self.settle()
            head = self.head()
            if head is None:
                return None
            if known == head.digest:
                return SettingsMessage(head, known, {})
            changes = None if known is None else self._since(known)
            return await self._whole(head) if changes is None else SettingsMessage(head, known, changes)

    async def _whole(self, head: SettingsHead) -> SettingsMessage:
        rows: dict[Key, str] = {}
        for number, key in enumerate(list(self._hashes or ())):
            if number % ROWS_A_TURN == ROWS_A_TURN - 1:
                await asyncio.sleep(0)
            if (text := self._read(key)) is not None:
                rows[key] = text
        if self.changed.keys or self.head() != head:  # it changed meanwhile: no turn of the event loop in between
            await self.settle()
            while self.changed.keys or (now := self.head()) is None:
                await self.settle()
            return SettingsMessage(now, None, self.all_rows())
        return SettingsMessage(head, None, rows)

    async def state(self) -> KeptState | None:
        """Return the settings as they are, with their version; None if nothing was ever set."""
        told = await self.told(None)
        if told is None or told.changes is None:
            return None
        return KeptState(told.head, {key: text for key, text in told.changes.items() if text is not None})

    def _since(self, digest: str) -> Changes | None:
        changes: dict[Key, str | None] = {}
        for before, changed in reversed(self._history):
            changes = {**changed, **changes}
            if before == digest:
                return changes
        return None

    async def settle(self) -> Changes | None:
        """Give the settings their next version if rows changed. The version is durable then.

        Return the rows that changed since the call before; None at the first call, which looks at all rows. If the
        store refuses, its error is raised, and the rows stay noted.
        """
        async with self._settling:
            return await self._settle()

    async def _settle(self, *, in_turns: bool = False) -> Changes | None:
        """Do the work of :meth:`settle`. With ``in_turns``, nobody changes a row meanwhile, so others may run."""
        noted, self.changed.keys = self.changed.keys, {}
        self.changed.noting = True
        first, hashes = self._hashes is None, self._hashes or {}
        found: dict[Key, str | None] = {}
        hashed: dict[Key, int | None] = {}
        for number, key in enumerate(list(self._all_keys()) if first else noted):
            if in_turns and number % ROWS_A_TURN == ROWS_A_TURN - 1:
                await asyncio.sleep(0)
            text = self._read(key)
            if (of_text := _hash(key, text)) != hashes.get(key):
                found[key], hashed[key] = text, of_text
        total, set_total, set_rows = self._total, self._set_total, self._set_rows
        for key, now in hashed.items():
            was = hashes.get(key)
            total += (now or 0) - (was or 0)
            set_total += _set_hash(key, now) - _set_hash(key, was)
            set_rows += _is_set(key, now) - _is_set(key, was)
        before, digest, set_digest = self.digest, digest_text(total), digest_text(set_total)
        if self._stored_set is None:
            self._stored_set = set_digest
        stored = (self._stored_digest, self._stored_of) == (digest, self._store.head["store_id"])
        if (self.version or set_rows) and not stored:
            try:
                await self._write(max(self.version + 1, self._wall_clock_ms()), digest, set_digest)
            except BaseException:
                self.changed.keys = noted | self.changed.keys
                raise
        self._hashes = hashes
        self._hashes |= {key: each for key, each in hashed.items() if each is not None}
        for key, text in found.items():
            if text is None:
                self._hashes.pop(key, None)
        self._total, self._set_total, self._set_rows = total, set_total, set_rows
        if first:
            return None
        self._remember(before, found)
        return found

    def _remember(self, before: str, changes: Changes) -> None:
        if not changes:
            return
        self._history.append((before, changes))
        self._history_rows += len(changes)
        while self._history_rows > HISTORY_ROWS_MAX:
            self._history_rows -= len(self._history.popleft()[1])

    async def put_back(self, write: Callable[[], Awaitable[None]]) -> None:
        """Have ``write`` replace settings, with a call of :meth:`begin_at`, while no version is made of others, and
        nobody changes a row. Look at all rows before somebody does."""
        async with self._settling, self.changed.replacing():
            await write()
            with suppress(EngineError):  # it is tried again
                await self._settle(in_turns=True)

    async def mark_as_automatic(self) -> None:
        """Let changes that follow until the next look at all rows not count as set by somebody. They are durable as
        such, also if the process ends before that look. What somebody changed before this call counts.

        Raises the errors of the store.
        """
        if self._stored_set is None:  # the next look takes what it finds anyway
            return
        await self.settle()
        if self.version:
            count_from = self.version, self.earlier, self.set_at, self.set_in
            async with self._settling:
                await self._writer.put(*self.version_row(*count_from, of_set=None))
                self.begin_at(*count_from)

    def version_row(
        self,
        version: int,
        earlier: Mapping[str, int],
        set_at: int,
        set_in: str,
        *,
        digest: str = "",
        of_set: str | None,
    ) -> tuple[str, bytes, bytes]:
        """Return the row of the table ``meta`` that says the version. With ``of_set`` None, the next look at all rows
        finds what operators set."""
        row: dict[str, Any] = {"version": version, "digest": digest, "store": self._store.head["store_id"]}
        row |= {"earlier": dict(earlier), "set_at": set_at, "set_in": set_in}
        row |= {} if of_set is None else {"set": of_set}
        return "meta", VERSION.encode(), json.dumps(row).encode()

    def begin_at(self, version: int, earlier: Mapping[str, int], set_at: int, set_in: str) -> None:
        """Count from ``version`` on, because settings with that version were written here. Look at all rows again."""
        self.version, self.earlier, self.set_at, self.set_in = version, dict(earlier), set_at, set_in
        self._stored_digest, self._stored_of, self._stored_set = "", "", None
        self._hashes, self._total, self._set_total, self._set_rows = None, 0, 0, 0
        self._history.clear()
        self._history_rows = 0
        self.changed.on_changed()

    async def _write(self, version: int, digest: str, of_set: str) -> None:
        set_at, set_in, store = self.set_at, self.set_in, self._store.head["store_id"]
        if of_set != self._stored_set:
            set_at, set_in = version, store
        table, key, value = self.version_row(version, self.earlier, set_at, set_in, digest=digest, of_set=of_set)
        await self._writer.put(table, key, value)
        self.version, self.set_at, self.set_in, self._stored_set = version, set_at, set_in, of_set
        self._stored_digest, self._stored_of = digest, store

    # Rows.

    def all_rows(self) -> dict[Key, str]:
        """Return all rows as they are now."""
        return {key: text for key in self._all_keys() if (text := self._read(key)) is not None}

    def _all_keys(self) -> Iterator[Key]:
        index = self._index
        for tenant in index.tenants():
            yield Kind.TENANTS, tenant
            for namespace in index.namespaces(tenant):
                yield Kind.NAMESPACES, namespace
        for partitioned in list(index.all_partitioned()):
            yield Kind.PARTITIONED, partitioned.name
        for name in list(self._grants.all()):
            yield Kind.GRANTS, name
        for name, topic in list(self._loaded.by_name.items()):
            if topic.policies.own is not None:
                yield Kind.POLICIES, name
        for link in self.paused_links():
            yield Kind.LINKS, link

    def paused_links(self) -> list[str]:
        """Return the keys of links that were paused at some time."""
        with self._store.env.begin(db=self._store.tables["meta"]) as txn:
            cursor: Any = txn.cursor()
            found, more = [], cursor.set_range(PAUSED.encode())
            while more and bytes(cursor.key()).startswith(PAUSED.encode()):
                found.append(bytes(cursor.key()).decode().removeprefix(PAUSED))
                more = cursor.next()
        return found

    def _read(self, key: Key) -> str | None:
        """Return the text of a row as it is now; None if there is none."""
        kind, name = key
        stored: bytes | None = None
        if kind == Kind.TENANTS:
            stored = b"" if self._index.has_tenant(name) else None
        elif kind == Kind.NAMESPACES:
            namespace = self._index.namespace(name)
            stored = None if namespace is None else encode_namespace_policies(namespace.policies)
        elif kind == Kind.PARTITIONED:
            partitioned: PartitionedTopic | None = self._index.partitioned(parse_topic(name))
            stored = None if partitioned is None else partitioned.encode()
        elif kind == Kind.GRANTS:
            stored = self._grants.of(name).encode()
        elif kind == Kind.POLICIES:
            topic = self._loaded.by_name.get(name)
            own = None if topic is None or topic.deleted is not None else topic.policies.own
            stored = None if own is None else encode_overrides(own)
        elif kind == Kind.LINKS:
            stored = PAUSED_TEXT.encode() if self._store.meta(f"{PAUSED}{name}") else None
        return None if stored is None else stored.decode()


def _hash(key: Key, text: str | None) -> int | None:
    return None if text is None else hash_of(key, text)


def _is_set(key: Key, hashed: int | None) -> bool:
    """Return whether a row with that hash exists, and somebody set it."""
    return hashed is not None and hashed != bare_hash(key)


def _set_hash(key: Key, hashed: int | None) -> int:
    """Return the part of a row in the digest of rows that operators set."""
    return (hashed or 0) if key[0] in SET_BY_OPERATORS and _is_set(key, hashed) else 0
