"""Topic policies: limits and rules that an operator sets for a topic. Pure values; what enforces them is elsewhere.

A field that is None is not limited (or the rule is off). Times and sizes bear their unit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import Any


class KeyAssignment(Enum):
    """Which algorithm assigns keys to Key_Shared consumers that bring no sticky ranges."""

    HASH_RANGE = "hash-range"
    CONSISTENT_HASHING = "consistent-hashing"
    LOAD_AWARE = "load-aware"


class KeyOrdering(Enum):
    """What a Key_Shared newcomer waits for."""

    DRAINING = "draining"
    """For those of its own keys that another consumer still holds (PIP-379)."""
    RECENTLY_JOINED = "recently-joined"
    """For everything that was sent before it joined (seed 000)."""


class QuotaPolicy(Enum):
    """What happens when a backlog is over its quota."""

    PRODUCER_REQUEST_HOLD = "producer_request_hold"
    """Publishes wait until there is room."""
    PRODUCER_EXCEPTION = "producer_exception"
    """Publishes are refused."""
    CONSUMER_BACKLOG_EVICTION = "consumer_backlog_eviction"
    """The oldest messages of the slowest subscriptions are skipped."""


class SchemaStrategy(Enum):
    """Which schemas may follow those that a topic has, as upstream names it."""

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
    """A limit on what the slowest subscription has not consumed, by size and by age of its oldest message."""

    bytes_max: int | None = None
    age_seconds_max: int | None = None
    policy: QuotaPolicy = QuotaPolicy.PRODUCER_REQUEST_HOLD


@dataclass(frozen=True, slots=True)
class Retention:
    """How much of what every subscription has consumed is kept: as long as both limits allow. 0 and 0 keep none."""

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
    """Whether subscriptions that are made are replicated where their maker does not say."""
    key_assignment: KeyAssignment = KeyAssignment.CONSISTENT_HASHING
    key_ordering: KeyOrdering = KeyOrdering.DRAINING
    schema_compatibility: SchemaStrategy = SchemaStrategy.FULL
    schema_auto_update: bool = True
    """Whether producers and consumers register schemas as they connect; else only an operator does."""
    schema_validation_enforced: bool = False
    """Whether a topic that has a schema refuses producers without one."""


@dataclass(frozen=True, slots=True)
class PolicyOverrides:
    """The policies that are set at one level, a topic or a namespace, by name; all others come from the level below."""

    values: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, policies: TopicPolicies) -> PolicyOverrides:
        """Every one of ``policies``."""
        return cls({each.name: getattr(policies, each.name) for each in fields(policies)})

    @classmethod
    def between(cls, inherited: TopicPolicies, policies: TopicPolicies) -> PolicyOverrides:
        """Those of ``policies`` that differ from what is inherited."""
        return cls(
            {name: value for name, value in cls.of(policies).values.items() if value != getattr(inherited, name)}
        )

    def over(self, inherited: TopicPolicies) -> TopicPolicies:
        """What counts at this level."""
        return replace(inherited, **self.values)

    def setting(self, **values: Any) -> PolicyOverrides:
        return PolicyOverrides({**self.values, **values})

    def without(self, name: str) -> PolicyOverrides:
        return PolicyOverrides({other: value for other, value in self.values.items() if other != name})

    def __bool__(self) -> bool:
        return bool(self.values)
