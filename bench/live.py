"""Group ``live``: many topics with replicated subscriptions between linked clusters, beside Pulsar's geo-replication.

Two clusters are linked both ways. The Go client sends single messages of 100 B to A's topics in turn, at a fixed rate
in all. Each topic has a Shared subscription that is replicated. Its consumer at A receives and acknowledges each one.
Two brokers do the same beside it, with geo-replication and a snapshot of subscriptions each second.

1. Both systems run all the time, and are warmed first, so that the brokers have compiled their code.
2. They take turns, row by row. A run begins with some seconds that do not count.
3. When the client says that its figure begins, and when it has printed it, the CPU time of each process is read, and
   what the workers have counted.
4. Then the brokers end, and the last rows are measured in a mesh of five clusters, of ours alone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError

import aiohttp

from bench.brokers import JOURNAL, JOURNALS, PEER, Broker, alone
from bench.clusters import Clusters, TwoClusters, mesh_topology
from bench.measurement import Measurement
from bench.programs import Program, ProgramFailed, Run, go_program_for
from bench.usage import cpu_seconds_of
from replicator.drills.peers.jvm import PeerFailed
from replicator.drills.peers.pulsar.broker import PulsarBroker, missing
from replicator.drills.peers.together import started_together
from replicator.drills.systems.pulsar_geo import JAVA, TUNED

RUNS: Final = 3
MESSAGE_BYTES: Final = 100
WARM_SECONDS: Final = 4.0
"""Time for which messages are sent at the beginning of each run, before its figures begin."""
PART_SECONDS: Final = 12.0
WARMING_SECONDS: Final = 40.0
"""Length of the first run of each system, which does not count."""
OPEN_SECONDS_MAX: Final = 300.0
NAMESPACE: Final = "bench/live"
RETENTION: Final = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
BEGAN: Final = "began"

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Row:
    """Load to measure; a row of the results. ``rate`` is in messages a second, over all topics together."""

    topics: int
    rate: int
    clusters: int = 2

    @property
    def name(self) -> str:
        """Return the name of the row's figures, without the group."""
        name = f"{self.topics}x{self.rate}"
        return name if self.clusters == 2 else f"mesh-{self.clusters}/{name}"


ROWS: Final = (Row(1, 200), Row(100, 200), Row(200, 200), Row(500, 200), Row(500, 500))
WARMING: Final = Row(500, 500)
MESH: Final = Row(200, 200, clusters=5)
MESH_WARMING_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class Counts:
    """Markers and bytes that the links of all clusters carried since the workers started."""

    markers: int
    """Markers that links carried, each counted once, and snapshots that a cluster wrote for itself."""
    link_bytes: int
    """Bytes of frames, over all links."""


@dataclass(frozen=True, slots=True)
class Live:
    """Running linked clusters. The first of ``clusters`` is A; ``broker`` is A's, to which the client connects."""

    broker: Broker
    clusters: tuple[Callable[[], Iterable[int]], ...]
    """For each cluster a function that returns its process ids."""
    postgres: Callable[[], Iterable[int]] = tuple
    counts: Callable[[], Awaitable[Counts]] | None = None


@dataclass(frozen=True, slots=True)
class Taken:
    """Figures of one run: those that the client printed, and the CPU time of all clusters."""

    run: Run
    cores: tuple[float, ...]
    """CPU cores used by each cluster, A first."""
    postgres_cores: float = 0.0
    markers: float = 0.0
    """Markers for each message."""
    link_bytes: float = 0.0
    """Bytes on links for each byte of payload and each cluster that it is copied to."""

    @property
    def cores_elsewhere(self) -> float:
        """Return the mean of the cores of all clusters but A."""
        return sum(self.cores[1:]) / (len(self.cores) - 1)

    @property
    def cpu_ms(self) -> float:
        """Return the CPU time for each message and cluster, in milliseconds."""
        return 1000 * sum(self.cores) / len(self.cores) / self.run.rate


async def measure_live(directory: Path, say: Say, scale: float = 1.0) -> list[Measurement]:
    """Measure group ``live``. Runs last ``scale`` times as long as usual. Return an empty list if Go is missing."""
    program = await go_program_for("live", say)
    if program is None:
        return []
    say(JOURNALS)
    measured: list[Measurement] = []
    async with AsyncExitStack() as stack:
        systems = [await stack.enter_async_context(workers(TwoClusters(_made(directory / "two"))))]
        if (why_not := alone() or missing()) is None:
            systems.append(await stack.enter_async_context(brokers(directory / "peer")))
        else:
            say(f"figures come without a peer: {why_not}")
        for system in systems:
            await _run(program, system, WARMING, WARMING_SECONDS * scale, scale)
        for row in ROWS:
            measured += await _step(program, row, systems, scale, say)
    mesh = _made(directory / "mesh")
    async with workers(Clusters(mesh, mesh_topology(mesh, MESH.clusters))) as system:
        await _run(program, system, MESH, MESH_WARMING_SECONDS * scale, scale)
        measured += await _step(program, MESH, [system], scale, say)
    return measured


