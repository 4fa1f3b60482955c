"""YAML that remembers the line of every field, so that an error can point at it.

Owns the reading of one small document that a person wrote: syntax, duplicate keys, and the guards against hostile
input. It does not know the meaning of the fields.

1. The parser's events are scanned first: anchors and aliases (which could expand without bound), foreign tags
   and deep nesting are refused before anything is built from them.
2. The composed nodes are turned into plain values, with the line of each field path beside them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

DEPTH_MAX: Final = 16
"""Deeper than any file that a person writes; keeps the recursion below away from Python's own limit."""

FieldPath = tuple[str | int, ...]

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG: Final = "tag:yaml.org,2002:"
_PLAIN_TAGS: Final = frozenset(_TAG + kind for kind in ("str", "int", "float", "bool", "null", "map", "seq"))


class YamlError(Exception):
    """The document cannot be read at all; ``line`` (from 1) is where."""

    def __init__(self, line: int, text: str) -> None:
        super().__init__(text)
        self.line = line
        self.text = text


@dataclass(slots=True)
class LocatedYaml:
    """A document's plain value, the line (from 1) of each field path, and the keys that stand twice."""

    value: Any = None
    lines: dict[FieldPath, int] = field(default_factory=dict)
    duplicates: list[tuple[FieldPath, int, int]] = field(default_factory=list)
    """``(path, line, line of the first)`` for each key given twice in one mapping; the first one counts."""

    def line(self, path: FieldPath) -> int:
        """Return the line of a field; if the field is missing, that of the nearest thing around it."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)


def read_yaml(text: str) -> LocatedYaml:
    """Read one document; an empty one has the value None. Raise :class:`YamlError`."""
    try:
        _refuse_unsafe(text)
        root = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        tab = "\t" in "".join(text.splitlines()[line - 1 : line])
        hint = "; the line has a tab: indent with spaces" if tab else ""
        raise YamlError(line, f"not YAML: {error.problem or error.context}{hint}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise YamlError(line, f"not YAML: {error.reason}") from None
    except yaml.YAMLError as error:
        raise YamlError(1, f"not YAML: {type(error).__name__}") from None
    document = LocatedYaml()
    if root is not None:
        document.lines[()] = root.start_mark.line + 1
        document.value = _plain(root, (), document)
    return document


def _refuse_unsafe(text: str) -> None:
    depth = 0
    for event in _events(text):
        line = event.start_mark.line + 1
        if getattr(event, "anchor", None) is not None:
            raise YamlError(line, "anchors (&) and aliases (*) are not accepted here; write the value out")
        tag = getattr(event, "tag", None)
        if tag not in (None, "!") and tag not in _PLAIN_TAGS:
            raise YamlError(line, f"the tag {tag[:60]} is not accepted here; write a plain value")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > DEPTH_MAX:
                raise YamlError(line, f"nested deeper than {DEPTH_MAX} levels")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _events(text: str) -> Iterator[Any]:
    return yaml.parse(text, Loader=_Loader)


def _plain(node: yaml.Node, path: FieldPath, document: LocatedYaml) -> Any:
    if isinstance(node, yaml.MappingNode):
        return _plain_mapping(node, path, document)
    if isinstance(node, yaml.SequenceNode):
        items = []
        for index, item in enumerate(node.value):
            document.lines[(*path, index)] = item.start_mark.line + 1
            items.append(_plain(item, (*path, index), document))
        return items
    assert isinstance(node, yaml.ScalarNode)
    return _scalar(node)


def _plain_mapping(node: yaml.MappingNode, path: FieldPath, document: LocatedYaml) -> dict[str, Any]:
    mapping: dict[str, Any] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode):
            raise YamlError(line, "a key must be plain text, not a list or a mapping")
        # The text as written, whatever YAML would make of it: a cluster may be called `no` or `007`.
        key = key_node.value
        here = (*path, key)
        if key in mapping:
            document.duplicates.append((here, line, document.lines[here]))
            continue
        document.lines[here] = line
        mapping[key] = _plain(value_node, here, document)
    return mapping


def _scalar(node: yaml.ScalarNode) -> Any:
    constructor = yaml.constructor.SafeConstructor()
    kind = node.tag.removeprefix(_TAG)
    try:
        if kind == "int":
            return constructor.construct_yaml_int(node)
        if kind == "float":
            return constructor.construct_yaml_float(node)
        if kind == "bool":
            return constructor.construct_yaml_bool(node)
    except (ValueError, KeyError):
        line = node.start_mark.line + 1
        raise YamlError(line, f"{str(node.value)[:40]!r} cannot be read as {kind}; put it in quotes") from None
    # What else plain text may resolve to (a date, a merge key) stays the text that was written.
    return None if kind == "null" else node.value
