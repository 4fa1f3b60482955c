"""Differences that clients would notice after a switch: each kind is named in words, and equal things are not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator.failover.rules import LISTED_MAX, Rules, differences, rules_of

PRODUCE, ADMIN = frozenset({"produce"}), frozenset({"admin"})
EAST = Rules(
    "east",
    asks=True,
    superusers=frozenset({"root"}),
    tenants=frozenset({"acme"}),
    namespaces=frozenset({"acme/one"}),
    namespaces_by_use=True,
    defaults={"message_ttl_seconds": None},
)
WEST = replace(EAST, cluster="west")


@pytest.mark.parametrize(
    ("source", "target", "said"),
    [
        (
            {"roles": {"acme/one": {"app": PRODUCE}}},
            {},
            "role 'app' may produce at acme/one in east, and west would refuse",
        ),
        ({"superusers": frozenset({"root", "ops"})}, {}, "role 'ops' is a superuser in east, and not in west"),
        ({"asks": False}, {}, "west asks who somebody is, and east does not"),
        (
            {},
            {"subscriptions": {"acme/one": {"s": frozenset({"b"})}}},
            "subscription 's' of acme/one is for b alone in west",
        ),
        ({}, {"prefixed": frozenset({"acme/one"})}, "subscriptions of acme/one have to begin with their role in west"),
        (
            {"policies": {"acme/one": {"auto_partitions": 4}}},
            {},
            "policy auto_partitions of acme/one is 4 in east, and not",
        ),
        ({}, {"policies": {"acme/one": {"auto_partitions": 4}}}, "is not set in east, and 4 in west"),
        (
            {"schemas": {"t": frozenset({"1", "2"})}},
            {"schemas": {"t": frozenset({"1"})}},
            "west lacks 1 of 2 schemas of t",
        ),
        ({"partitions": {"t": 4}}, {"partitions": {"t": 2}}, "t has 4 partitions in east, and 2 in west"),
        ({"terminated": frozenset({"t"})}, {}, "t is terminated in east, and not in west"),
        ({}, {"terminated": frozenset({"t"})}, "t is terminated in west, and not in east"),
        (
            {"namespaces": frozenset({"acme/one", "acme/two"})},
            {},
            "namespace acme/two is in east, and not in west",
        ),
        (
            {},
            {"namespaces": frozenset({"acme/one", "acme/two"})},
            "namespace acme/two is in west, and not in east",
        ),
        ({"tenants": frozenset({"acme", "umbrella"})}, {}, "tenant umbrella is in east, and not in west"),
        ({}, {"tenants": frozenset({"acme", "umbrella"})}, "tenant umbrella is in west, and not in east"),
        ({}, {"namespaces_by_use": False}, "who uses a topic makes its namespace in east, and not in west"),
        (
            {"defaults": {"message_ttl_seconds": 5, "new": 1}},
            {},
            "policy message_ttl_seconds of topics without their own is 5 in east, and not set in west",
        ),
        (
            {},
            {"roles": {"acme/one": {"app": PRODUCE}}},
            "role 'app' may produce at acme/one in west, and east would refuse",
        ),
        ({}, {"superusers": frozenset({"root", "ops"})}, "role 'ops' is a superuser in west, and not in east"),
        (
            {"subscriptions": {"acme/one": {"s": frozenset({"b"})}}},
            {},
            "subscription 's' of acme/one is for b alone in east",
        ),
        ({"prefixed": frozenset({"acme/one"})}, {}, "subscriptions of acme/one have to begin with their role in east"),
    ],
)
def test_each_difference_is_named(source: dict[str, object], target: dict[str, object], said: str) -> None:
    (found,) = differences(replace(EAST, **source), replace(WEST, **target))  # type: ignore[arg-type]
    assert said in found


@pytest.mark.parametrize(
    "target",
    [
        {"roles": {"acme/one": {"app": PRODUCE}}},
        {"roles": {"acme": {"app": PRODUCE}}},
        {"roles": {"acme": {"app": ADMIN}}},
        {"superusers": frozenset({"root", "app"})},
    ],
)
def test_a_role_that_may_do_it_there_for_another_reason_is_not_refused(target: dict[str, object]) -> None:
    source = replace(EAST, roles={"acme/one": {"app": PRODUCE}})
    found = differences(source, replace(WEST, **target))  # type: ignore[arg-type]
    assert not [each for each in found if "west would refuse" in each]


def test_schemas_and_partitions_of_topics_that_only_the_target_has_surprise_nobody() -> None:
    assert differences(EAST, replace(WEST, schemas={"t": frozenset({"1"})}, partitions={"t": 3})) == []


@pytest.mark.parametrize("older", ["east", "west"])
def test_a_worker_that_does_not_say_its_namespaces_is_not_said_to_have_the_same(older: str) -> None:
    without = {"tenants": None, "namespaces": None, "namespaces_by_use": None, "defaults": None}
    pair = [replace(each, **without) if each.cluster == older else each for each in (EAST, WEST)]  # type: ignore[arg-type]
    (found,) = differences(*pair)
    assert found.startswith(f"the worker of {older} is of an earlier version")


NAMES = st.frozensets(st.sampled_from(["a", "b", "c", "d"]))


@given(NAMES, NAMES)
def test_nothing_is_found_exactly_if_both_have_the_same_namespaces(
    ours: frozenset[str], theirs: frozenset[str]
) -> None:
    found = differences(replace(EAST, namespaces=ours), replace(WEST, namespaces=theirs))
    assert {each.split()[1] for each in found} == ours ^ theirs


def test_where_nobody_asks_roles_are_not_compared() -> None:
    open_east, open_west = replace(EAST, asks=False), replace(WEST, asks=False)
    assert differences(replace(open_east, roles={"acme": {"app": ADMIN}}), open_west) == []


def test_many_differences_are_counted() -> None:
    roles = {f"tenant-{number}": {"app": PRODUCE} for number in range(LISTED_MAX + 5)}
    found = differences(replace(EAST, roles=roles), WEST)
    assert len(found) == LISTED_MAX + 1
    assert found[-1] == "… and 5 more differences"


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=5), lambda inner: st.dictionaries(st.text(max_size=9), inner)
    )
)
def test_what_is_no_answer_is_a_value_error(answer: object) -> None:
    with pytest.raises(ValueError, match="policies and schemas is malformed"):
        rules_of(answer)  # type: ignore[arg-type]
