"""Policies of topics and of namespaces, one path each, as ``/admin/v2/…/{policy}``; and all of a topic at once.

``GET`` shows what was set at that level: 204 if nothing was, or with ``applied=true`` what counts there. ``POST`` (and
``PUT``) sets one policy, ``DELETE`` takes it back to what the level below gives. The forms are those of
:mod:`replicator.api.admin.policy_shapes`.

A level sets some policies; each of the others is what the level below has, also when that changes later.

Changes are made one after the other, so that two that come at once both hold.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from aiohttp import web

from replicator.api.admin.absent_policies import ABSENT_POLICIES, AbsentPolicy
from replicator.api.admin.errors import NotSupported
from replicator.api.admin.policy_shapes import (
    DESTINATION_STORAGE,
    QUOTA_KINDS,
    PolicyShape,
    shape_of,
    show_quotas,
    unlimited,
    with_quota,
    without_quota,
)
from replicator.api.admin.requests import (
    ENGINE,
    flag_parameter,
    logs_of,
    namespace_name,
    no_content,
    number_of,
    read_json,
)
from replicator.api.errors import BadRequest
from replicator.engine.engine import Engine
from replicator.engine.policies import PolicyOverrides, TopicPolicies
from replicator.engine.policies_codec import overrides_from_json, policies_to_json

CHANGES: Final = web.AppKey("admin_policy_changes", asyncio.Lock)
QUOTA: Final = "backlog_quota"
OF_TOPIC: Final = "/admin/v2/persistent/{tenant}/{namespace}/{topic}"
OF_NAMESPACE: Final = "/admin/v2/namespaces/{tenant}/{namespace}"


@dataclass(frozen=True, slots=True)
class Level:
    """A topic, the partitions of one, or a namespace: the policies that were set there, and those below it."""

    own: PolicyOverrides
    inherited: TopicPolicies
    save: Callable[[PolicyOverrides | None], Awaitable[None]]

    @property
    def applied(self) -> TopicPolicies:
        return self.own.over(self.inherited)

    async def change(self, own: PolicyOverrides) -> None:
        """Set the policies of this level to ``own``."""
        await self.save(own or None)


def routes() -> list[web.RouteDef]:
    """Return the routes of policies. They must be added after the other routes of topics and namespaces."""
    found: list[web.RouteDef] = [
        web.get(f"{OF_TOPIC}/policies", show_all),
        web.post(f"{OF_TOPIC}/policies", set_some),
        web.delete(f"{OF_TOPIC}/policies", unset_all),
    ]
    for at in (OF_TOPIC, OF_NAMESPACE):
        found += [
            web.get(f"{at}/backlogQuotaMap", show_backlog_quotas),
            web.post(f"{at}/backlogQuota", set_backlog_quota),
            web.delete(f"{at}/backlogQuota", unset_backlog_quota),
            web.get(f"{at}/{{policy}}", show),
            web.post(f"{at}/{{policy}}", set_one),
            web.put(f"{at}/{{policy}}", set_one),
            web.delete(f"{at}/{{policy}}", unset),
        ]
    return found


async def show(request: web.Request) -> web.Response:
    """Answer with one policy."""
    if (absent := _absent(request)) is not None:
        await _level(request)
        return no_content() if absent.shown is None else web.json_response(absent.shown)
    shape, level = _shape(request), await _level(request)
    if flag_parameter(request, "applied"):
        return web.json_response(shape.show(getattr(level.applied, shape.field)))
    own = level.own.values
    shown = shape.show(own[shape.field]) if shape.field in own else shape.where_unset
    return no_content() if shown is None else web.json_response(shown)


async def set_one(request: web.Request) -> web.Response:
    """Set one policy to the value in the body. A topic's TTL comes as a parameter: Pulsar's tools send it so."""
    name, body = request.match_info["policy"], await read_json(request)
    if (absent := _absent(request)) is not None:
        await _level(request)
        if not absent.asks_nothing(body):
            raise NotSupported(f"policy {name} cannot be set in this version: {absent.why}")
        return no_content()
    shape = _shape(request)
    if body is None and name in request.query:
        body = number_of(request.query[name], f"parameter {name}")
    if body is None:
        raise BadRequest(f"policy {name}: the body is empty; send the value of the policy as JSON")
    value = shape.read(body, name)
    async with request.app[CHANGES]:
        level = await _level(request)
        if value is None and shape.none_unsets:
            await level.change(level.own.without(shape.field))
        else:
            await level.change(level.own.setting(**{shape.field: value}))
    return no_content()


async def unset(request: web.Request) -> web.Response:
    """Remove one policy, so that the inherited value counts."""
    if _absent(request) is not None:
        await _level(request)
        return no_content()
    shape = _shape(request)
    async with request.app[CHANGES]:
        level = await _level(request)
        await level.change(level.own.without(shape.field))
    return no_content()


# Backlog quotas.


async def show_backlog_quotas(request: web.Request) -> web.Response:
    """Answer with the backlog quotas that are set, by kind."""
    level = await _level(request)
    if flag_parameter(request, "applied"):
        applied = level.applied.backlog_quota
        return web.json_response({kind: unlimited(applied) for kind in QUOTA_KINDS} | show_quotas(applied))
    quota = level.own.values.get(QUOTA)
    return web.json_response({} if quota is None else show_quotas(quota))


async def set_backlog_quota(request: web.Request) -> web.Response:
    kind, body = _quota_kind(request), await read_json(request)
    async with request.app[CHANGES]:
        level = await _level(request)
        await level.change(level.own.setting(**{QUOTA: with_quota(level.applied, kind, body).backlog_quota}))
    return no_content()


async def unset_backlog_quota(request: web.Request) -> web.Response:
    kind = _quota_kind(request)
    async with request.app[CHANGES]:
        level = await _level(request)
        quota = without_quota(level.applied, kind).backlog_quota
        nothing_left = quota.bytes_max is None and quota.age_seconds_max is None
        await level.change(level.own.without(QUOTA) if nothing_left else level.own.setting(**{QUOTA: quota}))
    return no_content()


def _quota_kind(request: web.Request) -> str:
    kind = request.query.get("backlogQuotaType", DESTINATION_STORAGE)
    if kind not in QUOTA_KINDS:
        raise BadRequest(f"parameter backlogQuotaType: {kind[:40]!r} is not one of {', '.join(QUOTA_KINDS)}")
    return kind


# All policies of a topic, under our own names: also those that Pulsar does not have.


async def show_all(request: web.Request) -> web.Response:
    """Answer with every policy that counts for the topic, and the names of those that are its own."""
    level = await _level(request)
    return web.json_response({"own": sorted(level.own.values), "policies": policies_to_json(level.applied)})


async def set_some(request: web.Request) -> web.Response:
    """Set the policies that the body names, by the names of our own API."""
    body = await read_json(request)
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object of policies: the name of each, and its value")
    async with request.app[CHANGES]:
        level = await _level(request)
        await level.change(level.own.setting(**overrides_from_json(body).values))
    return no_content()


async def unset_all(request: web.Request) -> web.Response:
    """Remove all policies of the topic, so that those of its namespace or of the engine count."""
    async with request.app[CHANGES]:
        await (await _level(request)).save(None)
    return no_content()


# Levels.


def _absent(request: web.Request) -> AbsentPolicy | None:
    return ABSENT_POLICIES.get(request.match_info["policy"])


def _shape(request: web.Request) -> PolicyShape:
    shape = shape_of(request.match_info["policy"])
    if shape is None:
        raise web.HTTPNotFound
    return shape


async def _level(request: web.Request) -> Level:
    if "topic" in request.match_info:
        return await _level_of_topics(request)
    return level_of_namespace(request.app[ENGINE], namespace_name(request))


async def _level_of_topics(request: web.Request) -> Level:
    """Return the policies of the path's topic. A partitioned topic shows the policies of its first partition: a change
    by the topic's name goes to all.
    """
    topics = await logs_of(request)

    async def save(policies: PolicyOverrides | None) -> None:
        for topic in topics:
            await topic.policies.set(policies)

    return Level(topics[0].policies.own or PolicyOverrides(), topics[0].policies.inherited, save)


def level_of_namespace(engine: Engine, name: str) -> Level:
    """Return the topic policies of a namespace. Raise :class:`NamespaceNotFound`."""

    async def save(policies: PolicyOverrides | None) -> None:
        before = engine.catalog.namespace(name)
        await engine.catalog.set_namespace(name, replace(before, topic_policies=policies))

    own = engine.catalog.namespace(name).topic_policies or PolicyOverrides()
    return Level(own, engine.loaded.default_policies, save)


def shown_policies(policies: PolicyOverrides, names: dict[str, str]) -> dict[str, Any]:
    """Return the policies that are set, in Pulsar's form. ``names`` maps the path of each policy to the name to show it
    under.
    """
    found: dict[str, Any] = {}
    for path, shown in names.items():
        shape = shape_of(path)
        assert shape is not None
        if shape.field in policies.values:
            found[shown] = shape.show(policies.values[shape.field])
    return found
