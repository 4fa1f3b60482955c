"""Schemas: ``/admin/v2/schemas/{tenant}/{namespace}/{topic}``.

A version is a number on this path, the same 8 bytes that clients see: it follows from the schema's content (ADR 40), so
it does not count from 0. The definition of a schema of key and value is JSON here, ``{"key", "value"}``; on the wire it
is both parts with their sizes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from aiohttp import web

from replicator.api.admin.errors import Unprocessable
from replicator.api.admin.requests import (
    ENGINE,
    flag_parameter,
    namespace_name,
    number_of,
    object_field,
    read_json,
    text_field,
    topic_name,
)
from replicator.api.errors import BadRequest
from replicator.engine.errors import IncompatibleSchema, SchemaNotFound
from replicator.engine.schemas.registry import RegisteredSchema
from replicator.engine.schemas.schema import DEFINED_IN_AVRO, VERSION_BYTES, SchemaType, TopicSchema

TOPIC: Final = "/admin/v2/schemas/{tenant}/{namespace}/{topic}"
SCHEMA_BODY_BYTES_MAX: Final = 1024 * 1024
"""A definition of 256 KiB, quoted and with its properties."""
NO_VERSION: Final = -1
NOTHING: Final = '""'
"""JSON text for a part of a key-value schema whose type has no definition."""
TYPES: Final = {kind.name: kind for kind in SchemaType} | {"BOOLEAN": SchemaType.BOOL}
"""Types of schemas by their names on this path."""
_NAMES: Final = {kind: name for name, kind in TYPES.items()}


def routes() -> list[web.RouteDef]:
    """Return the routes of schemas."""
    return [
        web.get(f"{TOPIC}/schema", newest),
        web.get(f"{TOPIC}/schema/{{version}}", of_version),
        web.get(f"{TOPIC}/schemas", all_of_topic),
        web.get(f"{TOPIC}/metadata", metadata),
        web.post(f"{TOPIC}/schema", register),
        web.delete(f"{TOPIC}/schema", delete),
        web.post(f"{TOPIC}/compatibility", compatibility),
        web.post(f"{TOPIC}/version", version_of),
    ]


async def newest(request: web.Request) -> web.Response:
    versions = _versions(request)
    if not versions:
        raise SchemaNotFound(f"{topic_name(request)} has no schema")
    return web.json_response(_shown(_registered(request, versions[-1])))


async def of_version(request: web.Request) -> web.Response:
    version = number_of(request.match_info["version"], "version", least=NO_VERSION)
    found = [each for each in _versions(request) if _number(each) == version]
    if not found:
        raise SchemaNotFound(
            f"{topic_name(request)} has no schema of version {version}; see which versions it has with GET …/schemas"
        )
    return web.json_response(_shown(_registered(request, found[0])))


async def all_of_topic(request: web.Request) -> web.Response:
    """Answer with all schemas of the topic, the oldest first."""

    def shown(known: list[RegisteredSchema]) -> bytes:
        return json.dumps({"getSchemaResponses": [_shown(each) for each in known]}).encode()

    body = await request.app[ENGINE].schemas.look(str(topic_name(request)), shown)
    return web.Response(body=body, content_type="application/json", charset="utf-8")


async def metadata(request: web.Request) -> web.Response:
    """Answer with the topic's schema versions in their order. They have no ledgers: they are in the worker's store."""
    index = [{"ledgerId": -1, "entryId": -1, "version": _number(each)} for each in _versions(request)]
    if not index:
        raise SchemaNotFound(f"{topic_name(request)} has no schema")
    return web.json_response({"info": index[-1], "index": index})


async def register(request: web.Request) -> web.Response:
    """Register a schema if the topic's compatibility strategy lets it follow the existing ones."""
    engine, topic = request.app[ENGINE], str(topic_name(request))
    engine.catalog.namespace(namespace_name(request))
    version = await engine.schemas.add(topic, await _read(request))
    return web.json_response({"version": {"version": int.from_bytes(version, "big")}})


