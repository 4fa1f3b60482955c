"""One Apache Pulsar cluster of several brokers, with Pulsar's own proxy before them where it is wanted.

One process is the metadata store (ZooKeeper) and the bookie, and outlives the brokers: each of these is a process of
its own, so it can be killed while the others go on. All of it takes about 15 s to be ready, and 1.5 GB of memory.
With a :class:`~replicator.drills.peers.pulsar.guard.Guard` the brokers and the proxy have TLS and ask for tokens.
It runs from its jars alone. ZooKeeper and the bookie listen at every address of the machine: Pulsar's starter of the
two takes no other.

The proxy is of an older version than the brokers: that of 4.0.0 is not in Maven Central.
"""

from __future__ import annotations

import json
import socket
import time
import urllib.error
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from replicator.drills.peers.jvm import PeerFailed, PeerMissing, jars_missing
from replicator.drills.peers.pulsar.broker import SETTINGS, TITLE
from replicator.drills.peers.pulsar.guard import Guard
from replicator.drills.peers.pulsar.process import POLL_SECONDS, PulsarProcess, ask, ask_admin
from replicator.drills.ports import free_ports

PROXY_TITLE: Final = "Apache Pulsar's proxy"
SESSION_MILLISECONDS: Final = 6_000
"""Time after which the metadata store notices that a broker was killed. The brokers' default is 30 s."""
MOVE_SECONDS_MAX: Final = 60.0
CLUSTER_SETTINGS: Final[Mapping[str, str]] = {
    **SETTINGS,
    # So that topics are at all brokers, and move when somebody says so, not by themselves.
    "loadBalancerEnabled": "true",
    "loadBalancerSheddingEnabled": "false",
    "loadBalancerAutoBundleSplitEnabled": "false",
    "metadataStoreSessionTimeoutMillis": str(SESSION_MILLISECONDS),
    # A broker of a cluster that starts asks the others for topics of the system's, and they for it.
    "systemTopicEnabled": "false",
    "topicLevelPoliciesEnabled": "false",
    "webSocketServiceEnabled": "false",
}
"""Settings that differ from the broker's defaults."""
_SCHEMES: Final = ("pulsar", "pulsar+ssl")
_ADMIN_SCHEMES: Final = ("http", "https")
_BROKER_HEAP: Final = ("-Xms256m", "-Xmx512m", "-XX:MaxDirectMemorySize=512m")
_STORAGE_HEAP: Final = ("-Xms128m", "-Xmx512m", "-XX:MaxDirectMemorySize=512m")
_SMALL_HEAP: Final = ("-Xmx192m", "-XX:MaxDirectMemorySize=192m")


def missing() -> str | None:
    """Return why a cluster cannot run here, and what to do; None if it can."""
    return jars_missing("pulsar", TITLE)


def missing_proxy() -> str | None:
    """Return why the proxy cannot run here, and what to do; None if it can."""
    return missing() or jars_missing("pulsar_proxy", PROXY_TITLE)


