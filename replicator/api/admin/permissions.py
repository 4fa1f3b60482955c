"""Permissions of namespaces and topics, in Pulsar's shape: by role a list of actions.

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
from replicator.engine.topic_name import check_subscription_name, parse_topic
from replicator.engine.topics.grants import Grants
from replicator.engine.topics.partitions import base_name
from replicator.security.identity import ROLE_CHARS_MAX
from replicator.security.permissions import Action

ROLES_MAX: Final = 10_000
"""Limit of roles of one namespace, topic or subscription."""
MODES: Final = ("None", "Prefix")
AUTH_POLICIES: Final = "auth_policies"
AUTH_MODE: Final = "subscription_auth_mode"


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
    of_topic, of_all = _grants(request, _topic(request)), _grants(request, _namespace(request))
    for role, actions in of_all.roles.items():
        of_topic = of_topic.with_role(role, actions | of_topic.roles.get(role, frozenset()))
    return web.json_response(_listed(of_topic))


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
    base = base_name(str(name)) if name.partition >= 0 else ""
    return base if base and request.app[ENGINE].partitioned.count(base) else str(name)


def _namespace(request: web.Request) -> str:
    """Return the namespace of the path; raise :class:`NamespaceNotFound`."""
    name = namespace_name(request)
    request.app[ENGINE].catalog.namespace(name)
    return name


def _grants(request: web.Request, name: str) -> Grants:
    return request.app[ENGINE].catalog.grants.of(name)


async def _grant(request: web.Request, name: str) -> web.Response:
    """Replace a role's actions at ``name`` by the actions of the body."""
    role, actions = _role(request), _actions(await read_json(request), "actions")
    return await _change(request, name, lambda grants: grants.with_role(role, actions))


async def _change(request: web.Request, name: str, change: Callable[[Grants], Grants]) -> web.Response:
    catalog, namespace = request.app[ENGINE].catalog, namespace_name(request)

    def bounded(grants: Grants) -> Grants:
        changed = change(grants)
        _check_size(name, changed)
        return changed

    await catalog.grants.change(name, bounded, lambda: catalog.namespace(namespace))
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
    topics = sorted(table.of_topics(namespace).items())
    subscriptions = {name: sorted(roles) for name, roles in sorted(grants.subscriptions.items())}
    return {
        AUTH_POLICIES: {
            "namespace_auth": _listed(grants),
            "destination_auth": {topic: _listed(granted) for topic, granted in topics},
            "subscription_auth_roles": subscriptions,
        },
        AUTH_MODE: MODES[grants.prefixed],
    }


def read_auth_policies(namespace: str, policies: Mapping[str, Any]) -> dict[str, Grants]:
    """Return the permissions in the policies of a new namespace, by the name of the namespace or topic.

    Raises :class:`BadRequest`, :class:`InvalidTopicName`, and :class:`PreconditionFailed` for a topic of another
    namespace.
    """
    at = f"policies.{AUTH_POLICIES}"
    fields = object_field(policies.get(AUTH_POLICIES) or {}, at)
    grants = _with_roles(Grants(), fields.get("namespace_auth"), f"{at}.namespace_auth")
    for subscription, roles in _entries(fields.get("subscription_auth_roles"), f"{at}.subscription_auth_roles"):
        field = f"{at}.subscription_auth_roles.{subscription[:40]}"
        allowed = [role_field(role, field) for role in texts_field(roles, field)]
        grants = grants.with_subscription(check_subscription_name(subscription), allowed)
    if _prefixed(policies.get(AUTH_MODE) or MODES[0], f"policies.{AUTH_MODE}"):
        grants = Grants(grants.roles, grants.subscriptions, prefixed=True)
    found = {namespace: grants}
    for topic, roles in _entries(fields.get("destination_auth"), f"{at}.destination_auth"):
        name = parse_topic(topic)
        if name.full_namespace != namespace:
            raise PreconditionFailed(f"{at}.destination_auth: {topic[:80]!r} is no topic of namespace {namespace}")
        found[str(name)] = _with_roles(Grants(), roles, f"{at}.destination_auth.{topic[:80]}")
    for name_of, granted in found.items():
        _check_size(name_of, granted)
    return found


def _with_roles(grants: Grants, body: Any, field: str) -> Grants:
    for role, actions in _entries(body, field):
        grants = grants.with_role(role_field(role, field), _actions(actions, f"{field}.{role[:40]}"))
    return grants


def _entries(body: Any, field: str) -> Iterable[tuple[str, Any]]:
    return object_field({} if body is None else body, field).items()


def _listed(grants: Grants) -> dict[str, Any]:
    return {role: sorted(actions) for role, actions in sorted(grants.roles.items())}