async def delete(request: web.Request) -> web.Response:
    """Delete the topic's schemas in this cluster. Messages written with them can then be read as bytes only."""
    flag_parameter(request, "force")
    topic = str(topic_name(request))
    versions = [_number(each) for each in _versions(request)]
    await request.app[ENGINE].schemas.remove(topic)
    return web.json_response({"version": versions[-1] if versions else NO_VERSION})


async def compatibility(request: web.Request) -> web.Response:
    """Answer whether a schema could be registered, and which strategy decides that."""
    engine, topic = request.app[ENGINE], str(topic_name(request))
    schema = await _read(request)
    answer: dict[str, Any] = {"schemaCompatibilityStrategy": engine.schemas.strategy(topic).value}
    try:
        await engine.schemas.check(topic, schema)
    except IncompatibleSchema as error:
        answer |= {"compatibility": False, "reason": str(error)}
    else:
        answer["compatibility"] = True
    return web.json_response(answer, status=202)


async def version_of(request: web.Request) -> web.Response:
    """Answer with the version of a schema in the topic; -1 if it is not registered."""
    schema = await _read(request)
    known = schema.version in _versions(request)
    return web.json_response({"version": _number(schema.version) if known else NO_VERSION})


def _versions(request: web.Request) -> list[bytes]:
    return request.app[ENGINE].schemas.versions(str(topic_name(request)))


def _registered(request: web.Request, version: bytes) -> RegisteredSchema:
    found = request.app[ENGINE].schemas.registered(str(topic_name(request)), version)
    assert found is not None  # its version was read in the same step
    return found


def _number(version: bytes) -> int:
    return int.from_bytes(version[:VERSION_BYTES], "big")


def _shown(registered: RegisteredSchema) -> dict[str, Any]:
    schema = registered.schema
    return {
        "version": _number(schema.version),
        "type": _NAMES[schema.type],
        "timestamp": registered.registered_at_ms,
        "data": _text(schema),
        "properties": dict(schema.properties),
    }


async def _read(request: web.Request) -> TopicSchema:
    """Return the schema in the body. Raise :class:`BadRequest` or :class:`Unprocessable`."""
    fields: Mapping[str, Any] = object_field(await read_json(request, SCHEMA_BODY_BYTES_MAX), "schema")
    name = text_field(fields.get("type"), "schema.type")
    kind = TYPES.get(name.upper())
    if kind is None:
        raise BadRequest(f"schema.type: {name[:40]!r} is not one of {', '.join(sorted(TYPES))}")
    properties = {
        key: text_field(value, f"schema.properties.{key[:40]}")
        for key, value in object_field(fields.get("properties") or {}, "schema.properties").items()
    }
    text = text_field(fields.get("schema") or "", "schema.schema")
    definition = _joined(text) if kind is SchemaType.KEY_VALUE else text.encode()
    if kind in DEFINED_IN_AVRO and not _is_json(text):
        raise Unprocessable(f"schema.schema must be the definition of a schema of type {kind.name}, and is not JSON")
    return TopicSchema(kind, definition, properties, topic_name(request).local)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


# Schemas of key and value.


def _joined(text: str) -> bytes:
    """Return a key-value schema's definition in its wire form: both parts, each with its size before it."""
    try:
        parts = json.loads(text)
        definitions = [_part(parts[name]) for name in ("key", "value")]
    except (ValueError, RecursionError, KeyError, TypeError):
        raise Unprocessable('schema.schema of type KEY_VALUE must be {"key": …, "value": …} as JSON') from None
    return b"".join(len(each).to_bytes(4, "big") + each for each in definitions)


def _part(value: Any) -> bytes:
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return b"" if text == NOTHING else text.encode()


def _text(schema: TopicSchema) -> str:
    if schema.type is not SchemaType.KEY_VALUE:
        return schema.definition.decode(errors="replace")
    parts, at = [], 0
    for _ in ("key", "value"):
        size = max(0, int.from_bytes(schema.definition[at : at + 4], "big", signed=True))
        parts.append(schema.definition[at + 4 : at + 4 + size].decode(errors="replace") or NOTHING)
        at += 4 + size
    return f'{{"key":{parts[0]},"value":{parts[1]}}}'
