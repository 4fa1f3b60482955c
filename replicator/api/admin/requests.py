"""Helpers that handlers of the admin paths share: they read names, parameters and JSON bodies, and check them by field.
A body is read up to :data:`BODY_BYTES_MAX`. A body that is not JSON, or JSON of another form than the path takes, is
400; an impossible value is 412. The reason names the field. A handler checks everything before it changes anything.

A number or a boolean may also come as a JSON text, as brokers take it: ``"60"``, ``"true"``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from aiohttp import web

from replicator.api.admin.errors import NotOnPartitioned, PreconditionFailed
from replicator.api.errors import BadRequest
from replicator.api.json_in_slices import json_in_slices
from replicator.engine.engine import Engine
from replicator.engine.errors import TopicNotFound
from replicator.engine.topic import Topic
from replicator.engine.topic_name import TopicName, check_subscription_name, check_tenant, parse_namespace, parse_topic
from replicator.running.pacing import Pace

ENGINE: Final = web.AppKey("admin_engine", Engine)

BODY_BYTES_MAX: Final = 64 * 1024
"""The largest bodies are the policies of a namespace, some kB."""
NUMBER_MAX: Final = 2**63 - 1
"""Numbers of Pulsar's API are at most signed 64 bits."""
SHOWN_CHARS_MAX: Final = 40
"""Limit of characters of a client's text that an error message repeats."""

_TRUE_OR_FALSE: Final = {"true": True, "false": False}
_NUMBER: Final = re.compile(r"-?[0-9]{1,19}")


def topic_name(request: web.Request) -> TopicName:
    """Return the topic that the path names; raise :class:`InvalidTopicName`."""
    match = request.match_info
    return parse_topic(f"persistent://{match['tenant']}/{match['namespace']}/{match['topic']}")


def namespace_name(request: web.Request) -> str:
    """Return ``tenant/namespace`` of the path; raise :class:`InvalidTopicName`."""
    return parse_namespace(f"{request.match_info['tenant']}/{request.match_info['namespace']}")


def tenant_name(request: web.Request) -> str:
    """Return the tenant of the path; raise :class:`InvalidTopicName`."""
    return check_tenant(request.match_info["tenant"])


def subscription_name(request: web.Request) -> str:
    """Return the subscription of the path; raise :class:`InvalidSubscriptionName`."""
    return check_subscription_name(request.match_info["subscription"])


async def one_topic(request: web.Request) -> Topic:
    """Return the topic of the path. Raise :class:`TopicNotFound`, and :class:`NotOnPartitioned` for a partitioned
    topic.
    """
    engine, name = request.app[ENGINE], str(topic_name(request))
    if partitions := engine.partitioned.count(name):
        raise NotOnPartitioned(
            f"{name} has {partitions} partitions, and this request is for one: name one, {name}-partition-0 to "
            f"{name}-partition-{partitions - 1}"
        )
    return await engine.topic(name, create=False)


async def log_of_one(request: web.Request) -> Topic:
    """Return the topic of the path, like :func:`one_topic`, but raise :class:`TopicNotFound` for a partitioned topic:
    Pulsar says that it has no log.
    """
    try:
        return await one_topic(request)
    except NotOnPartitioned as error:
        raise TopicNotFound(str(error)) from None


async def logs_of(request: web.Request) -> list[Topic]:
    """Return the topic of the path, or the partitions of a partitioned one; raise :class:`TopicNotFound`."""
    engine, name = request.app[ENGINE], str(topic_name(request))
    partitions = engine.partitioned.count(name)
    if not partitions:
        return [await engine.topic(name, create=False)]
    found = [engine.find(f"{name}-partition-{index}") for index in range(partitions)]
    there = [topic for topic in found if topic is not None]
    if not there:
        raise TopicNotFound(
            f"cluster {engine.cluster!r} has none of the {partitions} partitions of {name}: POST "
            "…/createMissedPartitions makes them"
        )
    return there


# Parameters and parts of the path.


