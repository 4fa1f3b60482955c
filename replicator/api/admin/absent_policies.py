"""Policies that Pulsar has and this version does not. Pure.

Reading one shows what Pulsar shows where nothing was set, so that tools which read all policies of a namespace go on.
Setting one to what is so in any case is accepted: it asks for nothing. Any other value is refused with the reason,
never ignored. Taking one back is accepted: there is nothing to take. As in all bodies, a number or a boolean may be a
JSON text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from replicator.api.admin.requests import scalar

NO_RATES: Final = "there are no rate limits"
NO_OFFLOAD: Final = "there is no offloading: all of a topic is in the worker's store"
TYPES: Final = frozenset({"Exclusive", "Shared", "Failover", "Key_Shared"})
RATES: Final = (
    "dispatchThrottlingRateInMsg",
    "dispatchThrottlingRateInByte",
    "publishThrottlingRateInMsg",
    "publishThrottlingRateInByte",
    "subscribeThrottlingRatePerConsumer",
)


@dataclass(frozen=True, slots=True)
class AbsentPolicy:
    """A policy that cannot be set."""

    why: str
    shown: Any = None
    """The answer when the policy is read; None for an empty answer."""
    asks_nothing: Callable[[Any], bool] = lambda body: body is None
    """Returns whether a body asks for behaviour that this version always has."""


def _is(*values: Any) -> Callable[[Any], bool]:
    def asks_nothing(body: Any) -> bool:
        body = scalar(body)
        return any(body is value or (type(body) is type(value) and body == value) for value in values)

    return asks_nothing


def _unlimited(body: Any) -> bool:
    """Return whether a rate means "no limit": each of its numbers is left out, null, or 0 or less."""
    return isinstance(body, dict) and all(
        value is None or (type(value) in (int, float) and value <= 0)
        for value in (scalar(body.get(name)) for name in RATES)
    )


def _unlimited_everywhere(body: Any) -> bool:
    """Return whether the rate of every cluster in an object means "no limit"."""
    return isinstance(body, dict) and all(map(_unlimited, body.values()))


def _one_copy(body: Any) -> bool:
    numbers = ("bookkeeperEnsemble", "bookkeeperWriteQuorum", "bookkeeperAckQuorum")
    return isinstance(body, dict) and all(
        value is None or _is(0, 1)(value) for value in (body.get(name) for name in numbers)
    )


def _interval(body: Any) -> bool:
    value = scalar(body)
    return value is None or (type(value) is int and 0 <= value < 2**31)


def _kept_when_unused(body: Any) -> bool:
    return isinstance(body, dict) and scalar(body.get("deleteWhileInactive")) is False


def _all_types(body: Any) -> bool:
    return isinstance(body, list) and (not body or TYPES.issubset(set(map(str, body))))


_RATE: Final = AbsentPolicy(NO_RATES, asks_nothing=_unlimited)
_COUNT: Final = AbsentPolicy("this number is not limited in this version", asks_nothing=_is(0))

ABSENT_POLICIES: Final[Mapping[str, AbsentPolicy]] = {
    "publishRate": _RATE,
    "dispatchRate": _RATE,
    "subscriptionDispatchRate": _RATE,
    "replicatorDispatchRate": _RATE,
    "subscribeRate": _RATE,
    "maxTopicsPerNamespace": AbsentPolicy("topics of a namespace are not limited", 0, _is(0)),
    "maxConsumersPerSubscription": _COUNT,
    "maxSubscriptionsPerTopic": _COUNT,
    "subscriptionExpirationTime": AbsentPolicy("subscriptions do not expire", asks_nothing=_is(0)),
    "inactiveTopicPolicies": AbsentPolicy("topics are not deleted when nobody uses them", None, _kept_when_unused),
    "persistence": AbsentPolicy("a worker keeps one copy; copies in other clusters are made by links", None, _one_copy),
    "deduplicationSnapshotInterval": AbsentPolicy(
        "what deduplication knows is written with every commit",
        asks_nothing=_interval,
    ),
    "offloadThreshold": AbsentPolicy(NO_OFFLOAD, -1, _is(-1)),
    "offloadThresholdInSeconds": AbsentPolicy(NO_OFFLOAD, -1, _is(-1)),
    "offloadDeletionLagMs": AbsentPolicy(NO_OFFLOAD),
    "offloadPolicies": AbsentPolicy(NO_OFFLOAD),
    "removeOffloadPolicies": AbsentPolicy(NO_OFFLOAD),
    "subscriptionTypesEnabled": AbsentPolicy("all types of subscriptions are enabled", [], _all_types),
    "encryptionRequired": AbsentPolicy("whether messages are encrypted is up to producers", False, _is(False)),
    "entryFilters": AbsentPolicy("there are no plug-ins"),
    "resourcegroup": AbsentPolicy("there are no resource groups"),
    "antiAffinity": AbsentPolicy("a cluster is one worker"),
    "dispatcherPauseOnAckStatePersistent": AbsentPolicy(
        "all of what is acknowledged is kept, however many ranges that are", False, _is(False, True)
    ),
    "shadowTopics": AbsentPolicy("there are no shadow topics", None, _is([])),
    "allowedClusters": AbsentPolicy("which clusters get a namespace says its policy `replication`", [], _is([])),
    "replication": AbsentPolicy("which clusters get a topic says its namespace's policy `replication`"),
    "autoSubscriptionCreation": AbsentPolicy("it is a policy of namespaces, for all of their topics"),
    "schemaAutoUpdateCompatibilityStrategy": AbsentPolicy(
        "it is the older name of schemaCompatibilityStrategy: use that"
    ),
    "properties": AbsentPolicy("there are no properties of topics and namespaces", {}, _is({})),
}
"""By the name in the path, of namespaces and topics alike."""

_RATES: Final = AbsentPolicy(NO_RATES, asks_nothing=_unlimited_everywhere)

ABSENT_FIELDS: Final[Mapping[str, AbsentPolicy]] = {
    **dict.fromkeys(
        (
            "clusterDispatchRate",
            "topicDispatchRate",
            "subscriptionDispatchRate",
            "replicatorDispatchRate",
            "clusterSubscribeRate",
            "publishMaxMessageRate",
        ),
        _RATES,
    ),
    "latency_stats_sample_rate": AbsentPolicy("latencies are not sampled"),
    "persistence": ABSENT_POLICIES["persistence"],
    "subscription_expiration_time_minutes": ABSENT_POLICIES["subscriptionExpirationTime"],
    "encryption_required": ABSENT_POLICIES["encryptionRequired"],
    "inactive_topic_policies": ABSENT_POLICIES["inactiveTopicPolicies"],
    "max_consumers_per_subscription": _COUNT,
    "max_subscriptions_per_topic": _COUNT,
    "max_topics_per_namespace": ABSENT_POLICIES["maxTopicsPerNamespace"],
    "offload_threshold": ABSENT_POLICIES["offloadThreshold"],
    "offload_threshold_in_seconds": ABSENT_POLICIES["offloadThresholdInSeconds"],
    "offload_deletion_lag_ms": ABSENT_POLICIES["offloadDeletionLagMs"],
    "offload_policies": ABSENT_POLICIES["offloadPolicies"],
    "schema_auto_update_compatibility_strategy": AbsentPolicy(
        "it is the older name of schema_compatibility_strategy", None, _is("Full")
    ),
    "deduplicationSnapshotIntervalSeconds": ABSENT_POLICIES["deduplicationSnapshotInterval"],
    "subscription_types_enabled": ABSENT_POLICIES["subscriptionTypesEnabled"],
    "properties": ABSENT_POLICIES["properties"],
    "resource_group_name": ABSENT_POLICIES["resourcegroup"],
    "entryFilters": ABSENT_POLICIES["entryFilters"],
    "dispatcherPauseOnAckStatePersistentEnabled": ABSENT_POLICIES["dispatcherPauseOnAckStatePersistent"],
    "allowed_clusters": ABSENT_POLICIES["allowedClusters"],
    "deleted": AbsentPolicy("a namespace is deleted by DELETE"),
    "migrated": AbsentPolicy("clusters are those of the topology file, and none is migrated"),
}
"""By the field of a namespace's policies, those that brokers know. They ignore any other field, and so do we."""
