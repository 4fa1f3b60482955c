"""Completion of the shell: what is offered, and that each shell's script is printed and installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(sys.executable).with_name("replicator")


def completed(shell: str, line: str) -> str:
    """What the program offers behind ``line``, as the shell's script asks for it."""
    environment = {**os.environ, "_REPLICATOR_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_ARGS": line}
    if shell == "bash":
        environment |= {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
    if shell == "fish":
        environment |= {"_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    done = subprocess.run([PROGRAM], env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert "Traceback" not in done.stderr
    return done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_commands_options_and_formats_are_offered(shell: str) -> None:
    assert "subscriptions" in completed(shell, "replicator subsc")
    assert "--watch" in completed(shell, "replicator status --wat")
    assert "yaml" in completed(shell, "replicator status --output ya")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_is_printed_and_installed_below_the_home_directory(tmp_path: Path, shell: str) -> None:
    environment = {**os.environ, "HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    for name in ("XDG_CONFIG_HOME", "ZDOTDIR"):
        environment.pop(name, None)
    shown, installed = (
        subprocess.run(
            [PROGRAM, option, shell], env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        for option in ("--show-completion", "--install-completion")
    )
    assert shown.returncode == 0, shown.stderr
    assert "_REPLICATOR_COMPLETE" in shown.stdout
    assert installed.returncode == 0, installed.stderr
    written = [each for each in tmp_path.rglob("*") if each.is_file()]
    scripts = [each for each in written if "_REPLICATOR_COMPLETE" in each.read_text()]
    assert len(scripts) == 1, written
    if (program := shutil.which(shell)) is not None:
        subprocess.run([program, "-n", scripts[0]], check=True, timeout=60)
