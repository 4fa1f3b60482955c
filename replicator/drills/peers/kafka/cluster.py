"""A real Apache Kafka cluster of one process (KRaft), and MirrorMaker 2 between two of them, from their jars.

A broker is ready after some 4 s. MirrorMaker copies after some 10 s; nothing but what it copies tells when.
"""

from __future__ import annotations

import base64
import socket
import struct
import subprocess
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from replicator.drills.peers.jvm import PeerFailed, PeerMissing, PeerProcess, find_java, jars_missing, jars_of
from replicator.drills.ports import free_ports

TITLE: Final = "Apache Kafka with MirrorMaker 2"
READY_SECONDS_MAX: Final = 120.0
FORMAT_SECONDS_MAX: Final = 120.0

SETTINGS: Final[Mapping[str, str]] = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "5",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
}
"""Settings that a cluster of one broker needs; all others have the broker's defaults. :class:`KafkaBroker` takes
more.
"""

MIRROR_SETTINGS: Final[Mapping[str, str]] = {
    f"{topic}replication.factor": "1"
    for topic in (
        "",
        "checkpoints.topic.",
        "heartbeats.topic.",
        "offset-syncs.topic.",
        "offset.storage.",
        "status.storage.",
        "config.storage.",
    )
}
"""Settings that MirrorMaker's own topics need in a cluster of one broker; :class:`MirrorMaker` takes more."""

_JAVA: Final = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)
"""Options of the JVM, taken from the distribution's start scripts."""
BROKER_HEAP: Final = ("-Xms1g", "-Xmx1g")
MIRROR_HEAP: Final = ("-Xms256m", "-Xmx2g")
_METADATA: Final = struct.Struct(">ihhihi")
"""A request for metadata of no topic, version 1: bytes that follow, its kind, version, number, no name, no topics."""
_METADATA_KIND: Final = 3
_BROKERS: Final = struct.Struct(">iii")
"""Beginning of the answer: bytes that follow, number, how many brokers there are."""


def missing() -> str | None:
    """Return why Kafka cannot run here, and what to do; None if it can."""
    return jars_missing("kafka", TITLE)


class _Program(PeerProcess):
    """A Java program of these jars that runs with its files in a directory, as a context manager."""

    _name: str
    _arguments: tuple[str, ...]
    _options: tuple[str, ...]

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.directory = directory

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start the program. Raise :class:`PeerMissing` or :class:`PeerFailed`."""
        why = missing()
        if why is not None:
            raise PeerMissing(why)
        self.directory.mkdir(parents=True, exist_ok=True)
        self._prepare()
        with (self.directory / f"{self._name}.log").open("ab") as log:
            self._process = subprocess.Popen(
                _command(*self._options, *self._arguments),
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            self._wait_until_ready()
        except BaseException:
            self.kill()
            raise

    def check_alive(self) -> None:
        """Raise :class:`PeerFailed` if the program ended by itself."""
        if self._process is not None and self._process.poll() is not None:
            raise PeerFailed(f"the drill's program {self._name} ended by itself; its log ends:\n{self.log_tail()}")

    def log_tail(self, lines: int = 40) -> str:
        """Return the last ``lines`` lines of the program's log."""
        file = self.directory / f"{self._name}.log"
        return "\n".join(file.read_text(errors="replace").splitlines()[-lines:]) if file.exists() else ""

    def _prepare(self) -> None:
        raise NotImplementedError

    def _wait_until_ready(self) -> None:
        self.check_alive()


