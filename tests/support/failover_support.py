"""Helpers of the tests of failovers: deployments of real workers as processes, commands, and traffic."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import forked_commands

from replicator.client import Client, Consumer, ConsumerType, InitialPosition, PulsarException, Timeout
from replicator.drills.ports import free_ports

START_SECONDS_MAX = 60.0
TOPIC = "persistent://public/default/orders"
CHECK_SECONDS = 0.1
"""Interval at which clients ask where they belong."""


class Deployment:
    """Clusters in one directory, each a worker process. Links are given as in a topology file."""

    engine = "embedded"
    """Engine of the links: not Spark, because starting it takes longer than most tests of worker processes."""
    pipeline = ""
    """Further lines of the topology's section ``pipeline``."""

    def __init__(self, path: Path, names: Sequence[str], links: str, databases: Mapping[str, str]) -> None:
        self.path = path
        ports = free_ports(2 * len(names))
        self.ports = dict(zip(names, ports, strict=False))
        self.pulsar_ports = dict(zip(names, ports[len(names) :], strict=True))
        self.file = path / "topology.yaml"
        self._databases = databases
        self._processes: dict[str, forked_commands.Forked] = {}
        self.write(links)

    def write(self, links: str, file: str = "topology.yaml") -> Path:
        """Write a topology with these links; clusters are the same in all of them."""
        path = self.path / file
        clusters = "".join(
            f"  {name}: {{address: '127.0.0.1:{port}', data: data-{name}, database: '{self._databases[name]}'"
            f"{self.pulsar(name)}}}\n"
            for name, port in self.ports.items()
        )
        path.write_text(f"clusters:\n{clusters}links: {links}\npipeline: {{engine: {self.engine}{self.pipeline}}}\n")
        return path

    def pulsar(self, name: str) -> str:
        """Return the topology's lines about the binary protocol of a cluster."""
        return ""

    def url(self, name: str, path: str = "") -> str:
        return f"http://127.0.0.1:{self.ports[name]}{path}"

    def client_url(self, name: str) -> str:
        return f"pulsar://127.0.0.1:{self.ports[name]}"

    def start(self, *names: str, file: str = "topology.yaml", options: Sequence[str] = ()) -> None:
        self.launch(*names, file=file, options=options)
        for name in names:
            self.wait_ready(name)

    def launch(self, *names: str, file: str = "topology.yaml", options: Sequence[str] = ()) -> None:
        """Start workers, and do not wait until they are ready."""
        for name in names:
            log = self.path / f"{name}.log"
            arguments = ("worker", "--cluster", name, "-f", str(self.path / file), *options)
            self._processes[name] = forked_commands.start(arguments, cwd=self.path, stdout=log, stderr=log)

    def start_empty(self, name: str) -> None:
        """Start a worker on an empty directory, without asking others what it lost."""
        self.start(name, options=("--on-empty-store", "start"))

    def wait_ready(self, name: str) -> None:
        deadline = time.monotonic() + START_SECONDS_MAX
        while True:
            assert self._processes[name].poll() is None, (self.path / f"{name}.log").read_text()[-3000:]
            assert time.monotonic() < deadline, (self.path / f"{name}.log").read_text()[-3000:]
            try:
                urllib.request.urlopen(self.url(name, "/readyz"), timeout=1).close()
            except OSError:
                time.sleep(0.05)
            else:
                return

    def kill(self, name: str) -> None:
        process = self._processes.pop(name)
        process.kill()
        process.wait()

    @contextmanager
    def away(self, name: str) -> Iterator[None]:
        """Kill that worker, and start it again at the end of the block."""
        self.kill(name)
        try:
            yield
        finally:
            self.start(name)

    @contextmanager
    def paused(self, name: str) -> Iterator[None]:
        """Freeze that worker, with its connections, until the end of the block."""
        self._processes[name].send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._processes[name].send_signal(signal.SIGCONT)

    def stop(self) -> None:
        for process in self._processes.values():
            process.send_signal(signal.SIGTERM)
        for process in self._processes.values():
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()

    # Asking.

    def ask(self, name: str, method: str, path: str, body: Any = None, *, seconds: float = 20) -> Any:
        """Return what a worker answers, read as JSON; None for an empty answer."""
        data = None if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(self.url(name, path), data, {"Content-Type": "application/json"}, method=method)
        with urllib.request.urlopen(asked, timeout=seconds) as response:
            content = response.read()
        return json.loads(content) if content.strip() else None

    def get(self, name: str, path: str) -> Any:
        return self.ask(name, "GET", path, seconds=10)

    def post(self, name: str, path: str, body: Any) -> Any:
        return self.ask(name, "POST", path, body)

    def state(self, name: str) -> Any:
        return self.get(name, "/failover/v1/state")

    def command(self, *arguments: str, file: str = "topology.yaml") -> subprocess.CompletedProcess[str]:
        """Run ``replicator COMMAND -f FILE …``, as a user does."""
        command, *rest = arguments
        return forked_commands.run(command, "-f", file, *rest, cwd=self.path)

    def report(self, *arguments: str, status: int = 0, file: str = "topology.yaml") -> Any:
        """Return the JSON report of a command that must end with ``status``."""
        done = self.command(*arguments, "--output", "json", file=file)
        assert done.returncode == status, f"{done.returncode}: {done.stdout}{done.stderr}"
        return json.loads(done.stdout)

    def providers(self, home: str) -> list[str]:
        return [self.url(name, f"/failover/v1/service-url?cluster={home}") for name in self.ports]

    def following(self, home: str) -> Client:
        """Return a client that follows the clients of ``home``, wherever they are served."""
        return Client(service_url_provider=self.providers(home), service_url_check_interval_seconds=CHECK_SECONDS)

    def until(self, condition: Callable[[], object], what: str | Callable[[], object], seconds: float = 60) -> None:
        """Wait until ``condition`` holds; a failure prints ``what``, or the answer of that function."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() >= deadline:
                missing = what if isinstance(what, str) else what()
                raise AssertionError(f"did not come true within {seconds} s: {missing}")
            time.sleep(0.02)


class WithPorts(Deployment):
    """Deployment whose clusters each have a port for the binary protocol."""

    def pulsar(self, name: str) -> str:
        return f", pulsar: '127.0.0.1:{self.pulsar_ports[name]}'"

    def service_url(self, name: str) -> str:
        return f"pulsar://127.0.0.1:{self.pulsar_ports[name]}"

    def reachable(self, name: str) -> bool:
        """Return whether the port of the binary protocol accepts connections."""
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.pulsar_ports[name])) == 0

    def serves(self, name: str, topic: str) -> bool:
        """Return whether a topic accepts a producer and a consumer there."""
        stats = self.get(name, f"/admin/v2/persistent/{topic.removeprefix('persistent://')}/stats")
        return bool(stats["publishers"]) and bool(stats["subscriptions"]["sub"]["consumers"])


D = TypeVar("D", bound=Deployment)


@contextmanager
def deployment(
    path: Path, *names: str, links: str, databases: Mapping[str, str], kind: type[D] = Deployment
) -> Iterator[D]:
    """Yield started workers of these clusters; end them at the end."""
    deployed = kind(path, names, links, databases)
    try:
        deployed.start(*names)
        yield deployed
    finally:
        deployed.stop()


@dataclass
class Traffic:
    """Producer and consumers that follow a cluster's clients; it records what they confirmed, received and
    acknowledged."""

    confirmed: list[bytes] = field(default_factory=list)
    received: list[bytes] = field(default_factory=list)
    acknowledged: set[bytes] = field(default_factory=set)
    repeated: list[bytes] = field(default_factory=list)
    """Messages received again after the application had acknowledged them."""
    failed: list[str] = field(default_factory=list)
    clusters: set[str] = field(default_factory=set)
    """Origins of the received messages."""
    stopping: bool = False
    producers: int = 0
    """Number of producers that may still get confirmations."""

    async def produce(self, client: Client, *, topic: str = TOPIC) -> None:
        self.producers += 1
        try:
            await self._produce(client, topic)
        finally:
            self.producers -= 1

    async def _produce(self, client: Client, topic: str) -> None:
        producer = await client.create_producer(topic, producer_name="orders-in", batching_max_publish_delay_ms=1)
        number = 0
        while not self.stopping:
            content = b"%06d" % number
            number += 1
            try:
                await producer.send(content)
                self.confirmed.append(content)
            except PulsarException as error:
                self.failed.append(repr(error))
            await asyncio.sleep(0.002)
        await producer.close()

    async def consume(
        self,
        client: Client,
        *,
        topic: str = TOPIC,
        consumer_type: ConsumerType = ConsumerType.Shared,
        hold_every: int = 0,
    ) -> None:
        """Receive and acknowledge; with ``hold_every`` every so many-th message is left unacknowledged."""
        consumer = await client.subscribe(
            topic,
            "sub",
            consumer_type=consumer_type,
            initial_position=InitialPosition.Earliest,
            replicate_subscription_state_enabled=True,
            receiver_queue_size=100,
        )
        assert isinstance(consumer, Consumer)
        while not (self.stopping and not self.producers and len(self.acknowledged) >= len(self.confirmed)):
            try:
                message = await consumer.receive(timeout_millis=200)
            except Timeout:  # any other error is final: trying again would block the event loop
                continue
            content = message.data()
            self.received.append(content)
            self.clusters.add(message.origin())
            if content in self.acknowledged:
                self.repeated.append(content)
            if hold_every and int(content) % hold_every == 0 and not self.stopping:
                continue
            await consumer.acknowledge(message)
            self.acknowledged.add(content)
        await consumer.close()
