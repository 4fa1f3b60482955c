"""Start of Spark, quick and quiet, on any Java.

For a local master this process is the driver and its JVM does the work, so the settings here decide start-up time and
memory. For another master only the driver's settings and the tasks' Python are set; the rest is the cluster's own
business. docs/spark-clusters.md describes both for users.
"""

from __future__ import annotations

import atexit
import logging
import os
import shlex
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from replicator.pipeline.errors import SparkFailed, is_of_spark, reason_of
from replicator.pipeline.spark.jre import find_java
from replicator.pipeline.spark.scratch import make_scratch
from replicator.pipeline.spark.shipping import UNPACKED_AS, python_minor_version
from replicator.security.access import access

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHUFFLE_PARTITIONS: Final = 4
"""Number of shuffle partitions: twice the cores of the reference machine. Spark's own 200 cost 10 ms each, however
small."""
DRIVER_MEMORY: Final = "1g"
"""Driver memory: enough for a million messages in the cache; past it Spark spills to disk."""
ARROW_BATCH_ROWS_MAX: Final = 10_000
DAEMON_MODULE: Final = "replicator.pipeline.spark.python_daemon"
"""Module that starts Python processes, for a local master only: other executors may get the package later."""
SCRATCH_PREFIX: Final = "replicator-spark-"
"""Prefix of the scratch directory's name; the process's id follows."""

_LOG4J: Final = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
# Spark lowers the level to WARN, and says so, unless the class that it is started by has a level of its own.
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = spark: %p %c{1}: %m%n%ex{short}
"""
# Jobs of seconds: the second compiler and the concurrent collector cost more than they give back (17 s for a first
# job without these flags, 12 s with them, on the 2-core reference machine).
_SHORT_LIVED_JVM: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def spark_session(
    master: str = "local[2]",
    app_name: str = "replicator",
    *,
    short_lived: bool = True,
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """Return a session with the ``replicator`` data source registered; the running one if there is one.

    ``short_lived`` tunes the driver's JVM for jobs of seconds; turn it off for runs of many minutes. ``conf`` has
    settings of Spark, which override those made here (the driver's JVM gets the options of both). The call sets
    ``JAVA_HOME``, ``PYSPARK_PYTHON`` and ``PATH``, and for a local master ``SPARK_LOCAL_IP``, in this process's
    environment: Spark reads them from there. Raises :class:`~replicator.pipeline.errors.JavaNotFound`, and
    :class:`~replicator.pipeline.errors.SparkFailed` if Spark does not start, for example with an unknown master.
    """
    with without_pandas_warning():
        from pyspark.sql import SparkSession

        from replicator.pipeline import register

        session = SparkSession.getActiveSession() or _start(master, app_name, short_lived, dict(conf or {}))
        register(session)
    return session


@contextmanager
def session_while(
    master: str, app_name: str = "replicator", conf: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """Give a :func:`spark_session` while the context lasts. One that ran before, as in a notebook, continues after
    it."""
    with without_pandas_warning():
        from pyspark.sql import SparkSession

    before = SparkSession.getActiveSession()
    session = spark_session(master, app_name, conf=conf)
    try:
        yield session
    finally:
        if before is None:
            session.stop()


@contextmanager
def without_pandas_warning() -> Iterator[None]:
    """Suppress PySpark 4.3's warning about pandas 3, which nothing here uses: at its import, and at each
    ``mapInArrow``."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas", category=FutureWarning)
        yield


def _start(master: str, app_name: str, short_lived: bool, conf: dict[str, str]) -> SparkSession:
    from pyspark.sql import SparkSession

    _log_no_error_twice()
    os.environ["JAVA_HOME"] = str(find_java().home)
    scratch = make_scratch(SCRATCH_PREFIX, Path(tempfile.gettempdir()))
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    local = master.startswith("local")
    if local:
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    else:
        os.environ["PYSPARK_PYTHON"] = conf.get("spark.pyspark.python") or _python_of_all_nodes(scratch)
    builder = SparkSession.builder.master(master).appName(app_name)
    for key, value in _settings(scratch, local, short_lived, conf).items():
        builder = builder.config(key, value)
    try:
        session: SparkSession = builder.getOrCreate()
    except Exception as error:
        if not is_of_spark(error):
            raise
        raise SparkFailed(f"Spark does not start with master {master}: {reason_of(error)}") from None
    # By way of the tasks' own environment: settings, plans and command lines are shown.
    session.sparkContext.environment.update(access().as_environment(with_secrets=True))
    return session


def _log_no_error_twice() -> None:
    """Turn off PySpark's log of query errors, which prints the JVM's stack as JSON before the error is raised."""
    from pyspark.logger import PySparkLogger

    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)


def _python_of_all_nodes(scratch: Path) -> str:
    """Return an interpreter's name for tasks on all nodes, which on this one starts this interpreter.

    Spark starts Python by the same name on executors and, to plan the reads of a data source, beside the driver. So it
    cannot be a path: nodes find ``python3.11`` on their ``PATH``, and the driver finds this interpreter, with
    everything that is installed for it, on its own.
    """
    name = f"python{python_minor_version()}"
    tools = scratch / "bin"
    tools.mkdir()
    here = tools / name
    here.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    here.chmod(0o755)
    os.environ["PATH"] = f"{tools}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return name


def _settings(scratch: Path, local: bool, short_lived: bool, conf: Mapping[str, str]) -> dict[str, str]:
    log4j = scratch / "log4j2.properties"
    log4j.write_text(_LOG4J)
    jvm = f"-Dlog4j2.configurationFile={log4j.as_uri()}"
    if short_lived:
        jvm += f" {_SHORT_LIVED_JVM}"
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(ARROW_BATCH_ROWS_MAX),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": (scratch / "warehouse").as_uri(),
        "spark.python.worker.reuse": "true",
    }
    if local:
        settings |= {
            "spark.python.daemon.module": DAEMON_MODULE,
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.memory": DRIVER_MEMORY,
            "spark.local.dir": str(scratch),
            "spark.sql.shuffle.partitions": str(SHUFFLE_PARTITIONS),
        }
        if short_lived:
            # Plans again after each stage, which pays where partitions are many and uneven, not among four.
            settings["spark.sql.adaptive.enabled"] = "false"
    elif any(part.endswith(f"#{UNPACKED_AS}") for part in conf.get("spark.archives", "").split(",")):
        # Relative to where an executor works, which is where Spark unpacks archives, whatever the master.
        settings["spark.executorEnv.PYTHONPATH"] = f"./{UNPACKED_AS}"
    settings |= conf
    options = (jvm, conf.get("spark.driver.extraJavaOptions", ""))
    settings["spark.driver.extraJavaOptions"] = " ".join(option for option in options if option)
    return settings
