"""The catalog of one cluster: its tenants, namespaces and topics, durable in the store.

What there is in memory is :mod:`replicator.engine.topics.catalog_index`'s; this adds the store and the rules. A
namespace (and its tenant) is made with the first topic that names it, in the same transaction, and stays until it is
deleted. Topics are made by :mod:`replicator.engine.topics.topic_making` and deleted by
:mod:`replicator.engine.topics.topic_deleting`, which tell the index.
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
from replicator.engine.topic_name import EPOCHS_TOPIC, SYSTEM_NAMESPACE, SYSTEM_TENANT, check_tenant, parse_namespace
from replicator.engine.topics.catalog_index import CatalogIndex, Namespace
from replicator.engine.topics.grants import GrantTable
from replicator.engine.topics.namespace_policies import (
    NamespacePolicies,
    check_namespace_policies,
    decode_namespace_policies,
    encode_namespace_policies,
)

TENANTS: Final = "tenants"
NAMESPACES: Final = "namespaces"


class Changes(Protocol):
    """What the catalog asks of what is being changed."""

    @property
    def being_made(self) -> Mapping[str, object]:
        """By full name, the topics that the writer is making."""

    def alone(self, change: Callable[[], Awaitable[None]]) -> Awaitable[None]:
        """Make a change while nobody makes another; whoever waits for it may give up, the change goes on."""

    async def made(self, names: Iterable[str]) -> None:
        """Returns when these are not being made any more: they are there, or failed."""


class Deleting(Protocol):
    """What deletes topics."""

    async def delete_all(self, namespace: Namespace, *, force: bool) -> None: ...


class Catalog:
    """What there is in one cluster. A listing costs what it lists; all methods run on the engine's event loop."""

    def __init__(
        self,
        store: Store,
        writer: Writer,
        index: CatalogIndex,
        changes: Changes,
        deleting: Deleting,
        namespace_changed: Callable[[Namespace], None],
        grants: GrantTable,
    ) -> None:
        """``index`` is empty; ``namespace_changed`` is called when a namespace has other policies."""
        self.index = index
        self.grants = grants
        """Who may do what; empty where nobody is told apart."""
        self._writer = writer
        self._changes = changes
        self._deleting = deleting
        self._namespace_changed = namespace_changed
        self._closing: set[str] = set()
        """Namespaces that are being deleted, and tenants."""
        for tenant in store.tenants():
            self.index.add_tenant(tenant)
        for name, stored in store.namespaces().items():
            self.index.add_namespace(name, decode_namespace_policies(stored))

    # Listing.

    def tenants(self) -> list[str]:
        return self.index.tenants()

    def namespaces(self, tenant: str) -> list[str]:
        """``tenant/namespace``, sorted. Raises :class:`TenantNotFound`."""
        if not self.index.has_tenant(check_tenant(tenant)):
            raise TenantNotFound(f"there is no tenant {tenant!r}")
        return self.index.namespaces(tenant)

    def namespace(self, name: str) -> NamespacePolicies:
        """The policies of ``tenant/namespace``. Raises :class:`NamespaceNotFound`."""
        return self._namespace(name).policies

    def visible_tenants(self) -> list[str]:
        """Without that of the service itself, unless somebody else has a namespace in it."""
        return [name for name in self.tenants() if name != SYSTEM_TENANT or self.visible_namespaces(name)]

    def visible_namespaces(self, tenant: str) -> list[str]:
        """``tenant/namespace``, sorted, without that of the service itself. Raises :class:`TenantNotFound`."""
        return [name for name in self.namespaces(tenant) if name != SYSTEM_NAMESPACE]

    def visible_topics(self, namespace: str) -> list[str]:
        """As :meth:`topics`, without that of the service itself."""
        return [name for name in self.topics(namespace) if name != EPOCHS_TOPIC]

    def topics(self, namespace: str) -> list[str]:
        """The full name of every topic, partitions included, sorted. Raises :class:`NamespaceNotFound`."""
        return list(self._namespace(namespace).topics)

    def partitioned_topics(self, namespace: str) -> dict[str, int]:
        """How many partitions each partitioned topic has, sorted by name. Raises :class:`NamespaceNotFound`."""
        partitioned = self._namespace(namespace).partitioned
        return {name: partitioned[name].partitions for name in sorted(partitioned)}

    def subscribable(self, namespace: str) -> list[str]:
        """What consumers can subscribe to: partitioned topics by their base names, and topics that are no partitions;
        sorted, without internal ones. None in a namespace that there is not: it is made with its first topic."""
        found = self.index.namespace(parse_namespace(namespace))
        return [] if found is None else list(found.subscribable)

    # Changing.

    async def alone(self, change: Callable[[], Awaitable[None]]) -> None:
        """Make a change of several parts of the catalog while nobody makes another. It goes on when its caller gives
        up."""
        await self._changes.alone(change)

    async def create_tenant(self, name: str) -> None:
        """Raises :class:`InvalidTopicName`, :class:`TenantExists`."""
        check_tenant(name)

        async def create() -> None:
            if self.index.has_tenant(name):
                raise TenantExists(f"there is a tenant {name!r} already")
            await self._writer.put(TENANTS, name.encode(), b"")
            self.index.add_tenant(name)

        await self._changes.alone(create)

    async def delete_tenant(self, name: str) -> None:
        """Raises :class:`TenantNotFound`, and :class:`TenantNotEmpty` while it has namespaces."""

        async def delete() -> None:
            if namespaces := self.namespaces(name):
                raise TenantNotEmpty(f"tenant {name!r} has {len(namespaces)} namespaces: delete them first")
            if any(each.startswith(f"persistent://{name}/") for each in self._changes.being_made):
                raise TenantNotEmpty(f"a topic of tenant {name!r} is just being made")
            self._closing.add(name)
            try:
                await self._writer.put_many([(TENANTS, name.encode(), None), *self.grants.rows_without(name)])
                self.index.remove_tenant(name)
                self.grants.forget(name)
            finally:
                self._closing.discard(name)

        await self._changes.alone(delete)

    async def create_namespace(self, name: str, policies: NamespacePolicies | None = None) -> None:
        """Make a namespace, and its tenant if there is none.

        Raises :class:`InvalidTopicName`, :class:`InvalidPolicies`, :class:`NamespaceExists`.
        """
        parse_namespace(name)
        policies = check_namespace_policies(policies or NamespacePolicies())

        async def create() -> None:
            if self.index.namespace(name) is not None:
                raise NamespaceExists(f"there is a namespace {name!r} already")
            await self._store_namespace(name, policies)

        await self._changes.alone(create)

    async def set_namespace(self, name: str, policies: NamespacePolicies) -> None:
        """Give the namespace other policies; they hold at once for its topics without their own.

        Raises :class:`NamespaceNotFound`, :class:`InvalidPolicies`.
        """
        check_namespace_policies(policies)

        async def replace() -> None:
            self._namespace(name)
            await self._store_namespace(name, policies)
            self._namespace_changed(self._namespace(name))

        await self._changes.alone(replace)

    async def delete_namespace(self, name: str, *, force: bool = False) -> None:
        """Delete a namespace; with ``force`` with all its topics, and whoever is connected to them.

        Raises :class:`NamespaceNotFound`, and :class:`NamespaceNotEmpty` while it has topics.
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
        """What is stored with the first thing of a namespace that was made by it."""
        if not new:
            return []
        return [(TENANTS, namespace.partition("/")[0].encode(), b""), (NAMESPACES, namespace.encode(), b"{}")]

    def policies_of(self, namespace: str) -> NamespacePolicies:
        """The policies that count in a namespace, whether or not it was made already."""
        found = self.index.namespace(namespace)
        return NamespacePolicies() if found is None else found.policies

    def check_takes_topics(self, namespace: str) -> None:
        """Raises :class:`NamespaceNotFound` while the namespace or its tenant is being deleted."""
        if namespace in self._closing or namespace.partition("/")[0] in self._closing:
            raise NamespaceNotFound(f"namespace {namespace!r} is being deleted")

    def _namespace(self, name: str) -> Namespace:
        found = self.index.namespace(parse_namespace(name))
        if found is None:
            raise NamespaceNotFound(f"there is no namespace {name!r}")
        return found

    async def _store_namespace(self, name: str, policies: NamespacePolicies) -> None:
        tenant = name.partition("/")[0]
        row = encode_namespace_policies(policies)
        await self._writer.put_many([(TENANTS, tenant.encode(), b""), (NAMESPACES, name.encode(), row)])
        self.index.add_namespace(name, policies)
