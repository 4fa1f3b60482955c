"""Texts as the payloads of typed values, and schemas as REST produce sends them. Pure.

A schema is a text with JSON in it: ``{"type", "schema" (base64), "properties", "name"}``, as Pulsar's Java classes are
written down. Numbers are big-endian, as its primitive schemas have them.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from typing import Final

from replicator.api.websocket.fields import BadField, from_base64, read_object, text_field, texts_field
from replicator.engine.schemas.schema import SchemaType, TopicSchema


def read_schema(text: str, field: str) -> TopicSchema:
    """Return the schema in ``text``. Raise :class:`BadField`."""
    fields = read_object(text, f"{field}, which describes a schema,")
    kind = _TYPES.get(text_field(fields, "type") or "")
    if kind is None:
        raise BadField(f"{field}: the type of the schema must be one of {', '.join(kind.name for kind in SchemaType)}")
    try:
        definition = from_base64(text_field(fields, "schema") or "")
    except ValueError as error:
        raise BadField(f"{field}: the definition of the schema must be in base64: {error}") from None
    return TopicSchema(kind, definition, texts_field(fields, "properties"), text_field(fields, "name") or "")


def key_value_schema(key: TopicSchema, value: TopicSchema) -> TopicSchema:
    """Return the schema of messages whose typed key lies beside the typed value (encoding ``SEPARATED``)."""
    properties = {"kv.encoding.type": "SEPARATED"}
    definition = b""
    for part, schema in (("key", key), ("value", value)):
        definition += len(schema.definition).to_bytes(4, "big") + schema.definition
        properties[f"{part}.schema.name"] = schema.name
        properties[f"{part}.schema.type"] = "BOOLEAN" if schema.type is SchemaType.BOOL else schema.type.name
        properties[f"{part}.schema.properties"] = json.dumps(dict(schema.properties))
    return TopicSchema(SchemaType.KEY_VALUE, definition, properties, "KeyValue")


def encode_payload(text: str, schema: TopicSchema) -> bytes:
    """Return the payload for ``text`` as a value of ``schema``. Raise :class:`BadField`."""
    encode = _ENCODERS.get(schema.type)
    if encode is None:
        raise BadField(
            f"this HTTP API cannot encode a text as a value of type {schema.type.name}: publish it with a Pulsar client"
        )
    try:
        return encode(text)
    except (ValueError, RecursionError, struct.error, OverflowError) as error:
        raise BadField(f"{text[:40]!r} is no value of type {schema.type.name}: {error}") from None


def _number(form: str) -> Callable[[str], bytes]:
    packing = struct.Struct(f">{form}")
    read = float if form in "fd" else int
    return lambda text: packing.pack(read(text))


def _flag(text: str) -> bytes:
    if text.lower() not in ("true", "false"):
        raise ValueError("a boolean must be true or false")
    return b"\x01" if text.lower() == "true" else b"\x00"


def _json(text: str) -> bytes:
    json.loads(text)
    return text.encode()


_ENCODERS: Final[Mapping[SchemaType, Callable[[str], bytes]]] = {
    SchemaType.NONE: str.encode,
    SchemaType.STRING: str.encode,
    SchemaType.JSON: _json,
    SchemaType.BOOL: _flag,
    SchemaType.INT8: _number("b"),
    SchemaType.INT16: _number("h"),
    SchemaType.INT32: _number("i"),
    SchemaType.INT64: _number("q"),
    SchemaType.FLOAT: _number("f"),
    SchemaType.DOUBLE: _number("d"),
}
_TYPES: Final = {kind.name: kind for kind in SchemaType} | {"BOOLEAN": SchemaType.BOOL, "BYTES": SchemaType.NONE}
