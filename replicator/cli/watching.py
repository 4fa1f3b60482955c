"""``--watch``: a command that shows state shows it again and again, until Ctrl-C ends it with exit status 0.

At a terminal a table takes the place of the one before. Elsewhere, and in JSON and YAML, the states follow each other:
tables under a line with the time, JSON a line each, YAML as documents. A worker that is away for a while ends nothing:
it is said beside the states. Every other error ends the command, as it does without ``--watch``.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from replicator.cli.exit_status import exit_status_of
from replicator.cli.output import Format, Shown, as_json, as_yaml, print_result, result_console, tell

AWAY: Final = 3


def watch(output: Format, look: Callable[[], Shown[Any]], interval_seconds: float) -> None:
    """Show what ``look`` returns, every so many seconds, until Ctrl-C or SIGTERM. Raise what ``look`` raises, unless
    something cannot be reached.
    """
    at_terminal = output is Format.TABLE and sys.stdout.isatty()
    with suppress(KeyboardInterrupt), _terminated_as_interrupted():
        if at_terminal:
            _on_screen(look, interval_seconds)
            return
        while True:
            _print_state(output, look)
            time.sleep(interval_seconds)


def _print_state(output: Format, look: Callable[[], Shown[Any]]) -> None:
    shown, problem = _looked(look)
    if problem is not None:
        tell(problem, style="red")
    if shown is None:
        return
    if output is Format.JSON:
        print(as_json(shown.value))
    elif output is Format.YAML:
        print(f"---\n{as_yaml(shown.value)}", end="")
    else:
        print(_now())
        print_result(output, shown)
    for note in shown.notes:
        tell(note, style="yellow")
    sys.stdout.flush()


def _on_screen(look: Callable[[], Shown[Any]], interval_seconds: float) -> None:
    """Show on the terminal's other screen, so that the former content comes back at the end; print the last state below
    it.
    """
    console = result_console()
    last: RenderableType = ""
    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                shown, problem = _looked(look)
                if shown is not None:
                    last = Text(shown.table) if isinstance(shown.table, str) else shown.table
                notes = [] if shown is None else [Text(note, style="yellow") for note in shown.notes]
                said = [] if problem is None else [Text(problem, style="red")]
                head = Text(f"{_now()}, every {interval_seconds:g} s; Ctrl-C ends it", style="dim")
                live.update(Group(head, last, *notes, *said), refresh=True)
                time.sleep(interval_seconds)
    finally:
        console.print(last)


def _looked(look: Callable[[], Shown[Any]]) -> tuple[Shown[Any] | None, str | None]:
    """Return the result to show, or a text about what cannot be reached."""
    try:
        return look(), None
    except Exception as error:
        if exit_status_of(error) != AWAY:
            raise
        return None, f"error: {error}"


def _now() -> str:
    return datetime.now(UTC).isoformat(sep=" ", timespec="seconds")


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """Treat SIGTERM as Ctrl-C, so that the terminal is left as it was."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are the main thread's
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
