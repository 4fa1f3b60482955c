"""Writes the chart's README from the comments of its values: ``python helm/readme.py``.

A value is described by the comment above its key that begins with ``# --``. What is inside a described value is not
listed, unless it is described too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import yaml

CHART: Final = Path(__file__).parent / "replicator"
MARK: Final = "# -- "
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
    """Those that are described, in their order, and the paths of leaves that nothing describes."""
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
    """The page of a file of values."""
    described, _ = values(text)
    rows = (
        f"| `{path}` | {_shown(default)} | {meaning.replace('|', chr(92) + '|')} |"
        for path, default, meaning in described
    )
    return HEAD + "\n".join(rows) + "\n"


def _nodes(
    mapping: yaml.MappingNode, lines: list[str], above: tuple[str, ...], *, covered: bool
) -> Iterator[tuple[str, yaml.Node, int, bool]]:
    """Each value below, the line of its key, and whether something above it is described."""
    for key, node in mapping.value:
        line = key.start_mark.line
        path = (*above, str(key.value))
        yield ".".join(path), node, line, covered
        if isinstance(node, yaml.MappingNode):
            yield from _nodes(node, lines, path, covered=covered or bool(_comment(lines, line)))


def _comment(lines: list[str], line: int) -> str:
    """What stands right above a line, from its mark on."""
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
    (CHART / "README.md").write_text(readme((CHART / "values.yaml").read_text()))
