"""New data directories of Postgres in tests: copies of the first one that ``initdb`` made."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from databases_copied import copying


class Wheel:
    """The wheel's function that runs commands of Postgres, in a program folder of its own."""

    def __init__(self, directory: Path) -> None:
        self.asked: list[str] = []
        self._bin = directory / "pginstall" / "bin"
        self._run = copying(self._pgexec, directory / "cache")

    def _pgexec(self, command: str, args: Sequence[str], bin_path: Path, **how: Any) -> str:
        self.asked.append(command)
        if command == "initdb":
            data = Path(args[-1])
            assert list(data.iterdir()) == [], "initdb refuses a directory that has something"
            data.chmod(0o700)
            (data / "base").mkdir(mode=0o700)
            (data / "base" / "1").write_text("a table")
            (data / "PG_VERSION").write_text("18\n")
        return f"{command} said"

    def run(self, command: str, data: Path) -> str:
        return self._run(command, ("--auth=trust", "-D", str(data)), bin_path=self._bin, user="somebody")


@pytest.fixture
def wheel(tmp_path: Path) -> Wheel:
    return Wheel(tmp_path)


def made(wheel: Wheel, data: Path) -> dict[str, tuple[int, str]]:
    """Make a data directory; return the rights of all that is in it, and the content of its files."""
    data.mkdir(exist_ok=True)
    wheel.run("initdb", data)
    found = {str(each.relative_to(data)): each for each in [data, *sorted(data.rglob("*"))]}
    return {name: (each.stat().st_mode, "" if each.is_dir() else each.read_text()) for name, each in found.items()}


def test_the_second_data_directory_is_a_copy_of_the_first(wheel: Wheel, tmp_path: Path) -> None:
    first = made(wheel, tmp_path / "a")
    assert sorted(first) == [".", "PG_VERSION", "base", "base/1"]
    (tmp_path / "a" / "base" / "1").write_text("a table that is used")
    assert made(wheel, tmp_path / "b") == first
    assert wheel.asked == ["initdb"]


def test_initdb_runs_where_the_copy_fails(wheel: Wheel, tmp_path: Path) -> None:
    first = made(wheel, tmp_path / "a")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "base").write_text("in the way of a directory")
    assert made(wheel, tmp_path / "b") == first
    assert wheel.asked == ["initdb", "initdb"]


def test_a_cache_that_cannot_be_written_costs_no_test_its_database(wheel: Wheel, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("no directory")
    assert made(wheel, tmp_path / "a") == made(wheel, tmp_path / "b")
    assert wheel.asked == ["initdb", "initdb"]


def test_other_commands_are_run_as_ever(wheel: Wheel, tmp_path: Path) -> None:
    assert wheel.run("pg_ctl", tmp_path) == "pg_ctl said"
    assert wheel.asked == ["pg_ctl"]
