"""The check that no task is started where nobody sees how it ends."""

from __future__ import annotations

from pathlib import Path

import pytest
from reference_support import script

ROOT = Path(__file__).resolve().parents[3]
bare_tasks = script(ROOT / ".ci" / "bare_tasks.py")


@pytest.mark.parametrize(
    "line",
    [
        "asyncio.create_task(work())",
        "loop.create_task(work())",
        "start = asyncio.ensure_future",
        "from asyncio import create_task as go",
        "group = asyncio.TaskGroup()",
    ],
)
def test_a_bare_task_is_found_with_its_line_unless_it_is_excused(line: str) -> None:
    (found,) = bare_tasks.bare_tasks(Path("a.py"), f"x = 1\n{line}\n")
    assert found.startswith("a.py:2: ")
    assert bare_tasks.bare_tasks(Path("a.py"), f"{line}  # bare task: it is awaited at once\n") == []


def test_this_tree_has_none() -> None:
    assert bare_tasks.main(ROOT) == 0


@pytest.mark.parametrize("limit", ["asyncio.timeout(1)", "asyncio.wait_for(ended, 1)"])
def test_asyncios_own_limit_of_time_is_found_and_ours_is_not(limit: str) -> None:
    (found,) = bare_tasks.bare_tasks(Path("a.py"), f"limit = {limit}\n")
    assert found.endswith("replicator.running.timeouts.timeout")
    assert bare_tasks.bare_tasks(Path("a.py"), "limit = timeout(1)\nother.timeout\nmoved.wait_for(ended)\n") == []
