"""Group ``security``: the cost of tokens and TLS for everybody, and the cost of hostile clients for the others.

Two pairs of workers, one with ``auth`` and ``tls.required``, are measured in turn: publishing of batches, and how fast
a link copies them. Then one send at a time at the pair with TLS, while 200 connections send it garbage, half frames,
huge sizes, wrong tokens and unfinished HTTP requests; and while none does. Then the same at a worker without
authentication, beside a process that floods it (:mod:`bench.floods`), and beside one that only burns a core. The memory
of the worker is measured beside readers of messages that are large only once they are decompressed.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import aiohttp
import psutil

from bench.floods import BURN, KINDS, LARGE_BYTES, LARGE_MESSAGES, LARGE_READERS, LARGE_TOPIC, flooding
from bench.measurement import Measurement, percentile
from replicator.client import AuthenticationToken, Client, CompressionType
from replicator.drills.own_secrets import OwnSecrets
from replicator.drills.ports import free_ports
from replicator.operating.processes import WorkerProcess
from replicator.protocol.client import ClientConnection
from replicator.running.timeouts import timeout
from replicator.security.access import Access, use_in_context
from replicator.topology import Topology, default_topology, dump
from replicator.topology.access import with_topology

RUNS: Final = 3
MESSAGES: Final = 100_000
PAYLOAD: Final = bytes(1_000)
SENDS: Final = 1_500
HOSTILE: Final = 200
FLOODED_SENDS: Final = 300
BESIDE: Final = "beside a busy core"
TOPIC: Final = "persistent://public/drill/bench"
PEER: Final = "without"
QUIET: Final = "without them"
LARGE: Final = "large-messages"


class _Pair:
    """Two linked workers; ``client`` returns a client of one. ``secrets`` has tokens and certificates, if they ask."""

    def __init__(self, topology: Topology, secrets: OwnSecrets | None) -> None:
        self.topology = topology
        self.secrets = secrets
        self.pid: int | None = None
        """Process id of the first worker."""
        self.access = with_topology(Access(), topology)

    def client(self, name: str) -> Client:
        url = self.topology.cluster(name).pulsar_url
        if self.secrets is None:
            return Client(url)
        return Client(
            url,
            authentication=AuthenticationToken(self.secrets.token),
            tls_trust_certs_file_path=str(self.secrets.authority.file),
        )


async def measure_security(directory: Path, say: Callable[[str], None]) -> list[Measurement]:
    """Return all figures of group ``security``, with the workers' stores in ``directory``. ``say`` prints progress."""
    published: dict[bool, list[float]] = {False: [], True: []}
    copied: dict[bool, list[float]] = {False: [], True: []}
    for run in range(RUNS):
        for secure in (False, True):
            say(f"security: run {run + 1} of {RUNS}, {'with' if secure else 'without'} TLS and tokens")
            async with _running(directory / f"{run}-{secure}", secure=secure) as pair:
                publish, copy = await _publish_and_copy(pair)
                published[secure].append(publish)
                copied[secure].append(copy)
    quiet: list[float] = []
    attacked: list[float] = []
    async with _running(directory / "hostile", secure=True) as pair:
        cluster, secrets = pair.topology.clusters[0], pair.secrets
        assert secrets is not None
        await _sends(pair)  # warms up
        for run in range(RUNS):
            say(f"security: hostile connections, run {run + 1} of {RUNS}")
            quiet.append(await _sends(pair))
            async with hostile_connections(cluster.host, cluster.port, secrets.authority.file):
                attacked.append(await _sends(pair))
    floods = await _beside_floods(directory / "floods", say)
    return [
        Measurement("security/publish-1kB", "messages/s", tuple(published[True]), PEER, tuple(published[False])),
        Measurement("security/copy-1kB", "messages/s", tuple(copied[True]), PEER, tuple(copied[False])),
        Measurement("security/send-p99-beside-200-hostile", "ms", tuple(attacked), QUIET, tuple(quiet)),
        *floods,
    ]


