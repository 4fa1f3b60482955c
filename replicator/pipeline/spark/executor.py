"""Program of a Spark executor in a pod. It does what ``executor`` does in the entrypoint of Spark's own image.

With a master ``k8s://…`` Spark makes a pod for each executor, and sets its arguments as environment variables. This
module passes them to Spark's class for it, on the Java and the Spark that are installed beside this package. So an
image with ``replicator[spark]`` needs no entrypoint of Spark's; the chart names this module as the executors' command.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NoReturn

from replicator.pipeline.errors import PipelineError, SparkFailed
from replicator.pipeline.spark.jre import find_java

BACKEND: Final = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
JAVA_OPTION: Final = "SPARK_JAVA_OPT_"
"""Prefix of the variables with Java options; a number follows, in the order of the options."""
ARGUMENTS: Final[Mapping[str, str]] = {
    "--driver-url": "SPARK_DRIVER_URL",
    "--executor-id": "SPARK_EXECUTOR_ID",
    "--cores": "SPARK_EXECUTOR_CORES",
    "--app-id": "SPARK_APPLICATION_ID",
    "--hostname": "SPARK_EXECUTOR_POD_IP",
    "--resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
    "--podName": "SPARK_EXECUTOR_POD_NAME",
}
"""Arguments of the backend, and the variables in which Spark gives them."""


def command(java: Path, spark_home: Path, environment: Mapping[str, str]) -> list[str]:
    """Return the command line of the executor. Raises :class:`SparkFailed` if a variable is missing: then Spark's
    driver did not make this pod."""
    missing = [name for name in (*ARGUMENTS.values(), "SPARK_EXECUTOR_MEMORY") if not environment.get(name)]
    if missing:
        raise SparkFailed(
            f"{', '.join(missing)}: not set in the environment. Spark's driver sets them where it starts this "
            "program, in pods of its executors: do not start it by hand"
        )
    options = [name for name in environment if name.startswith(JAVA_OPTION)]
    options.sort(key=lambda name: int(name.removeprefix(JAVA_OPTION)))
    memory = environment["SPARK_EXECUTOR_MEMORY"]
    classes = [environment.get("SPARK_CLASSPATH", ""), environment.get("SPARK_CONF_DIR", ""), f"{spark_home}/jars/*"]
    given = [part for name, variable in ARGUMENTS.items() for part in (name, environment[variable])]
    return [
        str(java),
        *(environment[name] for name in options),
        *(f"-Xms{memory}", f"-Xmx{memory}"),
        *("-cp", ":".join(filter(None, classes))),
        *(BACKEND, *given),
    ]


def main() -> NoReturn:
    """Replace this process by the executor; end with status 2 if that fails. Spark's arguments are ignored."""
    try:
        found = importlib.util.find_spec("pyspark")
        if found is None or found.origin is None:
            raise SparkFailed("pyspark is not installed here: the image needs replicator[spark]")
        home, java = Path(found.origin).parent, find_java().home
        program = command(java / "bin" / "java", home, os.environ)
    except PipelineError as error:
        print(f"executor: {error}", file=sys.stderr)
        sys.exit(2)
    environment = {**os.environ, "JAVA_HOME": str(java), "SPARK_HOME": str(home)}
    # The executor is the pod's first process, as in Spark's image.
    os.execve(program[0], program, environment)  # noqa: S606  # nosec B606


if __name__ == "__main__":
    main()
