"""A real Apache Pulsar broker: one process that is a whole cluster, with a bookie and a metadata store.

It runs from its jars (``make peers`` fetches them) where there is Java, else from its image where a Docker engine
answers. It takes about 8 s to be ready, and 1 GB of memory.
"""

from __future__ import annotations

import json
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from replicator.drills.peers.jvm import (
    PeerFailed,
    PeerMissing,
    PeerProcess,
    find_java,
    jars_missing,
    jars_of,
    version_of,
)
from replicator.drills.ports import free_ports

TITLE: Final = "Apache Pulsar"
READY_SECONDS_MAX: Final = 240.0
"""On a machine that does nothing else it is ready after 7 s."""

SETTINGS: Final[Mapping[str, str]] = {
    "managedLedgerDefaultEnsembleSize": "1",
    "managedLedgerDefaultWriteQuorum": "1",
    "managedLedgerDefaultAckQuorum": "1",
    "loadBalancerEnabled": "false",
    "allowAutoTopicCreationType": "non-partitioned",
    "acknowledgmentAtBatchIndexLevelEnabled": "true",
    "systemTopicEnabled": "true",
    "topicLevelPoliciesEnabled": "true",
    "enableReplicatedSubscriptions": "true",
    "replicatedSubscriptionsSnapshotFrequencyMillis": "1000",
    "webSocketServiceEnabled": "true",
    "maxMessageSize": str(5 * 1024 * 1024),
    # Must be more than maxMessageSize: else one chunked message makes the broker open ledger after ledger, for ever.
    "nettyMaxFrameSizeBytes": str(5 * 1024 * 1024 + 10 * 1024),
    "diskUsageThreshold": "0.99",
    "diskUsageWarnThreshold": "0.98",
}
"""What differs from the broker's defaults; ``pulsar_broker`` takes more."""

_LOG: Final = """<Configuration>
  <Appenders>
    <RollingFile name="file" fileName="{directory}/broker.log" filePattern="{directory}/broker.%i.log">
      <PatternLayout pattern="%d{{HH:mm:ss.SSS}} %-5level [%t] %c{{1}} - %m%n"/>
      <Policies><SizeBasedTriggeringPolicy size="20 MB"/></Policies>
      <DefaultRolloverStrategy max="2"/>
    </RollingFile>
  </Appenders>
  <Loggers><Root level="${{sys:level:-warn}}"><AppenderRef ref="file"/></Root></Loggers>
</Configuration>
"""
_OPENED: Final = (
    "java.base/sun.net",
    "java.base/java.lang",
    "java.base/java.nio",
    "java.base/jdk.internal.misc",
    "java.base/jdk.internal.platform",
    "java.management/sun.management",
    "jdk.management/com.sun.management.internal",
)


def _docker_answers() -> bool:
    try:
        import docker
        from docker.errors import DockerException
    except ImportError:
        return False
    try:
        return bool(docker.from_env(timeout=3).ping())
    except DockerException:
        return False


def missing() -> str | None:
    """Why it cannot run here, and what to do; None if it can."""
    why = jars_missing("pulsar", TITLE)
    return None if why is None or _docker_answers() else why


