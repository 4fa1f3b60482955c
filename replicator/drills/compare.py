"""Drill runs side by side: tables of several reports, and of what is kept of earlier ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rich.table import Table
from rich.text import Text

from replicator.drills.report import NONE
from snapshots.repository import DrillRun

_FIGURES: Final = (
    "published",
    "confirmed",
    "lost",
    "repeated",
    "repeated_acked_over_1s_before_kill",
    "repeated_acked_before_planned",
    "out_of_order",
    "late",
    "rpo_messages",
    "rto_seconds",
    "copy_lag_ms.p50",
    "copy_lag_ms.p99",
    "sync_lag_ms.p50",
    "sync_lag_ms.p99",
    "snapshot_mappings",
    "subscription_updates",
    "traffic_seconds",
    "wall_seconds",
)
_SETTINGS: Final = ("system", "scenario", "sync", "links", "engine", "seed", "rate")
_OF_SUBSCRIPTIONS: Final = ("repeated", "repeated_acked_over_1s_before_kill", "sync_lag_ms.p99")

Report = Mapping[str, Any]
Row = tuple[str, Any, Any]


def comparison(reports: tuple[Report, Report]) -> list[Row]:
    """Settings and figures of two reports, those of subscriptions that both have among them."""
    return list(_rows(*reports))


def _rows(first: Report, second: Report) -> Iterator[Row]:
    for name in ("passed", *_SETTINGS, *_FIGURES):
        yield name, _field(first, name), _field(second, name)
    others = {each["name"]: each for each in second["subscriptions"]}
    for each in first["subscriptions"]:
        for name in _OF_SUBSCRIPTIONS if each["name"] in others else ():
            yield f"{each['name']}: {name}", _field(each, name), _field(others[each["name"]], name)


def _field(report: Report, dotted: str) -> Any:
    """None if it was not measured; "none" if the system does not have it."""
    if dotted in report.get("lacks", ()):
        return NONE
    value: Any = report
    for part in dotted.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def render_comparison(reports: tuple[Report, Report], names: tuple[str, str]) -> Table:
    """What differs in bold."""
    table = Table("figure", title="Side by side", title_justify="left")
    for name in names:
        table.add_column(name, justify="right")
    for figure, one, other in comparison(reports):
        style = "" if one == other else "bold"
        table.add_row(figure, Text(_shown(one), style), Text(_shown(other), style))
    return table


def render_runs(reports: Sequence[Report]) -> Table:
    """A line for each run of this drill."""
    headings = ("scenario", "sync", "result", "lost", "repeated", "acked > 1 s before", "RPO", "RTO s",
                "copy lag p99 ms", "sync lag p99 ms", "seconds")  # fmt: skip
    table = Table(title="Drills", title_justify="left")
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="left" if number < 3 else "right", overflow="fold", no_wrap=number == 0)
    figures = ("lost", "repeated", "repeated_acked_over_1s_before_kill", "rpo_messages", "rto_seconds",
               "copy_lag_ms.p99", "sync_lag_ms.p99", "wall_seconds")  # fmt: skip
    for report in reports:
        result = Text("passed", "green") if report["passed"] else Text(f"FAILED: {report['failures'][0]}", "red")
        shown = (_shown(_field(report, name)) for name in figures)
        table.add_row(report["scenario"], report["sync"], result, *shown)
    return table


def render_kept(runs: Sequence[DrillRun]) -> Table:
    """What is kept, the newest first."""
    table = Table("id", "scenario", "started (UTC)", "seconds", "result", "topology")
    for run in runs:
        seconds = "" if run.ended_at is None else f"{(run.ended_at - run.started_at).total_seconds():.0f}"
        result = {True: Text("passed", "green"), False: Text("FAILED", "red"), None: Text("–")}[run.passed]
        table.add_row(run.id, run.scenario, f"{run.started_at:%Y-%m-%d %H:%M:%S}", seconds, result, run.topology_digest)
    return table


def kept_as_json(run: DrillRun) -> dict[str, Any]:
    """A run without its report."""
    return {
        "id": run.id,
        "scenario": run.scenario,
        "topology_digest": run.topology_digest,
        "started_at": run.started_at.isoformat(),
        "ended_at": None if run.ended_at is None else run.ended_at.isoformat(),
        "passed": run.passed,
    }


def _shown(value: Any) -> str:
    match value:
        case None:
            return "–"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:,.3f}".rstrip("0").rstrip(".")
        case int():
            return f"{value:,}"
        case _:
            return str(value)
