"""The table that a drill with several runs ends with."""

from __future__ import annotations

import io

from drill_run_support import report
from rich.console import Console

from replicator.cli.output import OUTPUT_COLUMNS, SafeConsole
from replicator.drills.compare import render_runs


def test_each_run_has_a_line_with_its_figures_and_a_sentence_for_each_failure() -> None:
    console = Console(width=200)
    with console.capture() as shown:
        failed = report("planned", passed=False, failures=["2 messages are lost"], lost=2)
        console.print(render_runs([report("kill-primary", repeated=34), failed]))
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown.get().splitlines()]
    first, second = (row for row in cells if row and row[0] in ("kill-primary", "planned"))
    assert first == ["kill-primary", "exact", "passed", "0", "34", "0", "0", "0.5", "2", "2", "9"]
    assert second[2:4] == ["FAILED", "2"]
    assert shown.get().rstrip().endswith("planned: 2 messages are lost")


def test_a_failure_takes_no_cell_that_breaks_its_words() -> None:
    console = SafeConsole(file=io.StringIO(), width=OUTPUT_COLUMNS, highlight=False, markup=False, emoji=False)
    why = ["12 messages never reached subscription drill-exclusive", "verify found 12 missing"]
    runs = [report("kill-primary"), report("one-way-partition", passed=False, failures=why)]
    console.print(render_runs(runs), crop=False)
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue().splitlines()
    assert len([line for line in shown if line.startswith("│ ")]) == len(runs)
    assert shown[-2:] == [f"one-way-partition: {each}" for each in why]
