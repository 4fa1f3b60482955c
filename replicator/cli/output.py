"""Output of results as a table, JSON or YAML: the only module of the command line that prints results.

A command returns its result as a :class:`Shown`, or None if it has nothing to show. Progress and questions go to
standard error, so that standard output has the result alone. Names of topics, subscriptions and producers come from
clients, and may have any character in them. So :func:`~replicator.running.screen.escaped` replaces characters that a
terminal would take for commands.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Generic, TextIO, TypeVar

import typer
import yaml
from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.segment import Segment
from rich.text import Text

from replicator.cli.json_types import Done
from replicator.running.screen import commands_terminal, escaped

OUTPUT_COLUMNS: Final = 120
"""Width of the output without a terminal. No table breaks its words at this width."""
DONE: Final[Done] = {"done": True}
"""JSON and YAML of a command that did what was asked, and has nothing to show."""


ValueT = TypeVar("ValueT")


class Format(StrEnum):
    """Form in which a result is printed."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


@dataclass(frozen=True, slots=True)
class Shown(Generic[ValueT]):
    """Result of a command. Each command declares the type of its value; the reference is made from that."""

    value: ValueT
    """Plain values, as JSON and YAML have them. The names of its fields are stable."""
    table: RenderableType = ""
    """The value for people; a text is printed as it is."""
    status: int = 0
    notes: Sequence[str] = ()
    """Remarks beside the result, on standard error, a line each."""


Command = Callable[..., Shown[Any] | None]

WANTED: Final[ContextVar[Format]] = ContextVar("wanted", default=Format.TABLE)
"""Format in which the present command prints its result. A command asks workers only for what that format shows."""


class SafeConsole(Console):
    """Console that escapes every text (:func:`escaped`). Styles still work, because they are not part of a text."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Escape text before columns are measured, so that tables stay straight."""
        return super().render_str(escaped(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Escape every other renderable, such as a Text in a cell."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(escaped(segment.text), segment.style)


def finish(output: Format, shown: Shown[Any]) -> None:
    """Print a result; raise :class:`typer.Exit` for an exit status that is not 0."""
    print_result(output, shown)
    for note in shown.notes:
        tell(note, style="red" if shown.status else "yellow")
    if shown.status:
        raise typer.Exit(shown.status)


def print_result(output: Format, shown: Shown[Any]) -> None:
    """Print a result on standard output."""
    if output is Format.JSON:
        print(as_json(shown.value, indent=2))
    elif output is Format.YAML:
        print(as_yaml(shown.value), end="")
    elif isinstance(shown.table, str):
        if shown.table:  # to write nothing fails, too, at a terminal that has gone
            print(escaped(shown.table))
    else:
        result_console().print(shown.table, crop=False)


def as_json(value: Any, *, indent: int | None = None) -> str:
    """Return ``value`` as JSON that scripts and people can read."""
    return escaped(json.dumps(value, indent=indent, ensure_ascii=False))


def as_yaml(value: Any) -> str:
    """Return ``value`` as YAML, with the same values as in JSON, so that a script may read either."""
    plain = json.loads(json.dumps(value))
    text = str(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True))
    if commands_terminal(text):
        text = str(yaml.safe_dump(plain, sort_keys=False))  # every character outside of ASCII as an escape
    return text


def result_console() -> Console:
    """Return the console for tables on standard output. Texts of others are shown literally, without colours."""
    width = None if sys.stdout.isatty() else OUTPUT_COLUMNS
    return SafeConsole(width=width, highlight=False, markup=False, emoji=False)


def side_console(file: TextIO | None = None) -> Console:
    """Return the console for progress, questions and complaints: standard error, or a stream in its place."""
    return SafeConsole(file=file, stderr=True, highlight=False, markup=False, emoji=False)


@contextmanager
def progress_lines() -> Iterator[Callable[[str, int, int], None]]:
    """Yield a function to report progress: it takes a step's name, how much is done, and how much there is.

    Each step has a line on standard error, which disappears at the end. Nothing is shown if standard error is no
    terminal, or if the output is JSON or YAML.
    """
    if WANTED.get() is not Format.TABLE or not sys.stderr.isatty():
        yield lambda step, done, total: None
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    lines: dict[str, TaskID] = {}
    with Progress(*columns, console=side_console(), transient=True, refresh_per_second=5) as progress:

        def show(step: str, done: int, total: int) -> None:
            if step not in lines:
                lines[step] = progress.add_task(step, total=total)
            progress.update(lines[step], completed=done, total=total)

        yield show


def tell(text: str, style: str | None = None) -> None:
    """Print one line beside the result."""
    side_console().print(text, style=style, soft_wrap=True)


def megabytes_told(what: str) -> Callable[[int], None]:
    """Return a function that shows at a terminal, every 256 MB, how much is done."""
    shown = 0

    def told(done: int) -> None:
        nonlocal shown
        if sys.stderr.isatty() and done - shown >= 256_000_000:
            shown = done
            tell(f"{what} {done / 1e6:.0f} MB")

    return told
