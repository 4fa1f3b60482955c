"""The Pythons that are promised: ``requires-python`` decides, and each page and file says the same."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from replicator.operating.doctor import machine

REPOSITORY = Path(__file__).parents[2]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
OLDEST, END = map(int, re.fullmatch(r">=3\.(\d+),<3\.(\d+)", PROJECT["requires-python"]).groups())  # type: ignore[union-attr]
NEWEST = END - 1
PAGES = ("README.md", "docs/installing.md", "docs/tutorial.md", "docs/systemd/README.md", "Makefile")


def test_classifiers_and_the_doctor_name_the_promised_pythons() -> None:
    prefix = "Programming Language :: Python :: "
    named = [each.removeprefix(prefix) for each in PROJECT["classifiers"] if each.startswith(prefix)]
    assert named == [f"3.{minor}" for minor in range(OLDEST, END)]
    assert ((3, OLDEST), (3, END)) == (machine.PYTHON_MIN, machine.PYTHON_END)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_names_the_oldest_and_the_newest(page: str) -> None:
    said = re.findall(r"3\.(\d+) to 3\.(\d+)", (REPOSITORY / page).read_text())
    assert said, f"{page} does not say which Pythons are promised"
    assert set(said) == {(str(OLDEST), str(NEWEST))}


def test_an_image_has_the_newest() -> None:
    for page in ("helm/Dockerfile", "docs/kubernetes.md"):
        assert set(re.findall(r"(?:python:|PYTHON_TAG=)3\.(\d+)-", (REPOSITORY / page).read_text())) == {str(NEWEST)}


def _closure(*extras: str) -> set[str]:
    """Return the packages that this distribution needs here with ``extras``, and what builds it."""
    waiting = [("replicator", extra) for extra in ("", *extras)] + [("setuptools", "")]
    seen: set[tuple[str, str]] = set()
    while waiting:
        name, extra = one = waiting.pop()
        if one in seen:
            continue
        seen.add(one)
        for needed in map(Requirement, distribution(name).requires or ()):
            if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                waiting += [(canonicalize_name(needed.name), each) for each in ("", *needed.extras)]
    return {name for name, _ in seen} - {"replicator"}


def test_the_packages_of_a_drill_are_what_it_imports_and_are_in_the_lock() -> None:
    lines = (REPOSITORY / ".ci" / "drill-packages").read_text().splitlines()
    packages = [line.split(" ") for line in lines if not line.startswith("#")]
    listed = {name for name, *_ in packages}
    locked = set(re.findall(r"^([A-Za-z0-9._-]+)==", (REPOSITORY / "requirements.lock").read_text(), re.MULTILINE))
    assert listed <= locked
    assert _closure("spark", "demo") <= listed
    assert _closure("demo") <= {name for name, *spark in packages if not spark}
    assert "pyspark" not in _closure("demo")


def test_python_is_had_from_a_root_of_debian_only_by_who_may_make_one() -> None:
    """It says how it is used, and what is missing, each in one line; it makes nothing."""
    script = REPOSITORY / ".ci" / "debian-root"
    for arguments in ([], ["make"], ["run", "3.14"], ["make", "three"], ["burn", "3.14"]):
        done = subprocess.run([script, *arguments], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr.count("Usage: .ci/debian-root")) == (2, 2), arguments
    done = subprocess.run([script, "run", "3.99", sys.executable], capture_output=True, text=True, check=False)
    wanted = "no root with Python 3.99: there is none yet: .ci/debian-root make 3.99\n"
    assert (done.returncode, done.stderr) == (1, wanted)
