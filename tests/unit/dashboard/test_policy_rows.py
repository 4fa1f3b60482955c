"""Policies of namespaces and topics in several clusters side by side."""

from __future__ import annotations

from typing import Any

from replicator.dashboard.fan_out import Answer
from replicator.dashboard.policy_catalog import BY_KEY, POLICIES
from replicator.dashboard.policy_rows import NOT_HERE, UNKNOWN, VALUE_CHARS_MAX, namespace_page, policy_rows
from replicator.dashboard.policy_standing import PolicyState
from replicator.engine.policies import PolicyOverrides, TopicPolicies
from replicator.engine.topics.namespace_policies import NamespacePolicies


def listed(matching: int, below: dict[str, Any] | None = None, **policies: Any) -> Answer:
    namespaces = [{"name": f"a/{n}", "policies": p} for n, p in policies.items()]
    return Answer({"matching": matching, "namespaces": namespaces, "below": below or {"message_ttl_seconds": None}})


def standing(policies: NamespacePolicies) -> PolicyState:
    return PolicyState((policies.topic_policies or PolicyOverrides()).over(TopicPolicies()), policies)


def test_a_page_is_the_first_of_all_clusters_together_and_says_where_they_differ() -> None:
    ttl = {"topic_policies": {"message_ttl_seconds": 1, "deduplication": True}, "auto_partitions": 3}
    answers = {
        "A": listed(7, one=ttl, three={}),
        "B": listed(8, one={}, two={}),
        "C": Answer(error="C does not answer", status=0),
    }
    page = namespace_page(["A", "B", "C"], answers, 2)
    assert [(row.name, row.cells, row.verdict) for row in page.rows] == [
        ("a/one", ("3", "0", UNKNOWN), "differ"),
        ("a/three", ("0", NOT_HERE, UNKNOWN), "not in B"),
    ]
    assert (page.matching, page.silent, page.following) == (8, ("C does not answer",), "a/three")
    assert namespace_page(["A"], {"A": answers["A"]}, 2).following == ""


def verdict(**answers: Answer) -> tuple[str, str]:
    (row,) = namespace_page(list(answers), answers, 1).rows
    return row.tone, row.verdict


def test_clusters_agree_only_if_all_have_the_namespace_with_the_same_policies() -> None:
    ttl = {"topic_policies": {"message_ttl_seconds": 1}}
    below = {"message_ttl_seconds": 9}
    away, older = (
        Answer(error="away", status=0),
        Answer({"matching": 1, "namespaces": [{"name": "a/x", "policies": {}}]}),
    )
    assert verdict(A=listed(1, x={}), B=listed(1, x={})) == ("good", "agree")
    assert verdict(A=listed(1, x={}), B=listed(0)) == ("warn", "not in B")
    assert verdict(A=listed(0), B=listed(1, x={}), C=away) == ("warn", "not in A")
    assert verdict(A=listed(1, x={}), B=listed(1, x=ttl), C=listed(0)) == ("warn", "differ; not in C")
    assert verdict(A=listed(1, x={}), B=away) == ("unknown", "not known of B")
    assert verdict(A=listed(1, x={}), B=older) == ("unknown", "not known of B")
    assert verdict(A=listed(1, x={}), B=listed(1, below, x={})) == ("warn", "differ by the topology file")
    assert verdict(A=listed(1, x=ttl), B=listed(1, below, x=ttl)) == ("good", "agree")


def test_what_counts_is_laid_side_by_side_with_who_set_it() -> None:
    ttl, clusters = BY_KEY["messageTTL"], BY_KEY["replication"]
    standings = {
        "A": standing(NamespacePolicies(PolicyOverrides({"message_ttl_seconds": 5}))),
        "B": standing(NamespacePolicies(replication_clusters=("x" * 2 * VALUE_CHARS_MAX,))),
    }
    rows = policy_rows((ttl, clusters), standings)
    assert [(each.value, each.set_by, each.here) for each in rows[0].cells] == [
        ("5 seconds", "namespace", True),
        ("no limit", "default", False),
    ]
    assert rows[0].differs
    assert not policy_rows((BY_KEY["retention"],), standings)[0].differs
    assert rows[1].cells[0].value == "all"
    assert len(rows[1].cells[1].value) == VALUE_CHARS_MAX + 1
    assert policy_rows(POLICIES, {}) == []
