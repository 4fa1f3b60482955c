"""Groups of commands: each command prints what it returns, by ``--output``, and shows it again by ``--watch``.

The options are given to every command here, so that no command can forget them. This module also adds completion of
cluster and link names, and notes each command's JSON type for the reference.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, Signature, signature
from types import NoneType, UnionType
from typing import Annotated, Any, Final, TypeVar, Union, get_args, get_origin

import typer
from typer.models import ParameterInfo

from replicator.cli.completing import completion_of
from replicator.cli.json_types import Done
from replicator.cli.output import DONE, WANTED, Command, Format, Shown, finish
from replicator.cli.watching import watch

_CommandT = TypeVar("_CommandT", bound=Command)

OutputOption = Annotated[Format, typer.Option("--output", "-o", help="How to print the result.")]
WatchOption = Annotated[
    bool,
    typer.Option(
        "--watch", "-w", help="Show the result again and again, until Ctrl-C ends the command with exit status 0."
    ),
]
IntervalOption = Annotated[
    float,
    typer.Option(
        "--interval", metavar="SECONDS", min=0.1, max=86_400, help="With --watch: seconds between two results."
    ),
]
INTERVAL_SECONDS: Final = 2.0


class Commands(typer.Typer):
    """A group of commands that print what they return."""

    def command(
        self, name: str | None = None, *, watched: bool = False, **settings: Any
    ) -> Callable[[_CommandT], _CommandT]:
        """Add a command. ``watched`` is for commands that only show state: they get ``--watch``."""
        register = super().command(name, **settings)

        def add(command: _CommandT) -> _CommandT:
            register(_printing(command, watched))
            return command

        return add


def _printing(command: Command, watched: bool) -> Callable[..., None]:
    """Return the function for typer: the command with ``--output``, and with ``--watch`` if it is ``watched``."""

    @wraps(command)
    def run(**given: Any) -> None:
        output: Format = given.pop("output")
        WANTED.set(output)
        watching, interval = given.pop("watch", False), given.pop("interval", INTERVAL_SECONDS)
        if watching:
            watch(output, lambda: command(**given) or Shown(DONE), interval)
        else:
            finish(output, command(**given) or Shown(DONE))

    added = [_option("output", OutputOption, Format.TABLE)]
    if watched:
        added += [_option("watch", WatchOption, False), _option("interval", IntervalOption, INTERVAL_SECONDS)]
    own = signature(command, eval_str=True)
    for parameter in own.parameters.values():
        _complete(parameter)
    run.__signature__ = Signature([*own.parameters.values(), *added])  # type: ignore[attr-defined]  # typer reads it
    run.prints = printed_types(own.return_annotation)  # type: ignore[attr-defined]  # for the reference
    return run


def printed_types(returned: Any) -> tuple[Any, ...]:
    """Return the types of JSON that a command may print, from its return type: ``Shown[T]``, None, or either."""
    kinds = get_args(returned) if get_origin(returned) in (Union, UnionType) else (returned,)
    return tuple(dict.fromkeys(Done if kind in (None, NoneType) else get_args(kind)[0] for kind in kinds))


def _complete(parameter: Parameter) -> None:
    """Add the shell's completion of names to a parameter, if :func:`completion_of` has one for it."""
    for each in getattr(parameter.annotation, "__metadata__", ()):
        if isinstance(each, ParameterInfo):  # in an annotation the first name stands where defaults are given elsewhere
            names = [name for name in (each.default, *(each.param_decls or ())) if isinstance(name, str)]
            each.autocompletion = completion_of(names, each.metavar) or each.autocompletion


def _option(name: str, annotation: Any, default: object) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
