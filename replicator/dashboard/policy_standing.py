"""Effective policies of a namespace or a topic in one cluster, and who set each: the topic, its namespace, or the
topology file. Pure; read from what that cluster's worker answers.

1. What is set for the topic counts, if it is asked about.
2. Else what is set for its namespace.
3. Else what the topology file says for all topics of the cluster; where it says nothing, the default.

What the topology file says as the default does, cannot be told from the default, and is called so.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from replicator.api.admin.policy_shapes import QUOTA_KINDS, shape_of, show_quotas, unlimited
from replicator.dashboard.policy_catalog import QUOTA, Policy
from replicator.engine.errors import InvalidPolicies
from replicator.engine.policies import PolicyOverrides, TopicPolicies
from replicator.engine.policies_codec import policies_from_json
from replicator.engine.topics.namespace_policies import NamespacePolicies, namespace_policies_from_json

TOPIC: Final = "topic"
NAMESPACE: Final = "namespace"
FILE: Final = "topology file"
DEFAULT: Final = "default"


class Unreadable(ValueError):
    """A worker's answer is not of this version."""


@dataclass(frozen=True, slots=True)
class PolicyState:
    """Policies of one namespace or one topic in one cluster."""

    applied: TopicPolicies
    namespace: NamespacePolicies
    own_of_topic: frozenset[str] | None = None
    """The names of those that the topic has set; None where a namespace is asked about."""

    def value(self, policy: Policy) -> Any:
        """Return the effective value of a policy, as a body of the admin paths."""
        return _body(policy, self.applied, self.namespace)

    def set_by(self, policy: Policy) -> str:
        """Return who set the policy: :data:`TOPIC`, :data:`NAMESPACE`, :data:`FILE` or :data:`DEFAULT`."""
        is_default = self.value(policy) == _body(policy, TopicPolicies(), NamespacePolicies())
        if not policy.of_topics:
            return DEFAULT if is_default else NAMESPACE
        (name,) = policy.stored
        if name in (self.own_of_topic or ()):
            return TOPIC
        if name in (self.namespace.topic_policies or PolicyOverrides()).values:
            return NAMESPACE
        return DEFAULT if is_default else FILE

    def set_here(self, policy: Policy) -> bool:
        """Return whether the policy is set at the level of this standing, so that it can be taken back there."""
        return self.set_by(policy) == (NAMESPACE if self.own_of_topic is None else TOPIC)

    def mark(self, policy: Policy) -> str:
        """Return a text that changes as soon as somebody changes the policy, or values that change together with it."""
        quotas = show_quotas(self.applied.backlog_quota) if policy.stored == (QUOTA,) else None
        seen = json.dumps([self.value(policy), self.set_by(policy), quotas], sort_keys=True)
        return hashlib.sha256(seen.encode()).hexdigest()[:16]


def of_namespace(answer: Any) -> PolicyState:
    """Read an answer of ``GET /replication/v1/namespaces/{tenant}/{namespace}``. Raise :class:`Unreadable`."""
    try:
        namespace = namespace_policies_from_json(answer["policies"])
        below = policies_from_json(answer["below"])
    except (KeyError, TypeError, InvalidPolicies) as error:
        raise Unreadable(
            f"its answer about policies cannot be read by this version: {error!r}; run the same version in all clusters"
        ) from None
    return PolicyState((namespace.topic_policies or PolicyOverrides()).over(below), namespace)


def of_topic(answer: Any, of_its_namespace: Any) -> PolicyState:
    """Read the namespace's answer and one of ``GET /admin/v2/persistent/{tenant}/{namespace}/{topic}/policies``. Raise
    :class:`Unreadable`.
    """
    try:
        own, applied = frozenset(answer["own"]), policies_from_json(answer["policies"])
    except (KeyError, TypeError, InvalidPolicies) as error:
        raise Unreadable(
            f"its answer about policies cannot be read by this version: {error!r}; run the same version in all clusters"
        ) from None
    return PolicyState(applied, of_namespace(of_its_namespace).namespace, own)


def _body(policy: Policy, applied: TopicPolicies, namespace: NamespacePolicies) -> Any:
    match policy.key:
        case "replication":
            return None if namespace.replication_clusters is None else list(namespace.replication_clusters)
        case "autoTopicCreation":
            return _auto_topics(namespace)
        case "autoSubscriptionCreation":
            return {"allowAutoSubscriptionCreation": namespace.auto_subscription_creation}
    if policy.stored == (QUOTA,):
        kind = policy.path.rpartition("=")[2]
        assert kind in QUOTA_KINDS
        return show_quotas(applied.backlog_quota).get(kind) or unlimited(applied.backlog_quota)
    shape = shape_of(policy.path)
    assert shape is not None
    return shape.show(getattr(applied, shape.field))


def _auto_topics(namespace: NamespacePolicies) -> Mapping[str, Any]:
    partitions = namespace.auto_partitions
    kind = "partitioned" if partitions else "non-partitioned"
    shown = {"allowAutoTopicCreation": namespace.auto_topic_creation, "topicType": kind}
    return {**shown, "defaultNumPartitions": partitions} if partitions else shown
