"""What clients would find otherwise after a switch: each kind of difference, in words, and nothing that is the same."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator.failover.rules import LISTED_MAX, Rules, differences, rules_of

PRODUCE, ADMIN = frozenset({"produce"}), frozenset({"admin"})
EAST = Rules("east", asks=True, superusers=frozenset({"root"}))
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
def test_a_role_that_may_do_it_there_for_another_reason_is_no_difference(target: dict[str, object]) -> None:
    source = replace(EAST, roles={"acme/one": {"app": PRODUCE}})
    assert differences(source, replace(WEST, **target)) == []  # type: ignore[arg-type]


def test_what_only_the_target_has_surprises_nobody() -> None:
    more = replace(WEST, roles={"acme": {"app": ADMIN}}, schemas={"t": frozenset({"1"})}, partitions={"t": 3})
    assert differences(EAST, more) == []


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
    with pytest.raises(ValueError, match="no rules"):
        rules_of(answer)  # type: ignore[arg-type]
