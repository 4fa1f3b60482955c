"""One schema, and its version, which is computed from the content and so is equal in every cluster. Pure.

A version has 8 bytes, as clients and tools expect: a non-negative number, big-endian. Each byte is below 128, because
the official Python client reads a version as text. It is made from a SHA-256 of type, definition and properties. So two
clusters that register the same schema give it the same version without asking each other (ADR 40).
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final

from replicator.engine.errors import IncompatibleSchema

SCHEMA_BYTES_MAX: Final = 256 * 1024
VERSION_BYTES: Final = 8


class SchemaType(IntEnum):
    """Types of schemas, with the numbers that clients use."""

    NONE = 0
    STRING = 1
    JSON = 2
    PROTOBUF = 3
    AVRO = 4
    BOOL = 5
    INT8 = 6
    INT16 = 7
    INT32 = 8
    INT64 = 9
    FLOAT = 10
    DOUBLE = 11
    DATE = 12
    TIME = 13
    TIMESTAMP = 14
    KEY_VALUE = 15
    INSTANT = 16
    LOCAL_DATE = 17
    LOCAL_TIME = 18
    LOCAL_DATE_TIME = 19
    PROTOBUF_NATIVE = 20
    AUTO_CONSUME = 21
    EXTERNAL = 22


DEFINED_IN_AVRO: Final = frozenset({SchemaType.AVRO, SchemaType.JSON, SchemaType.PROTOBUF})
"""Types whose definition is an Avro schema in JSON."""


@dataclass(frozen=True, slots=True)
class TopicSchema:
    """A schema as a client sent it. Its name has no meaning here and does not count for its identity."""

    type: SchemaType
    definition: bytes
    properties: Mapping[str, str] = field(default_factory=dict)
    name: str = ""

    @property
    def version(self) -> bytes:
        """Version of the schema: 8 bytes, computed from type, definition and properties."""
        parts = [str(int(self.type)).encode(), self.definition]
        parts += [text.encode() for pair in sorted(self.properties.items()) for text in pair]
        digest = hashlib.sha256()
        for part in parts:  # with their lengths: no two schemas run together into one text
            digest.update(len(part).to_bytes(8, "big") + part)
        return bytes(byte & 0x7F for byte in digest.digest()[:VERSION_BYTES])

    def check(self) -> None:
        """Raise :class:`IncompatibleSchema` if the schema is too large, or does not fit its type."""
        try:
            "".join([*self.properties, *self.properties.values(), self.name]).encode()
        except UnicodeEncodeError:
            raise IncompatibleSchema(
                "a name or property of the schema is no text, because it has half a character (a lone surrogate): "
                "correct it"
            ) from None
        size = len(self.definition) + sum(len(key) + len(value) for key, value in self.properties.items())
        if size > SCHEMA_BYTES_MAX:
            raise IncompatibleSchema(f"the schema has {size} bytes; {SCHEMA_BYTES_MAX} are allowed: make it smaller")
        if self.type in DEFINED_IN_AVRO:
            try:
                json.loads(self.definition)
            except (ValueError, RecursionError):
                raise IncompatibleSchema(
                    f"the definition of a schema of type {self.type.name} is no JSON: correct the schema"
                ) from None

    def as_json(self) -> dict[str, Any]:
        return {
            "type": int(self.type),
            "definition": base64.b64encode(self.definition).decode(),
            "properties": dict(self.properties),
            "name": self.name,
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> TopicSchema:
        """Return the schema of a row. Raise :class:`ValueError`, :class:`KeyError` or :class:`TypeError`."""
        definition, properties, name = base64.b64decode(stored["definition"]), stored["properties"], stored["name"]
        texts = [*properties.values(), name] if isinstance(properties, dict) else [None]
        if not all(isinstance(text, str) for text in texts):
            raise TypeError(
                "the properties and the name of a schema must be text; run the same version in all clusters"
            )
        return cls(SchemaType(stored["type"]), definition, properties, name)
