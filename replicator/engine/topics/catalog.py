"""The catalog of one cluster: its tenants, namespaces and topics, durable in the store.

:mod:`replicator.engine.topics.catalog_index` has the catalog in memory. This module adds the store and the rules. A
namespace (and its tenant) is created in the same transaction as its first topic, and stays until it is deleted.
:mod:`replicator.engine.topics.topic_making` creates topics, and :mod:`replicator.engine.topics.topic_deleting` deletes
them; both update the index.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, Protocol

from replicator.engine.errors import (
    NamespaceExists,
    NamespaceNotEmpty,
    NamespaceNotFound,
    TenantExists,
    TenantNotEmpty,
    TenantNotFound,
)
from replicator.engine.log.store import Store
from replicator.engine.log.writer import Writer
from replicator.engine.topic_name import (
    EPOCHS_TOPIC,
    SCHEME,
    SYSTEM_NAMESPACE,
    SYSTEM_TENANT,
    check_tenant,
    parse_namespace,
    parse_topic,
)
from replicator.engine.topics.catalog_index import CatalogIndex, Namespace
from replicator.engine.topics.grants import NONE, Grants, GrantTable
from replicator.engine.topics.namespace_policies import (
    NamespacePolicies,
    check_namespace_policies,
    decode_namespace_policies,
    encode_namespace_policies,
)
from replicator.engine.topics.partitions import base_name

TENANTS: Final = "tenants"
NAMESPACES: Final = "namespaces"


class Changes(Protocol):
    """Interface through which the catalog makes its changes."""

    @property
    def being_made(self) -> Mapping[str, object]:
        """Topics that the writer is creating, by full name."""

    def alone(self, change: Callable[[], Awaitable[None]]) -> Awaitable[None]:
        """Make a change while nobody makes another. The change goes on if its caller is cancelled."""

    async def made(self, names: Iterable[str]) -> None:
        """Wait until none of these topics is being created any more: they exist, or their creation failed."""


class Deleting(Protocol):
    """Interface that deletes topics."""

    async def delete_all(self, namespace: Namespace, *, force: bool) -> None: ...


class Catalog:
    """Tenants, namespaces and topics of one cluster. The cost of a listing is proportional to its length. All methods
    run on the engine's event loop."""

    def __init__(
        self,
        store: Store,
        writer: Writer,
        index: CatalogIndex,
        changes: Changes,
        deleting: Deleting,
        namespace_changed: Callable[[Namespace], Awaitable[None]],
        grants: GrantTable,
    ) -> None:
        """Load tenants and namespaces into ``index``, which must be empty. ``namespace_changed`` is called when the
        policies of a namespace change."""
        self.index = index
        self.grants = grants
        """Permissions of roles; empty if the worker does not authenticate clients."""
        self._writer = writer
        self._changes = changes
        self._deleting = deleting
        self._namespace_changed = namespace_changed
        self._closing: set[str] = set()
        """Namespaces and tenants that are being deleted."""
        for tenant in store.tenants():
            self.index.add_tenant(tenant)
        for name, stored in store.namespaces().items():
            self.index.add_namespace(name, decode_namespace_policies(stored))

    # Listing.

    def tenants(self) -> list[str]:
        return self.index.tenants()

    def namespaces(self, tenant: str) -> list[str]:
        """Return the names ``tenant/namespace`` of a tenant, sorted. Raise :class:`TenantNotFound`."""
        if not self.index.has_tenant(check_tenant(tenant)):
            raise TenantNotFound(f"there is no tenant {tenant!r}")
        return self.index.namespaces(tenant)

    def namespace(self, name: str) -> NamespacePolicies:
        """Return the policies of ``tenant/namespace``. Raise :class:`NamespaceNotFound`."""
        return self._namespace(name).policies

    def visible_tenants(self) -> list[str]:
        """Return all tenants except that of the service itself. The latter is included if it has other namespaces."""
        return [name for name in self.tenants() if name != SYSTEM_TENANT or self.visible_namespaces(name)]

    def visible_namespaces(self, tenant: str) -> list[str]:
        """Return the names ``tenant/namespace`` of a tenant, sorted, without the service's own. Raise
        :class:`TenantNotFound`."""
        return [name for name in self.namespaces(tenant) if name != SYSTEM_NAMESPACE]

    def visible_topics(self, namespace: str) -> list[str]:
        """Return topics as :meth:`topics` does, without the service's own topic."""
        return [name for name in self.topics(namespace) if name != EPOCHS_TOPIC]

    def topics(self, namespace: str) -> list[str]:
        """Return the full name of every topic, partitions included, sorted. Raise :class:`NamespaceNotFound`."""
        return list(self._namespace(namespace).topics)

    def partitioned_topics(self, namespace: str) -> dict[str, int]:
        """Return the number of partitions of each partitioned topic, sorted by name. Raise
        :class:`NamespaceNotFound`."""
        partitioned = self._namespace(namespace).partitioned
        return {name: partitioned[name].partitions for name in sorted(partitioned)}

    def subscribable(self, namespace: str) -> list[str]:
        """Return the names to which consumers can subscribe, sorted: partitioned topics by their base names, and topics
        that are no partitions, without internal ones. Empty if the namespace does not exist yet."""
        found = self.index.namespace(parse_namespace(namespace))
        return [] if found is None else list(found.subscribable)

    # Changing.

    async def alone(self, change: Callable[[], Awaitable[None]]) -> None:
        """Change several parts of the catalog while nobody makes another change. The change goes on if its caller is
        cancelled."""
        await self._changes.alone(change)

    async def create_tenant(self, name: str) -> None:
        """Create a tenant. Raise :class:`InvalidTopicName` or :class:`TenantExists`."""
        check_tenant(name)

        async def create() -> None:
            if self.index.has_tenant(name):
                raise TenantExists(f"there is a tenant {name!r} already")
            await self._writer.put(TENANTS, name.encode(), b"")
            self.index.add_tenant(name)

        await self._changes.alone(create)

    async def delete_tenant(self, name: str) -> None:
        """Delete a tenant. Raise :class:`TenantNotFound`, or :class:`TenantNotEmpty` if it has namespaces."""

        async def delete() -> None:
            if namespaces := self.namespaces(name):
                raise TenantNotEmpty(f"tenant {name!r} has {len(namespaces)} namespaces: delete them first")
            made = [each for each in self._changes.being_made if each.startswith(f"persistent://{name}/")]
            if made:
                raise TenantNotEmpty(
                    f"{made[0]}, a topic of tenant {name!r}, is just being made: delete it and its namespace first"
                )
            self._closing.add(name)
            try:
                await self._writer.put_many([(TENANTS, name.encode(), None), *self.grants.rows_without(name)])
                self.index.remove_tenant(name)
                self.grants.forget(name)
            finally:
                self._closing.discard(name)

        await self._changes.alone(delete)

    async def create_namespace(
        self, name: str, policies: NamespacePolicies | None = None, grants: Mapping[str, Grants] | None = None
    ) -> None:
        """Create a namespace, and its tenant if there is none. ``grants`` are its permissions and those of its topics,
        by name.

        Raises :class:`InvalidTopicName`, :class:`InvalidPolicies`, :class:`NamespaceExists`.
        """
        parse_namespace(name)
        policies = check_namespace_policies(policies or NamespacePolicies())

        async def create() -> None:
            if self.index.namespace(name) is not None:
                raise NamespaceExists(f"there is a namespace {name!r} already")
            await self._store_namespace(name, policies, grants or {})

        await self._changes.alone(create)

    async def set_namespace(self, name: str, policies: NamespacePolicies) -> None:
        """Replace the policies of a namespace. When this returns, topics without own policies have them.

        Raises :class:`NamespaceNotFound`, :class:`InvalidPolicies`.
        """
        check_namespace_policies(policies)

        async def replace() -> None:
            self._namespace(name)
            await self._store_namespace(name, policies, {})
            await self._namespace_changed(self._namespace(name))

        await self._changes.alone(replace)

    async def delete_namespace(self, name: str, *, force: bool = False) -> None:
        """Delete a namespace. With ``force``, disconnect its clients and delete its topics, too.

        Raises :class:`NamespaceNotFound`, and :class:`NamespaceNotEmpty` if it has topics.
        """

        async def delete() -> None:
            namespace = self._namespace(name)
            self._closing.add(name)  # no topic is made in it from here on
            try:
                made = [each for each in self._changes.being_made if each.startswith(f"persistent://{name}/")]
                if force:
                    await self._changes.made(made)
                elif made or not namespace.empty:
                    raise NamespaceNotEmpty(
                        f"namespace {name!r} has {len(namespace.topics) + len(made)} topics: delete them, or use force"
                    )
                await self._deleting.delete_all(namespace, force=force)
                await self._writer.put_many([(NAMESPACES, name.encode(), None), *self.grants.rows_without(name)])
                self.index.remove_namespace(name)
                self.grants.forget(name)
            finally:
                self._closing.discard(name)

        await self._changes.alone(delete)

    def rows_of_new(self, namespace: str, new: bool) -> list[tuple[str, bytes, bytes | None]]:
        """Return the rows that create a namespace and its tenant, stored with its first topic. Empty if it is not
        ``new``."""
        if not new:
            return []
        return [(TENANTS, namespace.partition("/")[0].encode(), b""), (NAMESPACES, namespace.encode(), b"{}")]

    def policies_of(self, namespace: str) -> NamespacePolicies:
        """Return the policies that apply in a namespace, whether or not it exists yet."""
        found = self.index.namespace(namespace)
        return NamespacePolicies() if found is None else found.policies

    def granted(self, name: str) -> Grants:
        """Return the grants that count for ``tenant``, ``tenant/namespace`` or a topic. A partition of a partitioned
        topic has none of its own: those of its topic count.
        """
        grants = self.grants.of(name)
        if grants == NONE or not name.startswith(SCHEME) or not (base := base_name(name)):
            return grants
        return grants if self.index.partitioned(parse_topic(base)) is None else NONE

    def check_takes_topics(self, namespace: str) -> None:
        """Raise :class:`NamespaceNotFound` while the namespace or its tenant is being deleted."""
        if namespace in self._closing or namespace.partition("/")[0] in self._closing:
            raise NamespaceNotFound(
                f"namespace {namespace!r} or its tenant is being deleted: wait until that has ended, and try again"
            )

    def _namespace(self, name: str) -> Namespace:
        found = self.index.namespace(parse_namespace(name))
        if found is None:
            raise NamespaceNotFound(f"there is no namespace {name!r}")
        return found

    async def _store_namespace(self, name: str, policies: NamespacePolicies, grants: Mapping[str, Grants]) -> None:
        tenant = name.partition("/")[0]
        row = encode_namespace_policies(policies)
        rows = [(TENANTS, tenant.encode(), b""), (NAMESPACES, name.encode(), row), *self.grants.rows_of(grants)]
        await self._writer.put_many(rows)
        self.index.add_namespace(name, policies)
        self.grants.keep(grants)
