"""``.ci/venv`` on a project of its own, that needs no packages: real interpreters, real environments, no network."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / ".ci" / "venv"
BASE = sys._base_executable  # type: ignore[attr-defined]

PYPROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "tiny"
version = "1"
requires-python = ">=3.11,<3.15"
"""

BACKEND = '''
import zipfile
def build_editable(directory, settings=None, metadata=None):
    """A package without files."""
    with zipfile.ZipFile(f"{directory}/tiny-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny-1.dist-info/METADATA", "Metadata-Version: 2.1\\nName: tiny\\nVersion: 1\\n")
        wheel.writestr("tiny-1.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr("tiny-1.dist-info/RECORD", "")
    return "tiny-1-py3-none-any.whl"
'''


INSTALLING = "installing all pinned packages in .venv, 0 packages: a minute or two\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    project = tmp_path / "clone"
    (project / ".ci").mkdir(parents=True)
    shutil.copy(SCRIPT, project / ".ci")
    (project / "pyproject.toml").write_text(PYPROJECT)
    (project / "backend.py").write_text(BACKEND)
    (project / "requirements.lock").write_text("# nothing\n")
    return project


def set_up(project: Path, *interpreter: object, environment: dict[str, str] | None = None) -> tuple[int, str]:
    """Exit status, and what was said."""
    done = subprocess.run(
        [project / ".ci" / "venv", ".venv", *interpreter],
        cwd=project,
        env={**os.environ, **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def imitation(path: Path, before: str) -> Path:
    """An interpreter that is the real one but for what ``before``, some lines of shell, does first."""
    path.write_text(f'#!/bin/sh\n{before}\nexec "{BASE}" "$@"\n')
    path.chmod(0o755)
    return path


def without_ensurepip(path: Path, before: str = "") -> Path:
    """Return a Python without ensurepip, like Debian's without python3-venv. The script asks the interpreter behind the
    one that it is given."""
    return imitation(
        path, f'{before}\ncase "$*" in *ensurepip*) exit 1;; *_base_executable*) echo "{path}"; exit 0;; esac'
    )


def test_an_environment_is_made_once_and_anew_where_it_would_not_run(project: Path) -> None:
    status, said = set_up(project, BASE)
    assert status == 0
    assert said.startswith("making .venv, with Python 3.")
    installed, survivor = project / ".venv" / ".installed", project / ".venv" / "survivor"
    survivor.touch()
    first = installed.stat().st_ino, installed.stat().st_mtime_ns

    assert set_up(project) == set_up(project, BASE) == (0, ""), "nothing changed"
    assert (installed.stat().st_ino, installed.stat().st_mtime_ns) == first

    (project / "requirements.lock").write_text("# nothing more\n")
    assert set_up(project) == (0, INSTALLING)
    assert set_up(project) == (0, "")

    installed.unlink()  # as when it is interrupted
    assert "anew" not in set_up(project)[1]
    assert set_up(project) == (0, "")
    assert survivor.exists()

    # Its commands name the interpreter by its path.
    moved = project.rename(project.with_name("moved"))
    status, said = set_up(moved)
    assert status == 0
    assert said.startswith("making .venv anew, with Python 3.")
    assert not (moved / ".venv" / "survivor").exists()
    assert set_up(moved) == (0, "")

    # The environment is active, and its python the one that is asked for.
    assert set_up(moved, moved / ".venv" / "bin" / "python") == (0, "")


def uv_that(project: Path, behaves: str) -> None:
    """Write a lock that brings a program ``uv``, some lines of shell, from a wheel beside it."""
    wheel = project / "uv-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("uv-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: uv\nVersion: 1\n")
        archive.writestr("uv-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        program = zipfile.ZipInfo("uv-1.data/scripts/uv")
        program.external_attr = 0o100755 << 16  # a regular file that may be run
        archive.writestr(program, f"#!/bin/sh\n{behaves}\n")
        archive.writestr("uv-1.dist-info/RECORD", "")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    (project / ".ci" / "uv.lock").write_text(f"uv @ {wheel.as_uri()} --hash=sha256:{digest}\n")


def test_uv_installs_what_the_lock_names_into_the_environment(project: Path) -> None:
    uv_that(project, f'echo "$@" >"{project}/asked"')
    status, said = set_up(project, BASE)
    assert (status, "pip does" in said) == (0, False)
    asked = (project / "asked").read_text().split()
    assert asked[asked.index("--python") + 1] == ".venv/bin/python"
    assert asked[-3:] == ["--require-hashes", "-r", ".venv/.lock"]


def with_imitations(project: Path, uv: str) -> None:
    """Make an environment whose pip does nothing, and whose uv is some lines of shell."""
    environment = project / ".venv"
    subprocess.run([BASE, "-m", "venv", "--without-pip", environment], check=True)
    (packages,) = environment.glob("lib/python3*/site-packages")
    (packages / "pip").mkdir()
    (packages / "pip" / "__main__.py").touch()
    (environment / "bin" / "uv").write_text(f"#!/bin/sh\n{uv}\n")
    (environment / "bin" / "uv").chmod(0o755)
    (project / ".ci" / "uv.lock").touch()


def test_an_environment_grows_from_what_a_drill_needs_to_all_and_never_shrinks(project: Path) -> None:
    """A drill without Spark needs least. Each part is taken from the one lock, with its hashes."""
    digests = {name: f"--hash=sha256:{name * 64}" for name in "abc"}
    (project / "requirements.lock").write_text(
        "# made by make lock\n"
        + "".join(f"{name}==1 ; sys_platform == 'linux' \\\n    {digests[name]}\n    # via tiny\n" for name in "abc")
    )
    (project / ".ci" / "drill-packages").write_text("# packages\na\nb spark\n")
    with_imitations(project, f'cat "$9" >"{project}/part"')

    def installed(packages: str) -> set[str]:
        (project / "part").unlink(missing_ok=True)
        status, said = set_up(project, "", packages)
        assert status == 0, said
        if not (project / "part").exists():
            assert said == ""
            return set()
        part = (project / "part").read_text()
        names = {line[0] for line in part.splitlines() if line[0] in "abc"}
        assert {name for name in "abc" if digests[name] in part} == names
        assert f" {len(names)} packages: " in said
        return names

    assert installed("embedded") == {"a"}
    assert installed("embedded") == set()
    assert installed("drill") == {"a", "b"}
    assert installed("embedded") == set()
    assert installed("all") == {"a", "b", "c"}
    assert installed("drill") == set()
    lock = (project / "requirements.lock").read_text()
    (project / "requirements.lock").write_text(lock.replace("c==1", "c==2"))
    assert installed("embedded") == {"a", "b", "c"}, "all of it stays what the lock says"
    assert set_up(project, "", "most") == (2, "PACKAGES is embedded, drill or all, not most\n")


def test_one_made_before_there_were_parts_has_all_packages(project: Path) -> None:
    with_imitations(project, "exit")
    assert set_up(project)[0] == 0
    stamp = project / ".venv" / ".installed"
    stamp.write_text("".join(stamp.read_text().splitlines(keepends=True)[:4]))
    assert set_up(project, "", "drill") == set_up(project) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "packages"),
    [
        ("", "drill"),
        ("--engine embedded", "embedded"),
        ("--engine=embedded --seed 3", "embedded"),
        ("--engine embedded --messages 900000", "drill"),
        ("--engine embedded --scenario mesh-lose-one", "drill"),
        ("--scenario flap", "drill"),
        ("--scenario all", "all"),
        ("--scenario official-clients", "all"),
        ("--engine embedded --client pulsar", "all"),
        ("--kind mixed", "all"),
    ],
)
def test_make_drill_asks_for_what_the_drill_needs(arguments: str, packages: str) -> None:
    assert made("drill", f"ARGS={arguments}") == packages
    assert made("drill", "lint", f"ARGS={arguments}") == "all"


@pytest.mark.parametrize("target", ["venv", "test", "lint", "bench"])
def test_other_targets_ask_for_all_packages(target: str) -> None:
    assert made(target) == "all"


def made(*arguments: str) -> str:
    """Return the set of packages that make passes to the script ``.ci/venv`` in a dry run.

    It is ``embedded``, ``drill`` or ``all``.
    """
    command = ["make", "--dry-run", "--no-print-directory", *arguments]
    done = subprocess.run(command, cwd=SCRIPT.parents[1], capture_output=True, text=True, check=True)
    asked = [line.split('"')[-2] for line in done.stdout.splitlines() if line.startswith(".ci/venv")]
    assert len(asked) == 1
    return asked[0]


def test_pip_installs_where_uv_fails_or_cannot_be_had(project: Path) -> None:
    uv_that(project, "exit 1")
    status, said = set_up(project, BASE)
    assert status == 0
    assert "uv could not install the packages: pip does\n" in said
    (project / "requirements.lock").write_text("# something else\n")
    (project / ".ci" / "uv.lock").write_text(f"uv==0 --hash=sha256:{'0' * 64}\n")
    status, said = set_up(project, BASE, environment={"PIP_NO_INDEX": "1"})
    assert (status, said) == (0, INSTALLING)
    assert set_up(project, BASE) == (0, "")


def test_it_is_made_anew_for_another_interpreter_and_where_its_own_is_gone(project: Path, tmp_path: Path) -> None:
    python = project / ".venv" / "bin" / "python"
    subprocess.run([BASE, "-m", "venv", "--without-pip", project / ".venv"], check=True)
    # It stops where the old environment would go.
    other = without_ensurepip(tmp_path / "python3", 'case "$*" in *base_prefix*) echo "3.12 /elsewhere"; exit;; esac')
    assert "it has no ensurepip" in set_up(project, other)[1]
    python.unlink()
    python.symlink_to("/no/longer/there")
    assert "it has no ensurepip" in set_up(project, environment={"PATH": f"{tmp_path}:{os.environ['PATH']}"})[1]


@pytest.mark.parametrize("version", ["2.7", "3.10", "3.15"])
def test_another_version_gets_one_line_before_anything_is_made(project: Path, tmp_path: Path, version: str) -> None:
    wrong = imitation(
        tmp_path / "wrong", f'case "$*" in -S*) echo "{version} /x";; -V) echo "Python {version}.0";; esac; exit'
    )
    status, said = set_up(project, wrong)
    assert status == 2
    assert said.startswith(f"Python 3.11 to 3.14 is needed, and {wrong} is Python {version}.0. PYTHON=… names another")
    assert said.count("\n") == 1
    assert not (project / ".venv").exists()


def test_the_line_names_the_packages_that_a_new_python_waits_for(project: Path, tmp_path: Path) -> None:
    (project / ".ci" / "without-wheel").write_text("3.15 pyarrow, uvloop\n3.16 all\n")
    new = imitation(tmp_path / "new", 'case "$*" in -S*) echo "3.15 /x";; -V) echo "Python 3.15.0";; esac; exit')
    status, said = set_up(project, new)
    assert status == 2
    lacking = "is Python 3.15.0, for which these packages have no wheel yet: pyarrow, uvloop. PYTHON=… names another"
    assert said.startswith(f"Python 3.11 to 3.14 is needed, and {new} {lacking}")
    assert said.count("\n") == 1


def test_the_line_names_an_interpreter_that_would_do(project: Path, tmp_path: Path) -> None:
    imitation(tmp_path / "python3", "")
    said = set_up(project, "no-such-python", environment={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert said == (
        2,
        "Python 3.11 to 3.14 is needed, and no-such-python is not there. PYTHON=… names another; python3 is here\n",
    )


def test_a_python_without_ensurepip_gets_one_line_with_the_package(project: Path, tmp_path: Path) -> None:
    status, said = set_up(project, without_ensurepip(tmp_path / "bare"))
    assert status == 2
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert said.count("\n") == 1
    assert "it has no ensurepip" in said
    assert said.endswith(f"apt install python{version}-venv\n")
    assert not (project / ".venv").exists()


def test_a_directory_that_is_something_else_is_left_alone(project: Path) -> None:
    (project / ".venv").mkdir()
    (project / ".venv" / "thesis.txt").touch()
    assert set_up(project, BASE) == (2, ".venv is there, and is not a virtual environment\n")
    assert (project / ".venv" / "thesis.txt").exists()


def test_two_at_once_set_it_up_one_after_the_other(project: Path) -> None:
    steps = project.parent / "steps"
    slow = imitation(
        project.parent / "slow",
        f'case "$*" in *_base_executable*) echo "{project.parent}/slow"; exit 0;; "-m venv"*) '
        f'echo begin >>"{steps}"; sleep 1; "{BASE}" "$@"; echo end >>"{steps}"; exit 0;; esac',
    )
    command = [project / ".ci" / "venv", ".venv", slow]
    both = [subprocess.Popen(command, cwd=project, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [each.communicate(timeout=120)[0] for each in both]
    assert [each.returncode for each in both] == [0, 0]
    assert steps.read_text().split() == ["begin", "end"], said
    assert sum("waiting for another one" in each for each in said) == 1


def test_make_takes_an_interpreter_whose_path_has_spaces(project: Path) -> None:
    shutil.copy(SCRIPT.parents[1] / "Makefile", project)
    (project.parent / "with space").mkdir()
    python = imitation(project.parent / "with space" / "python3", "")
    done = subprocess.run(
        ["make", "venv", f"PYTHON={python}"], cwd=project, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (project / ".venv" / "bin" / "python").exists()
