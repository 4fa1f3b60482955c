"""Permissions of namespaces and topics, in Pulsar's shape: by role a list of actions.

Permissions of a partitioned topic are those of all its partitions, which have none of their own: rows that were kept
for a partition before there was the partitioned topic do not count, and the next change deletes them.

They are kept whether or not the worker asks who somebody is: they count as soon as it does. What the topology file
grants beside them is not shown here, and cannot be revoked here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from aiohttp import web

from replicator.api.admin.errors import PreconditionFailed
from replicator.api.admin.policies import OF_NAMESPACE, OF_TOPIC
from replicator.api.admin.requests import (
    ENGINE,
    logs_of,
    namespace_name,
    no_content,
    object_field,
    read_json,
    subscription_name,
    text_field,
    texts_field,
    topic_name,
)
from replicator.api.errors import BadRequest
from replicator.engine.engine import Engine
from replicator.engine.topic_name import SCHEME, check_subscription_name, parse_topic
from replicator.engine.topics.grants import Grants
from replicator.engine.topics.partitions import base_name
from replicator.security.identity import ROLE_CHARS_MAX
from replicator.security.permissions import Action

ROLES_MAX: Final = 10_000
"""Limit of roles of one namespace, topic or subscription."""
MODES: Final = ("None", "Prefix")
AUTH_POLICIES: Final = "auth_policies"
AUTH_MODE: Final = "subscription_auth_mode"
OF_ALL: Final = "namespace_auth"
OF_TOPICS: Final = "destination_auth"
OF_SUBSCRIPTIONS: Final = "subscription_auth_roles"


def routes() -> list[web.RouteDef]:
    """Return the routes of permissions."""
    return [
        web.get(f"{OF_NAMESPACE}/permissions", of_namespace),
        web.get(f"{OF_NAMESPACE}/permissions/subscription", of_subscriptions),
        web.get(f"{OF_TOPIC}/permissions", of_topic),
        web.post(f"{OF_NAMESPACE}/permissions/{{role}}", grant_on_namespace),
        web.delete(f"{OF_NAMESPACE}/permissions/{{role}}", revoke_on_namespace),
        web.post(f"{OF_NAMESPACE}/permissions/subscription/{{subscription}}", grant_on_subscription),
        web.delete(f"{OF_NAMESPACE}/permissions/{{subscription}}/{{role}}", revoke_on_subscription),
        web.post(f"{OF_NAMESPACE}/subscriptionAuthMode", set_mode),
        web.get(f"{OF_NAMESPACE}/subscriptionAuthMode", show_mode),
        web.post(f"{OF_TOPIC}/permissions/{{role}}", grant_on_topic),
        web.delete(f"{OF_TOPIC}/permissions/{{role}}", revoke_on_topic),
    ]


async def of_namespace(request: web.Request) -> web.Response:
    return web.json_response(_listed(_grants(request, _namespace(request))))


async def of_subscriptions(request: web.Request) -> web.Response:
    subscriptions = _grants(request, _namespace(request)).subscriptions
    return web.json_response({name: sorted(roles) for name, roles in sorted(subscriptions.items())})


async def of_topic(request: web.Request) -> web.Response:
    """Answer with the permissions of a topic, together with those of its namespace, as Apache Pulsar does."""
    if not request.app[ENGINE].partitioned.count(str(topic_name(request))):
        await logs_of(request)
    name = topic_name(request)
    places = {_namespace(request), str(name), base_name(str(name)) if name.partition >= 0 else str(name)}
    roles: dict[str, frozenset[str]] = {}
    for place in places:
        for role, actions in _grants(request, place).roles.items():
            roles[role] = roles.get(role, frozenset()) | actions
    return web.json_response(_listed(Grants(roles)))


async def grant_on_namespace(request: web.Request) -> web.Response:
    return await _grant(request, _namespace(request))


async def revoke_on_namespace(request: web.Request) -> web.Response:
    role = _role(request)
    return await _change(request, _namespace(request), lambda grants: grants.with_role(role, ()))


async def grant_on_topic(request: web.Request) -> web.Response:
    _namespace(request)
    return await _grant(request, _topic(request))


async def revoke_on_topic(request: web.Request) -> web.Response:
    name, role = _topic(request), _role(request)
    _namespace(request)
    return await _change(request, name, lambda grants: grants.with_role(role, ()))


async def grant_on_subscription(request: web.Request) -> web.Response:
    """Set the roles that may use the subscription, in place of all roles that may consume."""
    subscription = subscription_name(request)
    roles = [role_field(role, "roles") for role in texts_field(await read_json(request), "roles")]
    return await _change(request, _namespace(request), lambda grants: grants.with_subscription(subscription, roles))


async def revoke_on_subscription(request: web.Request) -> web.Response:
    subscription, role = check_subscription_name(request.match_info["subscription"]), _role(request)

    def without(grants: Grants) -> Grants:
        return grants.with_subscription(subscription, grants.subscriptions.get(subscription, frozenset()) - {role})

    return await _change(request, _namespace(request), without)


async def set_mode(request: web.Request) -> web.Response:
    """Set whether a subscription's name has to begin with the role that uses it."""
    prefixed = _prefixed(await read_json(request), "subscriptionAuthMode")
    return await _change(
        request, _namespace(request), lambda grants: Grants(grants.roles, grants.subscriptions, prefixed)
    )


