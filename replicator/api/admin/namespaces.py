"""Routes of namespaces: ``/admin/v2/namespaces``. The policies that a namespace sets for its topics are in
:mod:`replicator.api.admin.policies`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from aiohttp import web

from replicator.api.addresses import addresses_of
from replicator.api.admin.absent_policies import ABSENT_FIELDS
from replicator.api.admin.clusters import cluster_names
from replicator.api.admin.errors import ClusterNotAllowed, NotSupported, PreconditionFailed
from replicator.api.admin.namespace_actions import BUNDLES
from replicator.api.admin.permissions import read_auth_policies, shown_auth_policies
from replicator.api.admin.policies import CHANGES, OF_NAMESPACE, shown_policies
from replicator.api.admin.policy_shapes import QUOTA_KINDS, shape_of, show_quotas, with_quota
from replicator.api.admin.requests import (
    ENGINE,
    flag_field,
    flag_parameter,
    namespace_name,
    no_content,
    number_field,
    object_field,
    read_json,
    tenant_name,
    text_field,
    texts_field,
)
from replicator.api.errors import BadRequest
from replicator.engine.engine import Engine
from replicator.engine.errors import NamespaceExists
from replicator.engine.policies import PolicyOverrides, TopicPolicies
from replicator.engine.topics.namespace_policies import NamespacePolicies
from replicator.engine.topics.partitions import PARTITIONS_MAX

PARTITIONED: Final = "partitioned"
NON_PARTITIONED: Final = "non-partitioned"
AUTO_SUBSCRIPTION_FIELD: Final = "allowAutoSubscriptionCreation"

TOPIC_POLICY_FIELDS: Final = {
    "retention": "retention_policies",
    "messageTTL": "message_ttl_in_seconds",
    "deduplication": "deduplicationEnabled",
    "compactionThreshold": "compaction_threshold",
    "maxUnackedMessagesPerConsumer": "max_unacked_messages_per_consumer",
    "maxUnackedMessagesPerSubscription": "max_unacked_messages_per_subscription",
    "maxProducersPerTopic": "max_producers_per_topic",
    "maxConsumersPerTopic": "max_consumers_per_topic",
    "replicateSubscriptionState": "replicate_subscription_state",
    "schemaCompatibilityStrategy": "schema_compatibility_strategy",
    "isAllowAutoUpdateSchema": "is_allow_auto_update_schema",
    "schemaValidationEnforced": "schema_validation_enforced",
    "delayedDelivery": "delayed_delivery_policies",
}
"""Name of each topic policy in Pulsar's JSON of all policies of a namespace."""
NAMESPACE_FIELDS: Final = (
    *TOPIC_POLICY_FIELDS.values(),
    "backlog_quota_map",
    "replication_clusters",
    "autoTopicCreationOverride",
    "autoSubscriptionCreationOverride",
)
NOTHING_SET: Final[Mapping[str, Any]] = {
    "allowed_clusters": [],
    "bundles": BUNDLES,
    "backlog_quota_map": {},
    "clusterDispatchRate": {},
    "topicDispatchRate": {},
    "subscriptionDispatchRate": {},
    "replicatorDispatchRate": {},
    "clusterSubscribeRate": {},
    "publishMaxMessageRate": {},
    "latency_stats_sample_rate": {},
    "deleted": False,
    "encryption_required": False,
    "offload_threshold": -1,
    "offload_threshold_in_seconds": -1,
    "schema_compatibility_strategy": "UNDEFINED",
    "is_allow_auto_update_schema": True,
    "schema_validation_enforced": False,
    "subscription_types_enabled": [],
    "properties": {},
    "migrated": False,
}
"""Policies of a namespace for which nothing is set, as Pulsar shows them."""
EMPTY_TEXTS: Final = ("", "None", "UNDEFINED")
"""Texts that tools send in unfilled fields, besides null, 0, -1, false and empty lists and objects."""
NEVER_UNFILLED: Final = frozenset({"offload_threshold", "offload_threshold_in_seconds", "properties"})
"""Fields in which such a value asks for something: a threshold of 0 is "offload at once". An `offload_deletion_lag_ms`
of 0 is not among them: tools in Go send it unasked, and it asks for nothing while nothing is offloaded."""


def routes() -> list[web.RouteDef]:
    """Return the routes of namespaces."""
    return [
        web.get("/admin/v2/namespaces/{tenant}", list_namespaces),
        web.get(OF_NAMESPACE, show),
        web.put(OF_NAMESPACE, create),
        web.delete(OF_NAMESPACE, delete),
        web.get(f"{OF_NAMESPACE}/topics", list_topics),
        web.get(f"{OF_NAMESPACE}/replication", show_replication),
        web.post(f"{OF_NAMESPACE}/replication", set_replication),
        web.delete(f"{OF_NAMESPACE}/replication", unset_replication),
        web.get(f"{OF_NAMESPACE}/autoTopicCreation", show_auto_topics),
        web.post(f"{OF_NAMESPACE}/autoTopicCreation", set_auto_topics),
        web.delete(f"{OF_NAMESPACE}/autoTopicCreation", unset_auto_topics),
        web.get(f"{OF_NAMESPACE}/autoSubscriptionCreation", show_auto_subscriptions),
        web.post(f"{OF_NAMESPACE}/autoSubscriptionCreation", set_auto_subscriptions),
        web.delete(f"{OF_NAMESPACE}/autoSubscriptionCreation", unset_auto_subscriptions),
    ]


