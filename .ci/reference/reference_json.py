"""docs/reference/json.md: what each command prints with ``--output json``: names of fields, types, units and meanings.

Each command says by its return type what it prints (:class:`replicator.cli.output.Shown`); the fields are those of the
TypedDicts in the modules ``json_types`` of the rooms. A field is ``Annotated``: its meaning, and its unit where its
name does not say it. A small object that occurs once stands in the list of the object that has it; every other object
has a section, and is named by it.
"""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
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

from replicator.api.admin.json_types import NOT_COUNTED
from replicator.cli.json_types import Done
from replicator.cli.main import app

PAGE: Final = "reference/json.md"
PLAIN: Final = {int: "int", float: "number", str: "text", bool: "bool", Any: "any", NoneType: "null"}
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
"""Units by the end of a name; the first that fits counts. The head of the page says them."""
INLINE_FIELDS_MAX: Final = 12
"""Fields of an object that stands in the list of another one, or below several commands; a larger one has a section of
its own.
"""
_HEAD: Final = """# Every field of the commands' JSON

<!-- Made by `make reference` from the types that the commands return. Do not edit it. -->

This page lists what `--output json` and `--output yaml` print, for each [command](../cli.md). A command that is not
named here prints `{"done": true}`. Names are stable: a version may add fields, and takes none away; a worker of an
earlier version may lack some. With `--watch` JSON is one line for each state.

* A type stands behind the name: int, number, any, or an object, whose fields follow, or which stands below under that
  name. Without one it is bool where the meaning begins with "whether", int where the name ends in a unit, else text.
  int[] is a list, int{} an object whose values are such. null, or an empty text or list, stands where there is no
  value, it is not known, or nothing is wrong. A unit stands behind the type where neither the name nor the meaning
  says it; alone, the type is int. `NAME`? is left out where there is nothing to say.
* A position is `LEDGER:ENTRY`, a time in text ISO 8601. Names that end in `at_ms` or `since_ms` are in ms since 1970,
  others in `_ms` in ms, `seconds` in s, `bytes` in bytes.
* Fields that are there for Pulsar's tools alone, not counted or always the same, are left out here.
* object{} as a whole answer is by cluster; of `subscriptions list` by subscription, of `topics terminate` by partition.

## By command
"""
_OBJECTS: Final = "\n## Objects that occur more than once, or are large\n"
TEXT: Final = PLAIN[str]
THE_SAME: Final = "the same"
"""Meaning of a field that says what the field before it says."""
SMALL: Final = frozenset(
    (
        "a",
        "all",
        "at",
        "how",
        "in",
        "is",
        "it",
        "its",
        "many",
        "of",
        "that",
        "the",
        "their",
        "them",
        "there",
        "they",
        "was",
        "were",
        "what",
        "when",
        "which",
        "who",
        "whole",
        "whose",
    )
)
"""Words that say nothing beside a name."""
WORDS_MAX: Final = 6
"""Words of a meaning from which on it says more than a name."""
SAID_ABOVE: Final = frozenset({"ledger:entry", "ISO 8601"})
"""Units that the head of the page or a field's meaning says."""


@dataclass(frozen=True, slots=True)
class Line:
    """A field in a list, with the lines of the object in it."""

    name: str
    always: bool
    shown: str
    meaning: str
    inside: tuple[Line, ...]


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
    commands = {verb: kinds for verb, kinds in printed().items() if kinds != (Done,)}
    types = sorted({each for kinds in commands.values() for kind in kinds for each in _inside(kind)}, key=_name)
    missing = [line for each in types for line in _undocumented(each)]
    missing += [f"two types are called {name}: call one of them otherwise" for name in _doubled(types)]
    if missing:
        raise Undocumented("\n".join(missing))
    sections: dict[tuple[Any, ...], list[str]] = {}
    for verb, kinds in commands.items():
        sections.setdefault(kinds, []).append(verb)
    uses = Counter(each for kinds in sections for kind in kinds for each in _direct(kind))
    uses.update(each for kind in types for field in fields(kind).values() for each in _direct(field))
    inlined = {each for each in types if uses[each] == 1 and len(fields(each)) <= INLINE_FIELDS_MAX}
    of_commands = {
        each
        for kinds, verbs in sections.items()
        for kind in kinds
        for each in _direct(kind)
        if uses[each] == 1 and (len(verbs) == 1 or len(fields(each)) <= INLINE_FIELDS_MAX)
    } - {Done}
    lists = _Lists(inlined - of_commands)
    text = "".join(
        f"\n### {', '.join(verbs)}\n{lists.printed(kinds, of_commands)}" for kinds, verbs in sections.items()
    )
    objects: dict[Any, str] = {}
    while more := lists.linked - of_commands - objects.keys():
        objects |= {each: lists.section(each) for each in more}
    return f"{_HEAD}{text}{_OBJECTS}{''.join(objects[each] for each in sorted(objects, key=_name))}"