def flag_parameter(request: web.Request, name: str, *, default: bool = False) -> bool:
    """Return a parameter that is true or false; raise :class:`BadRequest`."""
    text = request.query.get(name)
    if text is None:
        return default
    if text.lower() not in _TRUE_OR_FALSE:
        raise BadRequest(f"parameter {name}: {_shown(text)} is not true or false")
    return _TRUE_OR_FALSE[text.lower()]


def number_of(text: str, parameter: str, *, least: int = 0, most: int = NUMBER_MAX) -> int:
    """Return a number from the path or a parameter; raise :class:`BadRequest`."""
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal()) or len(digits) > 19 or not least <= int(text) <= most:
        raise BadRequest(f"{parameter}: {_shown(text)} is not a number from {least} to {most}")
    return int(text)


# Bodies.


async def read_json(request: web.Request, bytes_max: int = BODY_BYTES_MAX) -> Any:
    """Return the parsed body, or None without one; raise :class:`BadRequest` if it is not JSON. A large body is read
    with pauses, in which other requests have their turn.
    """
    return await parsed(request, await read_body(request, bytes_max))


async def read_body(request: web.Request, bytes_max: int = BODY_BYTES_MAX) -> bytearray:
    """Return the body of a request. Raise :class:`aiohttp.web.HTTPRequestEntityTooLarge` if it is too large."""
    if request.content_length is not None and request.content_length > bytes_max:
        raise web.HTTPRequestEntityTooLarge(bytes_max, request.content_length)
    body = bytearray()
    async for piece in request.content.iter_any():
        body += piece
        if len(body) > bytes_max:
            raise web.HTTPRequestEntityTooLarge(bytes_max, len(body))
    return body


async def parsed(request: web.Request, body: bytearray) -> Any:
    """Return the JSON of a body as :func:`read_json` does."""
    if not body.strip():
        return None
    try:
        return await json_in_slices(body, Pace(request.app[ENGINE].turns))
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the body is not JSON that can be read: {error}") from None


def scalar(value: Any) -> Any:
    """Return the number or boolean that a JSON text stands for; return any other value as it is."""
    if not isinstance(value, str):
        return value
    if _NUMBER.fullmatch(value):
        return int(value)
    return _TRUE_OR_FALSE.get(value.lower(), value)


def number_field(value: object, field: str, *, least: int = 0, most: int = NUMBER_MAX) -> int:
    """Return ``value`` if it is a whole number in range; raise :class:`BadRequest` or :class:`PreconditionFailed` if
    not.
    """
    value = scalar(value)
    if type(value) is not int:
        raise BadRequest(f"{field} must be a whole number, not {_shown(value)}")
    if not least <= value <= most:
        raise PreconditionFailed(f"{field} must be a number from {least} to {most}, not {value}")
    return value


def flag_field(value: object, field: str) -> bool:
    """Return ``value`` if it is true or false; raise :class:`BadRequest` if not."""
    value = scalar(value)
    if not isinstance(value, bool):
        raise BadRequest(f"{field} must be true or false, not {_shown(value)}")
    return value


def text_field(value: object, field: str) -> str:
    """Return ``value`` if it is a text; raise :class:`BadRequest` if not."""
    if not isinstance(value, str):
        raise BadRequest(f"{field} must be a text, not {_shown(value)}")
    return value


def texts_field(value: object, field: str) -> tuple[str, ...]:
    """Return ``value`` if it is a list of texts; raise :class:`BadRequest` if not."""
    if not isinstance(value, list):
        raise BadRequest(f"{field} must be a list of texts, not {_shown(value)}")
    return tuple(text_field(each, f"{field}[{index}]") for index, each in enumerate(value))


def object_field(value: object, field: str) -> Mapping[str, Any]:
    """Return ``value`` if it is an object; raise :class:`BadRequest` if not.

    Callers ignore fields that brokers do not know. They refuse those that brokers know and this version cannot keep.
    """
    if not isinstance(value, dict):
        raise BadRequest(f"{field} must be an object, not {_shown(value)}")
    return value


def no_content() -> web.Response:
    """Return Pulsar's answer to a success that has no content."""
    return web.Response(status=204)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN_CHARS_MAX else f"{text[:SHOWN_CHARS_MAX]}…"