def _made(directory: Path) -> Path:
    directory.mkdir(mode=0o755)  # as root, Postgres runs as another user
    return directory


async def _step(program: Program, row: Row, systems: Sequence[Live], scale: float, say: Say) -> list[Measurement]:
    """Measure a row with each system in turn, and return its figures; the first system is ours, the second the peer.

    Return an empty list if a program failed, so that other rows are kept.
    """
    taken: list[list[Taken]] = [[] for _ in systems]
    try:
        for _ in range(RUNS):
            for system, runs in zip(systems, taken, strict=True):
                runs.append(await _run(program, system, row, WARM_SECONDS * scale, scale))
    except ProgramFailed as why:
        say(f"figures are missing: {why}")
        return []
    found = row_figures(row, taken[0], taken[1] if len(taken) > 1 else ())
    say("; ".join(each.beside_peer() for each in found))
    return found


async def _run(program: Program, system: Live, row: Row, warm_seconds: float, scale: float) -> Taken:
    looks: list[_Look] = []

    async def at_line(line: str) -> None:
        if line.startswith((BEGAN, "{")):
            looks.append(await _look(system))

    (run,) = await program.runs(
        system.broker,
        seconds_max=OPEN_SECONDS_MAX,
        at_line=at_line,
        work="live",
        topic=f"persistent://{NAMESPACE}/{row.topics}",
        topics=row.topics,
        size=MESSAGE_BYTES,
        rate=row.rate,
        warm_seconds=warm_seconds,
        part_seconds=PART_SECONDS * scale,
    )
    before, after = looks
    return taken_between(before, after, run)


@dataclass(frozen=True, slots=True)
class _Look:
    at: float
    cpu_seconds: tuple[float, ...]
    postgres_seconds: float
    counts: Counts | None


async def _look(system: Live) -> _Look:
    seconds = tuple(cpu_seconds_of(pids()) for pids in system.clusters)
    look = _Look(time.monotonic(), seconds, cpu_seconds_of(system.postgres()), None)
    return look if system.counts is None else _Look(look.at, seconds, look.postgres_seconds, await system.counts())


def taken_between(before: _Look, after: _Look, run: Run) -> Taken:
    """Return the figures of ``run`` from the CPU times and counts at its beginning and at its end. Pure."""
    elapsed = after.at - before.at
    cores = tuple((late - early) / elapsed for early, late in zip(before.cpu_seconds, after.cpu_seconds, strict=True))
    taken = Taken(run, cores, (after.postgres_seconds - before.postgres_seconds) / elapsed)
    if before.counts is None or after.counts is None:
        return taken
    copied = run.count * MESSAGE_BYTES * (len(cores) - 1)
    return Taken(
        run,
        cores,
        taken.postgres_cores,
        markers=(after.counts.markers - before.counts.markers) / run.count,
        link_bytes=(after.counts.link_bytes - before.counts.link_bytes) / copied,
    )


def row_figures(row: Row, ours: Sequence[Taken], peer: Sequence[Taken]) -> list[Measurement]:
    """Return the figures of one row from our runs and the peer's. Those that only workers count have no peer. Pure."""
    name = f"live/{row.name}"
    compared: tuple[tuple[str, str, Callable[[Taken], float]], ...] = (
        ("rate", "msg/s", lambda taken: taken.run.rate),
        ("cores-a", "cores", lambda taken: taken.cores[0]),
        ("cores-b", "cores", lambda taken: taken.cores_elsewhere),
        ("cores", "cores", lambda taken: sum(taken.cores)),
        ("cpu", "ms", lambda taken: taken.cpu_ms),
        ("p50", "ms", lambda taken: taken.run.p50_ms),
        ("p99", "ms", lambda taken: taken.run.p99_ms),
    )
    of_workers: tuple[tuple[str, str, Callable[[Taken], float]], ...] = (
        ("markers", "markers/msg", lambda taken: taken.markers),
        ("link-bytes", "times", lambda taken: taken.link_bytes),
        ("postgres", "cores", lambda taken: taken.postgres_cores),
    )
    return [
        *(
            Measurement(f"{name}/{label}", unit, tuple(map(of, ours)), PEER if peer else None, tuple(map(of, peer)))
            for label, unit, of in compared
        ),
        *(Measurement(f"{name}/{label}", unit, tuple(map(of, ours))) for label, unit, of in of_workers),
    ]


