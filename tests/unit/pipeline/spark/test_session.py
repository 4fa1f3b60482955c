"""Settings of a session for a local master and for a cluster; no JVM is started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.errors import PySparkRuntimeError
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from replicator.pipeline.errors import SparkFailed
from replicator.pipeline.spark import session
from replicator.pipeline.spark.shipping import UNPACKED_AS, python_minor_version


def settings(scratch: Path, conf: dict[str, str], *, local: bool = False) -> dict[str, str]:
    return session._settings(scratch, local, True, conf)


def test_packages_that_are_shipped_are_on_the_path_of_executors(tmp_path: Path) -> None:
    archive = f"/srv/other.zip#other,/srv/env.tar.gz#{UNPACKED_AS}"
    assert settings(tmp_path, {"spark.archives": archive})["spark.executorEnv.PYTHONPATH"] == f"./{UNPACKED_AS}"
    assert "spark.executorEnv.PYTHONPATH" not in settings(tmp_path, {"spark.archives": "/srv/conda.tar.gz#conda"})
    assert "spark.executorEnv.PYTHONPATH" not in settings(tmp_path, {}), "an image that has them"


def test_what_the_user_sets_wins_and_options_of_the_driver_are_joined(tmp_path: Path) -> None:
    given = {"spark.ui.enabled": "true", "spark.driver.extraJavaOptions": "-Dmine=1"}
    made = settings(tmp_path, given)
    assert made["spark.ui.enabled"] == "true"
    assert made["spark.driver.extraJavaOptions"].startswith("-Dlog4j2.configurationFile=")
    assert made["spark.driver.extraJavaOptions"].endswith(" -Dmine=1")


def test_only_a_local_master_is_kept_to_this_machine(tmp_path: Path) -> None:
    assert settings(tmp_path, {}, local=True)["spark.driver.bindAddress"] == "127.0.0.1"
    of_cluster = settings(tmp_path, {})
    assert "spark.driver.bindAddress" not in of_cluster
    assert "spark.sql.shuffle.partitions" not in of_cluster, "a cluster is wider than this machine"


def test_a_spark_that_does_not_start_is_an_error_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})

    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", refuse)
    for variable in ("JAVA_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_LOCAL_IP"):
        monkeypatch.setenv(variable, os.environ.get(variable, ""))
    with pytest.raises(SparkFailed, match=r"Spark does not start with master local\[3\]: .*JAVA_GATEWAY_EXITED"):
        session._start("local[3]", "test", True, {})


def test_what_pyspark_raises_it_does_not_log_as_well(capfd: pytest.CaptureFixture[str]) -> None:
    session._log_no_error_twice()
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        PySparkLogger.getLogger(name).exception("no such column", errorClass="UNRESOLVED_COLUMN")
    assert capfd.readouterr().err == ""


def test_the_interpreter_that_nodes_find_by_name_is_this_one_beside_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", os.environ["PATH"])
    name = session._python_of_all_nodes(tmp_path)
    assert name == f"python{python_minor_version()}"
    answer = subprocess.run(
        [name, "-c", "import sys; print(sys.executable)"], capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == sys.executable
