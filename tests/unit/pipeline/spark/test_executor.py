"""The command of an executor in a pod, made of the variables that Spark gives it."""

from __future__ import annotations

from pathlib import Path

import pytest

from replicator.pipeline.errors import SparkFailed
from replicator.pipeline.spark.executor import command

GIVEN = {
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@driver:7078",
    "SPARK_EXECUTOR_ID": "3",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_EXECUTOR_MEMORY": "512m",
    "SPARK_APPLICATION_ID": "spark-1",
    "SPARK_EXECUTOR_POD_IP": "10.1.2.3",
    "SPARK_EXECUTOR_POD_NAME": "spark-exec-3",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_CONF_DIR": "/opt/spark/conf",
    **{f"SPARK_JAVA_OPT_{number}": f"-Dn={number}" for number in range(11)},
}


def test_an_executor_is_run_as_its_driver_says() -> None:
    made = command(Path("/java"), Path("/spark"), GIVEN)
    assert made[:12] == ["/java", *(f"-Dn={number}" for number in range(11))], "options keep their order past ten"
    assert made[12:17] == ["-Xms512m", "-Xmx512m", "-cp", "/opt/spark/conf:/spark/jars/*", made[16]]
    arguments = dict(zip(made[17::2], made[18::2], strict=True))
    assert arguments["--driver-url"] == GIVEN["SPARK_DRIVER_URL"]
    assert arguments["--podName"] == "spark-exec-3"
    assert arguments["--hostname"] == "10.1.2.3"


def test_what_is_missing_is_named() -> None:
    without = {name: value for name, value in GIVEN.items() if name not in ("SPARK_DRIVER_URL", "SPARK_EXECUTOR_CORES")}
    with pytest.raises(SparkFailed, match="SPARK_DRIVER_URL, SPARK_EXECUTOR_CORES: not set in the environment"):
        command(Path("/java"), Path("/spark"), without)