async def show_mode(request: web.Request) -> web.Response:
    return web.json_response(MODES[_grants(request, _namespace(request)).prefixed])


def role_field(role: str, field: str) -> str:
    """Return ``role`` if it is valid; raise :class:`BadRequest` if not."""
    if not role.strip() or len(role) > ROLE_CHARS_MAX or not role.isprintable():
        raise BadRequest(f"{field}: the name of a role must have 1 to {ROLE_CHARS_MAX} printable characters")
    return role


def _role(request: web.Request) -> str:
    return role_field(request.match_info["role"], "role")


def _topic(request: web.Request) -> str:
    """Return the topic of the path. For a partition, return its partitioned topic, which has the permissions for all
    partitions.
    """
    name = topic_name(request)
    base = base_name(str(name))
    return base if base and request.app[ENGINE].partitioned.count(base) else str(name)


def _namespace(request: web.Request) -> str:
    """Return the namespace of the path; raise :class:`NamespaceNotFound`."""
    name = namespace_name(request)
    request.app[ENGINE].catalog.namespace(name)
    return name


def _grants(request: web.Request, name: str) -> Grants:
    return request.app[ENGINE].catalog.granted(name)


async def _grant(request: web.Request, name: str) -> web.Response:
    """Replace a role's actions at ``name`` by the actions of the body."""
    role, actions = _role(request), _actions(await read_json(request), "actions")
    return await _change(request, name, lambda grants: grants.with_role(role, actions))


async def _change(request: web.Request, name: str, change: Callable[[Grants], Grants]) -> web.Response:
    engine, namespace = request.app[ENGINE], namespace_name(request)
    grants_of = engine.catalog.grants

    def not_counted() -> list[str]:
        is_partitioned = name.startswith(SCHEME) and engine.partitioned.count(name) > 0
        return grants_of.of_partitions(name) if is_partitioned else []

    def bounded(grants: Grants) -> Grants:
        changed = change(grants)
        _check_size(name, changed)
        return changed

    await grants_of.change(name, bounded, lambda: engine.catalog.namespace(namespace), not_counted)
    return no_content()


def _check_size(name: str, grants: Grants) -> None:
    sizes = (len(grants.roles), len(grants.subscriptions), *map(len, grants.subscriptions.values()))
    if max(sizes) > ROLES_MAX:
        raise PreconditionFailed(
            f"{name} has permissions of {ROLES_MAX} roles or subscriptions, the limit: revoke those of one first"
        )


def _actions(body: Any, field: str) -> set[str]:
    actions = set(texts_field(body, field))
    for action in actions:
        if action not in list(Action):
            raise BadRequest(f"{field}: {action[:40]!r} is not one of {', '.join(Action)}")
    return actions


