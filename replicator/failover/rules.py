"""Comparison of two clusters' rules: differences would surprise clients after a switch. Pure.

Rules are tenants, namespaces, permissions, policies, schemas, partitions and terminated topics. Links carry messages,
acknowledgements, partitions and schemas, but neither permissions nor policies. So rules are compared before a switch.
:func:`rules_of` parses the rules that a worker answers with.

Tenants, namespaces, permissions, policies and terminated topics are compared both ways. Schemas and partitions are
compared only for topics of the source: the target may have topics of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from replicator.engine.topic_name import SCHEME, TopicName, parse_topic
from replicator.engine.topics.grants import NONE
from replicator.security.permissions import Permissions

LISTED_MAX: Final = 100
"""Differences that are named; of more, how many."""


@dataclass(frozen=True, slots=True)
class Rules:
    """Rules for clients in one cluster. ``places`` are tenants, namespaces and topics by name."""

    cluster: str
    asks: bool = False
    """Whether it asks who somebody is; else nobody is refused there."""
    superusers: frozenset[str] = frozenset()
    roles: Mapping[str, Mapping[str, frozenset[str]]] = field(default_factory=dict)
    """Actions that were granted by operators and by the topology, by place and role."""
    subscriptions: Mapping[str, Mapping[str, frozenset[str]]] = field(default_factory=dict)
    """Roles that alone may use a subscription, by namespace and subscription."""
    prefixed: frozenset[str] = frozenset()
    """Namespaces whose subscriptions have to begin with their role."""
    policies: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Policies that are set, by namespace or topic."""
    schemas: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Versions of schemas, by topic."""
    partitions: Mapping[str, int] = field(default_factory=dict)
    terminated: frozenset[str] = frozenset()
    tenants: frozenset[str] | None = None
    """Tenants of the cluster; None if the worker's version does not send them. The next three fields are then None,
    too."""
    namespaces: frozenset[str] | None = None
    namespaces_by_use: bool | None = None
    """Whether the first use of a topic creates its namespace; None as for ``tenants``."""
    defaults: Mapping[str, Any] | None = None
    """Policies from the topology file, by name, for topics that have none of their own; None as for ``tenants``."""
    elsewhere: bool = False
    """Whether clients are connected to brokers beside the worker, which hold them to rules of their own."""


def rules_of(answer: Mapping[str, Any]) -> Rules:
    """Return the rules in the JSON answer of ``GET /replication/v1/rules``. Raises :class:`ValueError` if it is
    malformed."""
    try:
        return Rules(
            str(answer["cluster"]),
            bool(answer["asks"]),
            frozenset(map(str, answer["superusers"])),
            {place: _sets(roles) for place, roles in answer["roles"].items()},
            {place: _sets(roles) for place, roles in answer["subscriptions"].items()},
            frozenset(answer["prefixed"]),
            {**answer["policies"], **answer["topic_policies"]},
            _sets(answer["schemas"]),
            {str(topic): int(number) for topic, number in answer["partitions"].items()},
            frozenset(answer["terminated"]),
            **_newer_rules(answer),
            elsewhere=bool(answer.get("clients_elsewhere")),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"a worker's answer about policies and schemas is malformed ({error!r}); run the same version everywhere"
        ) from None


def _newer_rules(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return those fields of :class:`Rules` that workers of earlier versions do not send; empty for such a worker's
    answer."""
    if "namespaces" not in answer:
        return {}
    return {
        "tenants": frozenset(map(str, answer["tenants"])),
        "namespaces": frozenset(map(str, answer["namespaces"])),
        "namespaces_by_use": bool(answer["namespaces_by_use"]),
        "defaults": {str(name): value for name, value in answer["defaults"].items()},
    }


def _sets(lists: Mapping[str, Any]) -> dict[str, frozenset[str]]:
    return {str(name): frozenset(map(str, values)) for name, values in lists.items()}


def differences(source: Rules, target: Rules) -> list[str]:
    """Return a sentence for each difference that clients of ``source`` would meet at ``target``."""
    found = [
        *_of_namespaces(source, target),
        *_of_roles(source, target),
        *_of_subscriptions(source, target),
        *_of_policies(source, target),
        *_of_topics(source, target),
    ]
    if (more := len(found) - LISTED_MAX) > 0:
        return [*found[:LISTED_MAX], f"… and {more:,} more difference{'s' * (more > 1)}"]
    return found


