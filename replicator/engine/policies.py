"""Topic policies: limits and rules that an operator sets for a topic. Pure values; other modules enforce them.

A field that is None has no limit (or the rule is off). Names of times and sizes have their unit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import Any


class KeyAssignment(Enum):
    """Algorithm that assigns keys to Key_Shared consumers without sticky ranges."""

    HASH_RANGE = "hash-range"
    CONSISTENT_HASHING = "consistent-hashing"
    LOAD_AWARE = "load-aware"


class KeyOrdering(Enum):
    """Condition on which a new Key_Shared consumer gets messages."""

    DRAINING = "draining"
    """Wait only for those of its own keys that another consumer still holds (PIP-379)."""
    RECENTLY_JOINED = "recently-joined"
    """Wait until everything that was sent before it joined is acknowledged (seed 000)."""


class QuotaPolicy(Enum):
    """Reaction to a backlog that is over its quota."""

    PRODUCER_REQUEST_HOLD = "producer_request_hold"
    """Publishes wait until there is room."""
    PRODUCER_EXCEPTION = "producer_exception"
    """Publishes are refused."""
    CONSUMER_BACKLOG_EVICTION = "consumer_backlog_eviction"
    """The oldest messages of the slowest subscriptions are skipped."""


class SchemaStrategy(Enum):
    """Rule for schemas that may follow the schemas of a topic, named as upstream."""

    ALWAYS_INCOMPATIBLE = "ALWAYS_INCOMPATIBLE"
    ALWAYS_COMPATIBLE = "ALWAYS_COMPATIBLE"
    BACKWARD = "BACKWARD"
    FORWARD = "FORWARD"
    FULL = "FULL"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"


@dataclass(frozen=True, slots=True)
class BacklogQuota:
    """Limits of the backlog of the slowest subscription, by size and by the age of its oldest message."""

    bytes_max: int | None = None
    age_seconds_max: int | None = None
    policy: QuotaPolicy = QuotaPolicy.PRODUCER_REQUEST_HOLD


@dataclass(frozen=True, slots=True)
class Retention:
    """Limits up to which messages that all subscriptions have consumed are kept. Both must allow it; 0 and 0 keep
    none."""

    age_seconds_max: int | None = None
    bytes_max: int | None = None


@dataclass(frozen=True, slots=True)
class TopicPolicies:
    """All policies of one topic."""

    retention: Retention = Retention()
    message_ttl_seconds: int | None = None
    backlog_quota: BacklogQuota = BacklogQuota()
    deduplication: bool = False
    compaction_threshold_bytes: int | None = None
    max_unacked_messages_per_consumer: int | None = 50_000
    max_unacked_messages_per_subscription: int | None = 200_000
    max_producers: int | None = None
    max_consumers: int | None = None
    max_message_bytes: int | None = None
    delayed_delivery: bool = True
    replicate_subscription_state: bool = False
    """Whether new subscriptions are replicated if their creator does not say."""
    key_assignment: KeyAssignment = KeyAssignment.CONSISTENT_HASHING
    key_ordering: KeyOrdering = KeyOrdering.DRAINING
    schema_compatibility: SchemaStrategy = SchemaStrategy.FULL
    schema_auto_update: bool = True
    """Whether connecting producers and consumers may register schemas. If not, only an operator can."""
    schema_validation_enforced: bool = False
    """Whether a topic that has a schema refuses producers without one."""


@dataclass(frozen=True, slots=True)
class PolicyOverrides:
    """Policies that are set at one level, a topic or a namespace, by name. All others come from the level below."""

    values: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, policies: TopicPolicies) -> PolicyOverrides:
        """Return overrides with every one of ``policies``."""
        return cls({each.name: getattr(policies, each.name) for each in fields(policies)})

    @classmethod
    def between(cls, inherited: TopicPolicies, policies: TopicPolicies) -> PolicyOverrides:
        """Return overrides with those of ``policies`` that differ from ``inherited``."""
        return cls(
            {name: value for name, value in cls.of(policies).values.items() if value != getattr(inherited, name)}
        )

    def over(self, inherited: TopicPolicies) -> TopicPolicies:
        """Return the policies in effect at this level: ``inherited`` with these overrides."""
        return replace(inherited, **self.values)

    def setting(self, **values: Any) -> PolicyOverrides:
        return PolicyOverrides({**self.values, **values})

    def without(self, name: str) -> PolicyOverrides:
        return PolicyOverrides({other: value for other, value in self.values.items() if other != name})

    def __bool__(self) -> bool:
        return bool(self.values)
