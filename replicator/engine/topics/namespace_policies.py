"""Policies that operators set for a namespace, and their JSON form in the store. A missing name has its default."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from replicator.engine.errors import InvalidPolicies
from replicator.engine.policies import PolicyOverrides
from replicator.engine.policies_codec import overrides_from_json, overrides_to_json
from replicator.engine.topics.partitions import PARTITIONS_MAX

CLUSTERS_MAX: Final = 100
"""Limit of clusters in one namespace's policies. A topology has far fewer."""


@dataclass(frozen=True, slots=True)
class NamespacePolicies:
    """All policies of one namespace. A topic in it may have its own topic policies instead."""

    topic_policies: PolicyOverrides | None = None
    """Policies of the namespace's topics, which replace the engine's defaults. Each topic may replace them again."""
    replication_clusters: tuple[str, ...] | None = None
    """Clusters to which links copy the namespace; None means all."""
    auto_topic_creation: bool = True
    """Whether a topic is created when a producer or consumer uses it. Links create topics in any case."""
    auto_partitions: int = 0
    """Number of partitions of a topic that is created by use; 0 creates topics without partitions."""
    auto_subscription_creation: bool = True
    """Whether a durable subscription is created when a consumer uses it."""


def namespace_policies_to_json(policies: NamespacePolicies) -> dict[str, Any]:
    """Return all policies as a JSON object, by name."""
    clusters = policies.replication_clusters
    return {
        "topic_policies": None if policies.topic_policies is None else overrides_to_json(policies.topic_policies),
        "replication_clusters": None if clusters is None else list(clusters),
        "auto_topic_creation": policies.auto_topic_creation,
        "auto_partitions": policies.auto_partitions,
        "auto_subscription_creation": policies.auto_subscription_creation,
    }


def namespace_policies_from_json(stored: Any) -> NamespacePolicies:
    """Return the policies of a JSON object. Raise :class:`InvalidPolicies`."""
    if not isinstance(stored, dict):
        raise InvalidPolicies(f"namespace policies must be a JSON object, not {stored!r}")
    known = NamespacePolicies.__slots__
    if unknown := [name for name in stored if name not in known]:
        raise InvalidPolicies(f"namespace policies have no field {unknown[0]!r}; their fields are {', '.join(known)}")
    topic_policies, clusters = stored.get("topic_policies"), stored.get("replication_clusters")
    if clusters is not None and not isinstance(clusters, list):
        raise InvalidPolicies(f"replication_clusters must be a list of names, not {clusters!r}")
    others = {name: value for name, value in stored.items() if name not in ("topic_policies", "replication_clusters")}
    return check_namespace_policies(
        NamespacePolicies(
            topic_policies=None if topic_policies is None else overrides_from_json(topic_policies),
            replication_clusters=None if clusters is None else tuple(clusters),
            **others,
        )
    )


def encode_namespace_policies(policies: NamespacePolicies) -> bytes:
    """Return the policies in the form of the store, which has only differences from the default."""
    default = namespace_policies_to_json(NamespacePolicies())
    row = {name: value for name, value in namespace_policies_to_json(policies).items() if value != default[name]}
    return json.dumps(row, separators=(",", ":")).encode()


def decode_namespace_policies(stored: bytes) -> NamespacePolicies:
    """Read what :func:`encode_namespace_policies` wrote."""
    return namespace_policies_from_json(json.loads(stored))


def check_namespace_policies(policies: NamespacePolicies) -> NamespacePolicies:
    """Return ``policies`` if every value is valid. Raise :class:`InvalidPolicies` otherwise."""
    for name in ("auto_topic_creation", "auto_subscription_creation"):
        if not isinstance(value := getattr(policies, name), bool):
            raise InvalidPolicies(f"{name} must be true or false, not {value!r}")
    if type(policies.auto_partitions) is not int or not 0 <= policies.auto_partitions <= PARTITIONS_MAX:
        raise InvalidPolicies(f"auto_partitions must be 0 to {PARTITIONS_MAX}, not {policies.auto_partitions!r}")
    clusters = policies.replication_clusters or ()
    if len(clusters) > CLUSTERS_MAX or not all(isinstance(each, str) and each for each in clusters):
        raise InvalidPolicies(f"replication_clusters must be at most {CLUSTERS_MAX} names of clusters")
    return policies