def _prefixed(body: Any, field: str) -> bool:
    mode = text_field(body, field)
    if mode not in MODES:
        raise BadRequest(f"field {field} must be one of {', '.join(MODES)}")
    return mode == "Prefix"


# All permissions of a namespace, as a field of its policies.


def shown_auth_policies(engine: Engine, namespace: str) -> dict[str, Any]:
    """Return the fields of a namespace's policies that show its permissions and those of its topics."""
    table = engine.catalog.grants
    grants = table.of(namespace)
    topics = [(topic, engine.catalog.granted(topic)) for topic in sorted(table.of_topics(namespace))]
    subscriptions = {name: sorted(roles) for name, roles in sorted(grants.subscriptions.items())}
    return {
        AUTH_POLICIES: {
            OF_ALL: _listed(grants),
            OF_TOPICS: {topic: _listed(granted) for topic, granted in topics if granted.roles},
            OF_SUBSCRIPTIONS: subscriptions,
        },
        AUTH_MODE: MODES[grants.prefixed],
    }


def read_auth_policies(namespace: str, policies: Mapping[str, Any]) -> dict[str, Grants]:
    """Return the permissions in the policies of a new namespace, by the name of the namespace or topic.

    Raises :class:`BadRequest`, :class:`InvalidTopicName`, and :class:`PreconditionFailed` for a partition or a topic of
    another namespace.
    """
    at = f"policies.{AUTH_POLICIES}"
    fields = dict(_entries(policies.get(AUTH_POLICIES), at))
    for field in fields:
        if field not in (OF_ALL, OF_TOPICS, OF_SUBSCRIPTIONS):
            raise BadRequest(f"{at}: {field[:40]!r} is not one of {OF_ALL}, {OF_TOPICS}, {OF_SUBSCRIPTIONS}")
    mode = policies.get(AUTH_MODE)
    grants = Grants(
        _read_roles(fields.get(OF_ALL), f"{at}.{OF_ALL}"),
        _read_subscriptions(fields.get(OF_SUBSCRIPTIONS), f"{at}.{OF_SUBSCRIPTIONS}"),
        prefixed=mode not in (None, "") and _prefixed(mode, f"policies.{AUTH_MODE}"),
    )
    found = {namespace: grants, **_read_topics(namespace, fields.get(OF_TOPICS), f"{at}.{OF_TOPICS}")}
    for name, granted in found.items():
        _check_size(name, granted)
    return found


def _read_roles(body: Any, field: str) -> dict[str, frozenset[str]]:
    found: dict[str, frozenset[str]] = {}
    for role, listed in _entries(body, field):
        if actions := _actions(listed, f"{field}.{role[:40]}"):
            found[role_field(role, field)] = frozenset(actions)
    return found


def _read_subscriptions(body: Any, field: str) -> dict[str, frozenset[str]]:
    found: dict[str, frozenset[str]] = {}
    for subscription, listed in _entries(body, field):
        at = f"{field}.{subscription[:40]}"
        if roles := {role_field(role, at) for role in texts_field(listed, at)}:
            found[check_subscription_name(subscription)] = frozenset(roles)
    return found


def _read_topics(namespace: str, body: Any, field: str) -> dict[str, Grants]:
    found: dict[str, Grants] = {}
    for topic, roles in _entries(body, field):
        name, shown = parse_topic(topic), topic[:80]
        if name.full_namespace != namespace:
            raise PreconditionFailed(f"{field}: {shown!r} is no topic of namespace {namespace}")
        if name.partition >= 0:
            raise PreconditionFailed(
                f"{field}: {shown!r} is the name of a partition, which has the permissions of its topic: name the "
                "topic itself, without -partition- and the number"
            )
        if str(name) in found:
            raise BadRequest(f"{field}: {shown!r} names a topic that another key names too: name each topic once")
        found[str(name)] = Grants(_read_roles(roles, f"{field}.{shown}"))
    return found


def _entries(body: Any, field: str) -> Iterable[tuple[str, Any]]:
    return object_field({} if body is None else body, field).items()


def _listed(grants: Grants) -> dict[str, Any]:
    return {role: sorted(actions) for role, actions in sorted(grants.roles.items())}
