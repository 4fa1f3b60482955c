"""How results become a table, JSON or YAML: the one place of the command line that prints them.

A command returns what it found as a :class:`Shown`, or None where it did something and has nothing to show. A group of
commands is a :class:`Commands`, which gives each command ``--output``; so no command can forget it. What a command says
on its way (progress, questions) it writes to standard error, so that standard output has the result alone.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, Final, TypeVar

import typer
import yaml
from rich.console import Console, RenderableType

OUTPUT_COLUMNS: Final = 120
"""Width of the output without a terminal. No table breaks its words at this width."""
DONE: Final = {"done": True}
"""What JSON and YAML say of a command that did what was asked, and has nothing to show."""


class Format(StrEnum):
    """How a result is printed."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


@dataclass(frozen=True, slots=True)
class Shown:
    """What a command found or did."""

    value: Any
    """Plain values, as JSON and YAML have them. The names of its fields are stable: docs/cli.md lists them."""
    table: RenderableType = ""
    """The same for people; a text is printed as it is."""
    status: int = 0
    notes: Sequence[str] = ()
    """What is said beside the result, on standard error, a line each."""


Command = Callable[..., Shown | None]
_CommandT = TypeVar("_CommandT", bound=Command)

OutputOption = Annotated[Format, typer.Option("--output", "-o", help="How to print the result.")]
WatchOption = Annotated[
    bool, typer.Option("--watch", "-w", help="Show it again and again, until Ctrl-C ends it with exit status 0.")
]
IntervalOption = Annotated[
    float, typer.Option("--interval", metavar="SECONDS", min=0.1, max=86_400, help="With --watch: how long between.")
]
INTERVAL_SECONDS: Final = 2.0


class Commands(typer.Typer):
    """A group of commands, each of which prints what it returns."""

    def command(
        self, name: str | None = None, *, watched: bool = False, **settings: Any
    ) -> Callable[[_CommandT], _CommandT]:
        """``watched`` is for what shows state, and changes nothing: it has ``--watch``."""
        register = super().command(name, **settings)

        def add(command: _CommandT) -> _CommandT:
            register(_printing(command, watched))
            return command

        return add


def _printing(command: Command, watched: bool) -> Callable[..., None]:
    """The command with ``--output``, and ``--watch`` if it is ``watched``, as typer is to call it."""

    @wraps(command)
    def run(**given: Any) -> None:
        output: Format = given.pop("output")
        watching, interval = given.pop("watch", False), given.pop("interval", INTERVAL_SECONDS)
        if watching:
            from replicator.cli.watching import watch

            watch(output, lambda: command(**given) or Shown(DONE), interval)
        else:
            finish(output, command(**given) or Shown(DONE))

    added = [_option("output", OutputOption, Format.TABLE)]
    if watched:
        added += [_option("watch", WatchOption, False), _option("interval", IntervalOption, INTERVAL_SECONDS)]
    own = signature(command, eval_str=True).parameters.values()
    run.__signature__ = Signature([*own, *added])  # type: ignore[attr-defined]  # typer reads it
    return run


def _option(name: str, annotation: Any, default: object) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def finish(output: Format, shown: Shown) -> None:
    """Print a result; raises :class:`typer.Exit` for an exit status that is not 0."""
    print_result(output, shown)
    for note in shown.notes:
        tell(note, style="red" if shown.status else "yellow")
    if shown.status:
        raise typer.Exit(shown.status)


def print_result(output: Format, shown: Shown) -> None:
    """On standard output."""
    if output is Format.JSON:
        print(json.dumps(shown.value, indent=2, ensure_ascii=False))
    elif output is Format.YAML:
        print(as_yaml(shown.value), end="")
    elif isinstance(shown.table, str):
        print(shown.table, end="\n" if shown.table else "")
    else:
        result_console().print(shown.table, crop=False)


def as_yaml(value: Any) -> str:
    """The same values as in JSON, so that a script may read either."""
    return str(yaml.safe_dump(json.loads(json.dumps(value)), sort_keys=False, allow_unicode=True))


def result_console() -> Console:
    """Where tables go: names and reasons of others are shown as they are, and mean no colours."""
    return Console(width=None if sys.stdout.isatty() else OUTPUT_COLUMNS, highlight=False, markup=False, emoji=False)


def side_console() -> Console:
    """Where progress, questions and complaints go."""
    return Console(stderr=True, highlight=False, markup=False, emoji=False)


def tell(text: str, style: str | None = None) -> None:
    """One line beside the result."""
    side_console().print(text, style=style, soft_wrap=True)
