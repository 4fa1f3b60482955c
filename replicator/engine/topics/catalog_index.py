"""Index of all tenants, namespaces and topics, in memory. Pure.

Invariants: names are kept sorted, so a look-up is O(log n) and the cost of a listing is proportional to its length;
consumers can subscribe to the partitioned topics by their base names, and to all topics except their partitions; each
change returns how that set changed, so that callers can follow the set.

1. A topic comes or goes. If it is a partition of a partitioned topic, the set is as before.
2. A name becomes partitioned, or gets more partitions: the set has the name once, and topics that become its
   partitions leave the set.
3. A name is not partitioned any more: it leaves the set, and partitions that are still there enter it.

Names whose local part starts with ``__`` are internal, and so is the topic of failovers: they are topics, but never in
the set.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from replicator.engine.topic_name import EPOCHS_TOPIC, SCHEME, TopicName
from replicator.engine.topics.namespace_policies import NamespacePolicies
from replicator.engine.topics.partitions import SUFFIX, PartitionedTopic, base_name, partition_of

INTERNAL_PREFIX = "__"


@dataclass(frozen=True, slots=True)
class TopicAdded:
    """Change: consumers can subscribe to the topic ``name`` from now on."""

    name: str


@dataclass(frozen=True, slots=True)
class TopicRemoved:
    """Change: consumers cannot subscribe to the topic ``name`` any more."""

    name: str


Change = TopicAdded | TopicRemoved


@dataclass(slots=True, eq=False)
class Namespace:
    """One namespace: its policies, and what is in it. Only :class:`CatalogIndex` changes it."""

    name: str
    policies: NamespacePolicies
    topics: list[str] = field(default_factory=list)
    """The full name of every topic that has a log, partitions included; sorted."""
    partitioned: dict[str, PartitionedTopic] = field(default_factory=dict)
    subscribable: list[str] = field(default_factory=list)
    """Names to which consumers can subscribe, sorted."""

    @property
    def empty(self) -> bool:
        return not self.topics and not self.partitioned


class CatalogIndex:
    """The names of one cluster. Names are full topic names, and ``tenant/namespace``."""

    def __init__(self, changed: Callable[[str, str], None] = lambda kind, name: None) -> None:
        """Create an empty index. ``changed`` gets the table and the key of each changed tenant, namespace or
        partitioned topic."""
        self._changed = changed
        self._tenants: dict[str, dict[str, Namespace]] = {}

    # Asking.

    def tenants(self) -> list[str]:
        return sorted(self._tenants)

    def has_tenant(self, tenant: str) -> bool:
        return tenant in self._tenants

    def namespaces(self, tenant: str) -> list[str]:
        """Return the names ``tenant/namespace`` of a tenant, sorted; none for an unknown tenant."""
        return sorted(each.name for each in self._tenants.get(tenant, {}).values())

    def namespace(self, name: str) -> Namespace | None:
        return self._tenants.get(name.partition("/")[0], {}).get(name)

    def partitioned(self, topic: TopicName) -> PartitionedTopic | None:
        """Return the partitioned topic of that name; None if there is none."""
        namespace = self.namespace(topic.full_namespace)
        return None if namespace is None else namespace.partitioned.get(str(topic))

    def all_partitioned(self) -> Iterator[PartitionedTopic]:
        for namespaces in self._tenants.values():
            for namespace in namespaces.values():
                yield from namespace.partitioned.values()

    def partitions_here(self, name: str) -> list[str]:
        """Return the topics whose names are those of partitions of ``name``, whatever their index; O(matching)."""
        namespace = self.namespace(_namespace_of(name))
        found = [] if namespace is None else _with_prefix(namespace.topics, f"{name}{SUFFIX}")
        return [each for each in found if base_name(each) == name]

    # Changing.

    def add_tenant(self, tenant: str) -> None:
        self._tenants.setdefault(tenant, {})
        self._changed("tenants", tenant)

    def remove_tenant(self, tenant: str) -> None:
        assert not self._tenants[tenant], f"tenant {tenant} has namespaces"
        del self._tenants[tenant]
        self._changed("tenants", tenant)

    def add_namespace(self, name: str, policies: NamespacePolicies | None = None) -> Namespace:
        """Return the namespace ``name``. Create it and its tenant if there is none. ``policies`` replace its
        policies."""
        tenant = name.partition("/")[0]
        namespaces = self._tenants.setdefault(tenant, {})
        namespace = namespaces.get(name)
        if namespace is None or policies is not None:
            self._changed("tenants", tenant)
            self._changed("namespaces", name)
        if namespace is None:
            namespace = namespaces[name] = Namespace(name, policies or NamespacePolicies())
        elif policies is not None:
            namespace.policies = policies
        return namespace

    def remove_namespace(self, name: str) -> None:
        """Remove an empty namespace. Its tenant stays."""
        namespace = self.namespace(name)
        assert namespace is not None
        assert namespace.empty, f"namespace {name} has topics"
        del self._tenants[name.partition("/")[0]][name]
        self._changed("namespaces", name)

    def add_topic(self, name: str) -> list[Change]:
        """Add a topic, which has a log now. Return how the set of topics for consumers changed."""
        namespace = self.add_namespace(_namespace_of(name))
        _insert(namespace.topics, name)
        return [] if self._hidden(namespace, name) else _appear(namespace, name)

    def remove_topic(self, name: str) -> list[Change]:
        namespace = self.namespace(_namespace_of(name))
        assert namespace is not None
        _remove(namespace.topics, name)
        return [] if self._hidden(namespace, name) else _disappear(namespace, name)

    def set_partitioned(self, partitioned: PartitionedTopic) -> list[Change]:
        """Make a name partitioned, or give it more partitions. Return how the set of topics for consumers changed."""
        namespace = self.add_namespace(_namespace_of(partitioned.name))
        before = namespace.partitioned.get(partitioned.name)
        shown = [] if before is not None or is_internal(partitioned.name) else [partitioned.name]
        hidden = [name for name in self.partitions_here(partitioned.name) if not self._hidden(namespace, name)]
        namespace.partitioned[partitioned.name] = partitioned
        self._changed("partitioned", partitioned.name)
        changes: list[Change] = []
        for name in hidden:
            if self._hidden(namespace, name):
                changes += _disappear(namespace, name)
        for name in shown:
            changes += _appear(namespace, name)
        return changes

    def remove_partitioned(self, name: str) -> list[Change]:
        """Make a name unpartitioned, whether or not its partitions still exist. Return the changes for consumers."""
        namespace = self.namespace(_namespace_of(name))
        assert namespace is not None
        del namespace.partitioned[name]
        self._changed("partitioned", name)
        changes: list[Change] = [] if is_internal(name) else _disappear(namespace, name)
        for partition in self.partitions_here(name):
            if not self._hidden(namespace, partition):
                changes += _appear(namespace, partition)
        return changes

    def _hidden(self, namespace: Namespace, name: str) -> bool:
        return is_internal(name) or partition_of(name, namespace.partitioned) is not None


def is_internal(name: str) -> bool:
    """Return whether a topic is internal, so that no pattern of a consumer matches it."""
    return name == EPOCHS_TOPIC or name.rpartition("/")[2].startswith(INTERNAL_PREFIX)


def _namespace_of(topic: str) -> str:
    return topic.removeprefix(SCHEME).rpartition("/")[0]


def _with_prefix(names: list[str], prefix: str) -> list[str]:
    found = []
    for at in range(bisect_left(names, prefix), len(names)):
        if not names[at].startswith(prefix):
            break
        found.append(names[at])
    return found


def _insert(names: list[str], name: str) -> None:
    assert not _holds(names, name), f"{name} is there"
    insort(names, name)


def _remove(names: list[str], name: str) -> None:
    assert _holds(names, name), f"{name} is not there"
    del names[bisect_left(names, name)]


def _holds(names: list[str], name: str) -> bool:
    at = bisect_left(names, name)
    return at < len(names) and names[at] == name


def _appear(namespace: Namespace, name: str) -> list[Change]:
    _insert(namespace.subscribable, name)
    return [TopicAdded(name)]


def _disappear(namespace: Namespace, name: str) -> list[Change]:
    _remove(namespace.subscribable, name)
    return [TopicRemoved(name)]