class PulsarBroker(PeerProcess):
    """A broker that runs. Its data outlives :meth:`stop`: :meth:`start` goes on with them. It works after a kill."""

    def __init__(
        self,
        directory: Path,
        cluster: str,
        settings: Mapping[str, str] | None = None,
        java: Sequence[str] = (),
        token: str | None = None,
    ) -> None:
        super().__init__()
        self.directory = directory
        self.cluster = cluster
        self.port, self.web_port = free_ports(2)
        self.url = f"pulsar://127.0.0.1:{self.port}"
        self.admin_url = f"http://127.0.0.1:{self.web_port}"
        self.settings: Mapping[str, str] = {**SETTINGS, **(settings or {})}
        self._java = tuple(java)
        self.token = token
        self._container: Any = None

    def start(self) -> None:
        """Returns when it is ready; raises :class:`PeerMissing` or :class:`PeerFailed`."""
        why = missing()
        if why is not None:
            raise PeerMissing(why)
        self.directory.mkdir(parents=True, exist_ok=True)
        if jars_missing("pulsar", TITLE) is None:
            self._start_process()
        else:
            self._start_container()
        try:
            self._wait_until_ready()
        except BaseException:
            self.kill()
            raise

    def kill(self) -> None:
        """As ``kill -9``."""
        super().kill()
        if self._container is not None:
            self._container.stop()
            self._container = None

    def admin(self, method: str, path: str, body: Any = None) -> Any:
        """Call ``/admin/v2/PATH``, with JSON both ways; raises :class:`urllib.error.HTTPError`."""
        shown = {} if self.token is None else {"Authorization": f"Bearer {self.token}"}
        request = urllib.request.Request(  # nosec B310 - its own address
            f"{self.admin_url}/admin/v2/{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json", **shown},
        )
        with urllib.request.urlopen(request, timeout=30) as response:  # nosec B310
            said = response.read()
        return json.loads(said) if said else None

    def log_tail(self, lines: int = 40) -> str:
        """The end of what it said."""
        said = ""
        for name in ("out", "broker.log"):
            file = self.directory / name
            if file.exists():
                said += "\n".join(file.read_text(errors="replace").splitlines()[-lines:]) + "\n"
        return said

    def _start_process(self) -> None:
        java = find_java()
        assert java is not None
        log, conf = self.directory / "log4j2.xml", self._write_configuration(self.directory, "127.0.0.1")
        log.write_text(_LOG.format(directory=self.directory))
        with (self.directory / "out").open("wb") as out:
            self._process = subprocess.Popen(
                [
                    java,
                    "-Xms512m",
                    "-Xmx1g",
                    "-XX:MaxDirectMemorySize=1g",
                    f"-Dlog4j2.configurationFile={log}",
                    "-Dio.netty.tryReflectionSetAccessible=true",
                    "--add-exports=java.management/sun.management=ALL-UNNAMED",
                    *(f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED),
                    *self._java,
                    "-cp",
                    f"{jars_of('pulsar')}/*",
                    "org.apache.pulsar.PulsarStandaloneStarter",
                    *("--config", str(conf)),
                    *_arguments(str(self.directory)),
                ],
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    def _start_container(self) -> None:
        from testcontainers.core.container import DockerContainer

        self._write_configuration(self.directory, "0.0.0.0")  # nosec B104 - inside the container
        (self.directory / "data").mkdir(exist_ok=True)
        (self.directory / "data").chmod(0o777)  # the image runs as a user of its own
        container = DockerContainer(f"apachepulsar/pulsar:{version_of('pulsar')}")
        for port in (self.port, self.web_port):  # lookups answer with the port that the broker itself knows
            container.with_bind_ports(port, port)
        container.with_env("PULSAR_STANDALONE_CONF", "/peer/standalone.conf").with_env("PULSAR_MEM", "-Xms512m -Xmx1g")
        container.with_volume_mapping(str(self.directory), "/peer", "rw")
        container.with_command(["bin/pulsar", "standalone", *_arguments("/peer/data")])
        self._container = container.start()

    def _write_configuration(self, directory: Path, bind: str) -> Path:
        own = {
            "clusterName": self.cluster,
            "brokerServicePort": str(self.port),
            "webServicePort": str(self.web_port),
            "bindAddress": bind,
            "advertisedAddress": "127.0.0.1",
        }
        file = directory / "standalone.conf"
        file.write_text("".join(f"{key}={value}\n" for key, value in {**own, **self.settings}.items()))
        return file

    def _wait_until_ready(self) -> None:
        """Its namespace ``public/default`` is made last; other calls are answered before it is."""
        deadline = time.monotonic() + READY_SECONDS_MAX
        while True:
            try:
                if "public/default" in self.admin("GET", "namespaces/public"):
                    return
            except (OSError, ValueError):  # not listening yet, or not far enough
                pass
            if self._process is not None and self._process.poll() is not None:
                raise PeerFailed(f"the broker ended by itself:\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise PeerFailed(f"the broker was not ready after {READY_SECONDS_MAX:.0f} s:\n{self.log_tail()}")
            time.sleep(0.1)


def _arguments(data: str) -> tuple[str, ...]:
    return (
        "--no-functions-worker",
        "--no-stream-storage",
        *("--metadata-dir", f"{data}/metadata"),
        *("--bookkeeper-dir", f"{data}/bookkeeper"),
    )


@contextmanager
def pulsar_broker(
    directory: Path,
    *,
    cluster: str = "peer",
    settings: Mapping[str, str] | None = None,
    java: Sequence[str] = (),
    token: str | None = None,
) -> Iterator[PulsarBroker]:
    """A broker with its files in ``directory``; ``settings`` are lines of its configuration, ``java`` more options of
    the JVM (``-Dlevel=debug`` for its log), ``token`` what is shown to its admin paths."""
    broker = PulsarBroker(directory, cluster, settings, java, token)
    try:
        broker.start()
        yield broker
    finally:
        broker.stop()
