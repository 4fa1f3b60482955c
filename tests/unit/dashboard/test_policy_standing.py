"""Value of a policy that takes effect in one cluster, and the place where it was set."""

from __future__ import annotations

from typing import Any

import pytest

from replicator.dashboard.policy_catalog import BY_KEY, OF_TOPICS, POLICIES, in_words
from replicator.dashboard.policy_standing import PolicyState, Unreadable, of_namespace, of_topic
from replicator.engine.policies import BacklogQuota, QuotaPolicy, Retention, TopicPolicies
from replicator.engine.policies_codec import policies_to_json

FILE = TopicPolicies(message_ttl_seconds=60, backlog_quota=BacklogQuota(bytes_max=1_000))


def namespace(policies: dict[str, Any], below: TopicPolicies = FILE) -> dict[str, Any]:
    return {"name": "a/b", "policies": policies, "below": policies_to_json(below)}


def said(standing: PolicyState, key: str) -> tuple[str, str, bool]:
    policy = BY_KEY[key]
    return in_words(policy, standing.value(policy)), standing.set_by(policy), standing.set_here(policy)


def test_the_namespace_stands_over_the_topology_file_and_that_over_the_default() -> None:
    found = of_namespace(namespace({"topic_policies": {"deduplication": True}, "auto_partitions": 3}))
    assert said(found, "deduplication") == ("yes", "namespace", True)
    assert said(found, "messageTTL") == ("60 seconds", "topology file", False)
    assert said(found, "backlogQuota-size") == ("1\u202f000 bytes, producer_request_hold", "topology file", False)
    assert said(found, "backlogQuota-age") == ("no limit", "default", False)
    assert said(found, "retention") == ("no limit", "default", False)
    assert said(found, "maxUnackedMessagesPerConsumer") == ("50\u202f000 messages", "default", False)
    assert said(found, "autoTopicCreation") == ("yes, with partitions, 3 partitions", "namespace", True)
    assert said(found, "autoSubscriptionCreation") == ("yes", "default", False)
    assert said(found, "replication") == ("all", "default", False)


def test_what_is_set_as_the_topology_file_has_it_is_set_all_the_same() -> None:
    found = of_namespace(namespace({"topic_policies": {"message_ttl_seconds": 60}}))
    assert said(found, "messageTTL") == ("60 seconds", "namespace", True)


def test_the_topic_stands_over_its_namespace() -> None:
    applied = policies_to_json(TopicPolicies(message_ttl_seconds=5, deduplication=True, max_producers=2))
    below = namespace({"topic_policies": {"deduplication": True}}, TopicPolicies(max_producers=2))
    found = of_topic({"own": ["message_ttl_seconds"], "policies": applied}, below)
    assert said(found, "messageTTL") == ("5 seconds", "topic", True)
    assert said(found, "deduplication") == ("yes", "namespace", False)
    assert said(found, "maxProducersPerTopic") == ("2 producers", "topology file", False)
    assert said(found, "maxConsumersPerTopic") == ("no limit", "default", False)


def test_a_mark_differs_when_the_policy_or_what_is_changed_with_it_does() -> None:
    before = of_namespace(namespace({}))
    size = BY_KEY["backlogQuota-size"]
    same = of_namespace(namespace({"topic_policies": {"deduplication": True}}))
    assert before.mark(size) == same.mark(size)
    quota = {"bytes_max": 1_000, "age_seconds_max": 9, "policy": "producer_request_hold"}
    other_age = of_namespace(namespace({}, TopicPolicies(backlog_quota=BacklogQuota(1_000, 9))))
    set_so = of_namespace(namespace({"topic_policies": {"backlog_quota": quota}}))
    assert len({each.mark(size) for each in (before, other_age, set_so)}) == 3


def test_what_another_version_answers_is_said_to_be_unreadable() -> None:
    for answer in ({}, [], None, {"policies": {"new": 1}, "below": {}}, {"policies": {}, "below": {"new": 1}}):
        with pytest.raises(Unreadable):
            of_namespace(answer)
    for answer in ({}, {"own": [], "policies": {"new": 1}}, None):
        with pytest.raises(Unreadable):
            of_topic(answer, namespace({}))


def test_every_policy_of_the_admin_paths_can_be_shown() -> None:
    full = TopicPolicies(
        Retention(60, 2**20), 1, BacklogQuota(1, 2, QuotaPolicy.PRODUCER_EXCEPTION), True, 3, 4, 5, 6, 7, 8
    )
    found = of_namespace(namespace({}, full))
    assert said(found, "retention")[0] == "1 minutes, 1 MB"
    assert said(found, "backlogQuota-age")[0] == "2 seconds, producer_exception"
    for policy in POLICIES:
        assert in_words(policy, found.value(policy))
        assert found.set_by(policy) in ("default", "topology file")
    assert len(OF_TOPICS) == len(POLICIES) - 3
