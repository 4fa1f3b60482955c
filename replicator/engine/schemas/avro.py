"""Check whether one Avro schema can read data that was written with another. Pure; definitions are parsed JSON.

By Avro's rules of schema resolution:

1. A primitive reads its own type and types that are promoted to it (:data:`_PROMOTED`).
2. Enums and fixed types must have the same unqualified name, or the reader an alias of the writer's. Names of records
   are not compared: upstream's check, Avro's resolver, goes by their fields alone.
3. A record needs each field of the reader in the writer, by name or alias, and readable; or a default.
4. An enum needs every symbol of the writer in the reader, or a default there. Fixed types have the same size.
5. Every branch of a written union must be readable. A reader's union reads all types that one of its branches reads.

A pair of named types that is being compared already counts as readable: so recursive types end.

Source: the Avro specification, "Schema Resolution".
"""

from __future__ import annotations

from typing import Any, Final

from replicator.engine.errors import IncompatibleSchema

DEPTH_MAX: Final = 100
COMPARISONS_MAX: Final = 100_000
"""Limit of comparisons of two types: nested unions could need any number."""
_PRIMITIVES: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
_PROMOTED: Final = {
    "long": {"int"},
    "float": {"int", "long"},
    "double": {"int", "long", "float"},
    "string": {"bytes"},
    "bytes": {"string"},
}
"""By the reader's type, the writer's types that it reads besides its own."""
_NAMED: Final = frozenset({"record", "error", "enum", "fixed"})


def problem(reader: Any, writer: Any) -> str | None:
    """Return why ``reader`` cannot read data written with ``writer``, or None. Raise :class:`IncompatibleSchema` if one
    of them is no schema."""
    try:
        return _Comparison(reader, writer).compare(reader, writer, "", 0)
    except (KeyError, TypeError, AttributeError):
        raise IncompatibleSchema(
            "a schema's definition does not have the shape of an Avro schema: correct the schema"
        ) from None


class _Comparison:
    def __init__(self, reader: Any, writer: Any) -> None:
        self._readers: dict[str, Any] = {}
        self._writers: dict[str, Any] = {}
        _collect(reader, self._readers, 0)
        _collect(writer, self._writers, 0)
        self._under_way: set[tuple[str, str]] = set()
        self._left = COMPARISONS_MAX

    def compare(self, reader: Any, writer: Any, at: str, depth: int) -> str | None:
        self._left -= 1
        if depth > DEPTH_MAX or self._left < 0:
            raise IncompatibleSchema(
                "the client's schema and the topic's are nested too deeply, or are too large, to be compared: make the "
                "client's schema simpler, or use another topic"
            )
        reader, writer = _resolved(reader, self._readers), _resolved(writer, self._writers)
        if isinstance(writer, list):
            return next((why for each in writer if (why := self.compare(reader, each, at, depth + 1))), None)
        if isinstance(reader, list):
            if any(self.compare(each, writer, at, depth + 1) is None for each in reader):
                return None
            return f"{at or 'the top'}: no branch of the union reads {_type(writer)}"
        ours, theirs = _type(reader), _type(writer)
        if ours in _PRIMITIVES or theirs in _PRIMITIVES or ours != theirs:
            if ours == theirs or theirs in _PROMOTED.get(ours, ()):
                return None
            return f"{at or 'the top'}: {ours} does not read {theirs}"
        if ours in _NAMED and ours != "record" and (why := _names_differ(reader, writer, at)):
            return why
        match ours:
            case "array":
                return self.compare(reader.get("items"), writer.get("items"), f"{at}[]", depth + 1)
            case "map":
                return self.compare(reader.get("values"), writer.get("values"), f"{at}{{}}", depth + 1)
            case "fixed":
                same = reader.get("size") == writer.get("size")
                return None if same else f"{at or 'the top'}: fixed types of different sizes"
            case "enum":
                missing = [symbol for symbol in writer.get("symbols", ()) if symbol not in reader.get("symbols", ())]
                if missing and "default" not in reader:
                    return f"{at or 'the top'}: the symbol {missing[0]!r:.100} is not known"
                return None
            case _:
                return self._compare_records(reader, writer, at, depth)

    def _compare_records(self, reader: Any, writer: Any, at: str, depth: int) -> str | None:
        pair = (str(reader.get("name")), str(writer.get("name")))
        if pair in self._under_way:
            return None
        self._under_way.add(pair)
        try:
            written = {field["name"]: field for field in writer.get("fields", ())}
            for field in reader.get("fields", ()):
                names = [field["name"], *field.get("aliases", ())]
                found = next((written[name] for name in names if name in written), None)
                where = f"{at}.{field['name']}".lstrip(".")
                if found is not None:
                    if why := self.compare(field.get("type"), found.get("type"), where, depth + 1):
                        return why
                elif "default" not in field:
                    return f"{where}: there is no such field in the other, and no default"
        finally:
            self._under_way.discard(pair)
        return None


def _type(schema: Any) -> str:
    found = schema.get("type") if isinstance(schema, dict) else schema
    if isinstance(found, str) and (found in _PRIMITIVES or found in _NAMED or found in ("array", "map")):
        return found
    raise IncompatibleSchema(f"the schema has {found!r:.100} for a type, which Avro does not know: correct the schema")


def _resolved(schema: Any, named: dict[str, Any]) -> Any:
    """Return a type without its wrapping ``{"type": ...}``, and with names looked up."""
    for _ in range(DEPTH_MAX):
        if isinstance(schema, str) and schema not in _PRIMITIVES:
            if _local(schema) not in named:
                raise IncompatibleSchema(
                    f"the schema uses the type {schema!r:.100}, which it does not define: define it in the schema, or "
                    "correct the name"
                )
            return named[_local(schema)]
        if isinstance(schema, dict) and not (isinstance(inner := schema.get("type"), str) and _is_type(inner)):
            schema = schema.get("type")
        else:
            break
    return schema


def _is_type(name: str) -> bool:
    return name in _PRIMITIVES or name in _NAMED or name in ("array", "map")


def _collect(schema: Any, named: dict[str, Any], depth: int) -> None:
    """Add all named types in ``schema`` to ``named``, by their unqualified names."""
    if depth > DEPTH_MAX:
        raise IncompatibleSchema(f"the schema is nested more than {DEPTH_MAX} deep, the limit: make it flatter")
    if isinstance(schema, list):
        for each in schema:
            _collect(each, named, depth + 1)
    elif isinstance(schema, dict):
        if schema.get("type") in _NAMED if isinstance(schema.get("type"), str) else False:
            named.setdefault(_local(str(schema.get("name"))), schema)
        for key in ("type", "items", "values", "fields"):
            _collect(schema.get(key), named, depth + 1)


def _names_differ(reader: Any, writer: Any, at: str) -> str | None:
    ours, theirs = _local(str(reader.get("name"))), _local(str(writer.get("name")))
    aliases = reader.get("aliases") or ()
    if ours == theirs or theirs in [_local(str(alias)) for alias in aliases]:
        return None
    return f"{at or 'the top'}: the type {ours!r:.100} is not {theirs!r:.100}"


def _local(name: str) -> str:
    return name.rpartition(".")[2]
