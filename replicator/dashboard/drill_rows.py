"""Drills as the dashboard shows them, from what several clusters keep. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from replicator.dashboard.fan_out import Answer, unreachable_reasons
from replicator.engine.errors import EngineError
from replicator.index.drill_reports import about, comparison, figures, shown, shown_lag


class DrillNotShown(EngineError):
    """A drill whose report is not there, or is not one that this version can read."""

    status = 404


@dataclass(frozen=True, slots=True)
class DrillRow:
    """One run, without its report."""

    run_id: str
    scenario: str
    started: str
    seconds: str
    outcome: str
    tone: str
    cluster: str
    """Cluster whose Postgres keeps the drill."""


@dataclass(frozen=True, slots=True)
class DrillReport:
    """Report of one run: each figure with its meaning, and whether it fails the drill."""

    run_id: str
    scenario: str
    about: str
    passed: bool
    failures: tuple[str, ...]
    figures: tuple[tuple[str, str, str, bool], ...]
    subscriptions: tuple[tuple[str, ...], ...]
    phases: tuple[tuple[str, ...], ...]


LINES_MAX: Final = 100
"""Limit of lines shown of each list in a report."""
_OF_SUBSCRIPTION: Final = (
    "consumed_unique",
    "lost",
    "repeated",
    "repeated_acked_over_1s_before_kill",
    "out_of_order",
    "late",
)
_OUTCOMES: Final = {True: ("passed", "good"), False: ("failed", "bad"), None: ("cut off, or going on", "unknown")}


def drill_rows(answers: Mapping[str, Answer], limit: int) -> tuple[list[DrillRow], list[str]]:
    """Return the newest ``limit`` runs, each once, and why those of a cluster are missing."""
    kept: dict[str, tuple[str, Mapping[str, Any]]] = {}
    for cluster, answer in answers.items():
        for run in answer.value["drills"] if answer.good else ():
            kept.setdefault(run["id"], (cluster, run))
    newest = sorted(kept.values(), key=lambda each: (each[1]["started_at"], each[1]["id"]), reverse=True)
    return [_row(*each) for each in newest[:limit]], unreachable_reasons(answers)


def _row(cluster: str, run: Mapping[str, Any]) -> DrillRow:
    started = datetime.fromisoformat(run["started_at"])
    ended = None if run["ended_at"] is None else datetime.fromisoformat(run["ended_at"])
    seconds = "–" if ended is None else f"{(ended - started).total_seconds():.0f} s"
    outcome, tone = _OUTCOMES[run["passed"]]
    return DrillRow(run["id"], run["scenario"], f"{started:%Y-%m-%d %H:%M:%S} UTC", seconds, outcome, tone, cluster)


def report_in(answers: Mapping[str, Answer], run_id: str) -> Mapping[str, Any]:
    """Return the report of a run, after every cluster was asked for it. Raise :class:`DrillNotShown`."""
    found = next((answer.value for answer in answers.values() if answer.good), None)
    if found is None:
        others = [answer.error for answer in answers.values() if not answer.absent]
        raise DrillNotShown("; ".join([f"no cluster has a drill {run_id[:60]!r}", *others]))
    if found["report"] is None:
        raise DrillNotShown(
            f"drill {run_id[:60]!r} has no report: it still runs, so that there is one later, or it was cut off"
        )
    report: Mapping[str, Any] = found["report"]
    return report


def drill_report(run_id: str, report: Mapping[str, Any]) -> DrillReport:
    """Read a report. Raise :class:`DrillNotShown` if another version wrote it."""
    try:
        return DrillReport(
            run_id,
            report["scenario"],
            about(report),
            report["passed"],
            tuple(report["failures"][:LINES_MAX]),
            tuple(figures(report)),
            tuple(
                (f"{each['name']} ({each['type']})", *(shown(each[name]) for name in _OF_SUBSCRIPTION))
                for each in report["subscriptions"][:LINES_MAX]
            ),
            tuple(
                (
                    each["name"],
                    f"{each['seconds']:,.1f}",
                    f"{each['confirmed_per_second']:,.0f}",
                    f"{each['copied_per_second']:,.0f}",
                    shown_lag(each["copy_lag_ms"]),
                    shown_lag(each["sync_lag_ms"]),
                )
                for each in report["phases"][:LINES_MAX]
            ),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _unreadable(run_id, error) from None


def side_by_side(
    names: tuple[str, str], reports: tuple[Mapping[str, Any], Mapping[str, Any]]
) -> list[tuple[str, str, str, bool]]:
    """Return ``(figure, of the first, of the second, whether they differ)`` for each figure. Raise
    :class:`DrillNotShown`.
    """
    try:
        return [(name, shown(one), shown(other), one != other) for name, one, other in comparison(reports)]
    except (KeyError, TypeError, ValueError) as error:
        raise _unreadable(" or ".join(names), error) from None


def _unreadable(run_id: str, error: Exception) -> DrillNotShown:
    return DrillNotShown(f"the report of drill {run_id[:130]} is not one of this version: {error!r}")
