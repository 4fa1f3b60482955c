"""The bars that show how far a drill is: what is published, confirmed, and consumed by each subscription."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as ProgressBars

from replicator.drills.scenarios.run import Progress


class OnProgress:
    """Callback that moves the progress bars. It does nothing if there are none."""

    def __init__(self, bars: ProgressBars | None = None, tasks: Mapping[str, TaskID] | None = None) -> None:
        self._bars = bars
        self._tasks = tasks or {}

    def __call__(self, progress: Progress) -> None:
        if self._bars is None:
            return
        counts = {"published": progress.published, "confirmed": progress.confirmed, **progress.consumed}
        for name, task in self._tasks.items():
            self._bars.update(task, completed=counts[name])
        self._bars.update(self._tasks["published"], description=f"published  [dim]{progress.phase}")


@contextmanager
def progress_bars(quiet: bool, console: Console, count: int, subscriptions: Sequence[str]) -> Iterator[OnProgress]:
    if quiet:
        yield OnProgress()
        return
    columns = (
        SpinnerColumn(),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with ProgressBars(*columns, console=console, refresh_per_second=5) as bars:
        names = {"published": "published", "confirmed": "confirmed"}
        names |= {name: f"consumed by {name}" for name in subscriptions}
        yield OnProgress(bars, {name: bars.add_task(text, total=count) for name, text in names.items()})
