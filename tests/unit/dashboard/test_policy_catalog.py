"""Forms of policies: what they send, and where an error of the API belongs."""

from __future__ import annotations

from typing import Any

import pytest

from replicator.api.admin.policy_shapes import SHAPES
from replicator.dashboard.policy_catalog import BY_KEY, OF_TOPICS, body_of, field_of, filled

CLUSTERS = ("A", "B")


@pytest.mark.parametrize(
    ("key", "form", "body"),
    [
        ("messageTTL", {"value": " 5 "}, 5),
        ("messageTTL", {"value": "-1"}, -1),
        ("messageTTL", {"value": "soon"}, "soon"),
        ("messageTTL", {"value": "9" * 30}, "9" * 30),
        ("messageTTL", {"value": "٣"}, "٣"),
        ("messageTTL", {"value": ""}, None),
        ("messageTTL", {}, None),
        ("deduplication", {"value": "true"}, True),
        ("deduplication", {"value": "perhaps"}, "perhaps"),
        ("delayedDelivery", {"value.active": "false"}, {"active": False}),
        ("schemaCompatibilityStrategy", {"value": "FULL"}, "FULL"),
        (
            "retention",
            {"value.retentionTimeInMinutes": "1", "value.retentionSizeInMB": ""},
            {"retentionTimeInMinutes": 1, "retentionSizeInMB": None},
        ),
        (
            "backlogQuota-age",
            {"value.limitTime": "7", "value.policy": "producer_exception"},
            {"limitTime": 7, "policy": "producer_exception"},
        ),
        ("replication", {"value.B": "yes", "value.C": "yes"}, ["B"]),
        ("replication", {}, []),
        (
            "autoTopicCreation",
            {"value.allowAutoTopicCreation": "true", "value.topicType": "non-partitioned"},
            {"allowAutoTopicCreation": True, "topicType": "non-partitioned"},
        ),
    ],
)
def test_a_form_is_sent_as_the_admin_path_takes_it_and_what_cannot_be_as_it_is(
    key: str, form: dict[str, str], body: Any
) -> None:
    assert body_of(BY_KEY[key], form, CLUSTERS) == body


@pytest.mark.parametrize(
    ("key", "body", "held"),
    [
        ("messageTTL", 0, {"value": "0"}),
        ("messageTTL", None, {"value": ""}),
        ("deduplication", True, {"value": "true"}),
        ("delayedDelivery", {"active": False}, {"value.active": "false"}),
        ("replication", ["A"], {"value": ["A"]}),
        ("replication", None, {"value": []}),
    ],
)
def test_a_form_holds_what_counts(key: str, body: Any, held: dict[str, Any]) -> None:
    assert filled(BY_KEY[key], body) == held


@pytest.mark.parametrize(
    ("key", "code", "reason", "field"),
    [
        ("messageTTL", "BadRequest", "messageTTL must be a whole number, not 'x'", "value"),
        (
            "retention",
            "PreconditionFailed",
            "retention.retentionSizeInMB must be a number from",
            "value.retentionSizeInMB",
        ),
        (
            "retention",
            "BadRequest",
            "retention: only one of retentionTimeInMinutes and",
            "value.retentionTimeInMinutes",
        ),
        ("backlogQuota-size", "PreconditionFailed", "backlogQuota.policy must be producer_exception", "value.policy"),
        ("backlogQuota-size", "BadRequest", "backlogQuota lacks the field limitSize", "value.limitSize"),
        ("replication", "ClusterNotAllowed", "there is no cluster 'x'", "value"),
        ("messageTTL", "NotPermitted", "role app may not", None),
        ("messageTTL", "", "", None),
    ],
)
def test_an_error_about_a_value_belongs_to_its_field_and_no_other_does(
    key: str, code: str, reason: str, field: str | None
) -> None:
    assert field_of(BY_KEY[key], code, reason) == field


def test_every_policy_that_the_admin_paths_set_has_a_form() -> None:
    assert {policy.path for policy in OF_TOPICS if not policy.key.startswith("backlogQuota")} == set(SHAPES)
