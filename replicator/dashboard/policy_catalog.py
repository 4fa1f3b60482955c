"""The policies that the dashboard edits: what each is, its fields in a form, and how they become a body of the admin
paths and are read from one. Pure.

What a value may be is not decided here. A form's fields go into the body as they are, and the worker that is asked
refuses what cannot be, by the name of the field.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from replicator.api.admin.policy_shapes import DESTINATION_STORAGE, MESSAGE_AGE
from replicator.engine.policies import QuotaPolicy, SchemaStrategy

DIGITS_MAX: Final = 18
"""Limit of digits in a number; a longer number is sent as text, and refused."""
NO_LIMIT: Final = "no limit"
QUOTA: Final = "backlog_quota"
NUMBER: Final = "number"
CHOICE: Final = "choice"
CLUSTERS: Final = "clusters"
_KEPT: Final = "-1 is no limit, both 0 keep nothing"
YES_NO: Final = (("true", "yes"), ("false", "no"))


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a policy's form."""

    name: str
    """Name in the body; empty if the body is the value itself."""
    label: str
    kind: str = NUMBER
    unit: str = ""
    unlimited: int = 0
    """The number that means no limit."""
    choices: tuple[tuple[str, str], ...] = ()
    """Values that can be sent, each with the word that the form shows."""
    optional: bool = False
    """Whether it is left out of the body where it is empty."""

    @property
    def form_name(self) -> str:
        return f"value.{self.name}" if self.name else "value"


@dataclass(frozen=True, slots=True)
class Policy:
    """Policy of a namespace or topic, as the dashboard shows and sets it: its admin path, its form fields, and the
    names under which it is stored."""

    key: str
    """Name in addresses of the dashboard."""
    path: str
    """Last part of the policy's path, after the topic or namespace, in the admin paths."""
    title: str
    about: str
    fields: tuple[Field, ...]
    stored: tuple[str, ...]
    """Names under which the policy's values are stored."""
    of_topics: bool = True
    """Whether a topic may have its own, and the topology file gives one to all that have none."""
    caution: str = ""
    """Side effect of setting the policy or taking it back."""

    @property
    def error_name(self) -> str:
        """Return the field's name in errors of the API."""
        return self.path.partition("?")[0]


def _limit(key: str, stored: str, title: str, about: str, unit: str) -> Policy:
    return Policy(key, key, title, about, (Field("", f"{unit.capitalize()}; 0 is no limit", unit=unit),), (stored,))


def _flag(key: str, stored: str, title: str, about: str, name: str = "") -> Policy:
    return Policy(key, key, title, about, (Field(name, title, CHOICE, choices=YES_NO),), (stored,))


def _quota(key: str, kind: str, title: str, about: str, limit: Field) -> Policy:
    policy = Field("policy", "Past the quota", CHOICE, choices=tuple((each.value, each.value) for each in QuotaPolicy))
    return Policy(
        key,
        f"backlogQuota?backlogQuotaType={kind}",
        title,
        about,
        (limit, policy),
        (QUOTA,),
        caution="The quotas by size and by age are one policy. Setting one sets the other as well, to what counts now, "
        "also where that is the topology file's. Taking one back while the other one is limited leaves the one that is "
        "taken back without a limit.",
    )


