"""Group ``connections``: what 1,000 connections, a producer and a consumer on each, cost a broker at rest.

They are the Go client's, a client of its own for each, on ten topics. Memory is what the process grows by from before
them to when all are there; the broker's is what its JVM takes from the system, in steps of its own. The CPU time at
rest is that of the keep-alives, beside what the process uses without any connection.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from bench.brokers import PEER, Broker, started
from bench.measurement import Measurement
from bench.official_clients import Say
from bench.programs import ProgramFailed, ProgramMissing, go_program

CONNECTIONS: Final = 1_000
TOPIC: Final = "persistent://public/default/idle"
OPEN_SECONDS_MAX: Final = 60.0
REST_SECONDS: Final = 3.0
"""Pause after the connections are open, until brokers are at rest again."""
IDLE_SECONDS: Final = 30.0
"""Time for which CPU is measured: the interval of keep-alives, so that each connection sends one in it."""


async def measure_connections(directory: Path, say: Say) -> list[Measurement]:
    """Return memory for each connection, and CPU time of an idle one, beside the peer; empty if Go is missing."""
    try:
        program = await go_program()
    except ProgramMissing as why:
        say(f"group connections is left out: {why}")
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
