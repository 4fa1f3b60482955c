from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator.engine.errors import InvalidPolicies
from replicator.engine.policies import (
    BacklogQuota,
    KeyAssignment,
    KeyOrdering,
    PolicyOverrides,
    QuotaPolicy,
    Retention,
    SchemaStrategy,
    TopicPolicies,
)
from replicator.engine.policies_codec import (
    decode_overrides,
    encode_overrides,
    policies_from_json,
    policies_to_json,
)

limits = st.none() | st.integers(0, 2**53 - 1)
policies = st.builds(
    TopicPolicies,
    retention=st.builds(Retention, limits, limits),
    message_ttl_seconds=limits,
    backlog_quota=st.builds(BacklogQuota, limits, limits, st.sampled_from(QuotaPolicy)),
    deduplication=st.booleans(),
    compaction_threshold_bytes=limits,
    max_unacked_messages_per_consumer=limits,
    max_unacked_messages_per_subscription=limits,
    max_producers=limits,
    max_consumers=limits,
    max_message_bytes=limits,
    delayed_delivery=st.booleans(),
    replicate_subscription_state=st.booleans(),
    key_assignment=st.sampled_from(KeyAssignment),
    key_ordering=st.sampled_from(KeyOrdering),
    schema_compatibility=st.sampled_from(SchemaStrategy),
    schema_auto_update=st.booleans(),
    schema_validation_enforced=st.booleans(),
)


@given(policies)
def test_what_was_stored_is_read_again(given_policies: TopicPolicies) -> None:
    assert policies_from_json(policies_to_json(given_policies)) == given_policies
    for overrides in (PolicyOverrides.of(given_policies), PolicyOverrides.between(TopicPolicies(), given_policies)):
        assert decode_overrides(encode_overrides(overrides)) == overrides
        assert overrides.over(TopicPolicies()) == given_policies


def test_what_is_not_named_has_its_default_and_names_are_those_of_the_fields() -> None:
    assert policies_from_json({}) == TopicPolicies()
    partly = policies_from_json({"retention": {"bytes_max": 5}, "key_ordering": "recently-joined"})
    assert partly == TopicPolicies(retention=Retention(None, 5), key_ordering=KeyOrdering.RECENTLY_JOINED)
    assert policies_to_json(TopicPolicies())["backlog_quota"] == {
        "bytes_max": None,
        "age_seconds_max": None,
        "policy": "producer_request_hold",
    }


@pytest.mark.parametrize(
    ("stored", "named"),
    [
        ([], "policies"),
        ({"retention": 5}, "policies.retention"),
        ({"retention": {"bytes": 5}}, "'bytes'"),
        ({"ttl": 5}, "'ttl'"),
        ({"message_ttl_seconds": -1}, "policies.message_ttl_seconds"),
        ({"message_ttl_seconds": 1.5}, "policies.message_ttl_seconds"),
        ({"message_ttl_seconds": True}, "policies.message_ttl_seconds"),
        ({"message_ttl_seconds": 2**53}, "policies.message_ttl_seconds"),
        ({"deduplication": 1}, "policies.deduplication"),
        ({"deduplication": None}, "policies.deduplication"),
        ({"backlog_quota": {"policy": "drop"}}, "policies.backlog_quota.policy"),
    ],
)
def test_what_is_wrong_is_refused_by_its_name(stored: Any, named: str) -> None:
    with pytest.raises(InvalidPolicies, match=named):
        policies_from_json(stored)
