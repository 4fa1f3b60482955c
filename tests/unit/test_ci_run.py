"""``.ci/run`` on a project of its own whose steps do nothing but say so: order, skipped steps, failures, interrupts."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

CI = Path(__file__).parents[2] / ".ci"
SCRIPTS = ("peers", "helm", "packages", "docs", "monitoring", "browser")
STEPS = ("chart", "chart-and-program", "pods", "packages", "site", "browser")

TIMES = "== what each part took; of one core, by itself and by all that ran meanwhile\n"
MAKEFILE = """
.PHONY: venv lint test e2e histories
venv:
\t@mkdir -p .venv/bin && ln -sf "$(PYTHON)" .venv/bin/python && echo venv >>done
lint:
\t@[ ! -e unclean ] || { echo unclean && exit 1; }
test: lint
test e2e:
\t@echo $@ >>done; echo "addopts of $@:$$PYTEST_ADDOPTS"
histories:
\t@echo histories >>done; echo "histories $(ARGS)"
"""
PYTHONS = f"""#!/bin/sh
if [ "${{1:-}}" = oldest ]; then echo {sys.executable}; else echo pythons >>done; fi
"""


class Project:
    """A clone with the script, whose steps are small shell scripts."""

    def __init__(self, path: Path) -> None:
        self.path = path / "clone"
        self.cache = path / "cache"
        (self.path / ".ci").mkdir(parents=True)
        for name in ("run", "keyed.py"):
            shutil.copy(CI / name, self.path / ".ci")
        (self.path / "Makefile").write_text(MAKEFILE)
        (self.path / ".gitignore").write_text("done\n.venv\n")
        self.script("pythons", PYTHONS)
        for name in SCRIPTS:
            self.script(name, f'#!/bin/sh\necho "{name} $*" >>done\necho output of {name}\n')
        lists = ""
        for step in STEPS:
            script = {"site": "docs", "packages": "packages", "browser": "browser"}.get(step, "helm")
            lists += f'[{step}]\ncommand = [".ci/{script}", "{step}"]\ninputs = [".ci/{script}"]\n'
        (self.path / ".ci" / "inputs.toml").write_text(lists)
        git = ["git", "-C", str(self.path), "-c", "user.name=tests", "-c", "user.email=tests@localhost"]
        for words in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--message", "A project"]):
            subprocess.run([*git, *words], check=True)

    def script(self, name: str, text: str) -> None:
        """Write a step's script."""
        place = self.path / ".ci" / name
        place.write_text(text)
        place.chmod(0o755)

    def start(self) -> subprocess.Popen[str]:
        """Begin a run."""
        environment = {**os.environ, "XDG_CACHE_HOME": str(self.cache)}
        for name in ("REPLICATOR_CI_ALL", "PYTEST_ADDOPTS", "PYTHON"):
            environment.pop(name, None)
        out = subprocess.PIPE
        return subprocess.Popen([self.path / ".ci" / "run"], env=environment, stdout=out, stderr=out, text=True)

    def run(self) -> tuple[int, str]:
        """Run all of it; return its status and its output."""
        running = self.start()
        said, _ = running.communicate(timeout=60)
        return running.returncode, said

    def done(self) -> list[str]:
        """Return the steps that ran since the last call, in their order."""
        file = self.path / "done"
        ran = file.read_text().splitlines() if file.exists() else []
        file.unlink(missing_ok=True)
        return [line.strip() for line in ran]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_all_steps_run_and_a_second_run_skips_those_with_keys_and_says_so(project: Project) -> None:
    status, said = project.run()
    assert status == 0, said
    ran = project.done()
    assert ran[0] == "venv"
    chart = ["helm chart", "helm chart-and-program", "helm pods", "packages packages", "docs site", "monitoring"]
    chart.append("histories")
    assert "== histories\nhistories --known\n" in said
    assert [each for each in ran if each in chart] == chart, "one lane, each after the other"
    others = ["test", "e2e", "peers", "pythons"]
    assert [each for each in ran if each in others] == others
    assert sorted(ran) == sorted(["venv", "browser browser", *chart, *others])
    assert ran.index("browser browser") > ran.index("e2e")
    times = said.partition(TIMES)[2].splitlines()
    assert [line for line in times if not re.fullmatch(r"\d+ s  [\d.]+ %  \d+ %  \S.*", line)] == []
    named = [line.split(" %  ")[2] for line in times]
    assert sorted(named) == sorted(["make venv", "lint", "make test", "make e2e", ".ci/peers", ".ci/monitoring",
                                    ".ci/pythons", "histories", *STEPS])  # fmt: skip

    status, said = project.run()
    assert status == 0
    assert sorted(project.done()) == sorted(["venv", "test", "e2e", "peers", "monitoring", "histories", "pythons"])
    for step in STEPS:
        assert f"== {step}\n{step}: skipped" in said


