"""Policies in the form that Pulsar's REST API has them in, one by one. Pure.

Each shape reads a body into the policies that a topic or namespace then has, and shows a policy as a body. Where Pulsar
writes no limit as 0 or -1, so does this; its minutes and megabytes are rounded up when a limit is finer.

=================================  =================================================================================
path                               body
=================================  =================================================================================
retention                          ``{"retentionTimeInMinutes", "retentionSizeInMB"}``; -1 is no limit, both 0 keep
                                   nothing
messageTTL                         seconds; 0 is none
backlogQuota                       ``{"limitSize" (bytes), "limitTime" (seconds), "policy"}``; -1 is no limit; the
                                   parameter ``backlogQuotaType`` is ``destination_storage`` or ``message_age``
deduplication                      true or false
compactionThreshold                bytes; 0 is none
maxUnackedMessagesPerConsumer      messages; 0 is no limit
maxUnackedMessagesPerSubscription  messages; 0 is no limit
maxProducersPerTopic               producers; 0 is no limit
maxConsumersPerTopic               consumers; 0 is no limit
maxMessageSize                     bytes; 0 is no limit
delayedDelivery                    ``{"active", "tickTime"}``; the tick is not used: a message is delivered at its
                                   time, to the millisecond
replicateSubscriptionState         true or false, for subscriptions that are made where nobody says
schemaCompatibilityStrategy        the name of a strategy; ``UNDEFINED`` takes it back to what the level below gives
isAllowAutoUpdateSchema            true or false
schemaValidationEnforced           true or false
=================================  =================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from replicator.api.admin.errors import NotSupported, PreconditionFailed
from replicator.api.admin.requests import flag_field, number_field, object_field, text_field
from replicator.api.errors import BadRequest
from replicator.engine.log.entry import ENTRY_BYTES_MAX
from replicator.engine.policies import BacklogQuota, QuotaPolicy, Retention, SchemaStrategy, TopicPolicies
from replicator.engine.policies_codec import NUMBER_MAX

NO_LIMIT: Final = -1
MEGABYTE: Final = 1024 * 1024
MINUTE: Final = 60
COUNT_MAX: Final = 2**31 - 1

DESTINATION_STORAGE: Final = "destination_storage"
MESSAGE_AGE: Final = "message_age"
QUOTA_KINDS: Final = (DESTINATION_STORAGE, MESSAGE_AGE)
_RETENTION_FIELDS: Final = ("retentionTimeInMinutes", "retentionSizeInMB")
TICK_MS: Final = 1
UNDEFINED: Final = "UNDEFINED"


@dataclass(frozen=True, slots=True)
class PolicyShape:
    """One policy: the field of :class:`TopicPolicies` that it is, how it is read, and how it is shown."""

    field: str
    read: Callable[[Any, str], Any]
    """Function that reads a body; its second argument is the name for errors. Raises :class:`BadRequest` or
    :class:`PreconditionFailed`.
    """
    show: Callable[[Any], Any]
    where_unset: Any = None
    """The body where nothing is set; None is shown by an answer without a body."""
    none_unsets: bool = False
    """Whether a body that is read as None takes the policy back to what counts without it."""


def _read_retention(body: Any, policy: str) -> Retention:
    fields = object_field(body, policy)
    for field in _RETENTION_FIELDS:
        if field not in fields:
            raise BadRequest(f"{policy} lacks the field {field}: give both limits")
    minutes, megabytes = (
        number_field(fields[field], f"{policy}.{field}", least=NO_LIMIT, most=NUMBER_MAX // MEGABYTE)
        for field in _RETENTION_FIELDS
    )
    if (minutes == 0) != (megabytes == 0):
        raise BadRequest(
            f"{policy}: only one of retentionTimeInMinutes and retentionSizeInMB is 0, which keeps nothing, whatever "
            "the other one is: set both to 0, or neither"
        )
    return Retention(
        age_seconds_max=None if minutes == NO_LIMIT else minutes * MINUTE,
        bytes_max=None if megabytes == NO_LIMIT else megabytes * MEGABYTE,
    )


def _show_retention(retention: Retention) -> dict[str, int]:
    return {
        "retentionTimeInMinutes": _rounded_up(retention.age_seconds_max, MINUTE),
        "retentionSizeInMB": _rounded_up(retention.bytes_max, MEGABYTE),
    }


def _read_delayed_delivery(body: Any, policy: str) -> bool:
    fields = object_field(body, policy)
    number_field(fields.get("tickTime", TICK_MS), f"{policy}.tickTime")
    if number_field(fields.get("maxDeliveryDelayInMillis", 0), f"{policy}.maxDeliveryDelayInMillis"):
        raise NotSupported(f"{policy}.maxDeliveryDelayInMillis: delays are not limited in this version; send 0")
    return flag_field(fields.get("active"), f"{policy}.active")


def _show_delayed_delivery(active: bool) -> dict[str, Any]:
    return {"active": active, "tickTime": TICK_MS, "maxDeliveryDelayInMillis": 0}


def _read_strategy(body: Any, policy: str) -> SchemaStrategy | None:
    text = text_field(body, policy)
    if text == UNDEFINED:
        return None
    try:
        return SchemaStrategy(text)
    except ValueError:
        names = ", ".join((UNDEFINED, *(each.value for each in SchemaStrategy)))
        raise BadRequest(f"{policy} must be one of {names}, not {text[:40]!r}") from None


def _rounded_up(limit: int | None, unit: int) -> int:
    return NO_LIMIT if limit is None else -(-limit // unit)


def _limit(field: str, most: int = COUNT_MAX) -> PolicyShape:
    """Return the shape of a policy that is a number, in which 0 means no limit."""

    def read(body: Any, name: str) -> int | None:
        return number_field(body, name, most=most) or None

    return PolicyShape(field, read, lambda value: value or 0)


SHAPES: Final[Mapping[str, PolicyShape]] = {
    "retention": PolicyShape("retention", _read_retention, _show_retention),
    "messageTTL": _limit("message_ttl_seconds"),
    "deduplication": PolicyShape("deduplication", flag_field, bool),
    "compactionThreshold": _limit("compaction_threshold_bytes", NUMBER_MAX),
    "maxUnackedMessagesPerConsumer": _limit("max_unacked_messages_per_consumer"),
    "maxUnackedMessagesPerSubscription": _limit("max_unacked_messages_per_subscription"),
    "maxProducersPerTopic": _limit("max_producers"),
    "maxConsumersPerTopic": _limit("max_consumers"),
    "delayedDelivery": PolicyShape(
        "delayed_delivery",
        _read_delayed_delivery,
        _show_delayed_delivery,
    ),
    "maxMessageSize": _limit("max_message_bytes", ENTRY_BYTES_MAX),
    "replicateSubscriptionState": PolicyShape("replicate_subscription_state", flag_field, bool),
    "schemaCompatibilityStrategy": PolicyShape(
        "schema_compatibility", _read_strategy, lambda strategy: strategy.value, UNDEFINED, none_unsets=True
    ),
    "isAllowAutoUpdateSchema": PolicyShape("schema_auto_update", flag_field, bool, where_unset=True),
    "schemaValidationEnforced": PolicyShape("schema_validation_enforced", flag_field, bool, where_unset=False),
}
ALIASES: Final[Mapping[str, str]] = {
    "deduplicationEnabled": "deduplication",
    "maxUnackedMessagesOnConsumer": "maxUnackedMessagesPerConsumer",
    "maxUnackedMessagesOnSubscription": "maxUnackedMessagesPerSubscription",
    "maxProducers": "maxProducersPerTopic",
    "maxConsumers": "maxConsumersPerTopic",
}
"""Pulsar's other name of a policy, used for single topics, to its name for namespaces. Both names are accepted for
both.
"""


def shape_of(name: str) -> PolicyShape | None:
    """Return the shape of the policy that a path names."""
    return SHAPES.get(ALIASES.get(name, name))


# Backlog quotas: two limits in one policy of ours.


def with_quota(policies: TopicPolicies, kind: str, body: Any) -> TopicPolicies:
    """Return ``policies`` with the backlog quota in a body. Raise :class:`BadRequest` or
    :class:`PreconditionFailed`.
    """
    fields = object_field(body, "backlogQuota")
    policy = _quota_policy(fields.get("policy"))
    own = policies.backlog_quota
    if kind == DESTINATION_STORAGE:
        other = age = own.age_seconds_max
        size = _quota_limit(fields, "limitSize", "limit")
    else:
        other = size = own.bytes_max
        age = _quota_limit(fields, "limitTime")
    if other is not None and own.policy is not policy:
        raise PreconditionFailed(
            f"backlogQuota.policy must be {own.policy.value}, as for the other quota (of size or of time), because "
            "one policy holds for both; to change it, remove the other quota first"
        )
    return replace(policies, backlog_quota=BacklogQuota(size, age, policy))


def without_quota(policies: TopicPolicies, kind: str) -> TopicPolicies:
    """Return ``policies`` without one of the two quotas."""
    quota = policies.backlog_quota
    if kind == DESTINATION_STORAGE:
        return replace(policies, backlog_quota=replace(quota, bytes_max=None))
    return replace(policies, backlog_quota=replace(quota, age_seconds_max=None))


def show_quotas(quota: BacklogQuota) -> dict[str, dict[str, Any]]:
    """Return the quotas that are set, by kind."""
    shown: dict[str, dict[str, Any]] = {}
    if quota.bytes_max is not None:
        size = quota.bytes_max
        shown[DESTINATION_STORAGE] = {
            "limit": size, "limitSize": size, "limitTime": NO_LIMIT, "policy": quota.policy.value,
        }  # fmt: skip
    if quota.age_seconds_max is not None:
        shown[MESSAGE_AGE] = {
            "limit": NO_LIMIT, "limitSize": NO_LIMIT, "limitTime": quota.age_seconds_max, "policy": quota.policy.value,
        }  # fmt: skip
    return shown


def unlimited(quota: BacklogQuota) -> dict[str, Any]:
    """Return the JSON of a quota that is not set, for answers that show what applies."""
    return {"limit": NO_LIMIT, "limitSize": NO_LIMIT, "limitTime": NO_LIMIT, "policy": quota.policy.value}


def _quota_policy(value: Any) -> QuotaPolicy:
    try:
        return QuotaPolicy(value)
    except ValueError:
        names = ", ".join(each.value for each in QuotaPolicy)
        raise BadRequest(f"backlogQuota.policy must be one of {names}, not {str(value)[:40]!r}") from None


def _quota_limit(fields: Mapping[str, Any], *names: str) -> int | None:
    """Return the first of the named fields that is present and is not -1. Some tools fill in all of them, with -1 for
    none.
    """
    given = [name for name in names if name in fields]
    if not given:
        raise BadRequest(f"backlogQuota lacks the field {names[0]}")
    limits = [number_field(fields[name], f"backlogQuota.{name}", least=NO_LIMIT, most=NUMBER_MAX) for name in given]
    return next((limit for limit in limits if limit > 0), None)
