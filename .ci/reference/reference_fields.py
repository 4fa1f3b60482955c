"""docs/reference/topology.md: every field of a topology file, which values it takes and what it is without.

The fields, their values and their defaults are those of the pydantic models. What a field is for is written by hand in
a row of topology_fields.md beside this file. A field of a section may do without a row of its own where the section's
row names it; its docstring says the rest.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

from annotated_types import Ge, Le
from pydantic.fields import FieldInfo

from replicator.topology import apache, auth, fields, links, patterns, scalars, traces
from replicator.topology.sections import Section
from replicator.topology.values import Topology

PAGE: Final = "reference/topology.md"
MEANINGS: Final = Path(__file__).with_name("topology_fields.md")
HAND_WRITTEN: Final = f".ci/reference/{MEANINGS.name}"
ROOTS: Final[dict[str, type[Section]]] = {
    "clusters.NAME": fields.Cluster,
    "links[]": links.LinkSettings,
    "policies": fields.PolicySettings,
    **{
        name: kind
        for name, kind in get_type_hints(Topology).items()
        if inspect.isclass(kind) and issubclass(kind, Section)
    },
}
"""The sections of a file. Those that are one for all clusters are the topology's own."""
NOT_WRITTEN: Final = frozenset({"clusters.NAME.name", "clusters.NAME.tls_required"})
"""Fields that models have and a file does not: the name is the key, the other stands in the section `tls`."""
ENDS: Final = {"links[].between": "two clusters", "links[].from": "a cluster", "links[].to": "a cluster"}
"""Keys of a link that no model has: the reader takes them."""
CLUSTER_POLICIES: Final = "clusters.NAME.policies"

VALUES: Final[dict[object, str]] = {
    scalars.check_address: "`HOST:PORT`",
    scalars.check_listen: "`HOST:PORT`, also of every address: `0.0.0.0:PORT`",
    scalars.check_database: "`embedded` or `postgresql://…`",
    scalars.check_host_name: "a host name",
    scalars.check_origin: "`http://HOST` or `https://HOST`, with or without a port",
    scalars.data_path: "a path",
    scalars.check_master: "`local[N]`, `spark://…`, `k8s://…` or `yarn`",
    scalars.check_batch: f"a duration, `1s` to `{scalars.BATCH_SECONDS_MAX}s`",
    scalars.parse_duration: "",  # what checks the number says it
    scalars.check_end_after: (
        f"a duration, `{scalars.format_duration(scalars.END_AFTER_SECONDS_MIN)}` to "
        f"`{scalars.format_duration(scalars.END_AFTER_SECONDS_MAX)}`, or 0"
    ),
    scalars.check_conf: f"a mapping of up to {scalars.CONF_MAX} names `spark.…` to text",
    scalars.check_segment: "",  # its size says it
    scalars._check_flag: "`true` or `false`",
    apache.check_service_url: "`pulsar://HOST:PORT` or `pulsar+ssl://HOST:PORT`",
    apache.check_admin_url: "`http://HOST:PORT` or `https://HOST:PORT`",
    apache.check_cluster_name: f"1 to {apache.PULSAR_NAME_CHARS_MAX} characters",
    auth.check_role: "the name of a role",
    auth._check_url: "a URL, `https://…`",
    auth._check_places: "a mapping of places to roles to actions",
    traces.check_endpoint: "`http://HOST:PORT` or `https://HOST:PORT`, with or without a path",
    links._check_name: f"1 to {links.LINK_NAME_CHARS_MAX} letters, digits, `-` or `_`",
    links._check_rate: "",  # its limit says it
    links._check_sql: f"SQL, up to {links.SQL_CHARS_MAX:,} characters",
}
"""Values that a field takes, by the function that checks it; empty where the rest of the field's type says it."""
PATTERNS: Final = f"a list of up to {patterns.PATTERNS_MAX} patterns (RE2)"
_ROW: Final = re.compile(r"^\| (`[^|]*) \|([^|]*)\| (.*) \|$")


class Undocumented(Exception):
    """A field, a route or an error lacks something; the text says where to write it."""