def test_a_step_leaves_out_what_another_step_runs_and_nothing_else(project: Project) -> None:
    """pytest itself says what is left: some options do nothing for tests that ``testpaths`` names."""
    addopts = dict(re.findall(r"addopts of (\w+):(.*)\n", project.run()[1]))
    assert addopts.keys() == {"test", "e2e"}
    chart = "tests/helm/static"
    assert (
        chart in tomllib.loads((CI.parent / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]["testpaths"]
    )
    assert chart in tomllib.loads((CI / "inputs.toml").read_text())["chart-and-program"]["command"]
    paths = [chart, "tests/unit/test_docs_links.py", "tests/e2e/test_random_histories.py", "tests/e2e/test_tutorial.py"]
    ran = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "--collect-only",
            "-p",
            "no:cacheprovider",
            "-o",
            f"testpaths={' '.join(paths)}",
        ],
        cwd=CI.parent,
        env={**os.environ, "PYTEST_ADDOPTS": " ".join(addopts.values())},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = {line for line in ran.stdout.splitlines() if line.startswith("tests/")}
    assert {each for each in found if "/e2e/" in each} == {
        "tests/e2e/test_random_histories.py::test_histories_end_as_users_may_expect[random]",
        "tests/e2e/test_tutorial.py::test_the_tutorial_has_its_files_and_its_steps",
    }
    assert {each.partition("::")[0] for each in found if "/e2e/" not in each} == {"tests/unit/test_docs_links.py"}


def test_a_failed_step_is_shown_last_and_the_others_of_its_lane_run_all_the_same(project: Project) -> None:
    project.script("helm", '#!/bin/sh\necho "helm $*" >>done\n[ "$1" != chart ] || { echo broken && exit 5; }\n')
    status, said = project.run()
    assert status == 1
    ran = project.done()
    assert {"helm chart", "helm chart-and-program", "helm pods", "packages packages", "pythons"} <= set(ran)
    shown, _, times = said.partition(TIMES)
    assert shown.endswith("== chart failed\nbroken\n")
    assert " %  chart\n" in times


def test_lint_runs_beside_the_tests_and_what_it_finds_ends_the_run(project: Project) -> None:
    (project.path / "unclean").touch()
    status, said = project.run()
    assert status != 0
    ran = project.done()
    assert {"venv", "test"} <= set(ran)
    assert not {"e2e", "peers"} & set(ran)
    assert "== lint failed\nunclean\n" in said


def test_an_interrupted_run_ends_the_steps_that_it_started(project: Project) -> None:
    fifo = project.path / "alive"
    os.mkfifo(fifo)
    project.script("peers", f'#!/bin/sh\nexec 3>"{fifo}"\necho up >&3\ntimeout 600 sleep 600 &\nwait\n')
    running = project.start()
    with fifo.open() as alive:
        assert alive.readline() == "up\n"
        running.send_signal(signal.SIGTERM)
        assert alive.read() == "", "until all that held it are gone"
    assert running.wait(30) == 1
    assert running.stdout is not None
    assert running.stderr is not None
    running.stdout.close()
    running.stderr.close()
