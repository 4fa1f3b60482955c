"""The drill's report: its fields, its verdict, and the page."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from replicator.cli.output import SafeConsole
from replicator.drills.measures import measure
from replicator.drills.observations import DrillSubscription, FailoverKind, Observations
from replicator.drills.report import build_report, render_table, write
from replicator.engine.types import SubscriptionType
from snapshots.position import Position

FIELDS = [
    "scenario",
    "engine",
    "seed",
    "published",
    "confirmed",
    "consumed_unique",
    "lost",
    "repeated",
    "repeated_acked_over_1s_before_kill",
    "out_of_order",
    "late",
    "rpo_messages",
    "rto_seconds",
    "copy_lag_ms",
    "sync_lag_ms",
    "snapshot_mappings",
    "subscription_updates",
    "verify",
    "wall_seconds",
]
CLEAN = dict.fromkeys(("missing", "duplicated", "reordered", "mismapped", "ack_mismatch"), 0)
SUBSCRIPTION = DrillSubscription("drill-exclusive", SubscriptionType.EXCLUSIVE, cumulative=True)


def observed(*, lose: int | None = None, swap: bool = False) -> Observations:
    """Ten messages of one key, a kill after five; ``lose`` one of them, or ``swap`` two deliveries."""
    seen = Observations((SUBSCRIPTION,))
    order = list(range(10))
    if swap:
        order[2], order[3] = order[3], order[2]
    for n in range(10):
        assert seen.add_message("key") == n
        cluster = "us-east" if n < 5 else "eu-west"
        if n == 5:
            failover = seen.failed_over(FailoverKind.KILL, "us-east", "eu-west", 4.5, 4.5)
            seen.high_water(failover, "eu-west", Position(1, 4))
        seen.sent(n, float(n))
        seen.confirmed(n, cluster, Position(1 if n < 5 else 2, n), -1, n + 0.1)
    for n, message in enumerate(order):
        if message != lose:
            origin, ledger = ("us-east", 1) if message < 5 else ("eu-west", 2)
            seen.received(SUBSCRIPTION.name, "c", origin, message, origin, Position(ledger, message), -1, 0, n + 0.2)
            seen.acked(SUBSCRIPTION.name, origin, message, n + 0.3)
    seen.returned("us-east", 8.0)
    return seen


def report_of(observations: Observations, **changes: Any) -> dict[str, Any]:
    return build_report(
        scenario="kill-primary",
        engine="embedded",
        seed=1,
        measures=measure(observations),
        verify=changes.pop("verify", CLEAN),
        extras={"snapshot_mappings": 3, "subscription_updates": 4, "wall_seconds": 5.0, **changes},
    )


def test_the_report_has_every_field_that_scripts_rely_on() -> None:
    report = report_of(observed())
    assert [field for field in FIELDS if field not in report] == []
    assert set(CLEAN) <= set(report["verify"])
    assert {"p50", "p99"} <= set(report["copy_lag_ms"])
    assert report["passed"] is True
    assert report["failures"] == []
    json.dumps(report, allow_nan=False)


@pytest.mark.parametrize(
    ("observations", "changes", "named"),
    [
        (observed(lose=7), {}, "never reached subscription drill-exclusive"),
        (observed(swap=True), {}, "out of order"),
        (observed(), {"verify": {**CLEAN, "missing": 2}}, "verify found 2 missing"),
        (observed(), {"verify": {**CLEAN, "corrupted": 1}}, "verify found 1 corrupted"),
        (observed(), {"verify": None}, "verify did not report"),
        (observed(), {"unsettled": "a backlog"}, "had not settled in time: a backlog"),
    ],
)
def test_each_fault_alone_fails_the_drill_and_is_named(
    observations: Observations, changes: dict[str, Any], named: str
) -> None:
    report = report_of(observations, **changes)
    assert report["passed"] is False
    assert len([failure for failure in report["failures"] if named in failure]) >= 1, report["failures"]


def test_no_name_of_a_subscription_is_broken_on_a_screen_of_eighty_columns() -> None:
    report = report_of(observed())
    names = [f"drill-{kind}" for kind in ("exclusive", "shared", "key-shared", "failover", "batch-index")]
    first = report["subscriptions"][0]
    report["subscriptions"] = [first | {"name": name, "consumed_unique": 1_000_000} for name in names]
    console = SafeConsole(file=io.StringIO(), width=80, highlight=False, markup=False, emoji=False)
    console.print(render_table(report), crop=False)
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    assert [name for name in ("subscription", *names) if not re.search(rf"^[│┃] {name} ", shown, re.M)] == []
    assert shown.count("1,000,000") == len(names)
    assert max(map(len, shown.splitlines())) == 80


def test_the_page_stands_alone_and_shows_text_as_text(tmp_path: Path) -> None:
    observations = observed()
    report = report_of(observations, input="<script>alert('x')</script>")
    write(report, measure(observations).series, tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "<script" not in page
    assert re.findall(r"(?:src|href)=[\"'](?!#)", page) == []
    assert "us-east killed" in page
    charts = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(charts) >= 4
    for chart in charts:
        ElementTree.fromstring(chart)  # well-formed
    assert json.loads((tmp_path / "report.json").read_text()) == report
