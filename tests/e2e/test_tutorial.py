"""docs/tutorial.md, word by word but for the ports and the installation: the numbers that it promises come true.

The installation is part of it too in tests/packaging/test_tutorial_from_a_clone.py.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import tutorial_support
from tutorial_support import COMMANDS, PAGE

from replicator.drills.ports import free_ports


@pytest.fixture
def folder() -> Iterator[Path]:
    """Not below pytest's own directory: as root, Postgres runs as another user, who may not enter that."""
    made = Path(tempfile.mkdtemp(prefix="replicator-tutorial-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made, ignore_errors=True)


def test_the_tutorial_loses_nothing_and_repeats_nothing(folder: Path) -> None:
    tutorial = tutorial_support.steps(PAGE.read_text())
    assert tutorial[0].text.splitlines()[:2] == ["make venv", ". .venv/bin/activate"]
    first, second = map(str, free_ports(2))
    path = {"PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"}
    with tutorial_support.opened(folder, path) as shell:
        printed = tutorial_support.followed(shell, (first, second), tutorial[1:])
    assert tutorial_support.figures(printed) == tutorial_support.PROMISED


def test_the_tutorial_has_its_files_and_its_steps() -> None:
    tutorial = tutorial_support.steps(PAGE.read_text())
    assert [step.file for step in tutorial if step.file] == ["topology.yaml", "shop.py", "billing.py"]
    assert [step.number for step in tutorial if step.kind == COMMANDS] == [1, 2, 3, 4, 5, 6, 7, 8, 8, 9, 9, 10]