def _of_namespaces(source: Rules, target: Rules) -> Iterator[str]:
    for each in (source, target):
        if each.namespaces is None:
            yield (
                f"the worker of {each.cluster} is of an earlier version: which tenants and namespaces it has, and what "
                "the topology file sets for all topics, is not compared"
            )
    if source.tenants is None or target.tenants is None or source.namespaces is None or target.namespaces is None:
        return
    for kind, ours, theirs in (
        ("tenant", source.tenants, target.tenants),
        ("namespace", source.namespaces, target.namespaces),
    ):
        for name in sorted(ours ^ theirs):
            where, where_not = (source, target) if name in ours else (target, source)
            yield f"{kind} {name} is in {where.cluster}, and not in {where_not.cluster}"
    if source.namespaces_by_use != target.namespaces_by_use:
        making, other = (source, target) if source.namespaces_by_use else (target, source)
        yield f"who uses a topic makes its namespace in {making.cluster}, and not in {other.cluster}"


def _of_roles(source: Rules, target: Rules) -> Iterator[str]:
    if source.asks != target.asks:
        asking, other = (source, target) if source.asks else (target, source)
        yield f"{asking.cluster} asks who somebody is, and {other.cluster} does not"
    if not (source.asks and target.asks):
        return
    for role in sorted(source.superusers - target.superusers):
        yield f"role {role!r} is a superuser in {source.cluster}, and not in {target.cluster}"
    for role in sorted(target.superusers - source.superusers):
        yield f"role {role!r} is a superuser in {target.cluster}, and not in {source.cluster}"
    for here, other in ((source, target), (target, source)):
        there = Permissions(lambda name: NONE, other.roles, other.superusers)
        for place, roles in sorted(here.roles.items()):
            for role, actions in sorted(roles.items()):
                refused = {action for action in actions if not there.allows(role, (action,), _place(place))}
                if role not in here.superusers and refused:
                    what = ", ".join(sorted(refused))
                    yield f"role {role!r} may {what} at {place} in {here.cluster}, and {other.cluster} would refuse it"


def _place(name: str) -> str | TopicName:
    return parse_topic(name) if name.startswith(SCHEME) else name


def _of_subscriptions(source: Rules, target: Rules) -> Iterator[str]:
    if not (source.asks and target.asks):
        return
    for here, there in ((target, source), (source, target)):
        for namespace, subscriptions in sorted(here.subscriptions.items()):
            for name, roles in sorted(subscriptions.items()):
                other = there.subscriptions.get(namespace, {}).get(name)
                if other is None or (roles != other and here is target):
                    listed = ", ".join(sorted(roles))
                    who = "all who may consume" if other is None else ", ".join(sorted(other))
                    yield (
                        f"subscription {name!r} of {namespace} is for {listed} alone in {here.cluster}, and for {who} "
                        f"in {there.cluster}"
                    )
        for namespace in sorted(here.prefixed - there.prefixed):
            yield (
                f"subscriptions of {namespace} have to begin with their role in {here.cluster}, and not in "
                f"{there.cluster}"
            )


def _of_policies(source: Rules, target: Rules) -> Iterator[str]:
    if source.defaults is not None and target.defaults is not None:
        for name in sorted(source.defaults.keys() & target.defaults.keys()):  # other versions know others
            ours, theirs = source.defaults[name], target.defaults[name]
            if ours != theirs:
                yield (
                    f"policy {name} of topics without their own is {_shown(ours)} in {source.cluster}, and "
                    f"{_shown(theirs)} in {target.cluster}"
                )
    for place in sorted({*source.policies, *target.policies}):
        own, other = source.policies.get(place, {}), target.policies.get(place, {})
        for name in sorted({*own, *other}):
            if own.get(name) != other.get(name):
                yield (
                    f"policy {name} of {place} is {_shown(own.get(name))} in {source.cluster}, and "
                    f"{_shown(other.get(name))} in {target.cluster}"
                )


def _of_topics(source: Rules, target: Rules) -> Iterator[str]:
    for topic, versions in sorted(source.schemas.items()):
        if missing := len(versions - target.schemas.get(topic, frozenset())):
            yield f"{target.cluster} lacks {missing} of {len(versions)} schemas of {topic}"
    for topic, number in sorted(source.partitions.items()):
        other = target.partitions.get(topic, 0)
        if other != number:
            yield f"{topic} has {number} partitions in {source.cluster}, and {other} in {target.cluster}"
    for topic in sorted(source.terminated ^ target.terminated):
        where, where_not = (source, target) if topic in source.terminated else (target, source)
        yield f"{topic} is terminated in {where.cluster}, and not in {where_not.cluster}"


def _shown(value: Any) -> str:
    return "not set" if value is None else str(value)[:80]
