"""Drills are kept in a real Postgres, and found again by the commands."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path

import forked_commands
import pytest
from drill_run_support import kept_runs

from replicator.drills.errors import DrillError
from replicator.drills.run_store import find_place, find_run, opened_store


def drills(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return forked_commands.run("drills", *arguments, cwd=cwd)


def test_runs_are_listed_shown_and_compared(tmp_path: Path) -> None:
    older, newer = kept_runs(find_place(None, tmp_path / "drill-report", None))
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
    kept_runs(find_place(str(tmp_path / "place"), tmp_path, None))
    unknown = drills("show", "1999", "--store", "place", cwd=tmp_path)
    assert unknown.returncode == 2
    assert "there is no drill whose id begins with '1999'" in unknown.stderr


def test_an_id_that_begins_like_several_is_not_guessed(tmp_path: Path) -> None:
    place = find_place(None, tmp_path, None)
    older, _newer = kept_runs(place)

    async def main() -> None:
        async with opened_store(place) as repository:
            assert (await find_run(repository, older.id)).report == older.report
            with pytest.raises(DrillError, match="2 drills have an id that begins with '202601'"):
                await find_run(repository, "202601")

    asyncio.run(main())
