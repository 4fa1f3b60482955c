"""The archive for executors: what is in it runs on a bare interpreter, wherever it was unpacked."""

from __future__ import annotations

import importlib.metadata
import json
import os
import pkgutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import replicator.pipeline
from replicator.pipeline.errors import BadArchive
from replicator.pipeline.spark import shipping
from replicator.pipeline.spark.shipping import DESCRIPTION, NOT_SHIPPED, required_distributions, write_archive

NOT_ON_EXECUTORS = {
    "replicator.pipeline.analytics.charts": "draws with matplotlib, beside the driver",
    "replicator.pipeline.analytics.page": "shows charts",
}
ON_EXECUTORS = [
    module.name
    for module in pkgutil.walk_packages(replicator.pipeline.__path__, "replicator.pipeline.")
    if module.name not in NOT_ON_EXECUTORS
]
"""All of the pipeline: which of its modules a task brings along depends on what its functions are pickled with."""


def test_all_that_tasks_import_comes_out_of_the_archive(executor_archive: Path, tmp_path: Path) -> None:
    import pyspark

    with zipfile.ZipFile(executor_archive) as archive:
        archive.extractall(tmp_path)
    of_spark = [str(path) for path in Path(pyspark.__path__[0], "python", "lib").glob("*.zip")]
    script = (
        "import importlib, sys\n"
        f"for name in {ON_EXECUTORS!r}: importlib.import_module(name)\n"
        "for name, module in sorted(sys.modules.items()):\n"
        "    if getattr(module, '__file__', None): print(name, module.__file__)\n"
    )
    answer = subprocess.run(
        [str(Path(sys.base_prefix, "bin", f"python{sys.version_info.major}.{sys.version_info.minor}")), "-c", script],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
        env={"PYTHONPATH": os.pathsep.join([*of_spark, str(tmp_path)]), "PYTHONNOUSERSITE": "1"},
    )
    assert answer.returncode == 0, answer.stderr
    places = dict(line.split(" ", 1) for line in answer.stdout.splitlines())
    for name in (*ON_EXECUTORS, "pyarrow.lib", "google_crc32c", "google.protobuf"):
        assert Path(places[name]).is_relative_to(tmp_path), name


def test_an_archive_says_what_is_in_it(executor_archive: Path) -> None:
    with zipfile.ZipFile(executor_archive) as archive:
        assert archive.namelist()[0] == DESCRIPTION, "where it is found without reading all"
        description = json.loads(archive.read(DESCRIPTION))
    assert description["python"] == f"{sys.version_info.major}.{sys.version_info.minor}"
    assert description["distributions"]["pyarrow"] == importlib.metadata.version("pyarrow")
    assert description["distributions"]["aiohttp"], "for links"
    assert not NOT_SHIPPED.intersection(description["distributions"]), "only workers and the command line use them"
    assert "pyspark" not in description["distributions"], "nodes have it with their Spark"


@pytest.fixture
def few_distributions(monkeypatch: pytest.MonkeyPatch) -> None:
    few = {"tenacity": importlib.metadata.distribution("tenacity")}
    monkeypatch.setattr(shipping, "required_distributions", lambda: few)


@pytest.mark.usefixtures("few_distributions")
def test_the_same_installation_makes_the_same_bytes(tmp_path: Path) -> None:
    for name in ("env.tar.gz", "env.zip"):
        first, second = (write_archive(tmp_path / each / name) for each in _directories(tmp_path, "one", "two"))
        assert first.path.read_bytes() == second.path.read_bytes()
        if name.endswith(".gz"):
            assert first.path.read_bytes()[4:8] == bytes(4), "no time of making, which would be the same second here"


@pytest.mark.usefixtures("few_distributions")
def test_a_zip_holds_what_a_tar_holds(tmp_path: Path) -> None:
    with (
        tarfile.open(write_archive(tmp_path / "env.tgz").path) as tar,
        zipfile.ZipFile(write_archive(tmp_path / "env.zip").path) as zipped,
    ):
        names = zipped.namelist()
        assert names == tar.getnames()
        assert {"tenacity/__init__.py", "replicator/pipeline/source/source.py", "snapshots/position.py"} <= set(names)
        assert not [name for name in names if name.endswith(".pyc") or name.startswith("..")]


@pytest.mark.usefixtures("few_distributions")
def test_what_stood_there_stays_until_the_new_one_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "env.zip"
    place.write_bytes(b"as before")

    def disk_full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shipping, "_write_zip", disk_full)
    with pytest.raises(BadArchive, match=r"env\.zip cannot be written: No space left on device"):
        write_archive(place)
    assert place.read_bytes() == b"as before"
    assert list(tmp_path.iterdir()) == [place], "no draft is left"


def test_a_name_that_spark_would_not_unpack_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadArchive, match=r"env\.rar: the name of an archive .* must end with \.tar\.gz"):
        write_archive(tmp_path / "env.rar")


def test_a_requirement_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def of(name: str) -> importlib.metadata.Distribution:
        if name == "pyroaring":
            raise importlib.metadata.PackageNotFoundError(name)
        return original(name)

    original = importlib.metadata.distribution
    monkeypatch.setattr(importlib.metadata, "distribution", of)
    with pytest.raises(BadArchive, match="pyroaring is required and not installed here"):
        required_distributions()


def _directories(parent: Path, *names: str) -> list[str]:
    for name in names:
        (parent / name).mkdir(exist_ok=True)
    return list(names)