@dataclass(frozen=True, slots=True)
class Written:
    """A row of topology_fields.md."""

    default: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Fact:
    """A field as the code describes it."""

    key: str
    values: str
    default: str
    """The default as a file would write it; empty where nothing is set."""
    docstring: str


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the page."""

    key: str
    values: str
    default: str
    meaning: str


def written_rows(page: str) -> dict[str, Written]:
    """Return rows by key. A row may have several keys: `.exclude` behind `links[].topics` is `links[].exclude`. It may
    have as many defaults, with commas.
    """
    rows: dict[str, Written] = {}
    for line in page.splitlines():
        if not (match := _ROW.match(line)):
            continue
        above = ""
        keys = re.findall(r"`([^`]+)`", match[1])
        defaults = [each.strip() for each in match[2].split(",")]
        for number, key in enumerate(keys):
            whole = f"{above}{key}" if key.startswith(".") else key
            above = whole.rpartition(".")[0]
            if whole.partition(".")[0].removesuffix("[]") in {
                root.partition(".")[0].removesuffix("[]") for root in ROOTS
            }:
                default = defaults[number] if len(defaults) == len(keys) else match[2].strip()
                rows[whole] = Written(default, match[3].strip())
    return rows


def facts() -> Iterator[Fact]:
    """Yield every field that a file may have, in the order of the models."""
    for root, model in ROOTS.items():
        if root == "links[]":
            yield from (Fact(key, values, "", "") for key, values in ENDS.items())
        yield from _of_section(root, model)


def _of_section(prefix: str, model: type[Section]) -> Iterator[Fact]:
    for name, info in model.model_fields.items():
        key = f"{prefix}.{name}"
        if key in NOT_WRITTEN:
            continue
        section = _section_in(info.annotation)
        if key == CLUSTER_POLICIES:
            yield Fact(key, "as `policies`", "", "")
        elif section is not None:
            yield from _of_section(key, section)
        else:
            yield Fact(key, _values(key, info), _default(name, info), _docstrings(model).get(name, ""))


def _section_in(annotation: Any) -> type[Section] | None:
    for each in (annotation, *get_args(annotation)):
        if inspect.isclass(each) and issubclass(each, Section):
            return each
    return None


@cache
def _docstrings(model: type[Section]) -> dict[str, str]:
    """Return the first paragraph of each field's docstring, in one line."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for field, after in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(after, ast.Expr):
            text = ast.literal_eval(after.value).partition("\n\n")[0]
            found[field.target.id] = plain(" ".join(text.split()))
    return found


def plain(docstring: str) -> str:
    """Return a docstring with its marks turned into Markdown."""
    text = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", docstring)
    return text.replace("``", "`").replace("|", "\\|")


def _values(key: str, info: FieldInfo) -> str:
    said = list(_said(key, info.annotation))
    parts = [*said, *_of_metadata(key, info.metadata)]
    low = next((each.ge for each in info.metadata if isinstance(each, Ge)), None)
    high = next((each.le for each in info.metadata if isinstance(each, Le)), None)
    sized = any(getattr(each, "func", None) is scalars.parse_size for each in info.metadata)
    if low is not None and high is not None:
        bounds = [scalars.format_size(each) if sized else f"{each:,}" for each in (low, high)]  # type: ignore[call-overload]
        kind = "a size" if sized else "a number" if info.annotation is float else "a whole number"
        parts.append(f"{kind}, {bounds[0]} to {bounds[1]}")
    elif sized:
        parts.append("a size")
    words = list(dict.fromkeys(part for part in parts if part))
    if words:
        return ", or ".join(words)
    if info.annotation in (str, str | None):
        return "text"
    if info.annotation is bool:
        return "`true` or `false`"
    raise Undocumented(
        f"{key}: which values it takes is not known; say it in VALUES of .ci/reference/reference_fields.py"
    )


def _said(key: str, annotation: Any) -> Iterator[str]:
    """Yield the values that a type allows, and those that checks inside of it allow."""
    if get_origin(annotation) is Literal:
        yield _one_of(get_args(annotation))
        return
    if get_origin(annotation) is tuple:
        inside = [text for each in get_args(annotation) if each is not ... for text in _said(key, each)]
        yield PATTERNS if PATTERNS in inside or not inside else f"a list: {', '.join(inside)}"
        return
    if get_origin(annotation) is dict:
        return
    for each in get_args(annotation):
        if hasattr(each, "func"):
            yield from _of_metadata(key, [each])
        else:
            yield from _said(key, each)


def _of_metadata(key: str, metadata: list[Any]) -> Iterator[str]:
    for each in metadata:
        check = getattr(each, "func", None)
        if check is None or check is scalars.parse_size:
            continue
        if getattr(check, "__module__", "") == patterns.__name__:
            yield PATTERNS
            continue
        if check in VALUES:
            yield VALUES[check]
            continue
        inside = inspect.getclosurevars(check).nonlocals
        if "words" in inside:
            yield _one_of(inside["words"])
        elif "names" in inside:
            yield _one_of(inside["names"])
        elif "off_at_0" in inside:
            yield f"{inside['kind'].partition(' (')[0]}, or `unlimited`"
        else:
            raise Undocumented(
                f"{key} is checked by {check.__qualname__}; say which values it takes in VALUES of "
                ".ci/reference/reference_fields.py"
            )


def _one_of(words: Any) -> str:
    return ", ".join(f"`{word}`" for word in words)


