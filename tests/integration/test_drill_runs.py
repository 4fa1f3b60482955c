"""Drills are kept in a real Postgres, and found again by the commands."""

from __future__ import annotations

import asyncio
import json
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import forked_commands
import pytest

from replicator.drills.errors import DrillError
from replicator.drills.run_store import StorePlace, digest_of, find_place, find_run, new_run, opened_store
from replicator.topology import Cluster, Link, Topology
from snapshots.repository import DrillRun


def topology() -> Topology:
    clusters = tuple(
        Cluster.model_validate({"name": name, "address": f"127.0.0.1:{7000 + n}", "data": f"/data/{name}"})
        for n, name in enumerate("ab")
    )
    return Topology(clusters, (Link("a", "b"),))


def report(scenario: str, **changes: Any) -> dict[str, Any]:
    lag = {"p50": 1.0, "p99": 2.0, "samples": 3}
    counts = ("published", "confirmed", "consumed_unique", "lost", "repeated", "repeated_acked_over_1s_before_kill",
              "repeated_acked_before_planned", "out_of_order", "late", "rpo_messages", "snapshot_mappings",
              "subscription_updates")  # fmt: skip
    return {
        "scenario": scenario, "engine": "embedded", "seed": 1, "sync": "exact", "links": "both-ways",
        "passed": True, "failures": [], "rto_seconds": 0.5, "copy_lag_ms": lag, "sync_lag_ms": lag, "wall_seconds": 9.0,
        "verify": {"missing": 0}, "subscriptions": [], "failovers": [], "phases": [],
    } | dict.fromkeys(counts, 0) | changes  # fmt: skip


def kept(place: StorePlace) -> list[DrillRun]:
    """Two runs, a day apart."""
    day = datetime(2026, 1, 5, 12, tzinfo=UTC)
    runs = [
        new_run("kill-primary", digest_of(topology()), day, report("kill-primary", repeated=3)),
        new_run("planned", digest_of(topology()), day + timedelta(days=1), report("planned", passed=False)),
    ]

    async def keep() -> None:
        async with opened_store(place, make=True) as repository:
            for run in runs:
                await repository.save_drill_run(run)

    asyncio.run(keep())
    return runs


def drills(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return forked_commands.run("drills", *arguments, cwd=cwd)


def test_runs_are_listed_shown_and_compared(tmp_path: Path) -> None:
    older, newer = kept(find_place(None, tmp_path / "drill-report", None))
    listed = json.loads(drills("list", "-o", "json", cwd=tmp_path).stdout)  # the place is the default one
    assert [(run["id"], run["passed"]) for run in listed] == [(newer.id, False), (older.id, True)]
    shown = json.loads(drills("show", older.id[:13], "-o", "json", cwd=tmp_path).stdout)
    assert shown == older.report
    table = drills("show", "latest", cwd=tmp_path)
    assert "Drill planned" in table.stdout, table.stderr
    compared = json.loads(drills("compare", older.id, "latest", "-o", "json", cwd=tmp_path).stdout)
    assert compared["figures"]["repeated"] == {"first": 3, "second": 0}
    only = json.loads(drills("list", "--scenario", "planned", "-o", "json", cwd=tmp_path).stdout)
    assert [run["id"] for run in only] == [newer.id]


def test_what_is_not_there_is_said_in_one_line(tmp_path: Path) -> None:
    nowhere = drills("list", cwd=tmp_path)
    assert nowhere.returncode == 2
    assert "no drills are kept in drill-report/runs" in nowhere.stderr
    assert not (tmp_path / "drill-report").exists()
    kept(find_place(str(tmp_path / "place"), tmp_path, None))
    unknown = drills("show", "1999", "--store", "place", cwd=tmp_path)
    assert unknown.returncode == 2
    assert "there is no drill whose id begins with '1999'" in unknown.stderr


def test_an_id_that_begins_like_several_is_not_guessed(tmp_path: Path) -> None:
    place = find_place(None, tmp_path, None)
    older, _newer = kept(place)

    async def main() -> None:
        async with opened_store(place) as repository:
            assert (await find_run(repository, older.id)).report == older.report
            with pytest.raises(DrillError, match="2 drills have an id that begins with '202601'"):
                await find_run(repository, "202601")

    asyncio.run(main())
