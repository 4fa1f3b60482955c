"""What an operator sets for a whole namespace, and how it is stored: as JSON, where a missing name has its default."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from replicator.engine.errors import InvalidPolicies
from replicator.engine.policies import PolicyOverrides
from replicator.engine.policies_codec import overrides_from_json, overrides_to_json
from replicator.engine.topics.partitions import PARTITIONS_MAX

CLUSTERS_MAX: Final = 100
"""Named in one namespace's policies; a topology has far fewer."""


@dataclass(frozen=True, slots=True)
class NamespacePolicies:
    """All policies of one namespace; a topic in it may set topic policies anew for itself."""

    topic_policies: PolicyOverrides | None = None
    """What counts for its topics over the engine's default, and may be set anew for each of them."""
    replication_clusters: tuple[str, ...] | None = None
    """To which of the clusters that links lead to the namespace is copied; None means all of them."""
    auto_topic_creation: bool = True
    """Whether a producer or consumer that names a topic makes it. What links bring is made in any case."""
    auto_partitions: int = 0
    """How many partitions a topic that is made so gets; 0 makes plain topics."""
    auto_subscription_creation: bool = True
    """Whether a consumer that names a durable subscription makes it."""


def namespace_policies_to_json(policies: NamespacePolicies) -> dict[str, Any]:
    """A JSON object of every policy, by its name."""
    clusters = policies.replication_clusters
    return {
        "topic_policies": None if policies.topic_policies is None else overrides_to_json(policies.topic_policies),
        "replication_clusters": None if clusters is None else list(clusters),
        "auto_topic_creation": policies.auto_topic_creation,
        "auto_partitions": policies.auto_partitions,
        "auto_subscription_creation": policies.auto_subscription_creation,
    }


def namespace_policies_from_json(stored: Any) -> NamespacePolicies:
    """The policies of a JSON object; raises :class:`InvalidPolicies`."""
    if not isinstance(stored, dict):
        raise InvalidPolicies(f"namespace policies must be an object, not {stored!r}")
    known = NamespacePolicies.__slots__
    if unknown := [name for name in stored if name not in known]:
        raise InvalidPolicies(f"namespace policies have no {unknown[0]!r}; they have {', '.join(known)}")
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
    """As the store keeps them: what differs from the default."""
    default = namespace_policies_to_json(NamespacePolicies())
    row = {name: value for name, value in namespace_policies_to_json(policies).items() if value != default[name]}
    return json.dumps(row, separators=(",", ":")).encode()


def decode_namespace_policies(stored: bytes) -> NamespacePolicies:
    """Read what :func:`encode_namespace_policies` wrote."""
    return namespace_policies_from_json(json.loads(stored))


def check_namespace_policies(policies: NamespacePolicies) -> NamespacePolicies:
    """Return ``policies`` if every value makes sense; raises :class:`InvalidPolicies`."""
    for name in ("auto_topic_creation", "auto_subscription_creation"):
        if not isinstance(value := getattr(policies, name), bool):
            raise InvalidPolicies(f"{name} must be true or false, not {value!r}")
    if type(policies.auto_partitions) is not int or not 0 <= policies.auto_partitions <= PARTITIONS_MAX:
        raise InvalidPolicies(f"auto_partitions must be 0 to {PARTITIONS_MAX}, not {policies.auto_partitions!r}")
    clusters = policies.replication_clusters or ()
    if len(clusters) > CLUSTERS_MAX or not all(isinstance(each, str) and each for each in clusters):
        raise InvalidPolicies(f"replication_clusters must be at most {CLUSTERS_MAX} names of clusters")
    return policies
