"""Policies, namespaces and tenants over the admin paths: what is set counts at once; what is wrong changes nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from admin_support import administered
from engine_support import message

from replicator.engine.engine import EngineSettings
from replicator.engine.policies import BacklogQuota, QuotaPolicy, Retention, SchemaStrategy, TopicPolicies

EU = "persistent/acme/orders/eu"
FULL = "persistent://acme/orders/eu"
NS = "namespaces/acme/orders"
DEFAULT = TopicPolicies()

POLICIES = [
    ("retention", {"retentionTimeInMinutes": 90, "retentionSizeInMB": -1}, "retention", Retention(5400, None)),
    ("retention", {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}, "retention", Retention(0, 0)),
    ("messageTTL", 120, "message_ttl_seconds", 120),
    ("messageTTL", 0, "message_ttl_seconds", None),
    ("deduplication", True, "deduplication", True),
    ("deduplicationEnabled", True, "deduplication", True),
    ("compactionThreshold", 10_000_000, "compaction_threshold_bytes", 10_000_000),
    ("maxUnackedMessagesPerConsumer", 0, "max_unacked_messages_per_consumer", None),
    ("maxUnackedMessagesOnSubscription", 7, "max_unacked_messages_per_subscription", 7),
    ("maxProducers", 3, "max_producers", 3),
    ("maxConsumersPerTopic", 4, "max_consumers", 4),
    ("maxMessageSize", 1024, "max_message_bytes", 1024),
    ("delayedDelivery", {"active": False, "tickTime": 1, "maxDeliveryDelayInMillis": 0}, "delayed_delivery", False),
    ("replicateSubscriptionState", True, "replicate_subscription_state", True),
    ("schemaCompatibilityStrategy", "FORWARD_TRANSITIVE", "schema_compatibility", SchemaStrategy.FORWARD_TRANSITIVE),
    ("isAllowAutoUpdateSchema", False, "schema_auto_update", False),
    ("schemaValidationEnforced", True, "schema_validation_enforced", True),
]


SHOWN_UNSET = {
    "schemaCompatibilityStrategy": "UNDEFINED",
    "isAllowAutoUpdateSchema": True,
    "schemaValidationEnforced": False,
}
"""Policies that Pulsar shows also where nothing is set."""


@pytest.mark.parametrize(("policy", "body", "field", "value"), POLICIES)
@pytest.mark.parametrize("at", [EU, NS])
def test_a_policy_is_set_counts_is_shown_and_is_unset(
    tmp_path: Path, at: str, policy: str, body: Any, field: str, value: Any
) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin:
            topic = await admin.engine.topic(FULL)
            unset = (200, SHOWN_UNSET[policy]) if policy in SHOWN_UNSET else (204, None)
            assert await admin.call("GET", f"{at}/{policy}") == unset
            await admin.done("POST", f"{at}/{policy}", body)
            assert getattr(topic.policies.effective, field) == value
            assert (await admin.get(f"{at}/{policy}", applied=True)) == body
            await admin.done("DELETE", f"{at}/{policy}")
            assert topic.policies.effective == DEFAULT
            assert await admin.call("GET", f"{at}/{policy}") == unset

    asyncio.run(main())


def test_a_number_or_a_boolean_may_come_as_a_json_text(tmp_path: Path) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin:
            topic = await admin.engine.topic(FULL)
            await admin.done("POST", f"{EU}/messageTTL", "60")
            await admin.done("POST", f"{EU}/deduplicationEnabled", "true")
            await admin.done("POST", f"{EU}/retention", {"retentionTimeInMinutes": "-1", "retentionSizeInMB": "7"})
            policies = topic.policies.effective
            assert (policies.message_ttl_seconds, policies.deduplication) == (60, True)
            assert policies.retention == Retention(None, 7 * 1024 * 1024)
            await admin.done("POST", f"{EU}/maxSubscriptionsPerTopic", "0")
            await admin.done("POST", f"{EU}/dispatchRate", {"dispatchThrottlingRateInMsg": "-1"})
            await admin.refused(501, "POST", f"{EU}/dispatchRate", {"dispatchThrottlingRateInMsg": "5"})
            await admin.done("POST", f"{EU}/encryptionRequired", "false")
            await admin.refused(501, "POST", f"{EU}/encryptionRequired", "true")
            for text in ("", "1.5", "0x10", "60 s", "٣"):
                await admin.refused(400, "POST", f"{EU}/messageTTL", text)
            assert topic.policies.effective == policies

    asyncio.run(main())


def test_a_strategy_that_is_undefined_is_that_of_the_level_below(tmp_path: Path) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin:
            topic = await admin.engine.topic(FULL)
            await admin.done("PUT", f"{NS}/schemaCompatibilityStrategy", "BACKWARD")
            await admin.done("PUT", f"{EU}/schemaCompatibilityStrategy", "FORWARD")
            await admin.done("PUT", f"{EU}/schemaCompatibilityStrategy", "UNDEFINED")
            assert topic.policies.effective.schema_compatibility is SchemaStrategy.BACKWARD
            assert "FULL" in await admin.refused(400, "PUT", f"{EU}/schemaCompatibilityStrategy", "SIDEWAYS")

    asyncio.run(main())


def test_a_topic_that_sets_one_policy_follows_its_namespace_in_the_others(tmp_path: Path) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin:
            topic = await admin.engine.topic(FULL)
            await admin.done("POST", f"{EU}/maxProducers", 3)
            await admin.done("POST", f"{NS}/messageTTL", 60)
            assert (topic.policies.effective.max_producers, topic.policies.effective.message_ttl_seconds) == (3, 60)
            assert (await admin.get(f"{EU}/policies"))["own"] == ["max_producers"]
            assert await admin.call("GET", f"{EU}/messageTTL") == (204, None)
            assert await admin.get(f"{EU}/messageTTL", applied=True) == 60

    asyncio.run(main())


def test_policies_are_there_after_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin:
            await admin.engine.topic(FULL)
            await admin.done("POST", f"{EU}/maxProducers", 3)
            await admin.done("POST", f"{NS}/maxProducersPerTopic", 5)
        async with administered(tmp_path) as admin:
            assert await admin.get(f"{EU}/maxProducers") == 3
            assert await admin.get(f"{NS}/maxProducersPerTopic") == 5

    asyncio.run(main())


def test_a_namespaces_policy_holds_for_topics_without_their_own(tmp_path: Path) -> None:
    async def main() -> None:
        settings = EngineSettings(policies=TopicPolicies(message_ttl_seconds=7))
        async with administered(tmp_path, settings) as admin:
            first, second = await admin.engine.topic(FULL), await admin.engine.topic(f"{FULL}-2")
            await admin.done("POST", f"{EU}/messageTTL", 60)
            await admin.done("POST", f"{NS}/messageTTL", 30)
            assert first.policies.effective.message_ttl_seconds == 60
            assert second.policies.effective.message_ttl_seconds == 30
            await admin.done("DELETE", f"{EU}/messageTTL")
            assert first.policies.effective.message_ttl_seconds == 30
            await admin.done("DELETE", f"{NS}/messageTTL")
            assert first.policies.effective.message_ttl_seconds == 7
            assert await admin.get(f"{EU}/messageTTL", applied=True) == 7

    asyncio.run(main())


def test_tools_send_the_ttl_of_a_topic_as_a_parameter(tmp_path: Path) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin:
            topic = await admin.engine.topic(FULL)
            await admin.done("POST", f"{EU}/messageTTL", messageTTL=45)
            assert topic.policies.effective.message_ttl_seconds == 45
            assert "messageTTL" in await admin.refused(400, "POST", f"{EU}/messageTTL", messageTTL="x")
            assert "empty" in await admin.refused(400, "POST", f"{EU}/messageTTL")
            assert topic.policies.effective.message_ttl_seconds == 45

    asyncio.run(main())


def test_a_policy_of_a_partitioned_topic_is_that_of_every_partition(tmp_path: Path) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin:
            await admin.done("PUT", f"{EU}/partitions", 2)
            await admin.done("POST", f"{EU}/maxConsumers", 2)
            assert [topic.policies.effective.max_consumers for topic in admin.engine.topics()] == [2, 2]
            assert await admin.get(f"{EU}/maxConsumers") == 2

    asyncio.run(main())


@pytest.mark.parametrize(
    ("policy", "body", "status", "named"),
    [
        ("retention", {"retentionTimeInMinutes": 1}, 400, "retentionSizeInMB"),
        ("retention", {"retentionTimeInMinutes": "1h", "retentionSizeInMB": 1}, 400, "retentionTimeInMinutes"),
        ("retention", {"retentionTimeInMinutes": -2, "retentionSizeInMB": 1}, 412, "retentionTimeInMinutes"),
        ("retention", {"retentionTimeInMinutes": 0, "retentionSizeInMB": 1}, 400, "both to 0"),
        ("retention", 7, 400, "retention"),
        ("messageTTL", -1, 412, "messageTTL"),
        ("messageTTL", 1.5, 400, "messageTTL"),
        ("messageTTL", True, 400, "messageTTL"),
        ("messageTTL", 2**40, 412, "messageTTL"),
        ("deduplication", 1, 400, "deduplication"),
        ("maxProducers", "many", 400, "maxProducers"),
        ("maxMessageSize", 2**30, 412, "maxMessageSize"),
        ("delayedDelivery", {"active": "yes"}, 400, "active"),
        ("delayedDelivery", {"tickTime": 1000}, 400, "active"),
        ("maxTopics", 7, 404, "maxTopics"),
        ("backlogQuota", {"limitSize": 1, "policy": "drop_everything"}, 400, "policy"),
        ("backlogQuota", {"limitSize": 1}, 400, "policy"),
        ("backlogQuota", {"policy": "producer_exception"}, 400, "limitSize"),
        ("backlogQuota", {"limitSize": -7, "policy": "producer_exception"}, 412, "limitSize"),
        ("backlogQuota", {"limitBytes": 1, "policy": "producer_exception"}, 400, "limitSize"),
        ("delayedDelivery", {"active": True, "maxDeliveryDelayInMillis": 5}, 501, "maxDeliveryDelayInMillis"),
    ],
)
@pytest.mark.parametrize("at", [EU, NS])
def test_a_policy_that_makes_no_sense_is_named_and_changes_nothing(
    tmp_path: Path, at: str, policy: str, body: Any, status: int, named: str
) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin:
            topic = await admin.engine.topic(FULL)
            await admin.done("POST", f"{at}/maxConsumers", 9)
            before = topic.policies.effective
            assert named in await admin.refused(status, "POST", f"{at}/{policy}", body)
            assert topic.policies.effective == before

    asyncio.run(main())


@pytest.mark.parametrize("at", [EU, NS])
def test_backlog_quotas_by_size_and_by_age(tmp_path: Path, at: str) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin:
            topic = await admin.engine.topic(FULL)
            assert await admin.get(f"{at}/backlogQuotaMap") == {}
            size = {"limit": 1000, "limitSize": 1000, "limitTime": -1, "policy": "producer_exception"}
            age = {"limit": -1, "limitSize": -1, "limitTime": 60, "policy": "producer_exception"}
            await admin.done("POST", f"{at}/backlogQuota", size)
            await admin.done("POST", f"{at}/backlogQuota", age, backlogQuotaType="message_age")
            assert topic.policies.effective.backlog_quota == BacklogQuota(1000, 60, QuotaPolicy.PRODUCER_EXCEPTION)
            assert await admin.get(f"{at}/backlogQuotaMap") == {"destination_storage": size, "message_age": age}
            other = {"limitSize": 5, "policy": "producer_request_hold"}
            assert "one policy holds for both" in await admin.refused(412, "POST", f"{at}/backlogQuota", other)
            await admin.refused(400, "POST", f"{at}/backlogQuota", size, backlogQuotaType="messages")
            await admin.done("DELETE", f"{at}/backlogQuota", backlogQuotaType="message_age")
            assert await admin.get(f"{at}/backlogQuotaMap") == {"destination_storage": size}
            await admin.done("POST", f"{at}/backlogQuota", other)
            assert topic.policies.effective.backlog_quota == BacklogQuota(5, None, QuotaPolicy.PRODUCER_REQUEST_HOLD)
            await admin.done("DELETE", f"{at}/backlogQuota")
            assert await admin.get(f"{at}/backlogQuotaMap") == {}
            assert topic.policies.effective == DEFAULT

    asyncio.run(main())


def test_policies_that_are_set_at_once_all_hold(tmp_path: Path) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin:
            topic = await admin.engine.topic(FULL)
            names = ["maxProducers", "maxConsumers", "maxMessageSize", "messageTTL", "compactionThreshold"]
            await asyncio.gather(*(admin.done("POST", f"{EU}/{name}", 9) for name in names))
            policies = topic.policies.effective
            assert (
                policies.max_producers,
                policies.max_consumers,
                policies.max_message_bytes,
                policies.message_ttl_seconds,
                policies.compaction_threshold_bytes,
            ) == (9, 9, 9, 9, 9)

    asyncio.run(main())


def test_all_policies_of_a_topic_under_our_own_names(tmp_path: Path) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin:
            topic = await admin.engine.topic(FULL)
            shown = await admin.get(f"{EU}/policies")
            assert not shown["own"]
            assert shown["policies"]["key_ordering"] == "draining"
            await admin.done("POST", f"{EU}/policies", {"key_ordering": "recently-joined", "max_producers": 2})
            shown = await admin.get(f"{EU}/policies")
            assert shown["own"]
            assert (shown["policies"]["key_ordering"], topic.policies.effective.max_producers) == ("recently-joined", 2)
            before = topic.policies.effective
            for body, status, named in (
                ({"max_producers": 3, "colour": 1}, 412, "colour"),
                ({"key_ordering": "any", "max_producers": 3}, 412, "key_ordering"),
                ([], 400, "object"),
            ):
                assert named in await admin.refused(status, "POST", f"{EU}/policies", body)
            assert topic.policies.effective == before
            await admin.done("DELETE", f"{EU}/policies")
            assert topic.policies.effective == DEFAULT
            await admin.refused(404, "GET", "persistent/acme/orders/none/policies")

    asyncio.run(main())


# Namespaces and tenants.


def test_a_namespace_is_made_with_its_policies_shown_and_deleted(tmp_path: Path) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin:
            body = {
                "bundles": {"boundaries": ["0x0", "0xf"], "numBundles": 1},
                "auth_policies": {"namespace_auth": {}, "destination_auth": {}},
                "schema_compatibility_strategy": "UNDEFINED",
                "deleted": False,
                "message_ttl_in_seconds": 30,
                "retention_policies": {"retentionTimeInMinutes": 60, "retentionSizeInMB": -1},
                "backlog_quota_map": {"message_age": {"limitTime": 60, "policy": "producer_exception"}},
                "replication_clusters": ["us-east"],
                "autoTopicCreationOverride": {
                    "allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 4
                },
                "max_producers_per_topic": None,
            }  # fmt: skip
            await admin.done("PUT", NS, body)
            shown = await admin.get(NS)
            for name in ("message_ttl_in_seconds", "retention_policies", "replication_clusters"):
                assert shown[name] == body[name]
            assert shown["autoTopicCreationOverride"] == body["autoTopicCreationOverride"]
            assert shown["backlog_quota_map"]["message_age"]["limitTime"] == 60
            topic = await admin.engine.topic(f"{FULL}-partition-0", create=True)
            assert topic.policies.effective.message_ttl_seconds == 30
            await admin.refused(409, "PUT", NS)
            await admin.refused(409, "DELETE", NS)
            await admin.done("DELETE", NS, force=True)
            await admin.refused(404, "GET", NS)
            assert await admin.get("namespaces/acme") == []

    asyncio.run(main())


def test_fields_that_brokers_do_not_know_are_ignored_as_they_do(tmp_path: Path) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin:
            topic = await admin.engine.topic(FULL)
            for at in (EU, NS):
                retention = {"retentionTimeInMinutes": 1, "retentionSizeInMB": 2, "retentionDays": 3}
                await admin.done("POST", f"{at}/retention", retention)
                await admin.done("POST", f"{at}/delayedDelivery", {"active": False, "maxDelayInMillis": 0})
                quota = {"limitSize": 5, "policy": "producer_exception", "colour": 1}
                await admin.done("POST", f"{at}/backlogQuota", quota)
                await admin.done("POST", f"{at}/publishRate", {"publishThrottlingRateInMsg": -1, "burst": 5})
            assert topic.policies.effective.retention == Retention(60, 2 * 1024 * 1024)
            assert not topic.policies.effective.delayed_delivery
            await admin.done("PUT", "tenants/sales", {"adminRoles": ["bob"], "colour": "red"})
            assert (await admin.get("tenants/sales"))["adminRoles"] == ["bob"]
            await admin.done("PUT", "persistent/acme/orders/us/partitions", {"partitions": 2, "colour": "red"})
            await admin.done("PUT", "namespaces/acme/carts", {"message_ttl_in_seconds": 7, "antiAffinityGroup": "x"})
            assert (await admin.get("namespaces/acme/carts"))["message_ttl_in_seconds"] == 7

    asyncio.run(main())


def test_a_namespace_is_made_with_all_the_defaults_that_tools_send(tmp_path: Path) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin:
            await admin.done(
                "PUT",
                NS,
                {
                    "schema_auto_update_compatibility_strategy": "Full",
                    "subscription_auth_mode": "None",
                    "offload_threshold": "-1",
                    "offload_threshold_in_seconds": -1,
                    "persistence": {"bookkeeperEnsemble": 1, "bookkeeperWriteQuorum": 1, "bookkeeperAckQuorum": 1},
                    "topicDispatchRate": {"us-east": {"dispatchThrottlingRateInMsg": -1, "ratePeriodInSecond": 1}},
                    "inactive_topic_policies": {"deleteWhileInactive": False, "maxInactiveDurationSeconds": 60},
                    "subscription_types_enabled": ["Exclusive", "Shared", "Failover", "Key_Shared"],
                    "deduplicationSnapshotIntervalSeconds": 7,
                    "delayed_delivery_policies": {"active": False, "tickTime": 1000, "maxDeliveryDelayInMillis": 0},
                    "max_topics_per_namespace": 0,
                    "offload_deletion_lag_ms": 0,
                    "properties": {},
                    "auth_policies": None,
                },
            )
            assert not (await admin.get(NS))["delayed_delivery_policies"]["active"]
            topic = await admin.engine.topic(FULL)
            assert not topic.policies.effective.delayed_delivery

    asyncio.run(main())


def test_a_namespace_is_made_with_its_permissions_which_are_shown_and_go_with_it(tmp_path: Path) -> None:
    async def main() -> None:
        auth = {
            "namespace_auth": {"bob": ["consume", "produce"]},
            "destination_auth": {FULL: {"eve": ["consume"]}},
            "subscription_auth_roles": {"jobs": ["bob", "eve"]},
        }
        async with administered(tmp_path) as admin:
            await admin.done("PUT", NS, {"auth_policies": auth, "subscription_auth_mode": "Prefix"})
            shown = await admin.get(NS)
            assert (shown["auth_policies"], shown["subscription_auth_mode"]) == (auth, "Prefix")
            assert await admin.get(f"{NS}/permissions") == auth["namespace_auth"]
            assert await admin.get(f"{NS}/permissions/subscription") == auth["subscription_auth_roles"]
            assert await admin.get(f"{NS}/subscriptionAuthMode") == "Prefix"
            await admin.engine.topic(FULL)
            assert (await admin.get(f"{EU}/permissions"))["eve"] == ["consume"]
        async with administered(tmp_path) as admin:  # it is stored with the namespace
            assert (await admin.get(NS))["auth_policies"] == auth
            await admin.done("DELETE", NS, force=True)
            await admin.done("PUT", NS)
            assert not any((await admin.get(NS))["auth_policies"].values())

    asyncio.run(main())


def nested(levels: int) -> Any:
    """Return a value within ``levels`` lists and objects."""
    value: Any = "x"
    for _ in range(levels):
        value = {"a": value}
    return value


@pytest.mark.parametrize(
    ("body", "status", "named"),
    [
        ({"message_ttl_in_seconds": "long"}, 400, "message_ttl_in_seconds"),
        ({"message_ttl_in_seconds": 5, "offload_threshold": 5}, 501, "offload_threshold"),
        ({"auth_policies": {"namespace_auth": {"me": ["fly"]}}}, 400, "auth_policies.namespace_auth.me"),
        ({"auth_policies": {"namespace_auth": {" ": ["produce"]}}}, 400, "namespace_auth"),
        ({"auth_policies": {"subscription_auth_roles": {"jobs": "bob"}}}, 400, "subscription_auth_roles.jobs"),
        ({"auth_policies": {"destination_auth": {"persistent://x/y/eu": {"me": ["produce"]}}}}, 412, "x/y/eu"),
        ({"auth_policies": {"destination_auth": {f"{FULL}-partition-0": {"me": ["produce"]}}}}, 412, "topic itself"),
        ({"auth_policies": {"destination_auth": {FULL: {"me": ["produce"]}, "acme/orders/eu": {}}}}, 400, "each topic"),
        ({"auth_policies": {"namespaceAuth": {"me": ["produce"]}}}, 400, "'namespaceAuth'"),
        ({"auth_policies": []}, 400, "auth_policies"),
        ({"auth_policies": 0}, 400, "auth_policies"),
        ({"auth_policies": False}, 400, "auth_policies"),
        ({"subscription_auth_mode": False}, 400, "subscription_auth_mode"),
        ({"subscription_auth_mode": "Suffix"}, 400, "subscription_auth_mode"),
        ({"offload_threshold": 0}, 501, "offload_threshold"),
        ({"offload_threshold_in_seconds": 0}, 501, "offload_threshold_in_seconds"),
        ({"offload_deletion_lag_ms": 5}, 501, "offload_deletion_lag_ms"),
        ({"properties": {"a": "None"}}, 501, "properties"),
        ({"topicDispatchRate": {"us-east": {"dispatchThrottlingRateInMsg": " 5"}}}, 501, "topicDispatchRate"),
        ({"resource_group_name": nested(450)}, 501, "resource_group_name"),
        ({"topicDispatchRate": {"us-east": {"dispatchThrottlingRateInMsg": 5}}}, 501, "topicDispatchRate"),
        ({"max_topics_per_namespace": "5"}, 501, "max_topics_per_namespace"),
        ({"subscription_types_enabled": ["Shared"]}, 501, "subscription_types_enabled"),
        ({"replication_clusters": "us-east"}, 400, "replication_clusters"),
        ({"replication_clusters": [1]}, 400, "replication_clusters[0]"),
        ({"backlog_quota_map": {"days": {}}}, 400, "days"),
        ({"autoTopicCreationOverride": {"allowAutoTopicCreation": 1}}, 400, "allowAutoTopicCreation"),
        ({"autoTopicCreationOverride": {"topicType": "round"}}, 400, "topicType"),
        (
            {"autoTopicCreationOverride": {"allowAutoTopicCreation": True, "topicType": "partitioned"}},
            412,
            "defaultNumPartitions",
        ),
        ([], 400, "policies"),
    ],
)
def test_a_namespace_with_policies_that_make_no_sense_is_not_made(
    tmp_path: Path, body: Any, status: int, named: str
) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin:
            assert named in await admin.refused(status, "PUT", NS, body)
            assert await admin.get("tenants") == []

    asyncio.run(main())


def test_what_a_namespace_lets_clients_make(tmp_path: Path) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin:
            await admin.done("PUT", NS)
            assert await admin.get(f"{NS}/autoTopicCreation") == {
                "allowAutoTopicCreation": True,
                "topicType": "non-partitioned",
            }
            await admin.done("POST", f"{NS}/autoTopicCreation", {"allowAutoTopicCreation": False})
            await admin.done("POST", f"{NS}/autoSubscriptionCreation", {"allowAutoSubscriptionCreation": False})
            shown = await admin.get(NS)
            assert not shown["autoTopicCreationOverride"]["allowAutoTopicCreation"]
            assert not shown["autoSubscriptionCreationOverride"]["allowAutoSubscriptionCreation"]
            await admin.done("PUT", EU)
            await admin.done("PUT", f"{EU}/subscription/jobs")
            await admin.done("DELETE", f"{NS}/autoTopicCreation")
            await admin.done("DELETE", f"{NS}/autoSubscriptionCreation")
            assert (await admin.get(f"{NS}/autoTopicCreation"))["allowAutoTopicCreation"]
            assert (await admin.get(f"{NS}/autoSubscriptionCreation"))["allowAutoSubscriptionCreation"]
            await admin.refused(400, "POST", f"{NS}/autoTopicCreation", {"allow": True})
            await admin.refused(400, "POST", f"{NS}/autoSubscriptionCreation", {})

    asyncio.run(main())


def test_the_clusters_that_a_namespace_is_copied_to(tmp_path: Path) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin:
            await admin.done("PUT", NS)
            assert await admin.get(f"{NS}/replication") == ["us-east"], "all clusters that there are"
            await admin.done("POST", f"{NS}/replication", ["us-east", "eu-west"])
            assert await admin.get(f"{NS}/replication") == ["us-east", "eu-west"]
            assert "replication" in await admin.refused(400, "POST", f"{NS}/replication", {"clusters": []})
            await admin.done("DELETE", f"{NS}/replication")
            assert await admin.get(f"{NS}/replication") == ["us-east"], "all clusters that there are"
            await admin.refused(404, "POST", "namespaces/acme/none/replication", ["us-east"])

    asyncio.run(main())


def test_tenants_are_made_shown_and_deleted_when_they_are_empty(tmp_path: Path) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin:
            await admin.done("PUT", "tenants/acme", {"adminRoles": [], "allowedClusters": ["us-east", "eu-west"]})
            await admin.done("POST", "tenants/acme", {"adminRoles": []})
            assert await admin.get("tenants") == ["acme"]
            assert await admin.get("tenants/acme") == {"adminRoles": [], "allowedClusters": ["us-east"]}
            await admin.refused(409, "PUT", "tenants/acme")
            await admin.done("PUT", NS)
            await admin.refused(409, "DELETE", "tenants/acme")
            await admin.done("DELETE", NS)
            await admin.done("DELETE", "tenants/acme")
            await admin.refused(404, "GET", "tenants/acme")
            await admin.refused(404, "GET", "namespaces/acme")
            await admin.refused(404, "DELETE", "tenants/acme")

    asyncio.run(main())


@pytest.mark.parametrize(
    ("body", "status", "named"),
    [
        ({"adminRoles": [""]}, 400, "adminRoles"),
        ({"allowedClusters": ["elsewhere"]}, 412, "us-east"),
        ({"allowedClusters": "us-east"}, 400, "allowedClusters"),
        (7, 400, "tenant"),
    ],
)
def test_a_tenant_that_cannot_be_is_not_made(tmp_path: Path, body: Any, status: int, named: str) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin:
            assert named in await admin.refused(status, "PUT", "tenants/acme", body)
            assert await admin.get("tenants") == []

    asyncio.run(main())


def test_an_empty_namespace_has_no_topics_of_any_kind(tmp_path: Path) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin:
            await admin.done("PUT", NS)
            for path in ("persistent/acme/orders", "persistent/acme/orders/partitioned", f"{NS}/topics"):
                assert await admin.get(path) == []
            for path in ("non-persistent/acme/orders", "non-persistent/acme/orders/partitioned"):
                assert await admin.get(path) == []
            for path in ("persistent/acme/none", "non-persistent/acme/none", "namespaces/acme/none/topics"):
                await admin.refused(404, "GET", path)

    asyncio.run(main())


def test_a_quota_that_is_set_over_http_refuses_publishes(tmp_path: Path) -> None:
    async def main() -> None:
        async with administered(tmp_path) as admin:
            topic = await admin.engine.topic(FULL)
            await admin.done("POST", f"{EU}/maxMessageSize", 100)
            with pytest.raises(Exception, match="max_message_bytes"):
                await topic.publish([message(b"x" * 200)])

    asyncio.run(main())
