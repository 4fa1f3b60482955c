"""The commands on policies, which topics and namespaces share: ``policies``, ``set-…`` and ``unset``.

Each ``set-…`` sets one policy, in the units of the topology file; ``unset POLICY`` takes it back to what counts without
it. Whether a command is about topics or namespaces says the group that it was added to, through the context.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Annotated, Any, Final

import typer

from replicator.api.admin.json_types import NamespacePolicies
from replicator.cli.admin import (
    Switch,
    WorkerOptions,
    duration_seconds,
    fields_table,
    on_off,
    size_bytes,
    takes_worker_options,
)
from replicator.cli.completing import complete_targets
from replicator.cli.json_types import Done
from replicator.cli.output import DONE, Command, Shown
from replicator.engine.json_types import PoliciesOfTopic

UNLIMITED: Final = "unlimited"
MINUTE: Final = 60
MEGABYTE: Final = 1024 * 1024
DIGITS_MAX: Final = 10

LIMITS: Final = {
    "max-producers": "maxProducersPerTopic",
    "max-consumers": "maxConsumersPerTopic",
    "max-unacked-per-consumer": "maxUnackedMessagesPerConsumer",
    "max-unacked-per-subscription": "maxUnackedMessagesPerSubscription",
}
POLICIES: Final = {
    "retention": "retention",
    "message-ttl": "messageTTL",
    "deduplication": "deduplication",
    "delayed-delivery": "delayedDelivery",
    "replicate-subscription-state": "replicateSubscriptionState",
    "schema-compatibility": "schemaCompatibilityStrategy",
    "schema-auto-update": "isAllowAutoUpdateSchema",
    "schema-validation": "schemaValidationEnforced",
    "compaction-threshold": "compactionThreshold",
    "max-message-size": "maxMessageSize",
    **LIMITS,
}
"""Names of policies in the admin paths, by their names in commands."""
QUOTAS: Final = {"backlog-quota-size": "destination_storage", "backlog-quota-age": "message_age"}
NAMESPACE_POLICIES: Final = {"replication-clusters": "replication", "auto-topic-creation": "autoTopicCreation"}

Target = Annotated[
    str, typer.Argument(metavar="NAME", help="Topic or namespace that has the policy.", autocompletion=complete_targets)
]
Limit = Annotated[
    str,
    typer.Argument(
        metavar="LIMIT", help=f"Limit to set: a number, a size or a duration, as the policy needs, or {UNLIMITED}."
    ),
]


class Kind(Enum):
    """Kind of names that a group of commands takes. The context's ``obj`` holds it."""

    TOPIC = "topic"
    NAMESPACE = "namespace"


def add_policy_commands(app: typer.Typer) -> None:
    """Add the commands to a group whose callback puts its :class:`Kind` in the context."""
    for command in (
        set_retention,
        set_backlog_quota,
        set_deduplication,
        set_delayed_delivery,
        set_replicate_subscription_state,
        set_schema_compatibility,
        set_schema_auto_update,
        set_schema_validation,
        unset,
    ):
        app.command(command.__name__.replace("_", "-"))(command)
    for name, (about, parse) in _LIMIT_COMMANDS.items():
        app.command(f"set-{name}", help=about)(_limit_command(POLICIES[name], parse))


@takes_worker_options
def topic_policies(target: Target, *, worker: WorkerOptions) -> Shown[PoliciesOfTopic]:
    """Show the policies that count for a topic."""
    from replicator.operating.admin_client import topic_path

    answer = worker.call("GET", topic_path(target, "policies"))
    return Shown(answer, fields_table({"own": answer["own"], **answer["policies"]}))


@takes_worker_options
def namespace_policies(target: Target, *, worker: WorkerOptions) -> Shown[NamespacePolicies]:
    """Show the policies that were set for a namespace."""
    from replicator.operating.admin_client import namespace_path

    answer = worker.call("GET", namespace_path(target))
    return Shown(answer, fields_table(answer))


