"""Drill runs side by side: tables of several reports, and of earlier runs that were kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from replicator.index.drill_reports import comparison, field, shown
from snapshots.repository import DrillRun

Report = Mapping[str, Any]


def render_comparison(reports: tuple[Report, Report], names: tuple[str, str]) -> Table:
    """Return a table of two reports side by side, with differences in bold."""
    table = Table("figure", title="Side by side", title_justify="left")
    for name in names:
        table.add_column(name, justify="right")
    for figure, one, other in comparison(reports):
        style = "" if one == other else "bold"
        table.add_row(figure, Text(shown(one), style), Text(shown(other), style))
    return table


def render_runs(reports: Sequence[Report]) -> Group:
    """Return a table with a line for each run of this drill, and below it why runs failed."""
    headings = ("scenario", "sync", "result", "lost", "repeated", "acked > 1 s before", "RPO", "RTO s",
                "copy lag p99 ms", "sync lag p99 ms", "seconds")  # fmt: skip
    table = Table(title="Drills", title_justify="left")
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="left" if number < 3 else "right", overflow="fold", no_wrap=number == 0)
    figures = ("lost", "repeated", "repeated_acked_over_1s_before_kill", "rpo_messages", "rto_seconds",
               "copy_lag_ms.p99", "sync_lag_ms.p99", "wall_seconds")  # fmt: skip
    for report in reports:
        result = Text("passed", "green") if report["passed"] else Text("FAILED", "red")
        values = [shown(field(report, name)) for name in figures]
        table.add_row(report["scenario"], report["sync"], result, *values)
    failures = (Text(f"{report['scenario']}: {each}", "red") for report in reports for each in report["failures"])
    return Group(table, *failures)


def render_kept(runs: Sequence[DrillRun]) -> Table:
    """Return a table of the kept runs, the newest first."""
    table = Table("id", "scenario", "started (UTC)", "seconds", "result", "topology")
    for run in runs:
        seconds = "" if run.ended_at is None else f"{(run.ended_at - run.started_at).total_seconds():.0f}"
        result = {True: Text("passed", "green"), False: Text("FAILED", "red"), None: Text("–")}[run.passed]
        table.add_row(run.id, run.scenario, f"{run.started_at:%Y-%m-%d %H:%M:%S}", seconds, result, run.topology_digest)
    return table
