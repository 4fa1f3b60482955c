"""Stored permissions for a tenant, a namespace or a topic: roles with their actions.

The engine stores them and gives them no meaning; :mod:`replicator.security` decides about requests. Grants are deleted
with their object: in one transaction with a tenant or namespace, and before a topic. So a new topic of the same name
does not inherit them.

Table ``grants``: its key is ``tenant``, ``tenant/namespace`` or the full name of a topic. A row of a partition counts
only while there is no partitioned topic of its base name: see :meth:`Catalog.granted`. Its value is a JSON object:
``roles`` (by role its actions), ``subscriptions`` (by subscription who may use it) and ``prefixed``.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from replicator.engine.log.store import Store
from replicator.engine.log.writer import Writer
from replicator.engine.topic_name import SCHEME
from replicator.engine.topics.partitions import base_name

TABLE: Final = "grants"


@dataclass(frozen=True, slots=True)
class Grants:
    """Permissions that were granted for one tenant, namespace or topic."""

    roles: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """For each role, the names of its actions."""
    subscriptions: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """For each subscription of a namespace, the roles that may use it. A subscription that is not named is open to
    all who may consume."""
    prefixed: bool = False
    """Whether the subscriptions of a namespace have to begin with the role that uses them."""

    def with_role(self, role: str, actions: Iterable[str]) -> Grants:
        """Return the grants with ``actions`` as the actions of ``role``. Without actions, the role is removed."""
        others = {name: had for name, had in self.roles.items() if name != role}
        return Grants(_with(others, role, actions), self.subscriptions, self.prefixed)

    def with_subscription(self, subscription: str, roles: Iterable[str]) -> Grants:
        """Return the grants with ``roles`` as the roles for ``subscription``. Without roles, it is open to all
        consumers."""
        others = {name: had for name, had in self.subscriptions.items() if name != subscription}
        return Grants(self.roles, _with(others, subscription, roles), self.prefixed)

    def encode(self) -> bytes | None:
        """Return the grants in the form of the store; None if nothing is granted."""
        if self == NONE:
            return None
        row: dict[str, Any] = {"roles": _listed(self.roles)}
        if self.subscriptions:
            row["subscriptions"] = _listed(self.subscriptions)
        if self.prefixed:
            row["prefixed"] = True
        return json.dumps(row, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, stored: bytes) -> Grants:
        """Read what :meth:`encode` wrote."""
        row = json.loads(stored)
        return cls(_sets(row["roles"]), _sets(row.get("subscriptions", {})), row.get("prefixed", False))


NONE: Final = Grants()


def _with(others: dict[str, frozenset[str]], name: str, values: Iterable[str]) -> dict[str, frozenset[str]]:
    found = frozenset(values)
    return {**others, name: found} if found else others


def _listed(sets: Mapping[str, frozenset[str]]) -> dict[str, list[str]]:
    return {name: sorted(values) for name, values in sets.items()}


def _sets(lists: Mapping[str, Iterable[str]]) -> dict[str, frozenset[str]]:
    return {name: frozenset(values) for name, values in lists.items()}


class Changes(Protocol):
    """Interface through which the table makes changes one after another."""

    def alone(self, change: Callable[[], Awaitable[None]]) -> Awaitable[None]: ...


class GrantTable:
    """All grants of one cluster, in memory and in the store."""

    def __init__(
        self,
        store: Store,
        writer: Writer,
        changes: Changes,
        changed: Callable[[str, str], None] = lambda table, name: None,
    ) -> None:
        """Load all grants. ``changed`` is called with this table and each name whose grants changed."""
        self._changed = changed
        self._writer = writer
        self._changes = changes
        with store.env.begin(db=store.tables[TABLE]) as txn:
            self._grants = {bytes(key).decode(): Grants.decode(bytes(value)) for key, value in txn.cursor()}

    def of(self, name: str) -> Grants:
        """Return the grants for ``tenant``, ``tenant/namespace`` or a topic."""
        return self._grants.get(name, NONE)

    def all(self) -> Mapping[str, Grants]:
        """Return all grants that are not empty, by name."""
        return self._grants

    def of_topics(self, namespace: str) -> dict[str, Grants]:
        """Return the grants of topics of a namespace, by full name."""
        prefix = f"{SCHEME}{namespace}/"
        return {name: grants for name, grants in self._grants.items() if name.startswith(prefix)}

    def of_partitions(self, name: str) -> list[str]:
        """Return the names that have grants and are those of partitions of ``name``, whatever their index."""
        return [each for each in self._grants if base_name(each) == name]

    async def change(
        self,
        name: str,
        change: Callable[[Grants], Grants],
        check: Callable[[], object],
        without: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        """Replace what was granted for ``name`` by what ``change`` makes of it, unless ``check`` raises. Delete the
        grants for the names that ``without`` returns in the same write.
        """

        async def replace() -> None:
            check()
            grants = {**dict.fromkeys(without(), NONE), name: change(self.of(name))}
            await self._writer.put_many(self.rows_of(grants))
            self.keep(grants)

        await self._changes.alone(replace)

    def rows_without(self, name: str) -> list[tuple[str, bytes, bytes | None]]:
        """Return the writes that go with the deletion of a tenant or namespace. Call :meth:`forget` after them."""
        return [(TABLE, each.encode(), None) for each in self._below(name)]

    def rows_of(self, grants: Mapping[str, Grants]) -> list[tuple[str, bytes, bytes | None]]:
        """Return the writes that store ``grants``, by name. Call :meth:`keep` after them."""
        return [(TABLE, name.encode(), granted.encode()) for name, granted in grants.items()]

    def keep(self, grants: Mapping[str, Grants]) -> None:
        """Put ``grants``, which are stored already, in the place of the earlier grants for the same names."""
        for name, granted in grants.items():
            self._keep(name, granted)

    def forget(self, name: str) -> None:
        for each in self._below(name):
            self._keep(each, NONE)

    async def revoke_all(self, topics: Iterable[str]) -> None:
        """Delete the grants of ``topics``, which are about to be deleted. Call this as a part of that change."""
        granted = [name for name in topics if name in self._grants]
        if granted:
            await self._writer.put_many([(TABLE, name.encode(), None) for name in granted])
            for name in granted:
                self._keep(name, NONE)

    def replace_all(self, grants: Mapping[str, Grants]) -> None:
        """Take over ``grants`` in place of all that was granted; the store has them already."""
        for name in {*self._grants, *grants}:
            self._keep(name, grants.get(name, NONE))

    def _below(self, name: str) -> list[str]:
        return [each for each in self._grants if f"{each.removeprefix(SCHEME)}/".startswith(f"{name}/")]

    def _keep(self, name: str, grants: Grants) -> None:
        if grants == NONE:
            self._grants.pop(name, None)
        else:
            self._grants[name] = grants
        self._changed(TABLE, name)
