"""docs/reference/errors.md: every error that a worker answers with, and every one that ends a command; with what to do.

The errors are read from the source (classes below EngineError, or below a base that ends a command), each with its HTTP
status, its docstring and its name in the binary protocol. The remedies are written by hand in remedies.yaml beside this
file, an error a line.
"""

from __future__ import annotations

import ast
import importlib
import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml
from reference_fields import Undocumented, plain

from replicator.cli.exit_status import exit_status_of
from replicator.gateway.refusals import server_error
from replicator.protocol.commands_pb2 import ServerError

PAGE: Final = "reference/errors.md"
REMEDIES: Final = Path(__file__).with_name("remedies.yaml")
ANSWERED: Final = "EngineError"
COMMANDS: Final = (
    "AdminError",
    "BackupError",
    "DatabaseError",
    "DrillError",
    "ExtraMissing",
    "FailoverError",
    "PipelineError",
    "SecurityError",
    "TopologyError",
    "WorkerError",
)
"""The bases of errors that end a command with one line and an exit status (replicator/cli/exit_status.py)."""


@dataclass(slots=True)
class Found:
    """An error as its class has it."""

    name: str
    module: str
    bases: tuple[str, ...]
    meaning: str
    status: int | None
    below: list[str] = field(default_factory=list)


@cache
def classes(repository: Path) -> dict[str, Found]:
    """Every class of the service's source that names bases, by name; of one name the one that is an error."""
    found: dict[str, Found] = {}
    for path in sorted((repository / "replicator").rglob("*.py")):
        if path.name.endswith("_pb2.py"):
            continue
        module = ".".join(path.relative_to(repository).with_suffix("").parts).removesuffix(".__init__")
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and node.bases:
                bases = tuple(ast.unparse(base).rpartition(".")[2] for base in node.bases)
                found.setdefault(f"{module}.{node.name}", _found(node, module, bases))
    return found


def _found(node: ast.ClassDef, module: str, bases: tuple[str, ...]) -> Found:
    status = None
    for each in node.body:
        targets = (
            each.targets if isinstance(each, ast.Assign) else [each.target] if isinstance(each, ast.AnnAssign) else []
        )
        if any(isinstance(target, ast.Name) and target.id == "status" for target in targets):
            value = getattr(each, "value", None)
            status = value.value if isinstance(value, ast.Constant) and isinstance(value.value, int) else None
    text = (ast.get_docstring(node) or "").partition("\n\n")[0]
    return Found(node.name, module, bases, plain(" ".join(text.split())), status)


def below(root: str, found: dict[str, Found]) -> list[Found]:
    """Return the subclasses of a class by name, without those whose names begin with _."""
    names, grown = {root}, True
    while grown:
        more = {each.name for each in found.values() if names.intersection(each.bases)} - names
        names |= more
        grown = bool(more)
    (top,) = {_class_of(each) for each in found.values() if each.name == root}
    # Two classes may have one name: which of them it is, Python knows.
    return sorted(
        (
            each
            for each in found.values()
            if names.intersection(each.bases) and not each.name.startswith("_") and issubclass(_class_of(each), top)
        ),
        key=lambda each: each.name,
    )


def _status(each: Found, found: dict[str, Found]) -> int:
    if each.status is not None:
        return each.status
    for base in each.bases:
        above = [other for other in found.values() if other.name == base]
        if above and base != ANSWERED:
            return _status(above[0], found)
    return 400