async def list_namespaces(request: web.Request) -> web.Response:
    return web.json_response(request.app[ENGINE].catalog.visible_namespaces(tenant_name(request)))


async def list_topics(request: web.Request) -> web.Response:
    return web.json_response(request.app[ENGINE].catalog.visible_topics(namespace_name(request)))


async def show(request: web.Request) -> web.Response:
    """Answer with all policies that are set for the namespace."""
    engine, name = request.app[ENGINE], namespace_name(request)
    shown = _all_policies(engine.catalog.namespace(name), cluster_names(request))
    return web.json_response(shown | shown_auth_policies(engine, name))


async def create(request: web.Request) -> web.Response:
    """Make a namespace, with the policies and permissions of the body if it has some."""
    engine, name = request.app[ENGINE], namespace_name(request)
    fields = _fields_of(await read_json(request))
    policies, grants = _policies_of(engine, fields), read_auth_policies(name, fields)
    check_clusters(request, policies.replication_clusters or ())
    if name.partition("/")[0] in engine.catalog.tenants() and name in engine.catalog.namespaces(tenant_name(request)):
        raise NamespaceExists(f"there is a namespace {name!r} already")
    await engine.catalog.create_namespace(name, policies, grants)
    return no_content()


async def delete(request: web.Request) -> web.Response:
    """Delete a namespace; with ``force=true``, also its topics, and disconnect their clients."""
    force = flag_parameter(request, "force")
    await request.app[ENGINE].catalog.delete_namespace(namespace_name(request), force=force)
    return no_content()


# Where it is copied to.


async def show_replication(request: web.Request) -> web.Response:
    """Answer with the clusters that were chosen for the namespace; all if none were, because it is then copied over
    every link.
    """
    chosen = request.app[ENGINE].catalog.namespace(namespace_name(request)).replication_clusters
    return web.json_response(sorted(cluster_names(request)) if chosen is None else list(chosen))


async def set_replication(request: web.Request) -> web.Response:
    clusters = texts_field(await read_json(request), "replication")
    check_clusters(request, clusters)
    return await _change(request, replication_clusters=clusters)


def check_clusters(request: web.Request, clusters: Iterable[str]) -> None:
    """Raise :class:`ClusterNotAllowed` if the topology lacks one of ``clusters``; without a topology, accept all."""
    known = cluster_names(request)
    if addresses_of(request) and (unknown := [name for name in clusters if name not in known]):
        raise ClusterNotAllowed(f"there is no cluster {unknown[0][:40]!r}; there are {', '.join(sorted(known))}")


async def unset_replication(request: web.Request) -> web.Response:
    return await _change(request, replication_clusters=None)


# What is made by who uses it.


async def show_auto_topics(request: web.Request) -> web.Response:
    return web.json_response(_auto_topics(request.app[ENGINE].catalog.namespace(namespace_name(request))))


async def set_auto_topics(request: web.Request) -> web.Response:
    return await _change(request, **_read_auto_topics(await read_json(request), "autoTopicCreation"))


async def unset_auto_topics(request: web.Request) -> web.Response:
    default = NamespacePolicies()
    return await _change(
        request, auto_topic_creation=default.auto_topic_creation, auto_partitions=default.auto_partitions
    )


async def show_auto_subscriptions(request: web.Request) -> web.Response:
    policies = request.app[ENGINE].catalog.namespace(namespace_name(request))
    return web.json_response({AUTO_SUBSCRIPTION_FIELD: policies.auto_subscription_creation})


async def set_auto_subscriptions(request: web.Request) -> web.Response:
    return await _change(request, **_read_auto_subscriptions(await read_json(request), "autoSubscriptionCreation"))


async def unset_auto_subscriptions(request: web.Request) -> web.Response:
    return await _change(request, auto_subscription_creation=NamespacePolicies().auto_subscription_creation)


async def _change(request: web.Request, **changes: Any) -> web.Response:
    catalog, name = request.app[ENGINE].catalog, namespace_name(request)
    async with request.app[CHANGES]:
        await catalog.set_namespace(name, replace(catalog.namespace(name), **changes))
    return no_content()


# Bodies.


def _auto_topics(policies: NamespacePolicies) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "allowAutoTopicCreation": policies.auto_topic_creation,
        "topicType": PARTITIONED if policies.auto_partitions else NON_PARTITIONED,
    }
    if policies.auto_partitions:
        shown["defaultNumPartitions"] = policies.auto_partitions
    return shown


