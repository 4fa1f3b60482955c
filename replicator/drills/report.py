"""The drill's report: its fields, its table, and how it is written.

Owns the names of ``report.json``, which scripts rely on. What is in it was measured
(:mod:`replicator.drills.measures`) or counted by verify; the verdict is :mod:`replicator.drills.judge`'s.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from replicator.drills.judge import failures as failures_of
from replicator.drills.measures import FailoverMeasures, Measures, Percentiles, PhaseMeasures, SubscriptionMeasures
from replicator.drills.observations import FailoverKind
from replicator.drills.over_topics import OVER_TOPICS, TopicStatistics
from replicator.drills.report_html import render_html
from replicator.drills.series import Series
from replicator.engine.topic_name import SCHEME
from replicator.index.drill_reports import about, figures, shown_lag
from replicator.running.screen import in_one_line

VERIFY_FAULTS: Final = ("missing", "duplicated", "reordered", "mismapped", "ack_mismatch")
"""Faults that verify must have counted. Each count is zero in a drill that passes."""
_VERIFY_FAULTS_MORE: Final = ("corrupted", "gaps")
EXTRAS_NEEDED: Final = ("snapshot_mappings", "subscription_updates", "wall_seconds")

DIFFERENCES_SHOWN_MAX: Final = 8
"""Most differences between two clusters on the screen. report.json has all of them."""
OWN_FIELDS: Final = ("differences", "connections", "databases", "worker_tracebacks", "kinds")
"""Fields that only the replicator reports. They are null for another system."""

Report = dict[str, Any]


def build_report(
    scenario: str,
    engine: str,
    seed: int,
    measures: Measures,
    verify: Mapping[str, Any] | None,
    extras: Mapping[str, Any],
    *,
    topics: Sequence[str] = (),
) -> Report:
    """Build ``report.json``, with the verdict in ``passed`` and ``failures``.

    ``verify`` is the JSON of ``replicator verify``, or None if it did not run. ``extras`` has at least
    :data:`EXTRAS_NEEDED`; it may add fields but replace none (ValueError). ``topics`` are the topics' names.
    """
    missing = [name for name in EXTRAS_NEEDED if name not in extras]
    if missing:
        raise ValueError(
            f"the drill's report needs the fields {', '.join(missing)} in its extras; this is a bug of the drill"
        )
    found = dict(verify or {})
    faults = {name: found.pop(name, None) for name in VERIFY_FAULTS}
    faults |= {name: found.pop(name) for name in _VERIFY_FAULTS_MORE if name in found}
    report: Report = {
        "scenario": scenario,
        "engine": engine,
        "seed": seed,
        "published": measures.published,
        "confirmed": measures.confirmed,
        "consumed_unique": measures.consumed_unique,
        "lost": measures.lost,
        "lost_with_disk": measures.lost_with_disk,
        "repeated": measures.repeated,
        "repeated_acked_before_kill": measures.repeated_acked_before_kill,
        "repeated_acked_over_1s_before_kill": measures.repeated_acked_over_1s_before_kill,
        "repeated_acked_before_planned": measures.repeated_acked_before_planned,
        "out_of_order": measures.out_of_order,
        "late": measures.late,
        "rpo_messages": measures.rpo_messages,
        "rto_seconds": _rounded(measures.rto_seconds),
        "copy_lag_ms": _percentiles(measures.copy_lag_ms),
        "sync_lag_ms": _percentiles(measures.sync_lag_ms),
        "snapshot_mappings": extras["snapshot_mappings"],
        "subscription_updates": extras["subscription_updates"],
        "verify": faults,
        "wall_seconds": extras["wall_seconds"],
        "subscriptions": [_subscription(each) for each in measures.subscriptions],
        "failovers": [_failover(each) for each in measures.failovers],
        "kills": [_failover(each) for each in measures.failovers if each.kind == FailoverKind.KILL.value],
        "phases": [_phase(each) for each in measures.phases],
        "over_topics": {name: _over_topics(getattr(measures.over_topics, name), topics) for name in OVER_TOPICS},
    }
    replaced = sorted(set(report) & set(extras) - set(EXTRAS_NEEDED))
    if replaced:
        raise ValueError(
            f"extras must not replace what was measured: {', '.join(replaced)}; this is a bug of the drill"
        )
    report |= {name: value for name, value in extras.items() if name not in report}
    report.setdefault("messages", measures.published)
    report["verify_details"] = found
    failures = list(failures_of(report))
    return report | {"passed": not failures, "failures": failures}


def render_table(report: Mapping[str, Any]) -> RenderableType:
    """Return the result for a rich console."""
    return Group(
        _verdict(report),
        _figures_table(report),
        _subscriptions_table(report),
        *([_topics_table(report)] if report.get("topics", 1) > 1 else []),
        *([_phases_table(report)] if len(report["phases"]) > 1 else []),
        *(Text(f"not checked: {each}", style="dim") for each in report.get("not_checked", ())),
        *(
            [Text("tasks of the workers were ended at random, so rates and lags are not judged", style="dim")]
            * bool(report.get("tasks_ended"))
        ),
        *_difference_lines(report),
        *_failure_lines(report),
    )


def write(report: Mapping[str, Any], series: Series, out_dir: Path) -> tuple[Path, Path]:
    """Write ``report.json`` and ``report.html`` into ``out_dir``, each as a whole or not at all."""
    out_dir.mkdir(parents=True, exist_ok=True)
    json_path, html_path = out_dir / "report.json", out_dir / "report.html"
    write_json(report, json_path)
    _write_whole(html_path, render_html(report, series))
    return json_path, html_path


def write_json(report: Mapping[str, Any], path: Path) -> None:
    """Write the report as JSON, whole or not at all."""
    _write_whole(path, json.dumps(report, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def _write_whole(path: Path, text: str) -> None:
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            os.fchmod(file.fileno(), 0o644)  # a temporary file is its owner's alone; a report is for all
            file.write(text)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _percentiles(measured: Percentiles) -> dict[str, float | int | None]:
    return {"p50": _rounded(measured.p50), "p99": _rounded(measured.p99), "samples": measured.samples}


def _subscription(measured: SubscriptionMeasures) -> dict[str, Any]:
    return asdict(measured) | {"sync_lag_ms": _percentiles(measured.sync_lag_ms)}


def _failover(measured: FailoverMeasures) -> dict[str, Any]:
    fields = asdict(measured)
    fields["first_delivery_seconds"] = {
        name: _rounded(value) for name, value in measured.first_delivery_seconds.items()
    }
    for name in ("cut_at_seconds", "at_seconds", "returned_at_seconds", "rto_seconds", "first_confirm_seconds"):
        fields[name] = _rounded(fields[name])
    return fields


def _phase(measured: PhaseMeasures) -> dict[str, Any]:
    return {
        "name": measured.name,
        "at_seconds": _rounded(measured.at_seconds),
        "seconds": _rounded(measured.seconds),
        "confirmed_per_second": _rounded(measured.per_second(measured.confirmed)),
        "copied_per_second": _rounded(measured.per_second(measured.copied)),
        "copy_lag_ms": _percentiles(measured.copy_lag_ms),
        "sync_lag_ms": _percentiles(measured.sync_lag_ms),
        "counts_per_second": {
            counter: {cluster: _rounded(measured.per_second(count)) for cluster, count in by_cluster.items()}
            for counter, by_cluster in measured.counts.items()
        },
    }


def _verdict(report: Mapping[str, Any]) -> Text:
    word, style = ("passed", "bold green") if report["passed"] else ("FAILED", "bold red")
    return Text.assemble(f"Drill {report['scenario']} ({about(report)}): ", (word, style))


def _figures_table(report: Mapping[str, Any]) -> Table:
    table = Table(show_header=False)
    table.add_column("figure", overflow="fold")
    table.add_column("value", justify="right")
    table.add_column("meaning", style="dim", overflow="fold")
    for name, value, meaning, bad in figures(report):
        table.add_row(name, Text(value, style="bold red" if bad else ""), meaning)
    return table


def _subscriptions_table(report: Mapping[str, Any]) -> Table:
    table = Table(title="Subscriptions", title_justify="left")
    table.add_column("subscription", overflow="fold")
    headings = ("received", "lost", "repeated", "acked\n> 1 s\nbefore", "out of\norder", "late")
    for heading in headings:  # narrow, so that 80 columns have room for the names
        table.add_column(heading, justify="right", no_wrap=True)
    for each in report["subscriptions"]:
        figures = [
            each["consumed_unique"],
            each["lost"],
            each["repeated"],
            each["repeated_acked_over_1s_before_kill"],
            each["out_of_order"],
            each["late"],
        ]
        kind = f"({each['type']}{', cumulative' if each['cumulative'] else ''})"
        table.add_row(
            Text.assemble(each["name"], " ", (kind, "dim")),
            *("–" if figure is None else f"{figure:,}" for figure in figures),
        )
    return table


def _phases_table(report: Mapping[str, Any]) -> Table:
    table = Table(title="Phases", title_justify="left")
    table.add_column("phase", overflow="fold")
    for heading in ("seconds", "confirmed/s", "copied/s", "copy lag p50 / p99 ms", "sync lag p50 / p99 ms"):
        table.add_column(heading, justify="right")
    for phase in report["phases"]:
        lags = [shown_lag(phase[name]) for name in ("copy_lag_ms", "sync_lag_ms")]
        rates = [f"{phase[name]:,.0f}" for name in ("confirmed_per_second", "copied_per_second")]
        table.add_row(phase["name"], f"{phase['seconds']:,.1f}", *rates, *lags)
    return table


def _over_topics(measured: TopicStatistics, topics: Sequence[str]) -> dict[str, Any]:
    number = measured.worst_topic
    return {
        "p50": _rounded(measured.p50),
        "p99": _rounded(measured.p99),
        "worst": _rounded(measured.worst),
        "worst_topic": topics[number] if number is not None and number < len(topics) else None,
        "topics": measured.topics,
    }


def _topics_table(report: Mapping[str, Any]) -> Table:
    table = Table(title=f"Over {report['topics']:,} topics", title_justify="left")
    table.add_column("figure of a topic", overflow="fold")
    for heading in ("p50", "p99", "worst"):
        table.add_column(heading, justify="right")
    table.add_column("the worst topic", overflow="fold")
    for name, title in OVER_TOPICS.items():
        over = report["over_topics"][name]
        figures = ("–" if over[each] is None else f"{over[each]:,g}" for each in ("p50", "p99", "worst"))
        table.add_row(title, *figures, Text(_shown_topic(over)))
    return table


def _shown_topic(over: Mapping[str, Any]) -> str:
    """Return the worst topic's name, or "–" if no topic is worse than another."""
    named = over["worst"] and over["worst_topic"]
    return in_one_line(over["worst_topic"].removeprefix(SCHEME)) if named else "–"


def _difference_lines(report: Mapping[str, Any]) -> Iterator[Text]:
    """Yield the differences that clients find after a switch, and a line that counts those left out."""
    differences = report.get("differences") or ()
    for each in differences[:DIFFERENCES_SHOWN_MAX]:
        yield Text(f"after a switch: {each}", style="yellow")
    if (more := len(differences) - DIFFERENCES_SHOWN_MAX) > 0:
        yield Text(f"… and {more:,} more differences: report.json", style="yellow")


def _failure_lines(report: Mapping[str, Any]) -> Iterator[Text]:
    for failure in report["failures"]:
        yield Text.assemble(("failed: ", "bold red"), failure)
