"""Permissions of several clusters side by side, and those of a topic beside its namespace's."""

from __future__ import annotations

from replicator.dashboard.permission_rows import ROLES_SHOWN_MAX, beside, granted_in, mark, role_rows


def test_roles_of_all_clusters_stand_in_rows_and_differences_are_marked() -> None:
    here, there = {"app": ["consume", "produce"], "b": ["admin"]}, {"app": ["consume", "produce"], "a": ["consume"]}
    rows = role_rows({"A": here, "B": there})
    assert [(row.role, row.cells, row.differs) for row in rows] == [
        ("a", ((), ("consume",)), True),
        ("app", (("consume", "produce"), ("consume", "produce")), False),
        ("b", (("admin",), ()), True),
    ]
    assert role_rows({}) == []
    assert len(role_rows({"A": {f"{number:04}": ["consume"] for number in range(2 * ROLES_SHOWN_MAX)}})) == 500


def test_what_the_namespace_grants_is_not_the_topics_own() -> None:
    of_all = {"app": ["consume"], "other": ["admin"]}
    of_topic = {"app": ["consume", "produce"], "other": ["admin"], "alone": ["consume"]}
    assert beside(of_topic, of_all) == {"app": ["produce"], "alone": ["consume"]}


def test_answers_are_read_with_care_and_a_mark_tells_changes() -> None:
    assert granted_in({"app": ["produce", "consume"], "bad": "x"}) == {"app": ["consume", "produce"]}
    assert granted_in(None) == granted_in(["x"]) == {}
    before = granted_in({"app": ["produce", "consume"], "b": ["admin"]})
    assert mark(before) == mark(granted_in({"b": ["admin"], "app": ["consume", "produce"]}))
    assert mark(before) != mark({**before, "b": ["consume"]})
