"""Permissions of namespaces and topics, in Pulsar's shape: by role a list of actions.

They are kept whether or not the worker asks who somebody is: they count as soon as it does. What the topology file
grants beside them is not shown here, and cannot be revoked here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from aiohttp import web

from replicator.api.admin.errors import PreconditionFailed
from replicator.api.admin.policies import OF_NAMESPACE, OF_TOPIC
from replicator.api.admin.requests import (
    ENGINE,
    logs_of,
    namespace_name,
    no_content,
    read_json,
    subscription_name,
    text_field,
    texts_field,
    topic_name,
)
from replicator.api.errors import BadRequest
from replicator.engine.topic_name import check_subscription_name
from replicator.engine.topics.grants import Grants
from replicator.engine.topics.partitions import base_name
from replicator.security.identity import ROLE_CHARS_MAX
from replicator.security.permissions import Action

ROLES_MAX: Final = 10_000
"""Limit of roles of one namespace, topic or subscription."""
MODES: Final = ("None", "Prefix")


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
    mode = text_field(await read_json(request), "subscriptionAuthMode")
    if mode not in MODES:
        raise BadRequest(f"field subscriptionAuthMode must be one of {', '.join(MODES)}")
    prefixed = mode == "Prefix"
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
    role, actions = _role(request), set[str]()
    for action in texts_field(await read_json(request), "actions"):
        if action not in list(Action):
            raise BadRequest(f"actions: {action[:40]!r} is not one of {', '.join(Action)}")
        actions.add(action)
    return await _change(request, name, lambda grants: grants.with_role(role, actions))


async def _change(request: web.Request, name: str, change: Callable[[Grants], Grants]) -> web.Response:
    catalog, namespace = request.app[ENGINE].catalog, namespace_name(request)

    def bounded(grants: Grants) -> Grants:
        changed = change(grants)
        sizes = (len(changed.roles), len(changed.subscriptions), *map(len, changed.subscriptions.values()))
        if max(sizes) > ROLES_MAX:
            raise PreconditionFailed(
                f"{name} has permissions of {ROLES_MAX} roles or subscriptions, the limit: revoke those of one first"
            )
        return changed

    await catalog.grants.change(name, bounded, lambda: catalog.namespace(namespace))
    return no_content()


def _listed(grants: Grants) -> dict[str, Any]:
    return {role: sorted(actions) for role, actions in sorted(grants.roles.items())}
