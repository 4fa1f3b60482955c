"""Compatibility of schemas: upstream's strategies, for all types of schemas. Pure.

``BACKWARD``: the new schema reads data written with the old one. ``FORWARD``: the other way round. ``FULL``: both. Each
compares with the newest schema only; with ``_TRANSITIVE``, with all schemas. :mod:`replicator.engine.schemas.avro`
compares types with Avro definitions. Types of key and value are compared in both parts. Primitives are compatible with
their own type. For native Protobuf only the name of the message is compared, as upstream does.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from replicator.engine.errors import IncompatibleSchema
from replicator.engine.policies import SchemaStrategy
from replicator.engine.schemas import avro
from replicator.engine.schemas.schema import DEFINED_IN_AVRO, SchemaType, TopicSchema

_TRANSITIVE: Final = frozenset(
    {SchemaStrategy.BACKWARD_TRANSITIVE, SchemaStrategy.FORWARD_TRANSITIVE, SchemaStrategy.FULL_TRANSITIVE}
)
_FORWARD_ONLY: Final = frozenset({SchemaStrategy.FORWARD, SchemaStrategy.FORWARD_TRANSITIVE})
_BACKWARD_ONLY: Final = frozenset({SchemaStrategy.BACKWARD, SchemaStrategy.BACKWARD_TRANSITIVE})


def check(new: TopicSchema, existing: Sequence[TopicSchema], strategy: SchemaStrategy) -> None:
    """Raise :class:`IncompatibleSchema` unless ``new`` may follow the schemas ``existing``, which are sorted oldest
    first."""
    if strategy is SchemaStrategy.ALWAYS_COMPATIBLE or not existing:
        return
    if strategy is SchemaStrategy.ALWAYS_INCOMPATIBLE:
        raise IncompatibleSchema(
            "the topic's schema may not change, because its compatibility strategy is ALWAYS_INCOMPATIBLE; use the "
            "schema that it has, or change the strategy"
        )
    for old in existing if strategy in _TRANSITIVE else existing[-1:]:
        if new.type is not old.type:
            raise IncompatibleSchema(
                f"the topic has a schema of type {old.type.name}, not {new.type.name}: use that type, or another topic"
            )
        why = None if strategy in _FORWARD_ONLY else _unread(new, old)
        if why is None and strategy not in _BACKWARD_ONLY:
            why = _unread(old, new)
        if why is not None:
            raise IncompatibleSchema(
                f"the schema is incompatible with one of the topic's by strategy {strategy.value}: {why}; change the "
                "schema, or the strategy (schema_compatibility)"
            )


def check_consumer(wanted: TopicSchema, existing: Sequence[TopicSchema], strategy: SchemaStrategy) -> None:
    """Raise :class:`IncompatibleSchema` unless a consumer can read the topic with ``wanted``."""
    if strategy in (
        SchemaStrategy.BACKWARD,
        SchemaStrategy.FORWARD,
        SchemaStrategy.FORWARD_TRANSITIVE,
        SchemaStrategy.FULL,
    ):
        check(wanted, existing[-1:], SchemaStrategy.BACKWARD)
    elif any(each.version == wanted.version for each in existing):
        return
    else:
        check(wanted, existing, strategy)


def _unread(reader: TopicSchema, writer: TopicSchema) -> str | None:
    """Return why data written with one schema cannot be read with the other one of the same type, or None."""
    if reader.type in DEFINED_IN_AVRO:
        return avro.problem(_parsed(reader.definition), _parsed(writer.definition))
    if reader.type is SchemaType.KEY_VALUE:
        for (part, ours), (_, theirs) in zip(_parts(reader), _parts(writer), strict=True):
            if ours.type is not theirs.type:
                return f"{part}: {ours.type.name} is not {theirs.type.name}"
            if (why := _unread(ours, theirs)) is not None:
                return f"{part}: {why}"
        return None
    if reader.type is SchemaType.PROTOBUF_NATIVE:
        ours_name, theirs_name = (_parsed(each.definition).get("rootMessageTypeName") for each in (reader, writer))
        return None if ours_name == theirs_name else f"the message {ours_name!r:.100} is not {theirs_name!r:.100}"
    return None


def _parsed(definition: bytes) -> Any:
    try:
        return json.loads(definition)
    except (ValueError, RecursionError):
        raise IncompatibleSchema(
            "the definition of a schema that is compared, the client's or the topic's, is not JSON: correct the schema"
        ) from None


def _parts(schema: TopicSchema) -> list[tuple[str, TopicSchema]]:
    """Return the schemas of key and value. In the definition each follows its size, 4 bytes big-endian; -1 stands for
    none."""
    found, at = [], 0
    for part in ("key", "value"):
        size = max(0, int.from_bytes(schema.definition[at : at + 4], "big", signed=True))
        at += 4
        if at + size > len(schema.definition):
            raise IncompatibleSchema("the definition of a schema of key and value is cut short: correct the schema")
        name = schema.properties.get(f"{part}.schema.type", "NONE")
        found.append((part, TopicSchema(_type_named(name), schema.definition[at : at + size])))
        at += size
    return found


def _type_named(name: str) -> SchemaType:
    known = {kind.name.replace("_", ""): kind for kind in SchemaType} | {"BOOLEAN": SchemaType.BOOL}
    return known.get(name.upper().replace("_", ""), SchemaType.NONE)
