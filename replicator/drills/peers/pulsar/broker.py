"""A real Apache Pulsar broker: one process that is a whole cluster, with a bookie and a metadata store.

It runs from its jars (``make peers`` fetches them) where there is Java, else from its image where a Docker engine
answers. It takes about 8 s to be ready, and 1 GB of memory.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from replicator.drills.peers.jvm import PeerFailed, PeerMissing, jars_missing, version_of
from replicator.drills.peers.pulsar.process import PulsarProcess, ask_admin
from replicator.drills.ports import free_ports

TITLE: Final = "Apache Pulsar"
STARTS_MAX: Final = 3
REGISTERED_SECONDS: Final = 1.0
REGISTERED_MAX: Final = 6
"""Limit of a bookie's registrations in that time: four are usual, thirty mean a bookie that comes and goes on a busy
machine.
"""
HEAP: Final = ("-Xms512m", "-Xmx1g", "-XX:MaxDirectMemorySize=1g")

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
"""Settings that differ from the broker's defaults; ``pulsar_broker`` takes more."""


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
    """Return why Pulsar cannot run here, and what to do; None if it can."""
    why = jars_missing("pulsar", TITLE)
    return None if why is None or _docker_answers() else why


class PulsarBroker(PulsarProcess):
    """A broker that runs. Its data outlives :meth:`stop`: :meth:`start` goes on with them. It works after a kill."""

    authority: Path | None = None
    """Certificate authority to trust: None, because :attr:`url` is without TLS."""

    def __init__(
        self,
        directory: Path,
        cluster: str,
        settings: Mapping[str, str] | None = None,
        java: Sequence[str] = (),
        token: str | None = None,
    ) -> None:
        super().__init__(directory, java)
        self.cluster = cluster
        self.port, self.web_port = free_ports(2)
        self.url = f"pulsar://127.0.0.1:{self.port}"
        self.admin_url = f"http://127.0.0.1:{self.web_port}"
        self.settings: Mapping[str, str] = {**SETTINGS, **(settings or {})}
        self.token = token
        self._container: Any = None

    def start(self) -> None:
        """Start the broker, and return when it is ready; raise :class:`PeerMissing` or :class:`PeerFailed`."""
        why = missing()
        if why is not None:
            raise PeerMissing(why)
        self.directory.mkdir(parents=True, exist_ok=True)
        again = (self.directory / "metadata").exists()
        for _ in range(STARTS_MAX):
            if jars_missing("pulsar", TITLE) is None:
                self._start_process()
            else:
                self._start_container()
            try:
                self._wait_until_ready()
                if not again or not self._is_registration_flapping():
                    return
            except BaseException:
                self.kill()
                raise
            self.kill()
        raise PeerFailed(
            f"the drill started its Pulsar broker again, {STARTS_MAX} times, and each time its bookie (storage) "
            "registered over and over, for its metadata name the one before: run the drill again when the machine is "
            f"less busy; the log ends:\n{self.log_tail()}"
        )

    def kill(self) -> None:
        """Kill the broker, as ``kill -9`` does."""
        super().kill()
        if self._container is not None:
            self._container.stop()
            self._container = None

    def admin(self, method: str, path: str, body: Any = None) -> Any:
        """Call ``/admin/v2/PATH``, with JSON both ways; raises :class:`urllib.error.HTTPError`."""
        return ask_admin(self.admin_url, self.token, method, path, body)

    def _start_process(self) -> None:
        conf = self._write_configuration(self.directory, "127.0.0.1")
        arguments = ("--config", str(conf), *_arguments(str(self.directory)))
        self.run_java("org.apache.pulsar.PulsarStandaloneStarter", *arguments, heap=HEAP)

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

    def _is_registration_flapping(self) -> bool:
        """Return whether the bookie comes and goes a hundred times a second, which happens after some kills: the
        metadata still name the former one. Then some topics are not loaded until the next start.
        """
        file = self.directory / "broker.log"
        if not file.exists():
            return False
        before = file.stat().st_size
        time.sleep(REGISTERED_SECONDS)
        with file.open("rb") as log:
            log.seek(min(before, file.stat().st_size))
            return log.read().count(b"using default rack") > REGISTERED_MAX

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
        """Wait for the namespace ``public/default``: it is made last, and other calls are answered before it exists."""
        self.wait_until(lambda: "public/default" in self.admin("GET", "namespaces/public"), "the broker")


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
    """Start a broker with its files in ``directory``, and kill it at the end: nobody goes on with its data.

    ``settings`` are lines of its configuration, ``java`` more options of the JVM (``-Dlevel=debug`` for its log),
    ``token`` what is shown to its admin paths.
    """
    broker = PulsarBroker(directory, cluster, settings, java, token)
    try:
        broker.start()
        yield broker
    finally:
        broker.kill()
