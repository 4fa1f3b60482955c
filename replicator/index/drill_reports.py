"""Drill reports as they are kept in Postgres: their figures with what they mean, and those of two side by side. Pure.

The names of the fields are those of ``report.json``, which :mod:`replicator.drills.report` owns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from replicator.index.json_types import KeptDrill
from snapshots.repository import DrillRun

NONE: Final = "none"
"""Text for a figure that the system does not have. "–" stands for one that could not be measured."""
EXACT: Final = "exact"
"""Mode of sync in which messages acknowledged long before are never repeated."""
_COMPARED: Final = (
    "published",
    "confirmed",
    "lost",
    "repeated",
    "repeated_acked_before_kill",
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
_OF_SUBSCRIPTIONS: Final = (
    "repeated",
    "repeated_acked_before_kill",
    "repeated_acked_over_1s_before_kill",
    "sync_lag_ms.p99",
)

Report = Mapping[str, Any]
Row = tuple[str, Any, Any]


def comparison(reports: tuple[Report, Report]) -> list[Row]:
    """Return settings and figures of two reports, and those of subscriptions that both have."""
    return list(_rows(*reports))


def _rows(first: Report, second: Report) -> Iterator[Row]:
    for name in ("passed", *_SETTINGS, *_COMPARED):
        yield name, field(first, name), field(second, name)
    others = {each["name"]: each for each in second["subscriptions"]}
    for each in first["subscriptions"]:
        for name in _OF_SUBSCRIPTIONS if each["name"] in others else ():
            yield f"{each['name']}: {name}", field(each, name), field(others[each["name"]], name)


def field(report: Report, dotted: str) -> Any:
    """Return a field of the report; None if it was not measured; "none" if the system does not have it."""
    if dotted in report.get("lacks", ()):
        return NONE
    value: Any = report
    for part in dotted.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def about(report: Mapping[str, Any]) -> str:
    """Return a line about what was drilled."""
    told = [f"system {report['system']}"] if "system" in report else []
    told += [f"engine {report['engine']}", f"seed {report['seed']}"]
    told += [f"{name} {report[name]}" for name in ("sync", "links") if name in report]
    return ", ".join(told)


def figures(report: Mapping[str, Any]) -> Iterator[tuple[str, str, str, bool]]:
    """Yield ``(name, value, meaning, whether it fails the drill)`` of each figure."""

    lacks = report.get("lacks", ())

    def count(name: str) -> str:
        return NONE if name in lacks else f"{report[name]:,}"

    def lag(name: str) -> str:
        return shown_lag(report[name]) + (" ms" if report[name]["samples"] else "")

    rto = report["rto_seconds"]
    faults = sum(value or 0 for value in report["verify"].values())
    unverified = any(value is None for value in report["verify"].values())
    yield "published", count("published"), "messages sent", False
    yield "confirmed", count("confirmed"), "… and confirmed", report["confirmed"] != report["published"]
    yield "consumed_unique", count("consumed_unique"), "received by every subscription", False
    yield "lost", count("lost"), "confirmed and never received", bool(report["lost"])
    yield "repeated", count("repeated"), "deliveries beyond the first (expected after a kill)", False
    exact = report.get("sync", EXACT) == EXACT
    acked_late, acked_planned = report["repeated_acked_over_1s_before_kill"], report["repeated_acked_before_planned"]
    if "repeated_acked_before_kill" in report:  # a report that an earlier version kept has none
        acked = report["repeated_acked_before_kill"]
        yield "repeated, acked before", f"{acked:,}", "… of what had been acknowledged before an unplanned cut", False
    yield (
        "repeated, acked > 1 s before",
        f"{acked_late:,}",
        "… of what had been acknowledged more than 1 s before an unplanned cut",
        bool(acked_late) and exact,
    )
    if any(each["kind"] == "planned" for each in report["failovers"]):
        yield (
            "repeated, acked before planned",
            f"{acked_planned:,}",
            "… of what had been acknowledged before a planned failover",
            bool(acked_planned) and exact,
        )
    yield "out_of_order", count("out_of_order"), "by key, within one origin", bool(report["out_of_order"])
    yield "late", count("late"), "stranded, and after a newer one of their key", False
    yield "rpo_messages", count("rpo_messages"), "stranded at the cluster that was left, until it was back", False
    yield "rto_seconds", "–" if rto is None else f"{rto:.2f} s", "from the failover to traffic elsewhere", False
    yield "copy_lag_ms", lag("copy_lag_ms"), "p50 / p99, confirmed here to seen there", False
    yield "sync_lag_ms", lag("sync_lag_ms"), "p50 / p99, acknowledged here to settled there", False
    yield "snapshot_mappings", count("snapshot_mappings"), "coarse mappings stored", False
    yield "subscription_updates", count("subscription_updates"), "updates carried", False
    if "verify" in lacks:
        yield "verify", NONE, "faults found by replicator verify", False
    else:
        found = "not run" if unverified else f"{faults:,}"
        yield "verify", found, "faults found by replicator verify", bool(faults or unverified)
    yield "wall_seconds", f"{report['wall_seconds']:.1f} s", "in all", False


def shown_lag(lag: Mapping[str, float | None]) -> str:
    """Return median and 99th percentile as text."""
    return "–" if lag["p50"] is None else f"{lag['p50']:,.1f} / {lag['p99']:,.1f}"


def kept_as_json(run: DrillRun) -> KeptDrill:
    """Return a run without its report."""
    return {
        "id": run.id,
        "scenario": run.scenario,
        "topology_digest": run.topology_digest,
        "started_at": run.started_at.isoformat(),
        "ended_at": None if run.ended_at is None else run.ended_at.isoformat(),
        "passed": run.passed,
    }


def shown(value: Any) -> str:
    """Return a figure for people."""
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