@takes_worker_options
def set_retention(
    context: typer.Context,
    target: Target,
    age: Annotated[
        str,
        typer.Option(
            "--age",
            metavar="DURATION",
            help=f"How long consumed messages are kept, such as 7d; {UNLIMITED}, or 0 with a size of 0 to keep none.",
        ),
    ] = UNLIMITED,
    size: Annotated[
        str,
        typer.Option(
            "--size",
            metavar="SIZE",
            help=f"How many bytes of consumed messages are kept, such as 10GiB; {UNLIMITED}, or 0 with an age of 0 to "
            "keep none.",
        ),
    ] = UNLIMITED,
    *,
    worker: WorkerOptions,
) -> None:
    """Set how long and how much consumed data is kept: as long as both limits allow; 0 and 0 keep none."""
    body = {
        "retentionTimeInMinutes": _retained(age, "--age", duration_seconds, MINUTE),
        "retentionSizeInMB": _retained(size, "--size", size_bytes, MEGABYTE),
    }
    worker.call("POST", _path(context, target, "retention"), body)


@takes_worker_options
def set_backlog_quota(
    context: typer.Context,
    target: Target,
    size: Annotated[
        str | None,
        typer.Option(
            "--size", metavar="SIZE", help="Most bytes that a subscription's backlog may have, such as 10GiB."
        ),
    ] = None,
    age: Annotated[
        str | None,
        typer.Option(
            "--age", metavar="DURATION", help="Greatest age of a message in a subscription's backlog, such as 7d."
        ),
    ] = None,
    policy: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="What happens when a backlog reaches the limit: producer_request_hold, producer_exception or "
            "consumer_backlog_eviction.",
        ),
    ] = "producer_request_hold",
    *,
    worker: WorkerOptions,
) -> None:
    """Set how far the slowest subscription may lag, and what happens then. One of --size and --age at a time."""
    if (size is None) == (age is None):
        raise typer.BadParameter("a backlog quota is set for one of --size and --age at a time: give one of them")
    body: dict[str, Any] = {"policy": policy}
    if size is not None:
        kind = QUOTAS["backlog-quota-size"]
        body["limitSize"] = size_bytes(size, "--size")
    else:
        kind = QUOTAS["backlog-quota-age"]
        body["limitTime"] = duration_seconds(age or "", "--age")
    worker.call("POST", _path(context, target, "backlogQuota"), body, backlogQuotaType=kind)


@takes_worker_options
def set_deduplication(context: typer.Context, target: Target, switch: Switch, *, worker: WorkerOptions) -> None:
    """Set whether messages that a producer sends again are dropped."""
    worker.call("POST", _path(context, target, "deduplication"), on_off(switch))


@takes_worker_options
def set_delayed_delivery(context: typer.Context, target: Target, switch: Switch, *, worker: WorkerOptions) -> None:
    """Set whether messages may ask to be delivered later."""
    worker.call("POST", _path(context, target, "delayedDelivery"), {"active": on_off(switch)})


@takes_worker_options
def set_replicate_subscription_state(
    context: typer.Context, target: Target, switch: Switch, *, worker: WorkerOptions
) -> None:
    """Set whether subscriptions that are made from now on are replicated, unless their maker decides it."""
    worker.call("POST", _path(context, target, POLICIES["replicate-subscription-state"]), on_off(switch))


@takes_worker_options
def set_schema_compatibility(
    context: typer.Context,
    target: Target,
    strategy: Annotated[
        str,
        typer.Argument(
            metavar="STRATEGY",
            help="Rule by which a new schema must be compatible with earlier ones, such as BACKWARD, "
            "FORWARD_TRANSITIVE or FULL.",
        ),
    ],
    *,
    worker: WorkerOptions,
) -> None:
    """Set which schemas may follow those of a topic, by the strategies that Pulsar names."""
    worker.call("PUT", _path(context, target, POLICIES["schema-compatibility"]), strategy.upper().replace("-", "_"))


@takes_worker_options
def set_schema_auto_update(context: typer.Context, target: Target, switch: Switch, *, worker: WorkerOptions) -> None:
    """Set whether producers and consumers register schemas as they connect."""
    worker.call("POST", _path(context, target, POLICIES["schema-auto-update"]), on_off(switch))


@takes_worker_options
def set_schema_validation(context: typer.Context, target: Target, switch: Switch, *, worker: WorkerOptions) -> None:
    """Set whether a topic that has a schema refuses producers without one."""
    worker.call("POST", _path(context, target, POLICIES["schema-validation"]), on_off(switch))


