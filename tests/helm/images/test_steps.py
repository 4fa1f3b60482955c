"""The steps of helm/Dockerfile, run without a container engine as far as they go: those that install Python's packages,
in folders of the test's own in the place of the image's. Not run: what makes a user and installs Debian's packages."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Final

import pytest
import yaml
from dockerfile_support import copy_context, lineage

from replicator.drills.ports import free_ports

STEP_SECONDS_MAX: Final = 900.0
"""A minute or two, where the index is near."""
READY_SECONDS_MAX: Final = 120.0


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run the steps of the stage ``build``; give the root of the files that it makes."""
    root = tmp_path_factory.mktemp("image")
    copy_context(root / "src")
    for stage in lineage("build"):
        for step in stage.all("RUN"):
            moved = step.replace("/opt/", f"{root}/opt/").replace("/wheels", f"{root}/wheels")
            assert moved != step, "it would write outside the test's folders"
            _run(["sh", "-ec", moved], root / "src")
    return root


@pytest.mark.timeout(3600)
def test_the_steps_make_an_environment_with_the_program_and_spark(image: Path) -> None:
    python = image / "opt/replicator/bin/python"
    _run([python, "-c", "import replicator.cli.main, pyspark"], image)
    (wheel,) = (image / "wheels").iterdir()
    assert wheel.name.startswith("replicator-")
    where = _run([python, "-c", "import replicator; print(replicator.__file__)"], image)
    assert where.startswith(str(image / "opt"))


@pytest.mark.timeout(600)
def test_what_is_installed_runs_a_worker_and_finds_it_well(image: Path, tmp_path: Path) -> None:
    program = image / "opt/replicator/bin/replicator"
    (port,) = free_ports(1)
    file = tmp_path / "topology.yaml"
    clusters = {"solo": {"address": f"127.0.0.1:{port}", "data": str(tmp_path / "data")}}
    file.write_text(yaml.safe_dump({"clusters": clusters, "pipeline": {"engine": "embedded"}}))
    with (tmp_path / "log").open("wb") as log:
        worker = subprocess.Popen([program, "worker", "--file", file, "--cluster", "solo"], stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + READY_SECONDS_MAX
        while not _answers(f"http://127.0.0.1:{port}/readyz"):
            assert time.monotonic() < deadline, (tmp_path / "log").read_text()
            time.sleep(0.2)
        environment = {"REPLICATOR_TOPOLOGY": str(file), "REPLICATOR_CLUSTER": "solo"}
        assert "alive" in _run([program, "health"], tmp_path, environment), "as HEALTHCHECK asks"
    finally:
        worker.terminate()
        assert worker.wait(60) == 0


def _run(command: list[str | Path], cwd: Path, environment: dict[str, str] | None = None) -> str:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    ran = subprocess.run(
        command,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=STEP_SECONDS_MAX,
        check=False,
        env={**os.environ, "PATH": path, **(environment or {})},
    )
    assert ran.returncode == 0, f"{command}: {ran.stderr[-3000:]}{ran.stdout[-1000:]}"
    return ran.stdout


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            return bool(response.status == 200)
    except OSError:
        return False
