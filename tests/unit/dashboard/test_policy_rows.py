"""Policies of namespaces in several clusters side by side."""

from __future__ import annotations

from typing import Any

from replicator.dashboard.asking import Answer
from replicator.dashboard.policy_rows import NOT_SET, VALUE_CHARS_MAX, namespace_page, policy_rows


def listed(matching: int, **policies: Any) -> Answer:
    return Answer(
        {"matching": matching, "namespaces": [{"name": f"a/{n}", "policies": p} for n, p in policies.items()]}
    )


def test_a_page_is_the_first_of_all_clusters_together_and_says_where_they_differ() -> None:
    ttl = {"topic_policies": {"message_ttl_seconds": 1, "deduplication": True}, "auto_partitions": 3}
    answers = {
        "A": listed(7, one=ttl, three={}),
        "B": listed(8, one={}, two={}),
        "C": Answer(error="C does not answer", status=0),
    }
    page = namespace_page(["A", "B", "C"], answers, 2)
    assert [(row.name, row.set_counts, row.differs) for row in page.rows] == [
        ("a/one", (3, 0, None), True),
        ("a/three", (0, None, None), False),
    ]
    assert (page.matching, page.silent, page.following) == (8, ("C does not answer",), "a/three")
    assert namespace_page(["A"], {"A": answers["A"]}, 2).following == ""


def test_policies_are_laid_side_by_side_and_those_of_other_systems_are_left_out() -> None:
    here = {"message_ttl_in_seconds": 5, "backlog_quota_map": {}, "replication_clusters": ["A", "B"], "migrated": False}
    there = {
        "schema_compatibility_strategy": "UNDEFINED",
        "retention_policies": {"retentionSizeInMB": 1, "retentionTimeInMinutes": -1},
        "replication_clusters": ["x" * 2 * VALUE_CHARS_MAX],
    }
    answers = {"A": Answer(here), "B": Answer(there), "C": Answer(error="refused: none", status=404)}
    clusters, rows, silent = policy_rows(answers)
    found = {row.name: row for row in rows}
    assert (clusters, silent) == (["A", "B"], ["C does not have it"])
    assert found["message_ttl_in_seconds"].values == ("5", NOT_SET)
    assert found["retention_policies"].values == (NOT_SET, "retentionSizeInMB 1, retentionTimeInMinutes -1")
    assert (found["backlog_quota_map"].differs, found["schema_compatibility_strategy"].differs) == (False, False)
    assert len(found["replication_clusters"].values[1]) == VALUE_CHARS_MAX + 1
    assert "migrated" not in found
    assert policy_rows({"A": Answer(error="away", status=0)}) == ([], [], ["away"])