async def _beside_floods(directory: Path, say: Callable[[str], None]) -> list[Measurement]:
    sends: dict[str, list[float]] = {}
    health: dict[str, list[float]] = {}
    memory: dict[str, list[float]] = {}
    async with _running(directory, secure=False) as pair:
        port = pair.topology.clusters[0].port
        await _sends(pair)  # warms up
        await _publish_large(pair)
        of_one = (kind for kind in KINDS if kind != LARGE)
        for kind, connections in (
            *((BURN, 1), *((kind, 1) for kind in of_one)),
            *(("lookups", HOSTILE), ("acknowledgements", HOSTILE), ("dispatch", HOSTILE // 10), (LARGE, LARGE_READERS)),
        ):
            name = kind if connections == 1 else f"{connections}-x-{kind}"
            for run in range(RUNS):
                say(f"security: beside {name}, run {run + 1} of {RUNS}")
                async with flooding(kind, port, connections):
                    asking = asyncio.create_task(_slowest_health(port, pair.pid))
                    sends.setdefault(name, []).append(await _sends(pair, FLOODED_SENDS))
                    asking.cancel()
                    slowest, most = await asking
                    health.setdefault(name, []).append(slowest)
                    memory.setdefault(name, []).append(most)
    burning = (tuple(sends.pop(BURN)), tuple(health.pop(BURN)), tuple(memory[BURN]))
    large = f"{LARGE_READERS}-x-{LARGE}"
    return [
        *(
            Measurement(f"security/send-p99-beside-{kind}", "ms", tuple(sends[kind]), BESIDE, burning[0])
            for kind in sends
        ),
        *(
            Measurement(f"security/healthz-beside-{kind}", "ms", tuple(health[kind]), BESIDE, burning[1])
            for kind in health
        ),
        Measurement(f"security/memory-beside-{large}", "MB", tuple(memory[large]), BESIDE, burning[2]),
    ]


async def _publish_large(pair: _Pair) -> None:
    """Publish messages of zeros, which take a few kilobytes of the store each."""
    async with pair.client(pair.topology.names[0]) as client:
        producer = await client.create_producer(
            LARGE_TOPIC, batching_enabled=False, compression_type=CompressionType.ZSTD
        )
        for _ in range(LARGE_MESSAGES):
            await producer.send(bytes(LARGE_BYTES))


async def _slowest_health(port: int, pid: int | None) -> tuple[float, float]:
    """Ask ``/healthz`` again and again until cancelled; then return the longest time of an answer, in milliseconds.

    Also return the most memory that process ``pid`` had meanwhile, in megabytes.
    """
    slowest = most = 0.0
    worker = psutil.Process(pid)
    async with aiohttp.ClientSession() as session:
        try:
            while True:
                began = time.perf_counter()
                async with session.get(f"http://127.0.0.1:{port}/healthz") as response:
                    await response.read()
                slowest = max(slowest, 1000 * (time.perf_counter() - began))
                most = max(most, worker.memory_info().rss / 1e6)
                await asyncio.sleep(0.02)
        except asyncio.CancelledError:
            return slowest, most


def _written(directory: Path, *, secure: bool) -> tuple[_Pair, Path]:
    directory.mkdir(parents=True)
    made = default_topology(directory / "data", free_ports(2))
    topology = replace(made, pipeline=made.pipeline.model_copy(update={"engine": "embedded"}))
    secrets = OwnSecrets(directory / "secrets", "public/drill") if secure else None
    if secrets is not None:
        topology = secrets.protected(topology)
    file = directory / "topology.yaml"
    file.write_text(dump(topology))
    return _Pair(topology, secrets), file


@asynccontextmanager
async def _running(directory: Path, *, secure: bool) -> AsyncIterator[_Pair]:
    pair, file = _written(directory, secure=secure)
    use_in_context(pair.access)
    workers = [
        WorkerProcess(cluster.name, cluster.address, file, log_file=directory / f"{cluster.name}.log")
        for cluster in pair.topology.clusters
    ]
    try:
        for worker in workers:
            await worker.start()
        for worker in workers:
            await worker.ready()
        pair.pid = workers[0].pid
        yield pair
    finally:
        for worker in workers:
            await worker.stop()


async def _publish_and_copy(pair: _Pair) -> tuple[float, float]:
    """Publish :data:`MESSAGES`; return messages a second confirmed at the source, and arrived at the destination."""
    source, destination = pair.topology.names
    async with pair.client(source) as client, pair.client(destination) as far:
        consumer = await far.subscribe(TOPIC, "bench", receiver_queue_size=20_000)
        producer = await client.create_producer(TOPIC, max_pending_messages=20_000, block_if_queue_full=True)
        began = time.perf_counter()
        arriving = asyncio.create_task(_arrived(consumer, began))
        await producer.send_many([PAYLOAD] * MESSAGES)
        published = MESSAGES / (time.perf_counter() - began)
        return published, MESSAGES / await arriving


async def _arrived(consumer: object, began: float) -> float:
    """Receive :data:`MESSAGES` messages; return the seconds from ``began`` until the last came."""
    count = 0
    while count < MESSAGES:
        count += len(await consumer.receive_many(5_000, 100))  # type: ignore[attr-defined]
    return time.perf_counter() - began


async def _sends(pair: _Pair, sends: int = SENDS) -> float:
    """Send ``sends`` messages one at a time; return the 99th percentile of a send's time, in milliseconds."""
    took: list[float] = []
    async with pair.client(pair.topology.names[0]) as client:
        producer = await client.create_producer(TOPIC, batching_enabled=False)
        for _ in range(sends):
            began = time.perf_counter()
            await producer.send(b"x" * 100)
            took.append(1000 * (time.perf_counter() - began))
    return percentile(took, 99)


@asynccontextmanager
async def hostile_connections(host: str, port: int, trust: Path) -> AsyncIterator[None]:
    """Run :data:`HOSTILE` attackers of ``host`` and ``port`` while the context lasts.

    Each connects, holds for at most 5 s, ends, and comes again after a second. ``trust`` is the certificate authority.
    """
    context = ssl.create_default_context(cafile=trust)
    wrong = ClientConnection(0.0, software="x", method="token", credentials=lambda: b"wrong").connect()
    kinds = (
        (False, b"\xff" * 4_000),
        (True, b"\x00\x00\x10\x00\x00\x00"),
        (True, b"\x7f\xff\xff\xff" * 100),
        (True, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer wrong\r\n\r\n"),
        (True, b"GET /healthz HTTP/1.1\r\nHost: local"),
        (True, wrong),
    )

    async def attack(number: int) -> None:
        encrypted, sent = kinds[number % len(kinds)]
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection(host, port, ssl=context if encrypted else None)
                writer.write(sent)
                with contextlib.suppress(TimeoutError):
                    async with timeout(5):  # asyncio's wait_for loses a cancellation, and this would never end
                        await reader.read(100)
                writer.transport.abort()
            await asyncio.sleep(1)

    attacks = [asyncio.create_task(attack(number)) for number in range(HOSTILE)]
    try:
        await asyncio.sleep(1)
        yield
    finally:
        for each in attacks:
            each.cancel()
        await asyncio.gather(*attacks, return_exceptions=True)