class _Lists:
    """The lists of the page, and the objects that they link to."""

    def __init__(self, inlined: set[Any]) -> None:
        self.linked: set[Any] = set()
        self._inlined = inlined

    def printed(self, kinds: tuple[Any, ...], of_commands: set[Any]) -> str:
        """Return what a command prints: the fields of objects that it alone prints, and links to others."""
        parts: list[str] = []
        several = len([each for kind in kinds for each in _direct(kind)]) > 1
        for kind in kinds:
            own = [each for each in _direct(kind) if each in of_commands]
            around = self._shown(kind, dict.fromkeys(own, "object"))
            leads = [around, *["" for _ in own[1:]]]
            for lead, each in zip_longest(leads, own):
                shown = "" if lead == "object" and not parts else lead
                about = _said_of(each, whole=several) if each else ""
                words = ": ".join(filter(None, (f"{'or ' if parts else ''}{shown}".strip(), about.rstrip("."))))
                parts.append((f"\n{words}.\n" if words else "") + (f"\n{self._list(each)}" if each else ""))
        return "".join(parts)

    def section(self, kind: Any) -> str:
        return f"\n### {_name(kind)}\n\n{_said_of(kind, whole=True)}\n\n{self._list(kind)}"

    def _list(self, kind: Any) -> str:
        return "".join(_written(self._lines(kind), ""))

    def _lines(self, kind: Any) -> tuple[Line, ...]:
        lines = []
        for name, annotation in fields(kind).items():
            inner, always, said = bare(annotation)
            if said[0] == NOT_COUNTED or said[0].startswith("always "):
                continue
            inside = [each for each in _direct(inner) if each in self._inlined]
            shown = self._shown(inner, dict.fromkeys(inside, "object"))
            unit = said[1] if len(said) > 1 else ""
            named = unit in SAID_ABOVE or unit in ("", _unit(name)) or _is_said(unit, f"{name} {said[0]}")
            meaning = "" if _is_told_by_the_name(said[0], name) else f": {said[0]}"
            implied = _implied(name, meaning)
            if not named:
                shown = f" {unit}" if shown == PLAIN[int] else f" {shown}, {unit}"
            else:
                shown = "" if shown == implied else f" {shown}"
            below = tuple(line for each in inside for line in self._lines(each))
            lines.append(Line(name, always, shown, meaning, below))
        return tuple(lines)

    def _shown(self, kind: Any, named: dict[Any, str]) -> str:
        """Return a type in a few characters. Objects that are not among ``named`` are links."""
        origin, parts = get_origin(kind), get_args(kind)
        if kind in named:
            return named[kind]
        if is_typeddict(kind):
            if kind is Done:
                return '`{"done": true}`'
            self.linked.add(kind)
            return _name(kind)
        if origin in (Union, UnionType):
            return " or ".join(dict.fromkeys(self._shown(each, named) for each in parts))
        if origin is Literal:
            return ", ".join(f"`{each}`" for each in parts)
        if origin is list:
            return f"{_bracketed(self._shown(parts[0], named))}[]"
        if origin is dict:
            return f"{_bracketed(self._shown(parts[1], named))}{{}}"
        return PLAIN[kind]


def _bracketed(shown: str) -> str:
    return f"({shown})" if " or " in shown else shown


def _said_of(kind: Any, *, whole: bool) -> str:
    """Return the docstring of an object; without its first sentence, where the command says the same."""
    text = plain(" ".join((kind.__doc__ or "").split()))
    return text if whole else text.partition(". ")[2]


def _is_said(unit: str, text: str) -> bool:
    """Return whether a text has a unit, as a word or at the beginning of one."""
    one = unit.removesuffix("s")
    return any(word == unit or (len(one) > 2 and word.startswith(one)) for word in re.split(r"[\W_]+", text))


def _implied(name: str, meaning: str) -> str:
    """Return the type of a field that shows none."""
    if meaning.startswith(": whether "):
        return PLAIN[bool]
    return PLAIN[int] if _unit(name) else TEXT


def _is_told_by_the_name(meaning: str, name: str) -> bool:
    """Return whether a meaning has no word, but for small ones, that is not in the name."""
    if meaning.startswith("whether "):
        return False
    words = re.findall(r"\w+", meaning)
    return len(words) < WORDS_MAX and all(word in SMALL or word[:5] in name.lower() for word in words)


def _written(lines: tuple[Line, ...], indent: str) -> Iterator[str]:
    """Yield lines of Markdown. Fields of which only the names differ stand in one."""
    found: dict[tuple[Any, ...], list[Line]] = {}
    group = 0
    for before, line in zip((None, *lines), lines, strict=False):
        # "of these" and the like speak of the field before.
        if before is None or before.meaning != line.meaning or line.inside or line.meaning == f": {THE_SAME}":
            group += 1
        found.setdefault((line.shown, line.meaning, group), []).append(line)
    for (shown, meaning, _), equal in found.items():
        names = ", ".join(f"`{line.name}`{'' if line.always else '?'}" for line in equal)
        yield f"{indent}* {names}{shown}{meaning}\n"
        yield from _written(equal[0].inside, f"{indent}    ")


def _doubled(types: list[Any]) -> list[str]:
    names = [_name(each) for each in types]
    return sorted({name for name in names if names.count(name) > 1})


def _direct(kind: Any) -> Iterator[Any]:
    """Yield the TypedDicts in a type, without those in their fields."""
    if is_typeddict(kind):
        yield kind
    for part in get_args(kind):
        yield from _direct(part)


def _inside(kind: Any) -> Iterator[Any]:
    """Yield the TypedDicts that a type is made of."""
    for each in _direct(kind):
        yield each
        for field in fields(each).values():
            yield from _inside(field)


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


def _unit(name: str) -> str:
    return next((unit for end, unit in UNITS if name.endswith(end)), "")


def _name(kind: Any) -> str:
    return str(kind.__name__)
