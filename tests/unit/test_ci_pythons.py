"""``.ci/pythons`` on a project of its own, with interpreters that only say which they are: what runs on which."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / ".ci" / "pythons"
PYPROJECT = 'requires-python = ">=3.11,<3.15"\n'
MAKEFILE = """
venv:
\t@mkdir -p $(VENV)/bin && cp .ci/tested $(VENV)/bin/python && echo "$${IN_ROOT}$(notdir $(PYTHON)) venv" >>done
drill:
\t@[ ! -e broken ] && echo "$(notdir $(VENV)) drill" >>done
"""
TESTED = """#!/bin/sh
case "$*" in "-m pytest tests/unit"*) echo "$0 tests" | sed 's|.*replicator-ci/||; s|/bin/python||' >>done ;; esac
"""
ROOT = """#!/bin/sh
echo "root $*" >>done
case $1 in make) [ ! -e unreachable ] ;; run) shift 2 && export IN_ROOT="in the root: " && exec "$@" ;; esac
"""


class Project:
    """A clone with the script, on a machine that has some Pythons."""

    def __init__(self, path: Path) -> None:
        self.path, self.programs = path / "clone", path / "bin"
        (self.path / ".ci").mkdir(parents=True)
        self.programs.mkdir()
        shutil.copy(SCRIPT, self.path / ".ci")
        for name, text in {"pyproject.toml": PYPROJECT, "Makefile": MAKEFILE, "requirements.lock": ""}.items():
            (self.path / name).write_text(text)
        for name, text in {"tested": TESTED, "debian-root": ROOT}.items():
            self._program(self.path / ".ci" / name, text)
        for name in ("bash", "env", "sh"):
            (self.programs / name).symlink_to(shutil.which(name) or name)
        self._program(self.programs / "python3", "#!/bin/sh\nexit 1\n")
        self.cache = path / "cache"

    @staticmethod
    def _program(place: Path, text: str) -> None:
        place.write_text(text)
        place.chmod(0o755)

    def has(self, *minors: int, without_ensurepip: int | None = None) -> None:
        """Install Pythons that print their version and their place."""
        for minor in minors:
            failing = "exit 1" if minor == without_ensurepip else "exit 0"
            text = f'#!/bin/sh\ncase "$*" in -S*) echo "3.{minor}.2 /usr/{minor}";; *ensurepip*) {failing};; esac\n'
            self._program(self.programs / f"python3.{minor}", text)

    def run(self, *arguments: str) -> tuple[int, str, list[str]]:
        """Run the script; return its status, its errors, and what ran, sorted."""
        path = f"{self.programs}:{self.tools()}"
        environment = {"PATH": path, "HOME": str(self.path), "XDG_CACHE_HOME": str(self.cache)}
        done = subprocess.run(
            [self.path / ".ci" / "pythons", *arguments], env=environment, capture_output=True, text=True, check=False
        )
        file = self.path / "done"
        ran = sorted(file.read_text().splitlines()) if file.exists() else []
        file.unlink(missing_ok=True)
        return done.returncode, done.stderr, ran

    def tools(self) -> Path:
        """Return a folder with the programs of this machine, but no Python."""
        folder = self.programs.parent / "tools"
        if not folder.exists():
            folder.mkdir()
            for place in ("/usr/bin", "/bin"):
                for program in Path(place).iterdir():
                    if "python" not in program.name and not (folder / program.name).exists():
                        (folder / program.name).symlink_to(program)
        return folder


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def kinds(ran: list[str]) -> dict[str, list[str]]:
    """Return what ran on each version, without the rest of an environment's name."""
    found: dict[str, list[str]] = {}
    for line in ran:
        where, _, what = line.rpartition(" ")
        if what in ("drill", "tests"):
            found.setdefault(where.partition("-")[0], []).append(what)
    return found


def test_each_promised_python_runs_a_drill_and_the_oldest_and_the_newest_the_unit_tests(project: Project) -> None:
    project.has(11, 12, 13, 14)
    status, said, ran = project.run()
    assert (status, said) == (0, "")
    both = ["drill", "tests"]
    assert kinds(ran) == {"3.11.2": both, "3.12.2": ["drill"], "3.13.2": ["drill"], "3.14.2": both}
    assert not any(line.startswith("root") for line in ran)
    assert kinds(project.run("between")[2]) == {"3.12.2": ["tests"], "3.13.2": ["tests"]}


@pytest.mark.parametrize("here", [(11, 12, 13), (11, 12, 13, 14)])
def test_the_newest_runs_in_a_bare_debian_where_this_machine_has_none_that_makes_environments(
    project: Project, here: tuple[int, ...]
) -> None:
    project.has(*here, without_ensurepip=14)
    status, said, ran = project.run()
    assert (status, said) == (0, "")
    assert kinds(ran)["3.14"] == ["drill", "tests"]
    assert "in the root: python3.14 venv" in ran
    assert [line.split()[1:3] for line in ran if line.startswith("root")] == [["make", "3.14"], *[["run", "3.14"]] * 3]
    assert "3.13.2" in kinds(ran)
    assert kinds(ran)["3.13.2"] == ["drill"]


def test_a_promised_python_that_cannot_be_had_fails_the_step_and_the_others_run(project: Project) -> None:
    project.has(11, 13)
    (project.path / "unreachable").touch()
    status, said, ran = project.run()
    assert status == 1
    assert "could not be had: Python 3.12\n" in said
    assert "failed on Python 3.14\n" in said
    assert set(kinds(ran)) == {"3.11.2", "3.13.2"}


def test_one_without_ensurepip_cannot_be_had_either(project: Project) -> None:
    project.has(11, 12, 13, 14, without_ensurepip=12)
    status, said, _ = project.run()
    assert status == 1
    assert said.endswith("could not be had: Python 3.12.2\n")


def test_a_drill_that_fails_fails_the_step(project: Project) -> None:
    project.has(11, 12, 13, 14)
    (project.path / "broken").touch()
    status, said, ran = project.run()
    assert status == 1
    assert "failed on Python 3.11.2 3.12.2 3.13.2 3.14.2\n" in said
    assert kinds(ran) == {}