POLICIES: Final[tuple[Policy, ...]] = (
    Policy(
        "retention",
        "retention",
        "Retention",
        "How much is kept of what every subscription has consumed: what is within both limits.",
        (
            Field("retentionTimeInMinutes", f"Minutes; {_KEPT}", unit="minutes", unlimited=-1),
            Field("retentionSizeInMB", f"Megabytes; {_KEPT}", unit="MB", unlimited=-1),
        ),
        ("retention",),
    ),
    _limit(
        "messageTTL", "message_ttl_seconds", "Message TTL",
        "A message older than this counts as consumed for every durable subscription.", "seconds",
    ),
    _quota(
        "backlogQuota-size", DESTINATION_STORAGE, "Backlog quota by size",
        "How far the slowest durable subscription may lag, in bytes.",
        Field("limitSize", "Bytes; -1 is no limit", unit="bytes", unlimited=-1),
    ),
    _quota(
        "backlogQuota-age", MESSAGE_AGE, "Backlog quota by age",
        "How old the oldest message may be that the slowest durable subscription has not consumed.",
        Field("limitTime", "Seconds; -1 is no limit", unit="seconds", unlimited=-1),
    ),
    _flag(
        "deduplication", "deduplication", "Deduplication",
        "Whether a message is stored once, by producer name and sequence id. Set it in all clusters.",
    ),
    _flag(
        "delayedDelivery", "delayed_delivery", "Delayed delivery",
        "Whether Shared and Key_Shared hold messages back until their time.", "active",
    ),
    _flag(
        "replicateSubscriptionState", "replicate_subscription_state", "Replicated subscriptions",
        "Whether a durable subscription that is made is kept in step in the other clusters, where whoever makes it "
        "does not say. Those that exist stay as they are.",
    ),
    Policy(
        "schemaCompatibilityStrategy",
        "schemaCompatibilityStrategy",
        "Schema compatibility",
        "Which schemas may follow those that a topic has.",
        (Field("", "Strategy", CHOICE, choices=tuple((each.value, each.value) for each in SchemaStrategy)),),
        ("schema_compatibility",),
    ),
    _flag(
        "isAllowAutoUpdateSchema", "schema_auto_update", "Schemas register themselves",
        "Whether producers and consumers register schemas as they connect.",
    ),
    _flag(
        "schemaValidationEnforced", "schema_validation_enforced", "Schema validation enforced",
        "Whether a topic that has a schema refuses producers without one.",
    ),
    _limit(
        "compactionThreshold", "compaction_threshold_bytes", "Compaction threshold",
        "Compact a topic when it has grown by this much since the last time.", "bytes",
    ),
    _limit("maxMessageSize", "max_message_bytes", "Largest entry", "Of an entry, so of a batch or a chunk.", "bytes"),
    _limit(
        "maxProducersPerTopic", "max_producers", "Producers of a topic", "The next one is refused.", "producers",
    ),
    _limit(
        "maxConsumersPerTopic", "max_consumers", "Consumers of a topic", "The next one is refused.", "consumers",
    ),
    _limit(
        "maxUnackedMessagesPerConsumer", "max_unacked_messages_per_consumer", "Unacknowledged by a consumer",
        "A Shared or Key_Shared consumer that holds as many gets no more until half of them are acknowledged.",
        "messages",
    ),
    _limit(
        "maxUnackedMessagesPerSubscription", "max_unacked_messages_per_subscription",
        "Unacknowledged by a subscription",
        "The same for all consumers of a subscription together.", "messages",
    ),
    Policy(
        "replication",
        "replication",
        "Clusters that it is copied to",
        "Of those that links lead to. Unless it is set, to all of them.",
        (Field("", "Clusters", CLUSTERS),),
        ("replication_clusters",),
        of_topics=False,
    ),
    Policy(
        "autoTopicCreation",
        "autoTopicCreation",
        "Topics made by their use",
        "Whether a producer or consumer that names a topic makes it.",
        (
            Field("allowAutoTopicCreation", "Made by their use", CHOICE, choices=YES_NO),
            Field(
                "topicType", "Kind", CHOICE,
                choices=(("non-partitioned", "without partitions"), ("partitioned", "with partitions")),
            ),
            Field("defaultNumPartitions", "Partitions, of a kind that has some", unit="partitions", optional=True),
        ),
        ("auto_topic_creation", "auto_partitions"),
        of_topics=False,
    ),
    Policy(
        "autoSubscriptionCreation",
        "autoSubscriptionCreation",
        "Subscriptions made by their use",
        "Whether a consumer that names a durable subscription makes it.",
        (Field("allowAutoSubscriptionCreation", "Made by their use", CHOICE, choices=YES_NO),),
        ("auto_subscription_creation",),
        of_topics=False,
    ),
)  # fmt: skip
BY_KEY: Final[Mapping[str, Policy]] = {policy.key: policy for policy in POLICIES}
OF_TOPICS: Final = tuple(policy for policy in POLICIES if policy.of_topics)
_REFUSALS: Final = frozenset(
    {"BadRequest", "PreconditionFailed", "NotSupported", "ClusterNotAllowed", "InvalidPolicies"}
)
"""Errors of the API that are about a value."""


def body_of(policy: Policy, form: Mapping[str, str], clusters: Sequence[str]) -> Any:
    """Return a form's content as the body that the admin path takes."""
    if len(policy.fields) == 1 and not policy.fields[0].name:
        return _sent(policy.fields[0], form, clusters)
    values = {field.name: _sent(field, form, clusters) for field in policy.fields}
    return {
        field.name: values[field.name] for field in policy.fields if not (field.optional and values[field.name] is None)
    }


def _sent(field: Field, form: Mapping[str, str], clusters: Sequence[str]) -> Any:
    if field.kind == CLUSTERS:
        return [name for name in clusters if f"{field.form_name}.{name}" in form]
    text = form.get(field.form_name, "").strip()
    if field.kind == CHOICE:
        return {"true": True, "false": False}.get(text, text)
    if re.fullmatch(rf"-?[0-9]{{1,{DIGITS_MAX}}}", text):
        return int(text)
    return text or None


def filled(policy: Policy, body: Any) -> dict[str, Any]:
    """Return the values of a form's fields for a body, by their names in the form: texts, or the names of clusters."""
    found: dict[str, Any] = {}
    for field in policy.fields:
        value = body.get(field.name) if field.name and isinstance(body, dict) else body
        if field.kind == CLUSTERS:
            found[field.form_name] = list(value or ())
        else:
            found[field.form_name] = _text(value)
    return found


def _text(value: Any) -> str:
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def in_words(policy: Policy, body: Any) -> str:
    """Return a body in words for readers."""
    words = []
    for field in policy.fields:
        value = body.get(field.name) if field.name and isinstance(body, dict) else body
        if not (field.optional and value is None):
            words.append(_word(field, value))
    if set(words) == {NO_LIMIT} or (policy.stored == (QUOTA,) and words[0] == NO_LIMIT):
        return NO_LIMIT
    return ", ".join(words)


def _word(field: Field, value: Any) -> str:
    if field.kind == CLUSTERS:
        return "all" if value is None else ", ".join(value) or "none"
    if field.kind == CHOICE:
        text = _text(value)
        return dict(field.choices).get(text, text)
    if value == field.unlimited:
        return NO_LIMIT
    return f"{value:,} {field.unit}".replace(",", "\u202f")


def field_of(policy: Policy, code: str, reason: str) -> str | None:
    """Return the form's name of the field that an error of the API is about; None if it is not about a value."""
    if code not in _REFUSALS:
        return None
    for field in policy.fields:
        if reason.startswith(f"{policy.error_name}.{field.name}"):
            return field.form_name
    for field in policy.fields:
        if field.name in reason:  # "backlogQuota lacks the field limitSize"
            return field.form_name
    return policy.fields[0].form_name