def _read_auto_topics(body: Any, name: str) -> dict[str, Any]:
    fields = object_field(body, name)
    kind = text_field(fields.get("topicType") or NON_PARTITIONED, f"{name}.topicType")
    if kind not in (PARTITIONED, NON_PARTITIONED):
        raise BadRequest(f"{name}.topicType must be {PARTITIONED} or {NON_PARTITIONED}, not {kind[:40]!r}")
    partitions = 0
    if kind == PARTITIONED:
        if fields.get("defaultNumPartitions") is None:
            raise PreconditionFailed(
                f"{name}.defaultNumPartitions is missing: give the number of partitions that new topics of this "
                "namespace get"
            )
        partitions = number_field(
            fields["defaultNumPartitions"], f"{name}.defaultNumPartitions", least=1, most=PARTITIONS_MAX
        )
    return {
        "auto_topic_creation": flag_field(fields.get("allowAutoTopicCreation"), f"{name}.allowAutoTopicCreation"),
        "auto_partitions": partitions,
    }


def _read_auto_subscriptions(body: Any, name: str) -> dict[str, Any]:
    fields = object_field(body, name)
    allows = flag_field(fields.get(AUTO_SUBSCRIPTION_FIELD), f"{name}.{AUTO_SUBSCRIPTION_FIELD}")
    return {"auto_subscription_creation": allows}


def _all_policies(policies: NamespacePolicies, clusters: Iterable[str]) -> dict[str, Any]:
    """Return all policies, with Pulsar's defaults for policies that this version lacks. If no clusters are chosen, a
    namespace goes over every link: then show ``clusters``, because tools expect some.
    """
    chosen = policies.replication_clusters
    shown: dict[str, Any] = {
        **NOTHING_SET,
        "autoTopicCreationOverride": _auto_topics(policies),
        "autoSubscriptionCreationOverride": {AUTO_SUBSCRIPTION_FIELD: policies.auto_subscription_creation},
        "replication_clusters": sorted(clusters) if chosen is None else list(chosen),
    }
    if policies.topic_policies is not None:
        shown |= shown_policies(policies.topic_policies, TOPIC_POLICY_FIELDS)
        if "backlog_quota" in policies.topic_policies.values:
            shown["backlog_quota_map"] = show_quotas(policies.topic_policies.values["backlog_quota"])
    return shown


def _fields_of(body: Any) -> Mapping[str, Any]:
    """Return the fields of a new namespace's policies, which may stand in an object ``policies`` of their own."""
    if body is None:
        return {}
    fields = object_field(body, "policies")
    return object_field(fields["policies"], "policies") if set(fields) == {"policies"} else fields


def _policies_of(engine: Engine, fields: Mapping[str, Any]) -> NamespacePolicies:
    """Read the policies for a new namespace. Raise an error that names the wrong field."""
    policies = NamespacePolicies()
    for name, value in fields.items():
        absent = ABSENT_FIELDS.get(name)
        if absent is None or value is None or absent.asks_nothing(value):
            continue
        if name in NEVER_UNFILLED or not _is_empty(value):
            raise NotSupported(f"policies.{name} cannot be set in this version: {absent.why}; leave it out")
    given = {name: value for name, value in fields.items() if value is not None and name in NAMESPACE_FIELDS}
    if clusters := texts_field(given.get("replication_clusters", []), "policies.replication_clusters"):
        policies = replace(policies, replication_clusters=clusters)
    if "autoTopicCreationOverride" in given:
        auto = _read_auto_topics(given["autoTopicCreationOverride"], "policies.autoTopicCreationOverride")
        policies = replace(policies, **auto)
    if "autoSubscriptionCreationOverride" in given:
        name = "policies.autoSubscriptionCreationOverride"
        policies = replace(policies, **_read_auto_subscriptions(given["autoSubscriptionCreationOverride"], name))
    default = engine.loaded.default_policies
    overrides = PolicyOverrides.between(default, _topic_policies_of(default, given))
    return replace(policies, topic_policies=overrides or None)


def _topic_policies_of(policies: TopicPolicies, given: Mapping[str, Any]) -> TopicPolicies:
    for path, name in TOPIC_POLICY_FIELDS.items():
        shape = shape_of(path)
        assert shape is not None
        if name in given:
            value = shape.read(given[name], f"policies.{name}")
            if value is not None or not shape.none_unsets:
                policies = replace(policies, **{shape.field: value})
    for kind, quota in object_field(given.get("backlog_quota_map", {}), "policies.backlog_quota_map").items():
        if kind not in QUOTA_KINDS:
            raise BadRequest(
                f"policies.backlog_quota_map: {kind[:40]!r} is not a kind of quota; give {' or '.join(QUOTA_KINDS)}"
            )
        policies = with_quota(policies, kind, quota)
    return policies


def _is_empty(value: Any) -> bool:
    """Return whether a field holds a value that tools send for "not set"."""
    left = [value]
    while left:
        each = left.pop()
        if isinstance(each, dict):
            left += each.values()
        elif each not in (EMPTY_TEXTS if isinstance(each, str) else (None, 0, -1, False, [])):
            return False
    return True
