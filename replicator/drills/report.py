"""The drill's report: its fields, its verdict, its table, and how it is written.

Owns the names of ``report.json``, which scripts rely on. What is in it was measured
(:mod:`replicator.drills.measures`) or counted by verify; this module only judges and shows it.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from replicator.drills.measures import KillMeasures, Measures, Percentiles, SubscriptionMeasures
from replicator.drills.report_html import render_html
from replicator.drills.series import Series

VERIFY_FAULTS: Final = ("missing", "duplicated", "reordered", "mismapped", "ack_mismatch")
"""What verify must have counted, each of them zero in a drill that passes."""
_VERIFY_FAULTS_MORE: Final = ("corrupted",)
EXTRAS_NEEDED: Final = ("snapshot_mappings", "subscription_updates", "wall_seconds")

Report = dict[str, Any]


def build_report(
    scenario: str,
    engine: str,
    seed: int,
    measures: Measures,
    verify: Mapping[str, Any] | None,
    extras: Mapping[str, Any],
) -> Report:
    """All fields of ``report.json``, with the verdict in ``passed`` and ``failures``.

    ``verify`` is the JSON of ``replicator verify``, or None if it did not run. ``extras`` has at least
    :data:`EXTRAS_NEEDED`; it may add fields but replace none (ValueError).
    """
    missing = [name for name in EXTRAS_NEEDED if name not in extras]
    if missing:
        raise ValueError(f"the report needs {', '.join(missing)}")
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
        "repeated": measures.repeated,
        "repeated_acked_over_1s_before_kill": measures.repeated_acked_over_1s_before_kill,
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
        "kills": [_kill(each) for each in measures.kills],
    }
    replaced = sorted(set(report) & set(extras) - set(EXTRAS_NEEDED))
    if replaced:
        raise ValueError(f"extras must not replace what was measured: {', '.join(replaced)}")
    report |= {name: value for name, value in extras.items() if name not in report}
    report.setdefault("messages", measures.published)
    report["verify_details"] = found
    failures = checks(report)
    return report | {"passed": not failures, "failures": failures}


def checks(report: Mapping[str, Any]) -> list[str]:
    """What keeps the drill from passing, each in one sentence; empty if it passed."""
    return list(_failures(report))


def _failures(report: Mapping[str, Any]) -> Iterator[str]:
    if report["confirmed"] == 0:
        yield "no message was confirmed, so nothing was tried"
    unconfirmed = report["published"] - report["confirmed"]
    if unconfirmed > 0:
        yield f"{unconfirmed:,} messages were sent and never confirmed"
    for each in report["subscriptions"]:
        if each["lost"]:
            yield f"{each['lost']:,} confirmed messages never reached subscription {each['name']}"
    if report["out_of_order"]:
        yield f"{report['out_of_order']:,} messages came out of order by key within their origin"
    if report["repeated_acked_over_1s_before_kill"]:
        yield (
            f"{report['repeated_acked_over_1s_before_kill']:,} messages were repeated to a cumulative subscription "
            "although it had acknowledged them more than 1 s before a kill"
        )
    if report["late"] > report["rpo_messages"]:
        yield f"{report['late']:,} messages came late, more than the {report['rpo_messages']:,} that were stranded"
    for fault, count in report["verify"].items():
        if count is None:
            yield f"verify did not report {fault!r}"
        elif count:
            yield f"verify found {count:,} {fault}"
    if report.get("unsettled"):
        yield f"the clusters had not settled in time: {report['unsettled']}"


def render_table(report: Mapping[str, Any]) -> RenderableType:
    """The result for a rich console."""
    return Group(_verdict(report), _figures_table(report), _subscriptions_table(report), *_failure_lines(report))


def write(report: Mapping[str, Any], series: Series, out_dir: Path) -> tuple[Path, Path]:
    """Write ``report.json`` and ``report.html`` into ``out_dir``; each stands whole or not at all."""
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


def _kill(measured: KillMeasures) -> dict[str, Any]:
    fields = asdict(measured)
    fields["first_delivery_seconds"] = {
        name: _rounded(value) for name, value in measured.first_delivery_seconds.items()
    }
    for name in ("at_seconds", "restarted_at_seconds", "rto_seconds", "first_confirm_seconds"):
        fields[name] = _rounded(fields[name])
    return fields


def _verdict(report: Mapping[str, Any]) -> Text:
    word, style = ("passed", "bold green") if report["passed"] else ("FAILED", "bold red")
    return Text.assemble(
        f"Drill {report['scenario']} (engine {report['engine']}, seed {report['seed']}): ", (word, style)
    )


def _figures_table(report: Mapping[str, Any]) -> Table:
    table = Table(show_header=False)
    table.add_column("figure", overflow="fold")
    table.add_column("value", justify="right")
    table.add_column("meaning", style="dim", overflow="fold")
    for name, value, meaning, bad in _figures(report):
        table.add_row(name, Text(value, style="bold red" if bad else ""), meaning)
    return table


def _figures(report: Mapping[str, Any]) -> Iterator[tuple[str, str, str, bool]]:
    """``(name, value, meaning, whether it fails the drill)``."""

    def count(name: str) -> str:
        return f"{report[name]:,}"

    def lag(name: str) -> str:
        p50, p99 = report[name]["p50"], report[name]["p99"]
        return "–" if p50 is None else f"{p50:,.1f} / {p99:,.1f} ms"

    rto = report["rto_seconds"]
    faults = sum(value or 0 for value in report["verify"].values())
    unverified = any(value is None for value in report["verify"].values())
    yield "published", count("published"), "messages sent", False
    yield "confirmed", count("confirmed"), "… and confirmed", report["confirmed"] != report["published"]
    yield "consumed_unique", count("consumed_unique"), "received by every subscription", False
    yield "lost", count("lost"), "confirmed and never received", bool(report["lost"])
    yield "repeated", count("repeated"), "deliveries beyond the first (expected after a kill)", False
    acked_late = report["repeated_acked_over_1s_before_kill"]
    yield (
        "repeated, acked > 1 s before",
        f"{acked_late:,}",
        "… of what a cumulative subscription had acknowledged in time",
        bool(acked_late),
    )
    yield "out_of_order", count("out_of_order"), "by key, within one origin", bool(report["out_of_order"])
    yield "late", count("late"), "stranded, and after a newer one of their key", False
    yield "rpo_messages", count("rpo_messages"), "stranded at the killed cluster until it was back", False
    yield "rto_seconds", "–" if rto is None else f"{rto:.2f} s", "from the kill to traffic elsewhere", False
    yield "copy_lag_ms", lag("copy_lag_ms"), "p50 / p99, confirmed here to seen there", False
    yield "sync_lag_ms", lag("sync_lag_ms"), "p50 / p99, acknowledged here to settled there", False
    yield "snapshot_mappings", count("snapshot_mappings"), "coarse mappings stored", False
    yield "subscription_updates", count("subscription_updates"), "updates carried", False
    yield "verify", "not run" if unverified else f"{faults:,}", "faults found by Spark", bool(faults or unverified)
    yield "wall_seconds", f"{report['wall_seconds']:.1f} s", "in all", False


def _subscriptions_table(report: Mapping[str, Any]) -> Table:
    table = Table(title="Subscriptions", title_justify="left")
    table.add_column("subscription", overflow="fold")
    headings = ("received", "lost", "repeated", "acked > 1 s before", "out of order", "late")
    for heading in headings:
        table.add_column(heading, justify="right")
    for each in report["subscriptions"]:
        figures = [
            each["consumed_unique"],
            each["lost"],
            each["repeated"],
            each["repeated_acked_over_1s_before_kill"],
            each["out_of_order"],
            each["late"],
        ]
        name = f"{escape(each['name'])} [dim]({each['type']}{', cumulative' if each['cumulative'] else ''})[/]"
        table.add_row(name, *("–" if figure is None else f"{figure:,}" for figure in figures))
    return table


def _failure_lines(report: Mapping[str, Any]) -> Iterator[Text]:
    for failure in report["failures"]:
        yield Text.assemble(("failed: ", "bold red"), failure)
