"""A drill that another program starts and watches: ``python -m replicator.cli.watched_drill``. Used by the dashboard.

Owns what is said between the two:

1. The first line of standard input is what to do: the fields of :class:`Wanted` as a JSON object.
2. Standard output gets a line of JSON each time that something has changed, twice a second at most:
   ``{"phase", "published", "confirmed", "consumed"}``; and at the end ``{"id", "passed", "kept"}`` or ``{"error"}``.
3. When standard input ends, whoever started the drill is gone. It is stopped in order then, as by SIGTERM: what it made
   in the clusters is removed.

The exit status is 0 where the drill passed, 1 where it did not, and 2 or 3 where it could not be run.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from replicator.cli.exit_status import exit_status_of
from replicator.drills.drill import run_drill
from replicator.drills.jobs import DrillOptions
from replicator.drills.progress_bars import OnProgress
from replicator.drills.scenarios.run import Progress

SAID_SECONDS: Final = 0.5
"""Between two lines that say how far a drill is."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Input from the program that starts a drill."""

    topology: str
    """The file of the clusters that run."""
    kept_by: str
    """The cluster in whose database the report is kept."""
    namespace: str
    messages: int
    rate: int
    out: str


class ProgressPrinter(OnProgress):
    """Prints the drill's progress as lines."""

    def __init__(self) -> None:
        super().__init__()
        self._said: dict[str, Any] = {}
        self._at = 0.0

    def __call__(self, progress: Progress) -> None:
        line = {
            "phase": progress.phase,
            "published": progress.published,
            "confirmed": progress.confirmed,
            "consumed": dict(progress.consumed),
        }
        now = time.monotonic()
        is_due = now - self._at >= SAID_SECONDS or line["phase"] != self._said.get("phase")
        if is_due and line != self._said:
            self._said, self._at = line, now
            _say(line)


@contextmanager
def in_lines(quiet: bool, console: Console, count: int, subscriptions: Sequence[str]) -> Iterator[OnProgress]:
    """Report progress as lines, in place of :func:`replicator.drills.progress_bars.progress_bars`."""
    yield ProgressPrinter()


def main() -> int:
    wanted = Wanted(**json.loads(sys.stdin.readline()))
    threading.Thread(target=_end_with_input, name="end with input", daemon=True).start()
    options = DrillOptions(
        messages=wanted.messages,
        against_file=Path(wanted.topology),
        namespace=wanted.namespace,
        rate=wanted.rate,
        out_dir=Path(wanted.out),
        kept_by=wanted.kept_by,
    )
    try:
        report, _ = run_drill(options, Console(stderr=True), showing=in_lines)
    except Exception as error:
        status = exit_status_of(error)
        _say({"error": str(error) if status is not None else f"{type(error).__name__}: {error}"})
        if status is None:
            raise
        return status
    _say({"id": report["id"], "passed": report["passed"], "kept": report["kept"]})
    return 0 if report["passed"] else 1


def _end_with_input() -> None:
    while os.read(sys.stdin.fileno(), 4096):  # not by sys.stdin: a thread that waits in it is in the way of the end
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _say(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    sys.exit(main())