@takes_worker_options
def unset(
    context: typer.Context,
    target: Target,
    policy: Annotated[str, typer.Argument(metavar="POLICY", help="Name of the policy, as in its set- command.")],
    *,
    worker: WorkerOptions,
) -> None:
    """Remove a policy, so that the inherited one counts. Quotas: backlog-quota-size, backlog-quota-age."""
    known = POLICIES if context.obj is Kind.TOPIC else {**POLICIES, **NAMESPACE_POLICIES}
    if policy in QUOTAS:
        path = _path(context, target, "backlogQuota")
        worker.call("DELETE", path, backlogQuotaType=QUOTAS[policy])
    elif policy in known:
        worker.call("DELETE", _path(context, target, known[policy]))
    else:
        raise typer.BadParameter(f"POLICY: {policy[:40]!r} is not one of the policies {', '.join((*known, *QUOTAS))}")


@takes_worker_options
def set_replication_clusters(
    context: typer.Context,
    target: Target,
    clusters: Annotated[
        list[str],
        typer.Argument(metavar="CLUSTER…", help="Clusters that the messages of the topic or namespace are copied to."),
    ],
    *,
    worker: WorkerOptions,
) -> Shown[Done] | None:
    """Set the linked clusters to which a namespace is copied. Without this setting, it is copied to all of them."""
    worker.call("POST", _path(context, target, "replication"), clusters)
    if (linked := worker.ask(lambda client: client.linked())) is None:
        return None
    here, others = linked
    leads = f"its links lead to {', '.join(sorted(others))}" if others else "it has no links"
    warnings = [  # it may be linked later, but most often it is a typo, and nothing is copied
        f"warning: {here} has no link to {name!r}, {leads}: nothing goes there until one does"
        for name in clusters
        if name not in {here, *others}
    ]
    return Shown(DONE, notes=warnings)


@takes_worker_options
def set_auto_topic_creation(
    context: typer.Context,
    target: Target,
    switch: Switch,
    partitions: Annotated[
        int,
        typer.Option(
            "--partitions",
            "-p",
            min=0,
            metavar="N",
            help="Number of partitions of new topics; 0 makes topics without partitions.",
        ),
    ] = 0,
    *,
    worker: WorkerOptions,
) -> None:
    """Set whether a producer or consumer that names a topic makes it, and with how many partitions."""
    body: dict[str, Any] = {"allowAutoTopicCreation": on_off(switch)}
    if partitions:
        body |= {"topicType": "partitioned", "defaultNumPartitions": partitions}
    worker.call("POST", _path(context, target, "autoTopicCreation"), body)


def _limit_command(policy: str, parse: Callable[[str], int]) -> Command:
    @takes_worker_options
    def set_limit(context: typer.Context, target: Target, limit: Limit, *, worker: WorkerOptions) -> None:
        worker.call("POST", _path(context, target, policy), _limited(limit, parse))

    return set_limit


def _path(context: typer.Context, target: str, *parts: str) -> str:
    from replicator.operating.admin_client import namespace_path, topic_path

    return topic_path(target, *parts) if context.obj is Kind.TOPIC else namespace_path(target, *parts)


def _retained(text: str, option: str, parse: Callable[[str, str], int], unit: int) -> int:
    """Return a limit of retention in its unit, rounded up; -1 means no limit."""
    return -1 if text == UNLIMITED else -(-parse(text, option) // unit)


def _limited(text: str, parse: Callable[[str], int]) -> int:
    """Return a limit as the admin paths have it: 0 means no limit."""
    if text == UNLIMITED:
        return 0
    limit = parse(text)
    if limit == 0:
        raise typer.BadParameter(f"LIMIT: 0 would mean no limit: give more than 0, or {UNLIMITED} for no limit")
    return limit


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or len(text) > DIGITS_MAX:
        raise typer.BadParameter(f"LIMIT: {text[:40]!r} is not a number or {UNLIMITED}")
    return int(text)


def _duration(text: str) -> int:
    return duration_seconds(text, "LIMIT")


def _size(text: str) -> int:
    return size_bytes(text, "LIMIT")


_LIMIT_COMMANDS: Final = {
    "message-ttl": ("After what time messages that nobody consumed count as consumed.", _duration),
    "compaction-threshold": ("After how many bytes topics are compacted by themselves; unlimited: never.", _size),
    "max-message-size": ("How large a message may be.", _size),
    **{name: (f"Set {policy}: a number, or {UNLIMITED}.", _number) for name, policy in LIMITS.items()},
}
"""The ``set-…`` commands of one limit: what their help says, and how the limit is written."""
