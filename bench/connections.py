"""Groups ``connections`` and ``reconnect``: what many connections cost a broker at rest, and when all connect at once.

``connections`` opens 1,000 connections of the Go client, a client of its own for each, on ten topics, with a producer
and a consumer on each. Memory is what the process grows by from before them to when all are there; the broker's is what
its JVM takes from the system, in steps of its own. The CPU time at rest is that of the keep-alives, beside what the
process uses without any connection.

``reconnect`` measures 10,000 clients that all come at once, as after a failover, to a broker that has their topics and
subscriptions. Each opens a connection, looks its topic up twice, opens a producer and a Shared consumer, and publishes
a message. It is served when the publish is confirmed and the consumer is subscribed. At most 512 clients wait for the
answer to their first command, so that all find a place in the broker's queue of connections: Linux lets a client that
finds it full wait for up to a minute, which would be most of the figure. A client that the broker refuses tries again
after 0.1 s. Between two runs all connections are closed, and the broker comes to rest. These clients speak the protocol
themselves (``bench/go/reconnect.go`` says why), each hundred from an address of its own.
"""

from __future__ import annotations

import asyncio
import resource
from pathlib import Path
from typing import Final

from bench.brokers import PEER, Broker, started
from bench.measurement import Measurement
from bench.official_clients import Clients, Say
from bench.programs import ProgramFailed, go_program_for

CONNECTIONS: Final = 1_000
TOPIC: Final = "persistent://public/default/idle"
OPEN_SECONDS_MAX: Final = 60.0
REST_SECONDS: Final = 3.0
"""Pause after the connections are open, until brokers are at rest again."""
IDLE_SECONDS: Final = 30.0
"""Time for which CPU is measured: the interval of keep-alives, so that each connection sends one in it."""
CLIENTS: Final = 10_000
RUNS: Final = 3
FILES_BESIDE: Final = 1_000
"""Open files that a process may need beside its connections: a broker's jars, for example."""
RUN_SECONDS_MAX: Final = 600.0
"""Limit of a run of ``reconnect`` with its rests. The Go program gives up a client that is not served in 5 minutes."""


async def measure_connections(directory: Path, say: Say) -> list[Measurement]:
    """Return memory for each connection, and CPU time of an idle one, beside the peer; empty if Go is missing."""
    program = await go_program_for("connections", say)
    if program is None:
        return []
    async with started(directory) as brokers:
        if brokers.missing is not None:
            say(f"figures come without a peer: {brokers.missing}")
        found: dict[Broker, tuple[float, float]] = {}
        for broker in brokers.both:
            arguments = program.arguments(broker, {"work": "connections", "topic": TOPIC, "count": CONNECTIONS})
            found[broker] = await _measure(broker, arguments)
    names = (("memory", "kB"), ("idle-cpu", "µs/s"))
    return [
        Measurement(
            f"connections/1k/{name}",
            unit,
            (found[brokers.ours][index],),
            None if brokers.peer is None else PEER,
            () if brokers.peer is None else (found[brokers.peer][index],),
        )
        for index, (name, unit) in enumerate(names)
    ]


async def _measure(broker: Broker, arguments: list[str]) -> tuple[float, float]:
    """Open the connections with the program ``arguments``; return kB, and µs of CPU time a second, for each of them."""
    alone = await _cores(broker, IDLE_SECONDS)
    before = broker.memory_bytes()
    process = await asyncio.create_subprocess_exec(
        *arguments, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        async with asyncio.timeout(OPEN_SECONDS_MAX):
            if await process.stdout.readline() != b"open\n":
                raise ProgramFailed(f"{' '.join(arguments)} did not open its connections")
        await asyncio.sleep(REST_SECONDS)
        memory = broker.memory_bytes() - before
        idle = await _cores(broker, IDLE_SECONDS) - alone
    finally:
        process.stdin.close()
        await process.wait()
    return memory / CONNECTIONS / 1e3, idle / CONNECTIONS * 1e6


async def _cores(broker: Broker, seconds: float) -> float:
    used = broker.cpu_seconds()
    await asyncio.sleep(seconds)
    return (broker.cpu_seconds() - used) / seconds


async def measure_reconnect(directory: Path, say: Say, scale: float = 1.0) -> list[Measurement]:
    """Return the figures of group ``reconnect`` for the worker and the peer, with 10,000 clients times ``scale``.

    The figures are clients served a second, times until a client is served, and the broker's CPU time for each client.
    Return an empty list if Go is missing, or if a process may not open that many files.
    """
    count = max(1, int(CLIENTS * scale))
    if (why := too_few_files(count)) is not None:
        say(f"group reconnect is left out: {why}")
        return []
    program = await go_program_for("reconnect", say)
    if program is None:
        return []
    async with started(directory) as brokers:
        if brokers.missing is not None:
            say(f"figures come without a peer: {brokers.missing}")
        clients = Clients(program, brokers, "reconnect")
        topic = clients.topic()
        taken = {
            broker: await program.runs(
                broker,
                seconds_max=(1 + RUNS) * RUN_SECONDS_MAX,
                work="reconnect",
                topic=topic,
                count=count,
                parts=RUNS,
            )
            for broker in brokers.both
        }
    return clients.each("10k", "clients/s", taken)


def too_few_files(connections: int) -> str | None:
    """Return why a process here cannot hold so many connections, and what to do; None if it can.

    The hard limit of open files decides: the worker, the Go program and the JVM each raise the soft limit to it.
    """
    needed = connections + FILES_BESIDE
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard in (resource.RLIM_INFINITY, -1) or hard >= needed:
        return None
    return (
        f"{connections:,} connections need {needed:,} open files in one process, and the hard limit is {hard:,}: raise "
        f"it (as root: ulimit -n {needed}), or measure fewer of them with --scale"
    )
