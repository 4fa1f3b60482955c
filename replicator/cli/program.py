"""The program ``replicator``: in which order the help lists its commands, and how an error ends it.

An error that somebody can do something about is one line on standard error, ``error: WHAT; WHAT TO DO``, and an exit
status; a topology with several problems has a line for each. Only what nobody expected keeps its traceback.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Final

import typer
from typer.core import TyperGroup

from replicator.cli.output import tell

FIRST_COMMANDS: Final = ("init", "up", "worker", "plan", "apply", "status", "verify")
"""Commands that the help lists first, for new users; the others follow in the order of registration."""
STOPPED: Final = 130
"""The exit status that shells give to a command that Ctrl-C ended."""


class Program(TyperGroup):
    """Lists the most needed commands first in the help, and turns errors into one line and an exit status."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(super().list_commands(ctx), key=lambda name: (*FIRST_COMMANDS, name).index(name))

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        try:
            result = super().main(args, prog_name, complete_var, False, windows_expand_args, **extra)
        except typer.Abort:
            sys.exit(STOPPED)
        except Exception as error:  # noqa: BLE001  # what nobody expected is raised again
            sys.exit(_ended_by(error))
        sys.exit(result if isinstance(result, int) else 0)


def _ended_by(error: Exception) -> int:
    """Print the error, and return the exit status. Raise an unexpected error again."""
    if (said := _usage_error(error)) is not None:
        if said:
            tell(said, style="red")
        return 2
    from replicator.cli.exit_status import exit_status_of
    from replicator.running.extras import extra_missing, extra_of

    if isinstance(error, ModuleNotFoundError) and (extra := extra_of(error)):
        error = extra_missing(extra, "this")
    status = exit_status_of(error)
    if status is None:
        raise error
    tell(f"error: {error}", style="red")
    return status


def _usage_error(error: Exception) -> str | None:
    """Return typer's message about wrong arguments; None for an error that is not typer's. Its error classes have moved
    between versions, but not their methods.
    """
    message = getattr(error, "format_message", None)
    if message is None:
        return None
    text = " ".join(str(message()).split()).replace("Value error, ", "").rstrip(".")
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        return ""  # the help is printed
    hint = "" if context is None else f"; see `{context.command_path} --help`"
    return f"error: {text}{hint}"
