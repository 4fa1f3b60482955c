"""The files of tests that took longest come first, and what they take is known from the runs before."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from longest_first import GroupsTimed, LongestFirst, load, save

REPOSITORY = Path(__file__).parents[2]


def taken(queue: LongestFirst) -> list[str]:
    """Empty a queue as xdist does; return the order."""
    return [queue.popitem(last=False)[0] for _ in range(len(queue))]


def queue_of(seconds: dict[str, float], *groups: str) -> LongestFirst:
    queue = LongestFirst(seconds)
    for group in groups:
        queue[group] = {f"{group}::test": False}
    return queue


def test_files_without_a_time_come_first_then_those_that_took_longest() -> None:
    seconds = {"short": 1.0, "long": 60.0, "middle": 5.0, "gone": 600.0}
    assert taken(queue_of(seconds, "short", "new", "middle", "long", "newer")) == [
        *("new", "newer"),
        *("long", "middle", "short"),
    ]


def test_without_times_the_order_stays() -> None:
    assert taken(queue_of({}, "b", "a", "c")) == ["b", "a", "c"]


def test_what_is_taken_is_the_group_with_its_tests() -> None:
    queue = queue_of({"a": 1.0, "b": 2.0}, "a", "b")
    assert queue.popitem(last=False) == ("b", {"b::test": False})
    assert list(queue) == ["a"]


def test_a_run_adds_up_all_parts_of_a_files_tests(tmp_path: Path) -> None:
    store = tmp_path / "kept" / "seconds.json"
    plugin = GroupsTimed(lambda nodeid: nodeid.partition("::")[0], store)
    for nodeid, duration in (("a.py::one", 1.5), ("a.py::two", 2.0), ("b.py::one", 0.25), ("a.py::one", 0.5)):
        plugin.pytest_runtest_logreport(SimpleNamespace(nodeid=nodeid, duration=duration))
    plugin.pytest_sessionfinish()
    assert load(store) == {"a.py": 4.0, "b.py": 0.25}


def test_a_run_of_some_tests_of_a_file_hides_little_of_what_all_of_them_take(tmp_path: Path) -> None:
    store = tmp_path / "seconds.json"
    save(store, {"a.py": 100.0, "b.py": 3.0})
    save(store, {"a.py": 1.0})
    assert load(store) == {"a.py": 70.0, "b.py": 3.0}
    save(store, {"a.py": 90.0})
    assert load(store)["a.py"] == 90.0


@pytest.mark.parametrize("text", ["", "[1]", '{"a": "long"}', '{"a": null}', "null"])
def test_a_store_that_cannot_be_read_is_none(tmp_path: Path, text: str) -> None:
    store = tmp_path / "seconds.json"
    store.write_text(text)
    assert load(store) == {}
    save(store, {"a.py": 2.0})
    assert load(store) == {"a.py": 2.0}


def test_a_run_with_several_processes_keeps_its_times(tmp_path: Path) -> None:
    test = "tests/unit/test_longest_first.py"
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "2", "-p", "no:cacheprovider", f"{test}::{taken_in_order.__name__}"],
        cwd=REPOSITORY,
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path), "PYTEST_ADDOPTS": "-o python_functions=taken_in_order"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout
    kept = json.loads((tmp_path / "replicator-ci" / "seconds-of-tests.json").read_text())
    assert list(kept) == [test]


def taken_in_order() -> None:
    assert taken(queue_of({}, "a", "b")) == ["a", "b"]
