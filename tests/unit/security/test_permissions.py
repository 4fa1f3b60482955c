"""Permissions of a role: only the granted ones, at their place and below."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator.engine.topic_name import parse_topic
from replicator.engine.topics.grants import NONE, Grants
from replicator.security.errors import NotPermitted
from replicator.security.permissions import Action, Permissions

PLACES = ["acme", "beta", "acme/one", "acme/two", "persistent://acme/one/t", "persistent://acme/one/u"]
TOPICS = ["acme/one/t", "acme/one/u", "acme/one/t-partition-3", "acme/two/t", "beta/one/t"]
ROLES = ["app", "apple", "admin"]


def permissions(granted: dict[str, Grants], *superusers: str, written: dict[str, Grants] | None = None) -> Permissions:
    by_place = {place: dict(grants.roles) for place, grants in (written or {}).items()}
    return Permissions(lambda name: granted.get(name, NONE), by_place, frozenset(superusers))


def above(topic: str) -> set[str]:
    tenant, namespace, local = topic.split("/")
    base = local.partition("-partition-")[0]
    return {tenant, f"{tenant}/{namespace}", f"persistent://{topic}", f"persistent://{tenant}/{namespace}/{base}"}


@given(
    st.dictionaries(
        st.sampled_from(PLACES),
        st.dictionaries(st.sampled_from(ROLES), st.frozensets(st.sampled_from(list(Action)), min_size=1)),
    ),
    st.dictionaries(
        st.sampled_from(PLACES),
        st.dictionaries(st.sampled_from(ROLES), st.frozensets(st.sampled_from(list(Action)), min_size=1)),
    ),
    st.sampled_from(ROLES),
    st.sampled_from(list(Action)),
    st.sampled_from(TOPICS),
)
def test_a_role_may_what_was_granted_to_it_for_the_topic_or_for_what_the_topic_is_in(
    granted: dict[str, dict[str, frozenset[Action]]],
    written: dict[str, dict[str, frozenset[Action]]],
    role: str,
    action: Action,
    topic: str,
) -> None:
    asked = permissions(
        {place: Grants(dict(roles)) for place, roles in granted.items()},
        written={place: Grants(dict(roles)) for place, roles in written.items()},
    )
    had = {
        each for source in (granted, written) for place in above(topic) for each in source.get(place, {}).get(role, ())
    }
    assert asked.allows(role, (action,), parse_topic(topic)) == bool({action, Action.ADMIN} & had)


@given(st.text(max_size=20), st.sampled_from(list(Action)), st.sampled_from(TOPICS))
def test_without_a_grant_nothing_is_allowed(role: str, action: Action, topic: str) -> None:
    nothing = permissions({}, "root")
    assert nothing.allows(role, (action,), parse_topic(topic)) == (role == "root")
    assert not nothing.allows_subscription("", parse_topic(topic), "s")


def test_a_subscription_can_be_kept_for_roles_or_for_a_prefix() -> None:
    consume = frozenset({Action.CONSUME.value})
    grants = Grants(
        {"app": consume, "other": consume, "boss": frozenset({Action.ADMIN.value})}, {"kept": frozenset({"app"})}
    )
    topic = parse_topic("acme/one/t")
    asked = permissions({"acme/one": grants})
    assert asked.allows_subscription("app", topic, "kept")
    assert not asked.allows_subscription("other", topic, "kept")
    assert asked.allows_subscription("other", topic, "open")
    assert asked.allows_subscription("boss", topic, "kept")
    prefixed = permissions({"acme/one": Grants(grants.roles, grants.subscriptions, prefixed=True)})
    assert prefixed.allows_subscription("app", topic, "app-1")
    assert not prefixed.allows_subscription("app", topic, "other-1")
    assert not permissions({}).allows_subscription("app", topic, "open")


def test_a_refusal_names_role_action_and_place() -> None:
    with pytest.raises(NotPermitted, match=r"'app' may not produce at persistent://acme/one/t"):
        permissions({}).check("app", (Action.PRODUCE,), parse_topic("acme/one/t"))
