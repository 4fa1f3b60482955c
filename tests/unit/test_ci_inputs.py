"""Steps of CI that are skipped while their inputs are the same: the lists of inputs, and the script that keeps them."""

from __future__ import annotations

import ast
import functools
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from files_read import source_of
from reference_support import script

REPOSITORY = Path(__file__).parents[2]


SCRIPT = REPOSITORY / ".ci" / "keyed.py"
keyed: Any = script(SCRIPT)
STEPS: dict[str, Any] = keyed.steps((REPOSITORY / ".ci" / "inputs.toml").read_text())


@pytest.fixture(scope="module")
def files() -> list[str]:
    found: list[str] = keyed.files_of(REPOSITORY)
    return found


@functools.cache
def imported(file: Path) -> tuple[Path, ...]:
    """Return the modules of this clone that a module imports at once; what functions import is seen when they run."""
    there: list[Path] = []
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None and not node.level:
            names = [node.module, *(f"{node.module}.{each.name}" for each in node.names)]
        else:
            continue
        for name in names:
            place = name.replace(".", "/")
            for top in (file.parent, REPOSITORY / "tests" / "support", REPOSITORY / "tests", REPOSITORY):
                candidates = [top / f"{place}.py", top / place / "__init__.py"]
                found = [each for each in candidates if each.is_file()]
                there += found
                if found:
                    break
    return tuple(there)


def with_imports(tests: tuple[str, ...]) -> set[str]:
    """Return the modules of tests, the conftests above them, and all that they import, relative to the clone."""
    waiting: list[Path] = []
    for name in tests:
        place = REPOSITORY / name
        waiting += place.rglob("*.py") if place.is_dir() else [place]
        waiting += [each / "conftest.py" for each in [place, *place.parents] if (each / "conftest.py").is_file()]
    seen: set[Path] = set()
    while waiting:
        file = waiting.pop()
        if file not in seen:
            seen.add(file)
            waiting += imported(file)
    return {each.relative_to(REPOSITORY).as_posix() for each in seen}


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_whatever_a_keyed_step_imports_is_among_its_inputs(step: Any) -> None:
    assert sorted(name for name in with_imports(step.tests) if not step.reads(name)) == []


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_each_file_that_the_script_of_a_step_names_is_among_its_inputs(step: Any, files: list[str]) -> None:
    script = step.command[0]
    assert step.reads(script)
    lines = (REPOSITORY / script).read_text().splitlines()
    text = "\n".join(line.partition("# ")[0] for line in lines)
    named = [file for file in files if "/" in file and file in text]
    assert [file for file in named if not step.reads(file)] == []


def key(step: Any, root: Path, files: list[str]) -> str:
    found: str = keyed.key_of(step, root, files, ["python"])
    return found


def test_a_changed_file_of_the_chart_makes_its_step_run_and_a_changed_page_does_not(
    files: list[str], tmp_path: Path
) -> None:
    step = STEPS["chart"]
    page, template = "docs/drills.md", "helm/replicator/values.yaml"
    for file in files:
        if step.reads(file) or file == page:
            (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPOSITORY / file, tmp_path / file, follow_symlinks=False)
    before = key(step, tmp_path, files)
    (tmp_path / page).write_text("another page")
    assert key(step, tmp_path, files) == before
    with (tmp_path / template).open("a") as values:
        values.write("# more\n")
    assert key(step, tmp_path, files) != before


def test_the_program_is_an_input_of_each_step_that_runs_it_and_of_no_other() -> None:
    runs_it = {name for name, step in STEPS.items() if step.reads("replicator/worker/main.py")}
    assert runs_it == {"chart-and-program", "pods", "packages", "browser"}


def test_a_step_of_the_chart_does_not_run_for_what_only_another_one_reads() -> None:
    rendering, installing, pods = {"chart-and-program"}, {"chart"}, {"pods"}
    runs = {
        "tests/helm/golden/minimal.yaml": rendering,
        "tests/helm/static/test_values.py": rendering,
        "helm/slim.lock": rendering,
        "tests/helm/installing/test_upgrades.py": installing,
        "tests/pods/test_upgrades.py": pods,
        "tests/helm/values/minimal.yaml": rendering | installing | pods,
        "helm/replicator/values.yaml": rendering | installing | pods,
    }
    assert {file: {name for name, step in STEPS.items() if step.reads(file)} for file in runs} == runs


def test_a_pattern_that_no_file_matches_is_an_error() -> None:
    step = replace(STEPS["site"], patterns=("docs/", "gone.md"))
    with pytest.raises(keyed.ListBroken, match=r"site in \.ci/inputs\.toml: no file is gone\.md"):
        keyed.key_of(step, REPOSITORY, ["docs/index.md"], [])


def test_a_group_that_is_not_there_is_an_error() -> None:
    with pytest.raises(keyed.ListBroken, match="there is no group gone"):
        keyed.steps('[one]\ncommand = ["x"]\ninputs = ["@gone"]\n')


def test_a_key_tells_names_from_contents_and_a_file_from_a_link(tmp_path: Path) -> None:
    step = replace(STEPS["site"], patterns=("*",), names=False)

    def made(**contents: str) -> str:
        for each in tmp_path.iterdir():
            each.unlink()
        for name, content in contents.items():
            if content.startswith("->"):
                (tmp_path / name).symlink_to(content[2:])
            else:
                (tmp_path / name).write_text(content)
        return key(step, tmp_path, sorted(contents))

    keys = [made(a="b", c=""), made(a="", b="c"), made(ab="c"), made(a="bc"), made(a="->bc"), made(a="b", c="->a")]
    assert len(set(keys)) == len(keys)
    assert made(a="b", c="") == keys[0]


