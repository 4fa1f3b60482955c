"""The table that a drill with several runs ends with."""

from __future__ import annotations

from drill_run_support import report
from rich.console import Console

from replicator.drills.compare import render_runs


def test_each_run_has_a_line_with_its_figures_and_why_it_failed() -> None:
    console = Console(width=200)
    with console.capture() as shown:
        failed = report("planned", passed=False, failures=["2 messages are lost"], lost=2)
        console.print(render_runs([report("kill-primary", repeated=34), failed]))
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown.get().splitlines()]
    first, second = (row for row in cells if row and row[0] in ("kill-primary", "planned"))
    assert first == ["kill-primary", "exact", "passed", "0", "34", "0", "0", "0.5", "2", "2", "9"]
    assert second[2:4] == ["FAILED: 2 messages are lost", "2"]