def page(repository: Path) -> str:
    """Return the page. Raise :class:`Undocumented` with everything that is missing."""
    remedies: dict[str, dict[str, Any]] = yaml.safe_load(REMEDIES.read_text())
    found = classes(repository)
    answered = below(ANSWERED, found)
    commands = [each for base in COMMANDS for each in [*_itself(base, found), *below(base, found)]]
    shown = {each.name for each in (*answered, *commands)} | set(remedies["neither"])
    wrong = [
        f"{each.module}.{each.name} has no remedy: write `{each.name}: what to do` into .ci/reference/remedies.yaml, "
        "then run `make reference`"
        for each in (*answered, *commands)
        if each.name not in remedies["errors"]
    ]
    wrong += [
        f".ci/reference/remedies.yaml has {name}, and there is no such error: take it out"
        for name in remedies["errors"]
        if name not in shown
    ]
    wrong += [
        f"{each.module}.{each.name} does not say what it is: give it a docstring, then run `make reference`"
        for each in (*answered, *commands)
        if not each.meaning and each.name not in remedies["meanings"]
    ]
    if wrong:
        raise Undocumented("\n".join(wrong))

    def meant(each: Found) -> str:
        return each.meaning or str(remedies["meanings"][each.name])

    rows = [
        (each.name, f"{_status(each, found)}{_in_protocol(each)}", meant(each), remedies["errors"][each.name])
        for each in answered
    ]
    rows += [
        (name, str(status), meaning, remedies["errors"][name])
        for name, (status, meaning) in remedies["neither"].items()
        if name not in {each.name for each in answered}
    ]
    bases = [each for each in commands if each.meaning.startswith("Base")]
    names = ", ".join(f"`{each.name}`" for each in bases)
    ends = [
        (each.name, _exit(each), meant(each), remedies["errors"][each.name]) for each in commands if each not in bases
    ]
    return f"{_HEAD}{_told(sorted(rows))}{_COMMANDS.format(bases=names)}{_told(ends)}"


def _told(rows: list[tuple[str, str, str, str]]) -> str:
    """Return a table of the errors with remedies, and below it the names of the others by status."""
    others: dict[str, list[str]] = {}
    for name, status, _, remedy in rows:
        if not remedy:
            others.setdefault(status, []).append(f"`{name}`")
    listed = "; ".join(f"{status}: {', '.join(names)}" for status, names in sorted(others.items()))
    return f"{_table([row for row in rows if row[3]])}\nThe texts of these say what to correct: {listed}.\n"


def _table(rows: list[tuple[str, str, str, str]]) -> str:
    """Return the rows of a table. Errors of which all but the names are the same stand in one."""
    together: dict[tuple[str, str, str], list[str]] = {}
    for name, *rest in rows:
        status, meaning, remedy = rest
        meaning = re.sub(r" Exit status \d\.$|; the message (names|says|has) [^;]*(?=\.$)", "", meaning)
        if (shorter := meaning.removeprefix("Error for ")) != meaning:
            meaning = f"{shorter[:1].upper()}{shorter[1:]}"
        together.setdefault((status, meaning, remedy), []).append(f"`{name}`")
    return "".join(
        f"| {', '.join(names)} | {status} | {meaning} | {remedy} |\n"
        for (status, meaning, remedy), names in together.items()
    )


def _itself(base: str, found: dict[str, Found]) -> list[Found]:
    return [each for each in found.values() if each.name == base]


def _class_of(each: Found) -> Any:
    return getattr(importlib.import_module(each.module), each.name)


def _in_protocol(each: Found) -> str:
    kind = _class_of(each)
    code = server_error(kind.__new__(kind))
    return "" if code == ServerError.UnknownError else f" `{ServerError.Name(code)}`"


def _exit(each: Found) -> str:
    kind = _class_of(each)
    return str(exit_status_of(kind.__new__(kind)))


_HEAD: Final = """# Every error, and what to do

<!-- Made by `make reference` from the source and .ci/reference/remedies.yaml. Do not edit it. -->

An error says in its text what was asked, where, and what is wrong. Here stands what it means, and what to do.

## What workers answer

The code stands in `error` of an HTTP answer. Behind its status stands its code in the binary protocol, if that is not
`UnknownError`. Under `/admin/v2`, `/lookup/v2` and `/topics` some have [the status that Pulsar gives](../admin.md). 429
and 503 pass: try again later. What begins with 4 otherwise does not pass by itself.

| code | status | what it means | what to do |
|---|---|---|---|
"""
_COMMANDS: Final = """
## What ends a command

A command ends with one line that says what is wrong, and with an [exit status](../cli.md). Errors of a worker, as
above, end it with 2, and with 3 where the worker does not answer. The classes above several of these errors end it with
2, and their text says all: {bases}.

| error | status | what it means | what to do |
|---|---|---|---|
"""