class _Storage(PulsarProcess):
    """ZooKeeper and a bookie."""

    def __init__(self, directory: Path, cluster: str) -> None:
        super().__init__(directory)
        self._cluster = cluster
        self._zookeeper_port, self._bookie_port = free_ports(2)
        self.url = f"zk:127.0.0.1:{self._zookeeper_port}"

    def start(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        disk = {name: SETTINGS[name] for name in ("diskUsageThreshold", "diskUsageWarnThreshold")}
        conf = write_settings(self.directory / "storage.conf", {"clusterName": self._cluster, **disk})
        self.run_java(
            "org.apache.pulsar.PulsarStandaloneStarter",
            *("--no-broker", "--no-functions-worker", "--no-stream-storage", "--config", str(conf)),
            *("--zookeeper-port", str(self._zookeeper_port), "--zookeeper-dir", str(self.directory / "zookeeper")),
            *("--bookkeeper-port", str(self._bookie_port), "--bookkeeper-dir", str(self.directory / "bookie")),
            heap=_STORAGE_HEAP,
            environment={"PULSAR_STANDALONE_USE_ZOOKEEPER": "1"},
        )
        self.wait_until(lambda: _listens(self._zookeeper_port) and _listens(self._bookie_port), "the bookie")


class _Setup(PulsarProcess):
    """Writes the metadata that a cluster needs before its first broker, and ends."""

    def run(self, cluster: str, store: str, first: ClusterBroker) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self.run_java(
            "org.apache.pulsar.PulsarClusterMetadataSetup",
            *("--cluster", cluster, "--metadata-store", store, "--configuration-metadata-store", store),
            *_urls_of(first),
            heap=_SMALL_HEAP,
        )
        self.wait_until_over(f"the setup of Pulsar cluster {cluster}")


class ClusterBroker(PulsarProcess):
    """Process of one Pulsar broker, which shares its cluster with other brokers."""

    def __init__(self, directory: Path, cluster: str, store: str, guard: Guard | None = None) -> None:
        super().__init__(directory)
        self._cluster = cluster
        self._store = store
        self.guard = guard
        self.port, self.web_port = free_ports(2)
        self.url = f"{_SCHEMES[guard is not None]}://127.0.0.1:{self.port}"
        self.admin_url = f"{_ADMIN_SCHEMES[guard is not None]}://127.0.0.1:{self.web_port}"
        self.name = f"127.0.0.1:{self.web_port}"
        """The broker's name in its cluster."""

    def launch(self, settings: Mapping[str, str]) -> None:
        """Start it; :meth:`wait` returns when it is ready."""
        self.directory.mkdir(parents=True, exist_ok=True)
        own = {
            "clusterName": self._cluster,
            "metadataStoreUrl": self._store,
            "configurationMetadataStoreUrl": self._store,
            "brokerServicePort": str(self.port),
            "webServicePort": str(self.web_port),
            "bindAddress": "127.0.0.1",
            "advertisedAddress": "127.0.0.1",
            **({} if self.guard is None else self.guard.broker(self.port, self.web_port)),
        }
        conf = write_settings(self.directory / "broker.conf", {**own, **settings})
        self.run_java("org.apache.pulsar.PulsarBrokerStarter", "--broker-conf", str(conf), heap=_BROKER_HEAP)

    def wait(self) -> None:
        self.wait_until(
            lambda: "public/default" in _ask_admin(self.admin_url, self.guard, "GET", "namespaces/public"),
            f"the broker {self.name}",
        )


class PulsarProxy(PulsarProcess):
    """Pulsar's own proxy, before the brokers of a cluster. It uses TLS and checks tokens if the brokers do."""

    def __init__(self, directory: Path, cluster: PulsarCluster) -> None:
        super().__init__(directory)
        self.cluster = cluster.cluster
        self._store = cluster.store
        self._guard = cluster.guard
        self.token, self.authority = cluster.token, cluster.authority
        self._port, self._web_port = free_ports(2)
        self.url = f"{_SCHEMES[self._guard is not None]}://127.0.0.1:{self._port}"
        self.admin_url = f"{_ADMIN_SCHEMES[self._guard is not None]}://127.0.0.1:{self._web_port}"

    def admin(self, method: str, path: str, body: Any = None) -> Any:
        """Call ``/admin/v2/PATH`` through the proxy; raise :class:`urllib.error.HTTPError`."""
        return _insist(lambda: self.admin_url, self._guard, method, path, body)

    def start(self) -> None:
        """Start the proxy. Raise :class:`PeerMissing` or :class:`PeerFailed`."""
        if (why := missing_proxy()) is not None:
            raise PeerMissing(why)
        self.directory.mkdir(parents=True, exist_ok=True)
        own = {
            "clusterName": self.cluster,
            "metadataStoreUrl": self._store,
            "configurationMetadataStoreUrl": self._store,
            "servicePort": str(self._port),
            "webServicePort": str(self._web_port),
            "bindAddress": "127.0.0.1",
            "advertisedAddress": "127.0.0.1",
            "brokerProxyAllowedIPAddresses": "127.0.0.0/8",
            "brokerProxyAllowedTargetPorts": "*",
            **({} if self._guard is None else self._guard.proxy(self._port, self._web_port)),
        }
        conf = write_settings(self.directory / "proxy.conf", own)
        main = "org.apache.pulsar.proxy.server.ProxyServiceStarter"
        self.run_java(main, "--config", str(conf), heap=_SMALL_HEAP, jars="pulsar_proxy")
        self.wait_until(
            lambda: "public/default" in _ask_admin(self.admin_url, self._guard, "GET", "namespaces/public"), "the proxy"
        )


class PulsarCluster:
    """Cluster with the interface of one :class:`~replicator.drills.peers.pulsar.broker.PulsarBroker`; its URLs name all
    of its brokers.
    """

    def __init__(self, directory: Path, cluster: str, brokers: int = 2, guard: Guard | None = None) -> None:
        self.cluster = cluster
        self.directory = directory
        self.guard = guard
        self.token = None if guard is None else guard.token
        """The administrator's token; None if the cluster does not authenticate."""
        self.authority = None if guard is None else guard.authority
        """The certificate authority of the cluster's TLS; None without TLS."""
        self._storage = _Storage(directory / "storage", cluster)
        self.store = self._storage.url
        self.brokers: Sequence[ClusterBroker] = [
            ClusterBroker(directory / f"broker-{number}", cluster, self.store, guard) for number in range(brokers)
        ]
        self.url = _together([each.url for each in self.brokers])
        self.admin_url = _together([each.admin_url for each in self.brokers])

    def start(self) -> None:
        """Start everything, and return when it is ready; raise :class:`PeerMissing` or :class:`PeerFailed`."""
        if (why := missing()) is not None:
            raise PeerMissing(why)
        try:
            self._storage.start()
            _Setup(self.directory / "setup").run(self.cluster, self.store, self.brokers[0])
            self.start_brokers(*range(len(self.brokers)))
        except BaseException:
            self.kill()
            raise

    def start_brokers(self, *numbers: int) -> None:
        """Start some of the brokers at once; return when they are ready."""
        for number in numbers:
            self.brokers[number].launch(CLUSTER_SETTINGS)
        for number in numbers:
            self.brokers[number].wait()

    def kill(self) -> None:
        """Kill all processes, as ``kill -9`` does."""
        for each in (*self.brokers, self._storage):
            each.kill()

    def stop(self) -> None:
        # Brokers that are stopped hand their topics over, one to another, which takes long and serves nobody here.
        self.kill()

    def admin(self, method: str, path: str, body: Any = None) -> Any:
        """Call ``/admin/v2/PATH`` of a broker that runs; raise :class:`urllib.error.HTTPError`."""
        return _insist(lambda: self._running().admin_url, self.guard, method, path, body)

    def owner(self, topic: str) -> int | None:
        """Return the number of the broker that owns a topic; one becomes the owner if there is none. Return None while
        the owner is unknown or does not run.
        """
        try:
            url = json.loads(self._look_up(topic))["brokerUrl" if self.guard is None else "brokerUrlTls"]
        except OSError:
            return None
        return next((number for number, each in enumerate(self.brokers) if each.url == url and each.pid), None)

    def bundle(self, topic: str) -> str:
        """Return the bundle of a topic: the part of its namespace whose topics are all at one broker."""
        return self._look_up(f"{topic}/bundle").decode()

    def move(self, topic: str, to: int) -> None:
        """Move the topic's bundle to another broker. Return when it is there; raise :class:`PeerFailed`."""
        namespace = topic.partition("://")[2].rpartition("/")[0]
        there = f"destinationBroker={self.brokers[to].name}"
        deadline = time.monotonic() + MOVE_SECONDS_MAX
        while True:
            # Who looks a topic up first may have it elsewhere, all the same.
            self.admin("PUT", f"namespaces/{namespace}/{self.bundle(topic)}/unload?{there}")
            while (owner := self.owner(topic)) is None and time.monotonic() < deadline:
                time.sleep(POLL_SECONDS)
            if owner == to:
                return
            if time.monotonic() > deadline:
                raise PeerFailed(
                    f"the drill's brokers did not move {topic} to {self.brokers[to].name} within "
                    f"{MOVE_SECONDS_MAX:.0f} s; see their logs in the drill's directory"
                )
            time.sleep(POLL_SECONDS)

    def _look_up(self, topic: str) -> bytes:
        url = f"{self._running().admin_url}/lookup/v2/topic/{topic.replace('://', '/')}"
        return ask(url, self.token, "GET", authority=self.authority)

    def _running(self) -> ClusterBroker:
        return next(each for each in self.brokers if each.pid is not None)


def write_settings(file: Path, settings: Mapping[str, str]) -> Path:
    file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    return file


def _together(urls: Sequence[str]) -> str:
    """Join URLs into one that names all of their hosts."""
    first, *others = urls
    return ",".join((first, *(each.partition("://")[2] for each in others)))


def _urls_of(broker: ClusterBroker) -> tuple[str, ...]:
    """Return the options that name a broker."""
    tls = "" if broker.guard is None else "-tls"
    options = [f"--web-service-url{tls}", broker.admin_url, f"--broker-service-url{tls}", broker.url]
    if tls:  # which wants an address without TLS, too, though nobody listens there
        options += ["--web-service-url", broker.admin_url.replace("https", "http")]
    return tuple(options)


def _ask_admin(admin_url: str, guard: Guard | None, method: str, path: str, body: Any = None) -> Any:
    shown = (None, None) if guard is None else (guard.token, guard.authority)
    return ask_admin(admin_url, shown[0], method, path, body, shown[1])


def _insist(admin_url: Callable[[], str], guard: Guard | None, method: str, path: str, body: Any) -> Any:
    """Repeat a call while a broker is gone, or does not know yet whether it owns a topic."""
    deadline = time.monotonic() + MOVE_SECONDS_MAX
    while True:
        try:
            return _ask_admin(admin_url(), guard, method, path, body)
        except OSError as error:
            refused = isinstance(error, urllib.error.HTTPError) and error.code < HTTPStatus.INTERNAL_SERVER_ERROR
            if refused or time.monotonic() > deadline:
                raise
            time.sleep(POLL_SECONDS)


def _listens(port: int) -> bool:
    with socket.create_connection(("127.0.0.1", port), timeout=1):
        return True


@contextmanager
def pulsar_cluster(
    directory: Path, *, cluster: str = "peer", brokers: int = 2, guard: Guard | None = None
) -> Iterator[PulsarCluster]:
    """Run a cluster with its files in ``directory``."""
    made = PulsarCluster(directory, cluster, brokers, guard)
    try:
        made.start()
        yield made
    finally:
        made.stop()