def _default(name: str, info: FieldInfo) -> str:
    default = info.default
    if info.is_required():
        return "required"
    if default is None or default in ("", (), {}):
        return ""
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if isinstance(default, Enum):
        return f"`{default.value}`"
    checks = [getattr(each, "func", None) for each in info.metadata]
    if scalars.parse_size in checks:
        return f"`{scalars.format_size(default)}`"
    if scalars.check_batch in checks:
        return f"`{scalars.format_duration(default)}`"
    return str(default) if isinstance(default, int) else f"`{default}`"


def page(meanings: Path = MEANINGS) -> str:
    """Return the page. Raise :class:`Undocumented` with everything that is missing."""
    rows = written_rows(meanings.read_text())
    known = list(facts())
    keys = {fact.key for fact in known}
    sections = {key.rpartition(".")[0] for key in keys} | set(ROOTS) | {"clusters"}
    wrong = [
        f"{HAND_WRITTEN} has a row for `{key}`, which no file may have: correct it or take it out"
        for key in rows
        if key not in keys and key not in sections
    ]
    lines: dict[str, list[Row]] = {root: [] for root in ROOTS}
    said: set[str] = set()
    for fact in known:
        lines[_root(fact.key)] += _of_new_sections(fact.key, rows, said)
        try:
            lines[_root(fact.key)].append(_line(fact, rows))
        except Undocumented as missing:
            wrong.append(str(missing))
    if wrong:
        raise Undocumented("\n".join(wrong))
    return _HEAD + "".join(
        f"\n## {_TITLES.get(root, root)}\n\n{_TABLE}{''.join(_table(lines[root]))}" for root in ROOTS
    )


def _of_new_sections(key: str, rows: dict[str, Written], said: set[str]) -> Iterator[Row]:
    """Yield the rows of the sections around a field, each before the first field that is in it."""
    parts = key.split(".")
    for end in range(1, len(parts)):
        section = ".".join(parts[:end])
        if section in rows and section not in said:
            said.add(section)
            yield Row(section, "", rows[section].default, rows[section].meaning)


def _root(key: str) -> str:
    return next(root for root in ROOTS if key.startswith(f"{root}."))


def _table(rows: list[Row]) -> Iterator[str]:
    """Yield lines of Markdown. Keys of one section that follow each other and mean the same stand in one row."""
    for _, equal in groupby(rows, key=lambda row: (row.key.rpartition(".")[0], row.meaning)):
        some = list(equal)
        first, *others = [row.key for row in some]
        keys = ", ".join([f"`{first}`", *(f"`.{key.rpartition('.')[2]}`" for key in others)])
        values, defaults = (
            "; ".join(dict.fromkeys(each) if len(set(each)) == 1 else each)
            for each in ([row.values for row in some], [row.default for row in some])
        )
        yield f"| {keys} | {values} | {defaults} | {some[0].meaning} |\n"


def _line(fact: Fact, rows: dict[str, Written]) -> Row:
    row = rows.get(fact.key)
    if row is None:
        meaning, default = _from_section(fact, rows), fact.default
    else:
        meaning, default = row.meaning, fact.default or row.default
        said = re.fullmatch(r"(`[^`]+`|[\d ]+|required)", row.default)
        if fact.default and said and said[1].strip("` ") != fact.default.strip("`"):
            raise Undocumented(
                f"{HAND_WRITTEN} says that `{fact.key}` is {row.default} by default, and it is {fact.default}"
            )
    return Row(fact.key, fact.values, default, meaning)


def _from_section(fact: Fact, rows: dict[str, Written]) -> str:
    parent, _, name = fact.key.rpartition(".")
    while parent:
        row = rows.get(parent)
        if row is not None and re.search(rf"`[^`]*\b{re.escape(name)}\b[^`]*`", row.meaning):
            return fact.docstring or f"see `{parent}`"
        parent = parent.rpartition(".")[0]
    raise Undocumented(
        f"`{fact.key}` has no meaning: write a row | `{fact.key}` | default | meaning | into {HAND_WRITTEN}, "
        "then run `make reference`"
    )


_TITLES: Final = {
    "clusters.NAME": "Clusters",
    "links[]": "Links",
    "policies": "Policies of topics",
    "auth": "Who is let in: auth",
    "tls": "TLS: tls",
}
"""Titles of sections whose name alone says too little."""
_TABLE: Final = "| key | values | default | meaning |\n| --- | --- | --- | --- |\n"
_HEAD: Final = f"""# Every field of the topology file

<!-- Made by `make reference` from replicator/topology and {HAND_WRITTEN}. Do not edit it. -->

This page lists every key of the topology file with its values and its default. [The topology file](../topology.md)
says how a file is checked and changed. A path is relative to the file. A size has a unit (B, kB, MB, GB, TB, KiB, MiB,
GiB, TiB) or is a number of bytes; a duration has a unit (`90s`, `30m`, `12h`, `7d`, `2w`) or is a number of seconds.
Where `unlimited` is a value, 0 means the same, but not for `policies.retention`. A row may have several keys, with
values and defaults in the same order where they differ.
"""
