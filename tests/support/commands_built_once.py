"""Typer makes the whole tree of commands anew at each call of the program, which takes longer than most commands.

In a process that calls it hundreds of times, or whose forked children each call it, it is made once.
"""

from __future__ import annotations

import functools

import typer.main
import typer.testing


@functools.cache
def build_commands_once() -> None:
    """From here on in this process, and in those that are forked from it."""
    built = functools.cache(typer.main.get_command)
    typer.main.get_command = built
    typer.testing._get_command = built
