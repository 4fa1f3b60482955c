"""Writes what follows from the chart's values: ``python helm/readme.py``.

* The README has a row for each value, from the comment above it.
* The template ``replicator.unset`` has what counts for a value that somebody sets to null.
* The schema of the values has that of ``topology.content`` (``.ci/reference/reference_values.py``).

A value is described by the comment above its key that begins with ``# --``. What is inside a described value is not
listed, unless it is described too.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

CHART: Final = Path(__file__).parent / "replicator"
MARK: Final = "# -- "
UNSET: Final = '{{- define "replicator.unset" -}}'
DEFAULT_CHARS_MAX: Final = 100
HEAD: Final = """\
# The chart replicator

One release runs the worker of one cluster: a StatefulSet of one pod with its volume, Services, and what is switched on
below. [docs/kubernetes.md](../../docs/kubernetes.md) shows how two regions are installed, changed and
upgraded.

```console
helm install us-east helm/replicator --namespace regions --values values-us-east.yaml
```

This page is made from `values.yaml` by `python helm/readme.py`.

| value | default | meaning |
| --- | --- | --- |
"""


class Value(NamedTuple):
    """One that is described."""

    path: str
    default: object
    meaning: str


def values(text: str) -> tuple[list[Value], list[str]]:
    """Return the described values, in their order, and the paths of leaves that nothing describes."""
    described: list[Value] = []
    bare: list[str] = []
    lines = text.splitlines()
    root = yaml.compose(text)
    assert isinstance(root, yaml.MappingNode)
    for path, node, line, covered in _nodes(root, lines, (), covered=False):
        meaning = _comment(lines, line)
        if meaning:
            described.append(Value(path, yaml.safe_load(yaml.serialize(node)), meaning))
        elif not covered and not isinstance(node, yaml.MappingNode):
            bare.append(path)
    return described, bare


def readme(text: str) -> str:
    """Return the page of a file of values."""
    described, _ = values(text)
    rows = (
        f"| `{path}` | {_shown(default)} | {meaning.replace('|', chr(92) + '|')} |"
        for path, default, meaning in described
    )
    return HEAD + "\n".join(rows) + "\n"


def unset(text: str, schema: dict[str, Any]) -> str:
    """Return the template with what each value is when it was set to null.

    A list is empty then, and so is a mapping whose keys the schema leaves free. A section, a text, a number and a
    switch are as ``values.yaml`` has them.
    """
    left = _unset(yaml.safe_load(text), schema, schema["definitions"])
    body = yaml.safe_dump(left, sort_keys=False, width=100)
    return f"{{{{- /* Made from values.yaml by `python helm/readme.py`. */ -}}}}\n{UNSET}\n{body}{{{{- end -}}}}\n"


def with_content(schema: str, content: dict[str, Any]) -> str:
    """Return the text of ``values.schema.json`` with the schema of ``topology.content``, in one line."""
    line = f'    "topologyContent": {json.dumps(content)},'
    return re.sub(r'(?m)^    "topologyContent": .*$', lambda _: line, schema)


def _unset(value: Any, schema: dict[str, Any], definitions: dict[str, Any]) -> Any:
    free = {"texts", "objects", "resources", "probe", "pod"}
    reference = schema.get("$ref", "").rpartition("/")[2]
    known = definitions[reference] if reference else schema
    if isinstance(value, dict):
        if reference in free or not known.get("properties"):
            return {}
        return {key: _unset(each, known["properties"][key], definitions) for key, each in value.items()}
    return [] if isinstance(value, list) and not known.get("minItems") else value


def _nodes(
    mapping: yaml.MappingNode, lines: list[str], above: tuple[str, ...], *, covered: bool
) -> Iterator[tuple[str, yaml.Node, int, bool]]:
    """Yield each value below, the line of its key, and whether something above it is described."""
    for key, node in mapping.value:
        line = key.start_mark.line
        path = (*above, str(key.value))
        yield ".".join(path), node, line, covered
        if isinstance(node, yaml.MappingNode):
            yield from _nodes(node, lines, path, covered=covered or bool(_comment(lines, line)))


def _comment(lines: list[str], line: int) -> str:
    """Return the comment right above a line, from its mark on; empty if there is none."""
    said: list[str] = []
    for above in reversed(lines[:line]):
        text = above.strip()
        if not text.startswith("#"):
            return ""
        if text.startswith(MARK):
            return " ".join([text.removeprefix(MARK), *reversed(said)])
        said.append(text.removeprefix("#").strip())
    return ""


def _shown(default: object) -> str:
    text = json.dumps(default)
    if len(text) > DEFAULT_CHARS_MAX:
        return "see `values.yaml`"
    return f"`{text}`"


if __name__ == "__main__":
    given = (CHART / "values.yaml").read_text()
    (CHART / "README.md").write_text(readme(given))
    # The folder of this file has the chart, whose name is that of the program.
    sys.path[0:1] = [str(CHART.parents[1]), str(CHART.parents[1] / ".ci" / "reference")]
    from reference_values import content_schema

    said = with_content((CHART / "values.schema.json").read_text(), content_schema())
    (CHART / "values.schema.json").write_text(said)
    of_values = json.loads(said)
    (CHART / "templates" / "_unset.tpl").write_text(unset(given, of_values))
