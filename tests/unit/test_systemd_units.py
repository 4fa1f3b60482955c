"""The units of docs/systemd, as systemd reads them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from replicator.worker.watchdog import EXIT_STATUS

UNITS = Path(__file__).parents[2] / "docs" / "systemd"
PROGRAM = "/opt/replicator/bin/replicator"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not here")
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    verified = tmp_path / "units"
    verified.mkdir()
    for unit in UNITS.glob("replicator*"):
        text = unit.read_text()
        # Neither the program nor the user are on this machine.
        text = (
            text.replace(PROGRAM, "/bin/true").replace("User=replicator", "User=root").replace("Group=replicator", "")
        )
        (verified / unit.name.replace("@.", "@us-east.")).write_text(text)
    names = sorted(str(path) for path in verified.iterdir())
    assert len(names) == 3
    done = subprocess.run(
        ["systemd-analyze", "verify", "--recursive-errors=no", *names], capture_output=True, text=True, check=False
    )
    ours = [line for line in done.stderr.splitlines() if "replicator" in line]
    assert (done.returncode, ours) == (0, []), done.stderr


def test_units_call_what_the_command_line_knows() -> None:
    """A wrong option would only be found by who installs the unit."""
    from typer.main import get_command

    from replicator.cli.main import app

    commands = [
        line.split("=", 1)[1].split()
        for unit in UNITS.glob("*.service")
        for line in unit.read_text().splitlines()
        if line.startswith("ExecStart=")
    ]
    assert len(commands) == 2
    known = get_command(app)
    for program, command, *arguments in commands:
        assert program == PROGRAM
        context = known.commands[command].make_context(command, arguments, resilient_parsing=False)
        assert context.command.name == command


def test_the_unit_ends_a_worker_that_stands_still_for_a_minute_and_starts_it_again_but_not_after_wrong_usage() -> None:
    from typer.main import get_command

    from replicator.cli.main import _end_after, app

    pairs = [
        line.split("=", 1) for line in (UNITS / "replicator@.service").read_text().splitlines() if line[:1].isalpha()
    ]
    settings = dict(pairs)
    assert len([key for key, _ in pairs if key in ("ExecStart", "Restart", "RestartPreventExitStatus")]) == 3
    _, command, *arguments = settings["ExecStart"].split()
    worker = get_command(app).commands[command]
    assert _end_after(worker.make_context(command, arguments).params["end_when_stuck"]) == 60
    assert settings["Restart"] == "on-failure"
    assert settings["RestartPreventExitStatus"].split() == ["2"], f"{EXIT_STATUS} is a failure that starts it again"
