"""Drills that the dashboard starts: the checks of its form, and the reading of the child's output."""

from __future__ import annotations

from pathlib import Path

import pytest
from asynchronous import asynchronous

from replicator.dashboard.drilling import (
    LINES_MAX,
    MESSAGES_MAX,
    RATE_MAX,
    Drilling,
    DrillRefused,
    DrillRun,
)
from replicator.dashboard.fan_out import FanOut
from replicator.dashboard.rendering import parts_for
from replicator.dashboard.runs import NotNow, RunNotFound, RunStart
from replicator.dashboard.switching import Switches
from replicator.dashboard.views import DRILL_PARTS, Views
from replicator.topology.values import default_topology

GOOD = {"namespace": "public/canary", "messages": "100", "rate": "100", "typed": "public/canary"}


def run_of(**more: object) -> DrillRun:
    run = DrillRun("public/canary", 100, 100, beginning=RunStart("x", "chief", 1, 0.0))
    for name, value in more.items():
        setattr(run, name, value)
    return run


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("namespace", "public"),
        ("namespace", ""),
        ("messages", "99"),
        ("messages", str(MESSAGES_MAX + 1)),
        ("messages", "9" * 5_000),
        ("messages", "-100"),
        ("messages", "١٠٠"),
        ("rate", "99"),
        ("rate", str(RATE_MAX + 1)),
        ("rate", ""),
        ("typed", ""),
        ("typed", "public/canar"),
    ],
)
def test_what_a_drill_cannot_be_is_refused_by_its_field(tmp_path: Path, field: str, value: str) -> None:
    @asynchronous
    async def refused() -> None:
        topology = default_topology(tmp_path, (1, 2))
        fan_out = FanOut(lambda: topology)
        drilling = Drilling(fan_out, "us-east")
        with pytest.raises(DrillRefused) as caught:
            drilling.start({**GOOD, field: value}, shown=None, who="chief")
        assert caught.value.field == field
        assert drilling.newest() == []
        await fan_out.close()

    refused()


@asynchronous
async def test_one_drill_goes_on_at_a_time(tmp_path: Path) -> None:
    topology = default_topology(tmp_path, (1, 2))
    fan_out = FanOut(lambda: topology)
    drilling = Drilling(fan_out, "us-east")
    drilling._runs["x"] = run_of()
    with pytest.raises(NotNow, match="goes on here already, in public/canary"):
        drilling.start(GOOD, shown=None, who="chief")
    with pytest.raises(RunNotFound):
        drilling.end("y", "chief")
    drilling.end("x", "chief")
    drilling.end("x", "another")
    assert (drilling.find("x").ending, len(drilling.find("x").lines)) == ("chief", 1)
    await fan_out.close()


def test_what_the_child_says_is_kept_and_what_others_print_is_shown_as_it_is() -> None:
    run = run_of()
    count = '{"phase": "before", "published": 5, "confirmed": 4, "consumed": {"all": 3}}'
    for at, line in enumerate((count, count, "a warning", '{"other": 1}', "[1]", "", '{"phase": "x"}')):
        run.heard(line, float(at))
    assert run.phase == "before"
    assert run.counts == {"published": 5, "confirmed": 4, "consumed by all": 3}
    assert [text for _, text in run.lines] == ["before", "a warning", '{"other": 1}', "[1]", '{"phase": "x"}']
    run.heard('{"id": "20", "passed": false, "kept": "there"}', 9.0)
    assert (run.report_id, run.passed, run.kept) == ("20", False, "there")
    run.heard('{"error": "no such place"}', 9.0)
    assert run.error == "no such place"
    for number in range(2 * LINES_MAX):
        run.heard(f"line {number}" + "x" * 5_000, 1.0)
    assert len(run.lines) == LINES_MAX


@asynchronous
async def test_the_page_says_how_a_drill_stands_and_escapes_what_it_said(tmp_path: Path) -> None:
    topology = default_topology(tmp_path, (1, 2))
    fan_out = FanOut(lambda: topology)
    drilling = Drilling(fan_out, "us-east")
    views = Views(fan_out, Switches(fan_out), drilling)
    for run, state, following in (
        (run_of(), "goes on: starting", "End this drill"),
        (run_of(ending="chief"), "goes on", "It is ending"),
        (run_of(seconds=1.25, passed=True, report_id="20"), "passed", "/dashboard/drill?id=20"),
        (run_of(seconds=1.25, passed=False, report_id="20"), "failed", "Compare it"),
        (run_of(seconds=1.25, error="<b>"), "ended with an error", "Start another"),
        (run_of(seconds=1.25, ending="chief"), "ended by chief", "Start another"),
    ):
        run.heard("<script>", 1.0)
        drilling._runs["x"] = run
        parts = parts_for(await views.compute("drill-run?id=x"), "token")
        assert tuple(parts) == DRILL_PARTS
        assert state in parts["state"]
        assert following in parts["next"]
        assert "&lt;script&gt;" in parts["lines"]
        assert "<b>" not in parts["state"]
    await fan_out.close()


@asynchronous
async def test_a_drill_has_nothing_to_show_but_what_its_starter_showed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topology = default_topology(tmp_path, (1, 2))
    fan_out = FanOut(lambda: topology)
    for name in ("REPLICATOR_TOKEN", "REPLICATOR_TOKEN_FILE", "REPLICATOR_CERTIFICATE", "REPLICATOR_KEY"):
        monkeypatch.setenv(name, "ours")
    monkeypatch.setenv("REPLICATOR_TRUST", "authority.pem")
    found = fan_out.environment_of("Bearer theirs")
    assert found["REPLICATOR_TOKEN"] == "theirs"
    assert found["REPLICATOR_TRUST"] == "authority.pem"
    assert not [name for name, value in found.items() if value == "ours"]
    for shown in (None, "Basic eDp5"):
        assert "REPLICATOR_TOKEN" not in fan_out.environment_of(shown)
    await fan_out.close()
