"""docs/tutorial.md, word by word, from a fresh clone to its end: it works, in the ten minutes that it promises."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import tutorial_support
from failover_support import free_ports
from tutorial_support import PAGE

SECONDS_MAX = 600


@pytest.fixture
def folder() -> Iterator[Path]:
    """Make a folder outside pytest's own directory: as root, Postgres runs as another user, who may not enter that."""
    made = Path(tempfile.mkdtemp(prefix="replicator-tutorial-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.mark.timeout(2 * SECONDS_MAX)  # removing what was installed takes its time too
def test_the_tutorial_takes_less_than_ten_minutes_from_a_fresh_clone(source: Path, folder: Path) -> None:
    shutil.copytree(source, folder / "clone", symlinks=True)
    first, second = map(str, free_ports(2))
    began = time.monotonic()
    with tutorial_support.opened(folder / "clone", {}) as shell:
        printed = tutorial_support.followed(shell, (first, second), tutorial_support.steps(PAGE.read_text()))
    assert tutorial_support.figures(printed) == tutorial_support.PROMISED
    assert time.monotonic() - began < SECONDS_MAX
