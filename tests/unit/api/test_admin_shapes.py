"""Policies and message ids in Pulsar's form, and the figures of several partitions as one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator.api.admin.message_ids import LATEST, Target, read_target, to_json
from replicator.api.admin.namespaces import _is_empty
from replicator.api.admin.policy_shapes import (
    DESTINATION_STORAGE,
    MESSAGE_AGE,
    SHAPES,
    show_quotas,
    with_quota,
    without_quota,
)
from replicator.api.admin.topic_stats import iso_time, partitioned_stats
from replicator.api.errors import BadRequest
from replicator.engine.policies import BacklogQuota, QuotaPolicy, Retention, TopicPolicies
from snapshots.position import BEFORE_ALL, Position

SCHEMAS = ("schemaCompatibilityStrategy", "isAllowAutoUpdateSchema", "schemaValidationEnforced")
NOT_LIMITS = ("retention", "deduplication", "delayedDelivery", "replicateSubscriptionState", *SCHEMAS)
LIMITS = st.none() | st.integers(1, 2**31 - 1)


@given(
    minutes=st.integers(1, 10**9) | st.just(-1), megabytes=st.integers(1, 10**9) | st.just(-1)
)  # fmt: skip
def test_retention_is_shown_as_it_was_set(minutes: int, megabytes: int) -> None:
    body = {"retentionTimeInMinutes": minutes, "retentionSizeInMB": megabytes}
    shape = SHAPES["retention"]
    assert shape.show(shape.read(body, "retention")) == body


def test_a_limit_that_is_finer_than_pulsars_units_is_shown_rounded_up() -> None:
    assert SHAPES["retention"].show(Retention(61, 1)) == {"retentionTimeInMinutes": 2, "retentionSizeInMB": 1}


@pytest.mark.parametrize("name", [name for name in SHAPES if name not in NOT_LIMITS])
@given(limit=LIMITS.filter(lambda limit: limit is None or limit <= 5_000_000))
def test_a_number_is_shown_as_it_was_set_and_0_is_no_limit(name: str, limit: int | None) -> None:
    shape = SHAPES[name]
    assert shape.read(shape.show(limit), name) == limit


@given(size=LIMITS, age=LIMITS, policy=st.sampled_from(QuotaPolicy))
def test_quotas_are_read_back_as_they_are_shown(size: int | None, age: int | None, policy: QuotaPolicy) -> None:
    shown = show_quotas(BacklogQuota(size, age, policy))
    policies = TopicPolicies()
    for kind, body in shown.items():
        policies = with_quota(policies, kind, body)
    expected = BacklogQuota(size, age, policy) if shown else BacklogQuota()
    assert policies.backlog_quota == expected
    left = without_quota(without_quota(policies, DESTINATION_STORAGE), MESSAGE_AGE)
    assert (left.backlog_quota.bytes_max, left.backlog_quota.age_seconds_max) == (None, None)


def test_old_tools_send_the_size_of_a_quota_as_limit() -> None:
    for body in ({"limit": 7}, {"limit": 7, "limitSize": -1}, {"limit": -1, "limitSize": 7}):
        policies = with_quota(TopicPolicies(), DESTINATION_STORAGE, {**body, "policy": "producer_exception"})
        assert policies.backlog_quota.bytes_max == 7


@given(ledger=st.integers(0, 2**62), entry=st.integers(0, 2**62), partition=st.integers(-1, 100))
def test_a_message_id_is_read_back_as_it_is_shown(ledger: int, entry: int, partition: int) -> None:
    position = Position(ledger, entry)
    assert read_target(to_json(position, partition)) == Target(position, partition=partition)


def test_the_ends_of_a_topic_have_ids_of_their_own() -> None:
    assert read_target(to_json(BEFORE_ALL, -1)).position == BEFORE_ALL
    for body in (None, {"ledgerId": 2**63 - 1, "entryId": 2**63 - 1}):
        assert read_target(body).position == LATEST
    excluded = read_target({"ledgerId": -1, "entryId": -1, "excluded": True})
    assert excluded.next_position == BEFORE_ALL
    assert Target(Position(5, 3), excluded=True).next_position == Position(5, 4)


def test_fields_that_libraries_add_to_message_ids_are_not_looked_at() -> None:
    body = {"ledgerId": 1, "entryId": 2, "batchIndex": -1, "batchSize": 0, "firstChunkMessageId": None}
    assert read_target(body) == Target(Position(1, 2))
    with pytest.raises(BadRequest, match="batchIndex"):
        read_target({**body, "batchIndex": 3})


@pytest.mark.parametrize("value", [None, 0, -1, False, "", "None", [], {}, {"a": {"b": []}}])
def test_what_tools_send_for_nothing_is_empty(value: Any) -> None:
    assert _is_empty(value)


@pytest.mark.parametrize("value", [1, True, "ALWAYS", ["x"], {"a": {"b": 1}}])
def test_what_somebody_filled_in_is_not_empty(value: Any) -> None:
    assert not _is_empty(value)


def test_a_time_beyond_the_calendar_is_shown_as_it_is() -> None:
    assert iso_time(1_700_000_000_123) == "2023-11-14T22:13:20.123Z"
    assert iso_time(0) == "1970-01-01T00:00:00.000Z"
    assert iso_time(253_402_300_799_999) == "9999-12-31T23:59:59.999Z"
    assert iso_time(253_402_300_800_000) == "253402300800000"


def test_figures_of_partitions_are_added_and_the_partitions_left_as_they_are() -> None:
    def one(backlog: int, kind: str, consumers: list[dict[str, Any]]) -> dict[str, Any]:
        subscription = {
            "msgBacklog": backlog, "backlogSize": backlog * 10, "unackedMessages": 1, "msgDelayed": 0, "type": kind,
            "consumers": consumers, "blockedSubscriptionOnUnackedMsgs": backlog > 5, "msgBacklogNoDelayed": backlog,
            "msgInReplay": 0, "drainingHashesCount": 0, "nonContiguousDeletedMessagesRanges": 3,
            "msgRateOut": 1.5, "msgThroughputOut": 15.0, "bytesOutCounter": 30, "msgOutCounter": 3,
            "msgRateRedeliver": 0.5, "messageAckRate": 1.0,
        }  # fmt: skip
        return {
            "msgInCounter": 10, "msgRateIn": 0.5, "storageSize": 100, "backlogSize": backlog * 10, "publishers": [],
            "subscriptions": {"jobs": subscription}, "msgThroughputIn": 5.0, "bytesInCounter": 100,
            "waitingPublishers": 1, "nonContiguousDeletedMessagesRanges": 3, "backlogQuotaLimitSize": -1,
            "backlogQuotaLimitTime": -1,
            "msgRateOut": 1.5, "msgThroughputOut": 15.0, "bytesOutCounter": 30, "msgOutCounter": 3,
        }  # fmt: skip

    found = {"p-0": one(2, "None", []), "p-1": one(7, "Shared", [{"consumerName": "c"}])}
    stats = partitioned_stats(found, partitions=3, each=True)
    jobs = stats["subscriptions"]["jobs"]
    assert (stats["msgInCounter"], stats["msgRateIn"], stats["backlogSize"]) == (20, 1.0, 90)
    assert (stats["msgRateOut"], stats["msgOutCounter"]) == (jobs["msgRateOut"], jobs["msgOutCounter"]) == (3.0, 6)
    assert (jobs["msgRateRedeliver"], jobs["messageAckRate"]) == (1.0, 2.0)
    assert (jobs["msgBacklog"], jobs["unackedMessages"], jobs["type"]) == (9, 2, "Shared")
    assert jobs["blockedSubscriptionOnUnackedMsgs"]
    assert stats["metadata"]["partitions"] == 3
    assert (stats["averageMsgSize"], stats["waitingPublishers"], stats["backlogQuotaLimitSize"]) == (10.0, 2, -1)
    assert jobs["nonContiguousDeletedMessagesRanges"] == 6
    assert found["p-0"]["subscriptions"]["jobs"]["msgBacklog"] == 2
    assert found["p-0"]["subscriptions"]["jobs"]["consumers"] == []