def live_markdown(measured: Sequence[Measurement]) -> str:
    """Return the figures of group ``live`` as the table of docs/compared.md. Pure."""
    found = {each.name: each for each in measured}
    lines = [
        f"| clusters, topics, messages a second | worker: cores at A, B; p50, p99 | {PEER}: the same | markers a "
        "message | link's bytes by payload's | Postgres' cores |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in (*ROWS, MESH):
        figures = [found.get(f"live/{row.name}/{label}") for label in ("cores-a", "cores-b", "p50", "p99")]
        known = [each for each in figures if each is not None]
        if len(known) < len(figures):
            continue
        theirs = [each.peer_value for each in known if each.peer_value is not None]
        more = (found[f"live/{row.name}/{label}"].value for label in ("markers", "link-bytes", "postgres"))
        cells = [
            f"{row.clusters}; {row.topics:,}; {row.rate}",
            _cores_and_times([each.value for each in known]),
            _cores_and_times(theirs),
            *(f"{value:.2f}" for value in more),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _cores_and_times(values: Sequence[float]) -> str:
    """Format ``values``: cores at A and elsewhere, p50 and p99 in ms. Return an empty text if there are none."""
    if not values:
        return ""
    at_a, elsewhere, p50, p99 = values
    return f"{at_a:.2f}, {elsewhere:.2f}; {p50:,.3g}, {p99:,.4g} ms"


# The systems.


@asynccontextmanager
async def workers(clusters: Clusters) -> AsyncIterator[Live]:
    """Run the workers of ``clusters`` while the context lasts, and yield them. The topology's first cluster is A."""
    async with clusters, aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as session:
        names = clusters.topology.names
        await clusters.start(*names)

        def worker_of(name: str) -> Callable[[], Iterable[int]]:
            return lambda: [pid for pid in (clusters.pid(name),) if pid is not None]

        async def counts() -> Counts:
            return counted([await _status(session, clusters.url(name)) for name in names])

        yield Live(
            Broker(clusters.client_url(names[0]), clusters.pid(names[0])),
            tuple(map(worker_of, names)),
            lambda: [pid for pid in map(clusters.postgres_pid, names) if pid is not None],
            counts,
        )


async def _status(session: aiohttp.ClientSession, url: str) -> dict[str, Any]:
    async with session.get(f"{url}/replication/v1/status") as response:
        response.raise_for_status()
        status: dict[str, Any] = await response.json()
        return status


def counted(statuses: Sequence[Mapping[str, Any]]) -> Counts:
    """Return the counts of all clusters, summed up, from the answers of their ``/replication/v1/status``. Pure.

    A marker goes over each link of its cluster, so the link that carried the most markers of a cluster counts.
    """
    markers = link_bytes = 0
    for status in statuses:
        carried = (link["entries"] - link["messages"] for link in status["links"])
        markers += max(carried, default=0) + status["counters"]["mappings"]
        link_bytes += sum(link["wire_bytes"] for link in status["links"])
    return Counts(markers, link_bytes)


@asynccontextmanager
async def brokers(directory: Path) -> AsyncIterator[Live]:
    """Run two brokers that replicate :data:`NAMESPACE` both ways while the context lasts.

    Yield one :class:`Live`: the first broker, and for each broker a function that returns its process id.
    """
    names = ("a", "b")
    both = {name: PulsarBroker(directory / name, name, {**TUNED, **JOURNAL}, JAVA) for name in names}
    try:
        await started_together(*(broker.start for broker in both.values()))
        try:
            await asyncio.to_thread(_replicate_both_ways, both)
        except HTTPError as error:
            with error:
                raise PeerFailed(f"{error.url}: {error.code} {error.read().decode(errors='replace')}") from error

        def process_of(broker: PulsarBroker) -> Callable[[], Iterable[int]]:
            return lambda: [pid for pid in (broker.pid,) if pid is not None]

        first = both[names[0]]
        yield Live(Broker(first.url, first.pid), tuple(map(process_of, both.values())))
    finally:
        await asyncio.gather(*(asyncio.to_thread(broker.stop) for broker in both.values()))


def _replicate_both_ways(both: Mapping[str, PulsarBroker]) -> None:
    for name, broker in both.items():
        for other, remote in both.items():
            if other != name:
                urls = {"serviceUrl": remote.admin_url, "brokerServiceUrl": remote.url}
                broker.admin("PUT", f"clusters/{other}", urls)
        broker.admin("PUT", "tenants/bench", {"adminRoles": [], "allowedClusters": list(both)})
        broker.admin("PUT", f"namespaces/{NAMESPACE}", {"replication_clusters": list(both)})
        broker.admin("POST", f"namespaces/{NAMESPACE}/retention", RETENTION)
