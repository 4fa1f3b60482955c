"""A standalone Spark cluster on this machine: a master and workers, from PySpark's own installation.

Nodes have a bare Python: the interpreter that this one was made from, without its packages; no ``PYTHONPATH``, and a
directory of their own to work in. What tasks import was shipped, or is not there.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.request import urlopen

import psutil

from replicator.pipeline.spark.jre import find_java

START_SECONDS_MAX = 180.0
STOP_SECONDS_MAX = 15.0
_SHORT_LIVED_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_LOG4J = """\
rootLogger.level = info
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss.SSS} %p %c{1}: %m%n%ex
"""
T = TypeVar("T")


@dataclass
class SparkCluster:
    """Addresses of a cluster: ``master`` is what a driver connects to; ``ui`` the base URL of the master's own page."""

    directory: Path
    """Directory of the logs (``master.log``, ``worker-N.log``) and of the workers' directories (``work-N``)."""
    master: str = ""
    ui: str = ""
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def state(self) -> dict[str, Any]:
        """Return the master's report on itself, its workers and applications."""
        with urlopen(f"{self.ui}/json/", timeout=10) as answer:
            content: dict[str, Any] = json.load(answer)
            return content

    def executors(self) -> list[psutil.Process]:
        """Return the processes of all workers that run tasks now: Java, with Python below."""
        found = []
        for process in self.processes[1:]:
            try:
                children = psutil.Process(process.pid).children()
            except psutil.NoSuchProcess:
                continue
            found += [child for child in children if "CoarseGrainedExecutorBackend" in " ".join(_command(child))]
        return found

    def executor_directories(self) -> list[Path]:
        """Return the directories of the newest application's executors, ended ones included: stdout, stderr, shipped
        files."""
        found = sorted(self.directory.glob("work-*/app-*/*"))
        newest = max((directory.parent.name for directory in found), default="")
        return [directory for directory in found if directory.parent.name == newest]


@contextmanager
def spark_cluster(
    directory: Path,
    *,
    workers: int = 2,
    cores: int = 1,
    memory: str = "1g",
    environment: Mapping[str, str] | None = None,
) -> Iterator[SparkCluster]:
    """Run a master and ``workers``, each with so many ``cores`` and so much ``memory``, while the context lasts.

    Ports are free ones of 127.0.0.1. ``environment`` is added to that of the processes. Their logs stay in
    ``directory``.
    """
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "log4j2.properties").write_text(_LOG4J)
    (directory / "conf").mkdir(exist_ok=True)
    cluster = SparkCluster(directory)
    node = _node_environment(directory) | dict(environment or {})
    try:
        master = _start(cluster, "master", node, "master.Master", "--host", "127.0.0.1", "--port", "0")
        cluster.master = _announced(master, r"Starting Spark master at (spark://\S+)")
        cluster.ui = "http://127.0.0.1:" + _announced(master, r"Bound MasterWebUI to .*:(\d+)")
        for number in range(workers):
            place = directory / f"work-{number}"
            place.mkdir()
            options = ["--host", "127.0.0.1", "--port", "0", "--cores", str(cores), "--memory", memory]
            _start(
                cluster, f"worker-{number}", node, "worker.Worker", *options, "--work-dir", str(place), cluster.master
            )
        until(lambda: len(_alive(cluster)) == workers, f"{workers} workers; see {directory}")
        yield cluster
    finally:
        _stop(cluster)


def run_driver(
    script: str, *arguments: str, environment: Mapping[str, str] | None = None, timeout: float = 120
) -> subprocess.CompletedProcess[str]:
    """Run a driver's Python in a process of its own, because one JVM has one Spark; this process has its own."""
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), **(environment or {})},
    )


def until(condition: Callable[[], T], what: str, seconds: float = START_SECONDS_MAX) -> T:
    """Wait until a condition is true, and return its value; fail naming ``what``."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.05)
    return value


def _start(
    cluster: SparkCluster, name: str, node: Mapping[str, str], what: str, *arguments: str
) -> tuple[subprocess.Popen[bytes], Path]:
    import pyspark

    log = cluster.directory / f"{name}.log"
    command = [str(Path(pyspark.__path__[0], "bin", "spark-class")), f"org.apache.spark.deploy.{what}"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--webui-port", "0", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=cluster.directory,
            env=dict(node),
        )
    cluster.processes.append(process)
    return process, log


def _node_environment(directory: Path) -> dict[str, str]:
    """Return the environment of a node that has Spark, a Java and a Python, and nothing of ours."""
    import pyspark

    python = Path(sys.base_prefix, "bin")
    log = f"-Dlog4j2.configurationFile={(directory / 'log4j2.properties').as_uri()}"
    rest = "-Dspark.master.rest.enabled=false"  # it would take a fixed port
    return {
        "PATH": f"{python}:/usr/bin:/bin",
        "HOME": str(directory),
        "JAVA_HOME": str(find_java().home),
        "PYTHONNOUSERSITE": "1",
        "SPARK_HOME": pyspark.__path__[0],
        "SPARK_CONF_DIR": str(directory / "conf"),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": f"{_SHORT_LIVED_JVM} {rest} {log}",
    }


def _announced(started: tuple[subprocess.Popen[bytes], Path], pattern: str) -> str:
    process, log = started

    def look() -> str:
        text = log.read_text(errors="replace")
        assert process.poll() is None, f"{log.name} ended: {text[-2000:]}"
        match = re.search(pattern, text)
        return match[1] if match else ""

    return until(look, f"{pattern} in {log}")


def _alive(cluster: SparkCluster) -> list[Any]:
    for process in cluster.processes:
        assert process.poll() is None, f"a process of the cluster ended; see {cluster.directory}"
    return [worker for worker in cluster.state()["workers"] if worker["state"] == "ALIVE"]


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _stop(cluster: SparkCluster) -> None:
    """End the started processes and their children, each by its own pid."""
    ours: list[psutil.Process] = []
    for process in cluster.processes:
        try:
            ours += psutil.Process(process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            continue
    for process in reversed(cluster.processes):
        process.terminate()
    for process in cluster.processes:
        try:
            process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    _, left = psutil.wait_procs(ours, timeout=STOP_SECONDS_MAX)
    for child in left:
        child.kill()
