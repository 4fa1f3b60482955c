"""Translation of a topic's schema between commands and the engine."""

from __future__ import annotations

from typing import Final

from replicator.engine.schemas.schema import SchemaType, TopicSchema
from replicator.protocol.commands_pb2 import Schema

_NO_CHECK: Final = frozenset({SchemaType.NONE, SchemaType.AUTO_CONSUME})
"""Schema types without a schema (plain bytes, or any): nothing is registered or compared."""


def schema_from(wire: Schema) -> TopicSchema | None:
    """Return the engine's form of the schema in a command; None for a type without a schema."""
    kind = SchemaType(wire.type)
    if kind in _NO_CHECK:
        return None
    return TopicSchema(kind, wire.schema_data, {each.key: each.value for each in wire.properties}, wire.name)


def schema_on_the_wire(schema: TopicSchema) -> Schema:
    wire = Schema(name=schema.name, schema_data=schema.definition, type=Schema.Type.Name(schema.type.value))
    for key, value in schema.properties.items():
        wire.properties.add(key=key, value=value)
    return wire
