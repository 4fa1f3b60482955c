"""Group ``traces``: what traces cost those messages that are not sampled, beside workers without traces.

Two pairs of workers are measured in turn, each first in every other round: publishing a part of a backlog, and then
copying all of it to an empty destination. One pair sends spans to a collector in this process. Messages are sampled at
the default rate.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from aiohttp import web

from bench.cases import CASES, Case
from bench.clusters import SOURCE, TwoClusters
from bench.measurement import Measurement
from bench.network import copy_once, publish
from replicator.client import Client
from replicator.topology.traces import TracesSettings

ROUNDS: Final = 6
PEER: Final = "without"
_SIZE: Final = "100B"
"""Size of the messages measured: the one with the most messages a second."""


async def measure_traces(directory: Path, say: Callable[[str], None]) -> list[Measurement]:
    """Return all figures of group ``traces``, with the workers' stores in ``directory``. ``say`` prints progress."""
    measured: list[Measurement] = []
    async with _collector() as endpoint:
        for case in CASES:
            if case.size_name == _SIZE:
                say(f"traces: {case.name}")
                measured += await _measure_case(case.of_copies(), directory / case.name.replace("/", "-"), endpoint)
    return measured


async def _measure_case(case: Case, directory: Path, endpoint: str) -> list[Measurement]:
    part = replace(case, messages=case.messages // ROUNDS)
    published: dict[bool, list[float]] = {False: [], True: []}
    copied: dict[bool, list[float]] = {False: [], True: []}
    for traced in (False, True):
        (directory / str(traced)).mkdir(parents=True)
    without = TwoClusters(directory / "False")
    with_traces = TwoClusters(directory / "True", traces=TracesSettings(endpoint=endpoint))
    async with without, with_traces:
        pairs = {False: without, True: with_traces}
        for clusters in pairs.values():
            await clusters.start(SOURCE)
        for number in range(ROUNDS):
            for traced in _order(number):
                published[traced].append(await _publish(pairs[traced], part))
        for number in range(ROUNDS):
            for traced in _order(number):
                arrival = await copy_once(pairs[traced], case)
                copied[traced].append(case.rate(case.messages, arrival.seconds))
    return [
        Measurement(f"traces/{case.name}/{what}", case.unit, tuple(rates[True]), PEER, tuple(rates[False]))
        for what, rates in (("publish", published), ("copy", copied))
    ]


def _order(number: int) -> tuple[bool, bool]:
    return (False, True) if number % 2 == 0 else (True, False)


async def _publish(clusters: TwoClusters, part: Case) -> float:
    async with Client(clusters.client_url(SOURCE)) as client:
        producer = await client.create_producer(
            part.topic, batching_enabled=part.batched, max_pending_messages=part.pending_messages_max
        )
        began = time.monotonic()
        await publish(producer, bytes(part.size_bytes), part.messages)
        return part.rate(part.messages, time.monotonic() - began)


@asynccontextmanager
async def _collector() -> AsyncIterator[str]:
    """Run a collector that takes spans and forgets them while the context lasts; yield its URL."""

    async def take(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(content_type="application/x-protobuf")

    app = web.Application(client_max_size=64 * 1024**2)
    app.router.add_post("/v1/traces", take)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
