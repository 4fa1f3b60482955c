"""Settings of this cluster itself: which rows changed, and the version of the whole.

Invariants (DESIGN §3): 11, a change costs what changed, and no more rows are noted than exist; 13, each version that
peers are told is stored first, so no version is used for two states.

1. Whoever changes a tenant, a namespace, partitions, policies of a topic or permissions notes the row.
2. :meth:`OwnSettings.settle` reads the noted rows. If they differ, it stores the next version, and returns the rows.
3. A change that nobody settled before the worker ended is found by its digest at the next start.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from replicator.engine.cluster_settings.state import (
    Changes,
    KeptState,
    Key,
    Kind,
    SettingsHead,
    bare_hash,
    digest_text,
    hash_of,
)
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


class ChangedSettings:
    """Names of rows that may have changed; the parts of an engine that change them add to it.

    It notes nothing before all rows were looked at: an engine whose settings nobody tells must not collect names.
    """

    __slots__ = ("keys", "noting", "on_changed")

    def __init__(self) -> None:
        self.keys: dict[Key, None] = {}
        self.noting = False
        self.on_changed: Callable[[], None] = lambda: None
        """Called after a row was noted."""

    def __call__(self, kind: str, name: str) -> None:
        """Note that a row may have changed."""
        if self.noting:
            self.keys[kind, name] = None
            self.on_changed()


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
        self._hashes: dict[Key, int] | None = None
        """Hash of each row; None before the first look at all rows."""
        self._total = 0
        self._set_rows = 0
        """Number of rows that somebody set; see :func:`bare_hash`."""
        row = store.meta(VERSION) or {}
        self.version: int = row.get("version", 0)
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
        return SettingsHead(self.cluster, self._store.head["store_id"], self.version, self.digest, self.earlier)

    def state(self) -> KeptState | None:
        """Return all settings with their version; None if nothing was ever set. Call :meth:`settle` before."""
        head = self.head()
        return None if head is None else KeptState(head, self.all_rows())

    async def settle(self) -> Changes | None:
        """Give the settings their next version if rows changed. The version is durable then.

        Return the rows that changed since the call before; None at the first call, which looks at all rows. If the
        store refuses, its error is raised, and the rows stay noted.
        """
        noted, self.changed.keys = self.changed.keys, {}
        self.changed.noting = True
        first, hashes = self._hashes is None, self._hashes or {}
        keys = self._all_keys() if first else noted
        read = {key: self._read(key) for key in keys}
        found = {key: text for key, text in read.items() if _hash(key, text) != hashes.get(key)}
        total = self._total + sum((_hash(key, text) or 0) - hashes.get(key, 0) for key, text in found.items())
        was_set = sum(_is_set(key, hashes.get(key)) for key in found)
        set_rows = self._set_rows - was_set + sum(_is_set(key, _hash(key, text)) for key, text in found.items())
        digest = digest_text(total)
        stored = (self._stored_digest, self._stored_of) == (digest, self._store.head["store_id"])
        if (self.version or set_rows) and not stored:
            try:
                await self._write(max(self.version + 1, self._wall_clock_ms()), digest)
            except BaseException:
                self.changed.keys = noted | self.changed.keys
                raise
        self._hashes = hashes
        self._hashes |= {key: each for key, text in found.items() if (each := _hash(key, text)) is not None}
        for key, text in found.items():
            if text is None:
                self._hashes.pop(key, None)
        self._total, self._set_rows = total, set_rows
        return None if first else found

    def version_row(self, version: int, digest: str, earlier: Mapping[str, int]) -> tuple[str, bytes, bytes]:
        """Return the row of the table ``meta`` that says the version."""
        row = {"version": version, "digest": digest, "store": self._store.head["store_id"], "earlier": dict(earlier)}
        return "meta", VERSION.encode(), json.dumps(row).encode()

    def begin_at(self, version: int, earlier: Mapping[str, int]) -> None:
        """Count from ``version`` on, because settings with that version were written here. Look at all rows again."""
        row: dict[str, Any] = self._store.meta(VERSION) or {}
        self.version, self.earlier = version, dict(earlier)
        self._stored_digest, self._stored_of = row.get("digest", ""), row.get("store", "")
        self._hashes, self._total, self._set_rows = None, 0, 0
        self.changed.on_changed()

    async def _write(self, version: int, digest: str) -> None:
        table, key, value = self.version_row(version, digest, self.earlier)
        await self._writer.put(table, key, value)
        self.version, self._stored_digest, self._stored_of = version, digest, self._store.head["store_id"]

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
        return None if stored is None else stored.decode()


def _hash(key: Key, text: str | None) -> int | None:
    return None if text is None else hash_of(key, text)


def _is_set(key: Key, hashed: int | None) -> bool:
    """Return whether a row with that hash exists, and somebody set it."""
    return hashed is not None and hashed != bare_hash(key)
