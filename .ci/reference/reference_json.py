"""docs/reference/json.md: what each command prints with ``--output json``: names of fields, types, units and meanings.

Each command says by its return type what it prints (:class:`replicator.cli.output.Shown`); the fields are those of the
TypedDicts in the modules ``json_types`` of the rooms. A field is ``Annotated``: its meaning, and its unit where its
name does not say it.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    NotRequired,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from reference_fields import Undocumented, plain
from typer.main import get_command

from replicator.cli.json_types import Done
from replicator.cli.main import app

PAGE: Final = "reference/json.md"
PLAIN: Final = {int: "integer", float: "number", str: "text", bool: "true or false", Any: "any", NoneType: "null"}
PLURAL: Final = {int: "integers", float: "numbers", str: "texts", bool: "true or false", Any: "any"}
UNITS: Final = (
    ("at_ms", "ms since 1970"),
    ("since_ms", "ms since 1970"),
    ("_ms", "ms"),
    ("seconds", "s"),
    ("seconds_max", "s"),
    ("bytes", "bytes"),
    ("bytes_max", "bytes"),
    ("bytes_total", "bytes"),
    ("bytes_left", "bytes"),
)
"""Units by the end of a name; the first that fits counts."""
NUMBERS: Final = (int, float)
_HEAD: Final = """# Every field of the commands' JSON

<!-- Made by `make reference` from the types that the commands return. Do not edit it. -->

What `--output json` and `--output yaml` have, for each [command](../cli.md). Names are stable: a version may add
fields, and takes none away. With `--watch` JSON is one line for each state. "Not always" says that a field is left out
where there is nothing to say; null stands where a field has no value. What a command prints as an object of something
is by cluster, and subscriptions by their names.

## By command

| command | prints |
| --- | --- |
"""


def printed() -> dict[str, tuple[Any, ...]]:
    """Return by command the types that it may print."""
    return {verb: command.callback.prints for verb, command in _commands(get_command(app), ())}


def _commands(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    if hasattr(command, "commands"):
        for name, inner in sorted(command.commands.items()):
            yield from _commands(inner, (*path, name))
    else:
        yield " ".join(path), command


def page() -> str:
    """Return the page. Raise :class:`Undocumented` for a field without a meaning."""
    commands = printed()
    types = sorted({each for kinds in commands.values() for kind in kinds for each in _inside(kind)}, key=_name)
    missing = [line for each in types for line in _undocumented(each)]
    missing += [f"two types are called {name}: call one of them otherwise" for name in _doubled(types)]
    if missing:
        raise Undocumented("\n".join(missing))
    silent = sorted(verb for verb, kinds in commands.items() if kinds == (Done,))
    rows = "".join(
        f"| `replicator {verb}` | {'; or '.join(map(_shown, kinds))} |\n"
        for verb, kinds in commands.items()
        if verb not in silent
    )
    others = ", ".join(f"`{verb}`" for verb in silent)
    return (
        f"{_HEAD}{rows}\nThese have nothing to show, and print {_shown(Done)}: {others}.\n\n## By type\n"
        f"{''.join(map(_section, types))}"
    )


def _doubled(types: list[Any]) -> list[str]:
    names = [_name(each) for each in types]
    return sorted({name for name in names if names.count(name) > 1})


def _inside(kind: Any) -> Iterator[Any]:
    """Yield the TypedDicts that a type is made of."""
    if is_typeddict(kind):
        yield kind
        for field in fields(kind).values():
            yield from _inside(field)
    for part in get_args(kind):
        yield from _inside(part)


def fields(kind: Any) -> dict[str, Any]:
    """Return the annotations of a TypedDict by name, those of the classes above it first."""
    return get_type_hints(kind, include_extras=True)


def bare(annotation: Any) -> tuple[Any, bool, tuple[str, ...]]:
    """Return a field's type, whether it is always there, and its annotated texts."""
    always = get_origin(annotation) is not NotRequired
    inner = annotation if always else get_args(annotation)[0]
    if get_origin(inner) is not Annotated:
        return inner, always, ()
    kind, *said = get_args(inner)
    return kind, always, tuple(each for each in said if isinstance(each, str))


def _undocumented(kind: Any) -> Iterator[str]:
    where = f"{kind.__module__}.{kind.__name__}"
    for name, annotation in fields(kind).items():
        if not bare(annotation)[2]:
            yield f'{where}.{name} has no meaning: write Annotated[TYPE, "what it is"] there'
    if not inspect.cleandoc(kind.__doc__ or ""):
        yield f"{where} has no docstring"


def _section(kind: Any) -> str:
    lines = [f"\n### {_name(kind)}\n\n{plain(' '.join((kind.__doc__ or '').split()))}\n\n"]
    lines.append("| field | type | unit | meaning |\n| --- | --- | --- | --- |\n")
    for name, annotation in fields(kind).items():
        inner, always, said = bare(annotation)
        meaning = said[0] if always else f"{said[0]}. Not always"
        unit = said[1] if len(said) > 1 else _unit(name, inner)
        lines.append(f"| `{name}` | {_shown(inner)} | {unit} | {meaning} |\n")
    return "".join(lines)


def _unit(name: str, kind: Any) -> str:
    parts = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    if not any(part in NUMBERS for part in parts):
        return ""
    return next((unit for end, unit in UNITS if name.endswith(end)), "")


def _name(kind: Any) -> str:
    return str(kind.__name__)


def _shown(kind: Any) -> str:
    """Return a type in words."""
    origin, parts = get_origin(kind), get_args(kind)
    if is_typeddict(kind):
        return f"[{_name(kind)}](#{_name(kind).lower()})"
    if origin in (Union, UnionType):
        return " or ".join(map(_shown, parts))
    if origin is Literal:
        return ", ".join(f"`{each}`" for each in parts)
    if origin is list:
        return f"list of {PLURAL.get(parts[0]) or _shown(parts[0])}"
    if origin is dict:
        return f"object of {PLURAL.get(parts[1]) or _shown(parts[1])}"
    return PLAIN[kind]
