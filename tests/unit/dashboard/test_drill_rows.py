"""Drills of several clusters' databases as one list, and reports that are not as they are to be."""

from __future__ import annotations

from typing import Any

import pytest
from drill_run_support import report

from replicator.dashboard.drill_rows import DrillNotShown, drill_report, drill_rows, report_in, side_by_side
from replicator.dashboard.fan_out import Answer


def run(run_id: str, day: int, **changes: Any) -> dict[str, Any]:
    started, ended = f"2026-01-0{day}T12:00:00+00:00", f"2026-01-0{day}T12:01:30+00:00"
    return {"id": run_id, "scenario": "flap", "started_at": started, "ended_at": ended, "passed": True, **changes}


def test_the_newest_of_all_databases_come_first_and_one_that_two_share_is_listed_once() -> None:
    shared = run("shared", 2)
    answers = {
        "A": Answer({"drills": [run("cut", 3, ended_at=None, passed=None), shared]}),
        "B": Answer({"drills": [shared, run("old", 1)]}),
        "C": Answer(error="C does not answer", status=0),
    }
    rows, silent = drill_rows(answers, 2)
    assert [(row.run_id, row.cluster, row.seconds, row.tone) for row in rows] == [
        ("cut", "A", "–", "unknown"),
        ("shared", "A", "90 s", "good"),
    ]
    assert silent == ["C does not answer"]


def test_a_report_is_shown_from_whoever_has_it_and_who_is_silent_is_named_where_nobody_has() -> None:
    absent, away = Answer(error="there is none", status=404), Answer(error="B is away", status=0)
    found = report_in({"A": absent, "B": Answer({"report": report("flap")})}, "x")
    assert drill_report("x", found).about == "engine embedded, seed 1, sync exact, links both-ways"
    with pytest.raises(DrillNotShown, match="no cluster has a drill 'x'; B is away"):
        report_in({"A": absent, "B": away}, "x")
    with pytest.raises(DrillNotShown, match="has no report"):
        report_in({"A": Answer({"report": None})}, "x")


def test_a_report_of_another_version_is_said_to_be_one() -> None:
    with pytest.raises(DrillNotShown, match="not one of this version"):
        drill_report("x", {"scenario": "flap"})
    with pytest.raises(DrillNotShown, match="not one of this version"):
        side_by_side(("x", "y"), ({}, {}))
    rows = side_by_side(("x", "y"), (report("flap", repeated=3), report("flap")))
    assert [row for row in rows if row[3]] == [("repeated", "3", "0", True)]