class KafkaBroker(_Program):
    """A broker that is its own controller. Its data outlives :meth:`stop`: :meth:`start` goes on with them."""

    _name = "broker"

    def __init__(
        self, directory: Path, settings: Mapping[str, str] | None = None, java: Sequence[str] = BROKER_HEAP
    ) -> None:
        super().__init__(directory)
        self.port, controller_port = free_ports(2)
        self.address = f"127.0.0.1:{self.port}"
        own = {
            "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
            "listeners": f"PLAINTEXT://{self.address},CONTROLLER://127.0.0.1:{controller_port}",
            "advertised.listeners": f"PLAINTEXT://{self.address}",
            "log.dirs": str(directory / "logs"),
        }
        self.settings: Mapping[str, str] = {**SETTINGS, **own, **(settings or {})}
        self._configuration = directory / "server.properties"
        self._options = tuple(java)
        self._arguments = ("kafka.Kafka", str(self._configuration))

    def _prepare(self) -> None:
        _write_properties(self._configuration, self.settings)
        if (self.directory / "logs" / "meta.properties").exists():
            return
        formatted = subprocess.run(
            _command("kafka.tools.StorageTool", "format", "-t", _cluster_id(), "-c", str(self._configuration)),
            capture_output=True,
            text=True,
            timeout=FORMAT_SECONDS_MAX,
            check=False,
        )
        if formatted.returncode != 0:
            raise PeerFailed(
                f"the storage of the drill's Kafka broker cannot be made: {formatted.stdout}{formatted.stderr}"
            )

    def _wait_until_ready(self) -> None:
        """Wait until the broker counts itself among the brokers: from then on topics can be made."""
        deadline = time.monotonic() + READY_SECONDS_MAX
        while not self._has_broker():
            self.check_alive()
            if time.monotonic() > deadline:
                raise PeerFailed(
                    f"the drill's Kafka broker {self._name} was not ready after {READY_SECONDS_MAX:.0f} s; its log "
                    f"ends:\n{self.log_tail()}"
                )
            time.sleep(0.1)

    def _has_broker(self) -> bool:
        body_bytes = _METADATA.size - 4
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
                connection.sendall(_METADATA.pack(body_bytes, _METADATA_KIND, 1, 1, -1, 0))
                answer = b""
                while len(answer) < _BROKERS.size:
                    more = connection.recv(4096)
                    if not more:
                        return False
                    answer += more
        except OSError:  # not listening yet
            return False
        _, _, brokers = _BROKERS.unpack_from(answer)
        return bool(brokers)


class MirrorMaker(_Program):
    """MirrorMaker 2 as a process of its own, which copies from ``source`` to ``target``; ``settings`` are its lines."""

    _name = "mirror"

    def __init__(
        self,
        directory: Path,
        source: tuple[str, KafkaBroker],
        target: tuple[str, KafkaBroker],
        settings: Mapping[str, str],
        java: Sequence[str] = MIRROR_HEAP,
    ) -> None:
        super().__init__(directory)
        (source_name, source_broker), (target_name, target_broker) = source, target
        own = {
            "clusters": f"{source_name}, {target_name}",
            f"{source_name}.bootstrap.servers": source_broker.address,
            f"{target_name}.bootstrap.servers": target_broker.address,
            f"{source_name}->{target_name}.enabled": "true",
            f"{target_name}->{source_name}.enabled": "false",
            # A way that is off would send heartbeats otherwise.
            f"{target_name}->{source_name}.emit.heartbeats.enabled": "false",
        }
        self.settings: Mapping[str, str] = {**MIRROR_SETTINGS, **own, **settings}
        self._configuration = directory / "mirror.properties"
        self._options = tuple(java)
        self._arguments = ("org.apache.kafka.connect.mirror.MirrorMaker", str(self._configuration))

    def _prepare(self) -> None:
        _write_properties(self._configuration, self.settings)


def _command(*arguments: str) -> list[str]:
    java = find_java()
    assert java is not None, "missing() was asked before"
    return [java, *_JAVA, "-cp", f"{jars_of('kafka')}/*", *arguments]


def _write_properties(file: Path, settings: Mapping[str, str]) -> None:
    file.write_text("".join(f"{key} = {value}\n" for key, value in settings.items()))


def _cluster_id() -> str:
    """Return a cluster id: 16 random bytes as Kafka writes them. It never begins with a dash, which would look like an
    option.
    """
    while (written := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        pass
    return written