def test_byte_code_counts_as_its_module() -> None:
    assert source_of("tests/__pycache__/conftest.cpython-311-pytest-9.0.2.pyc") == "tests/conftest.py"
    assert source_of("__pycache__/setup.cpython-311.pyc") == "setup.py"
    assert source_of("docs/index.md") == "docs/index.md"


LISTS = """
[groups]
code = ["code.py"]
[one]
command = ["bash", "-c", "echo ran >>ran; cat extra 2>/dev/null && exit 3; echo code.py >$REPLICATOR_CI_READS"]
tests = ["tests"]
inputs = ["@code", "data/"]
[curious]
command = ["bash", "-c", "echo ran >>ran; echo page.md >$REPLICATOR_CI_READS"]
tests = ["tests"]
inputs = ["code.py"]
[silent]
command = ["true"]
tests = ["tests"]
inputs = ["code.py"]
[changing]
command = ["bash", "-c", "echo ran >>ran; date +%N >>code.py"]
inputs = ["code.py"]
"""


class Clone:
    """A small project with the script, and a store of green keys of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path / "clone"
        self.store = path / "cache" / "replicator-ci" / "green"
        (self.path / ".ci").mkdir(parents=True)
        (self.path / "data").mkdir()
        shutil.copy(SCRIPT, self.path / ".ci")
        self.write(".ci/inputs.toml", LISTS)
        self.write("code.py", "pass\n")
        self.write("page.md", "a page\n")
        self.write("data/first", "1\n")
        self.write(".gitignore", "ran\nextra\n")
        subprocess.run(["git", "init", "--quiet", self.path], check=True)

    def write(self, name: str, text: str) -> None:
        (self.path / name).write_text(text)

    def step(self, *arguments: str, **environment: str) -> tuple[int, str]:
        """Run a step; return its status and its output."""
        cache = {"XDG_CACHE_HOME": str(self.store.parents[1])}
        outer = {name: value for name, value in os.environ.items() if name != keyed.ALL}
        done = subprocess.run(
            [sys.executable, self.path / ".ci" / "keyed.py", *arguments],
            env={**outer, **cache, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout

    def runs(self) -> int:
        """Return how many times commands ran."""
        ran = self.path / "ran"
        return len(ran.read_text().splitlines()) if ran.exists() else 0


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path)


def test_a_step_runs_once_for_the_same_inputs_and_says_when_it_is_skipped(clone: Clone) -> None:
    assert clone.step("one")[0] == 0
    status, said = clone.step("one")
    assert (status, clone.runs()) == (0, 1)
    shown = clone.step("--key", "one")[1].strip()
    assert len(said.splitlines()) == 1
    assert said.startswith("one: skipped")
    assert shown in said
    clone.write("page.md", "another\n")
    clone.step("one")
    assert clone.runs() == 1, "no input"
    clone.write("data/second", "untracked, and an input\n")
    clone.step("one")
    assert clone.runs() == 2
    clone.step("one", REPLICATOR_CI_ALL="1")
    assert clone.runs() == 3


def test_a_step_that_fails_is_run_again(clone: Clone) -> None:
    clone.write("extra", "")
    assert clone.step("one")[0] == 3
    (clone.path / "extra").unlink()
    assert clone.step("one")[0] == 0
    assert clone.runs() == 2


def test_a_green_run_counts_for_a_week_and_is_removed_after_it(clone: Clone) -> None:
    clone.step("one")
    (mark,) = clone.store.iterdir()
    old = mark.stat().st_mtime - keyed.KEPT_SECONDS - 1
    os.utime(mark, (old, old))
    clone.write("data/first", "2\n")
    clone.step("one")
    assert len(list(clone.store.iterdir())) == 1
    clone.write("data/first", "1\n")
    clone.step("one")
    assert clone.runs() == 3


@pytest.mark.parametrize(
    ("step", "why"),
    [
        ("curious", "its list in .ci/inputs.toml lacks what it read: page.md"),
        ("silent", "pytest did not say which files it read"),
        ("changing", "its inputs changed while it ran"),
    ],
)
def test_a_step_whose_inputs_are_not_known_to_be_those_of_its_key_leaves_none(
    clone: Clone, step: str, why: str
) -> None:
    for _ in range(2):
        assert clone.step(step) == (0, f"{step}: green, and not skipped next time: {why}\n")
    assert not clone.store.exists()


def test_a_step_that_nobody_declared_is_refused(clone: Clone) -> None:
    status, said = clone.step("two")
    assert status == 2
    assert "one of: one, curious, silent, changing" in said


def test_pytest_names_the_files_that_a_test_and_its_modules_open(tmp_path: Path) -> None:
    reads = tmp_path / "reads"
    test = REPOSITORY / "tests" / "unit" / "test_ci_inputs.py"
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider", f"{test}::{probe.__name__}"],
        cwd=REPOSITORY,
        env={**os.environ, keyed.READS: str(reads), "PYTEST_ADDOPTS": "-o python_functions=probe"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout
    names = set(reads.read_text().splitlines())
    own = {
        "tests/unit/test_ci_inputs.py",
        "tests/conftest.py",
        "tests/support/files_read.py",
        ".ci/keyed.py",
        "LICENSE",
    }
    assert own - names == set()


def probe() -> None:
    """Read a file that nothing else here reads."""
    assert (REPOSITORY / "LICENSE").read_text()
