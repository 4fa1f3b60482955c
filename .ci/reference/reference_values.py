"""Makes the schema of ``topology.content`` from the models that read a topology file.

``helm/readme.py`` writes it into ``values.schema.json``, as the definition ``topologyContent``. What a single text has
to look like is mostly left to the check before an install: it refuses what this schema lets through.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

from annotated_types import Ge, Le

from replicator.topology import fields, links, scalars
from replicator.topology.reader import CLUSTER_NAME_CHARS_MAX
from replicator.topology.sections import Section
from replicator.topology.values import Topology

Schema = dict[str, Any]

OF_THE_CHART: Final = frozenset({"name", "tls_required", "data"})
"""Fields of a cluster that no file has, or that the chart writes where the values do not."""
_NOT_WRITTEN: Final = frozenset({"name", "tls_required"})


def content_schema() -> Schema:
    """Return the schema of a topology file, without what the chart adds to it."""
    name = f"^[A-Za-z0-9_-]{{1,{CLUSTER_NAME_CHARS_MAX}}}$"
    cluster = _section(fields.Cluster)
    cluster["properties"] = {key: each for key, each in cluster["properties"].items() if key not in _NOT_WRITTEN}
    cluster["required"] = [key for key in cluster["required"] if key not in OF_THE_CHART]
    link = _section(links.LinkSettings)
    ends: Schema = {"between": {"type": "array", "items": {"type": "string"}, "minItems": 2, "maxItems": 2}}
    ends |= {"from": {"type": "string"}, "to": {"type": "string"}}
    link["properties"] = ends | link["properties"]
    clusters: Schema = {"type": "object", "minProperties": 1, "propertyNames": {"pattern": name}}
    clusters["additionalProperties"] = cluster
    sections: Schema = {"clusters": clusters, "links": {"type": ["array", "null"], "items": link}}
    sections["policies"] = _or_null(_section(fields.PolicySettings))
    for key, kind in get_type_hints(Topology).items():
        if inspect.isclass(kind) and issubclass(kind, Section):
            sections[key] = _or_null(_section(kind))
    return {"type": "object", "additionalProperties": False, "properties": sections}


def _section(model: type[Section]) -> Schema:
    known = {name: _field(info.annotation, info.metadata) for name, info in model.model_fields.items()}
    required = [name for name, info in model.model_fields.items() if info.is_required()]
    return {"type": "object", "additionalProperties": False, "required": required, "properties": known}


def _field(annotation: Any, metadata: list[Any]) -> Schema:
    """Return the schema of one field, from its type and from what checks it."""
    for each in (annotation, *get_args(annotation)):
        if inspect.isclass(each) and issubclass(each, Section):
            return _or_null(_section(each))
    checks = list(_checks(annotation, metadata))
    for check in checks:
        if words := _words(check):
            return {"enum": words}
        if "off_at_0" in _inside(check):  # a limit: a number, a size, a duration or `unlimited`
            return {"type": ["integer", "string"]}
    if any(check in (scalars.parse_size, scalars.parse_duration, scalars.check_batch) for check in checks):
        return {"type": ["integer", "string"]}
    kinds = set(_kinds(annotation))
    made: Schema = {"type": sorted(kinds)} if len(kinds) > 1 else {"type": kinds.pop()}
    if made["type"] in ("integer", "number"):
        for each in metadata:
            if isinstance(each, Ge):
                made["minimum"] = each.ge
            elif isinstance(each, Le):
                made["maximum"] = each.le
    if get_origin(annotation) is Literal:
        return {"enum": list(get_args(annotation))}
    return made


def _kinds(annotation: Any) -> Iterator[str]:
    """Yield the types of JSON that a type of Python is read from."""
    names = {str: "string", Path: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}
    origin = get_origin(annotation)
    if annotation in names:
        yield names[annotation]
    elif origin is Literal or (inspect.isclass(annotation) and issubclass(annotation, Enum)):
        yield "string"
    elif origin is tuple:
        yield "array"
    elif origin is dict:
        yield "object"
    else:  # a union, or a type with its checks
        for each in get_args(annotation)[: 1 if hasattr(annotation, "__metadata__") else None]:
            yield from _kinds(each)


def _checks(annotation: Any, metadata: list[Any]) -> Iterator[Any]:
    for each in (*metadata, *getattr(annotation, "__metadata__", ())):
        if (check := getattr(each, "func", None)) is not None:
            yield check
    if get_origin(annotation) not in (tuple, dict):
        for inner in get_args(annotation):
            yield from _checks(inner, [])


def _inside(check: Any) -> dict[str, Any]:
    return dict(inspect.getclosurevars(check).nonlocals) if inspect.isfunction(check) else {}


def _words(check: Any) -> list[str]:
    inside = _inside(check)
    return list(inside.get("words") or inside.get("names") or ())


def _or_null(schema: Schema) -> Schema:
    """Return the schema of a section, which may be named and left empty."""
    return {**schema, "type": [schema["type"], "null"]}
