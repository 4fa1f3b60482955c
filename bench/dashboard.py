"""Group ``dashboard``: what an open page costs, with 1,000 topics in each of five clusters.

In process (:func:`_measure_views`): one server answers for all five clusters, from an engine with a message and a
replicated subscription in each topic, and the dashboard asks it over HTTP as it asks other workers. The figure is CPU
time of all of that together, with the answers of all five. A worker spends less: it gives only its own answer.

* ``refresh``: one look at a page that somebody has open. The list of topics and a subscription are looked at
  every two seconds, so that 20 ms are 1 % of a core; the others every second.
* ``answer``: one cluster's answer alone, without HTTP.

With real workers (:func:`_measure_workers`): five of them, each linked to each, all with the same 1,000 topics.

* ``page``: from the request of a page to all of its HTML.
* ``open``: the share of a core by which the worker that serves the page is busier while somebody has it open.
* ``first-paint``: until Chromium shows something of it, where Chromium and the extra ``browser`` are installed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from itertools import combinations
from pathlib import Path
from typing import Final

import aiohttp
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from bench.at_rest import at_rest, cpu_percent, everything_is_copied
from bench.browser import browser_missing, first_paints_ms
from bench.measurement import Measurement
from replicator.api.data_plane import ENGINE
from replicator.api.topic_figures import add_topic_figures, topic_figures
from replicator.dashboard.drilling import Drilling
from replicator.dashboard.fan_out import FanOut
from replicator.dashboard.switching import Switches
from replicator.dashboard.views import TOPICS_SHOWN, Views
from replicator.drills.ports import free_ports
from replicator.engine.engine import Engine
from replicator.engine.log.entry import encode_entry
from replicator.metadata.metadata_pb2 import MessageMetadata
from replicator.operating.processes import WorkerProcess, stop_left_postgres
from replicator.topology import load_topology
from snapshots.position import BEFORE_ALL

CLUSTERS: Final = 5
TOPICS: Final = 1_000
NAMESPACE: Final = "bench/many"
SUBSCRIPTION: Final = "bench"
VIEWS: Final = {
    "topics": "topics",
    "search": "topics?search=77",
    "topic": f"topic?topic=persistent://{NAMESPACE}/topic-0077",
}
_OF_ONE: Final = f"subscription?topic=persistent://{NAMESPACE}/topic-0077&name={SUBSCRIPTION}"
PAGES: Final = {
    "map": ("/", "map"),
    **{name: (f"/dashboard/{view}", view) for name, view in VIEWS.items()},
    "subscription": (f"/dashboard/{_OF_ONE}", _OF_ONE),
}
"""Path and view of each page that is opened, by name. The view is the parameter of the page's stream of events."""
LOOKS: Final = 10
OPEN_SECONDS: Final = 20.0
FORGOTTEN_SECONDS: Final = 3.0
"""Pause after which a page asks the clusters again; for two seconds it shows the last answers."""
RUNS: Final = 3


async def measure_dashboard(directory: Path, say: Callable[[str], None]) -> list[Measurement]:
    """Return all figures of group ``dashboard``. ``say`` prints what cannot be measured here."""
    (directory / "views").mkdir()
    (directory / "workers").mkdir()
    return [
        *await _measure_views(directory / "views"),
        *await _measure_workers(directory / "workers", say),
    ]


# In process.


async def _measure_views(directory: Path) -> list[Measurement]:
    engine = await Engine.open(directory / "data", cluster="c0")
    app = web.Application()
    app[ENGINE] = engine
    add_topic_figures(app)
    runner = web.AppRunner(app)
    ports = free_ports(CLUSTERS)
    file = directory / "topology.yaml"
    clusters = "".join(
        f"  c{number}: {{address: '127.0.0.1:{port}', data: c{number}}}\n" for number, port in enumerate(ports)
    )
    file.write_text(f"clusters:\n{clusters}links: []\n")
    topology = load_topology(file)
    try:
        await _fill(engine)
        await runner.setup()
        for port in ports:
            await web.TCPSite(runner, "127.0.0.1", port).start()
        asking = FanOut(lambda: topology)
        views = Views(asking, Switches(asking), Drilling(asking, asking.clusters[0]))
        measured = []
        for name, view in VIEWS.items():
            parts = await views.compute(view)  # the templates are read once
            assert "does not answer" not in str(parts), parts
            runs = [await _cpu_ms(views, view) for _ in range(RUNS)]
            measured.append(Measurement(f"dashboard/1k-x-5/{name}/refresh", "CPU ms", tuple(runs)))
        answers = [await _answer_ms(runner.app) for _ in range(RUNS)]
        measured.append(Measurement("dashboard/1k-x-5/topics/answer", "CPU ms", tuple(answers)))
        await asking.close()
        return measured
    finally:
        await runner.cleanup()
        await engine.close()


async def _cpu_ms(views: Views, view: str) -> float:
    began = time.process_time()
    for _ in range(LOOKS):
        await views.compute(view)
    return (time.process_time() - began) * 1000 / LOOKS


async def _answer_ms(app: web.Application) -> float:
    began = time.process_time()
    for _ in range(LOOKS):
        await topic_figures(make_mocked_request("GET", f"/?limit={TOPICS_SHOWN + 1}", app=app))
    return (time.process_time() - began) * 1000 / LOOKS


async def _fill(engine: Engine) -> None:
    """Make :data:`TOPICS` topics, each with a message and a replicated subscription."""

    async def make(number: int) -> None:
        topic = await engine.topic(f"persistent://{NAMESPACE}/topic-{number:04d}")
        metadata = MessageMetadata(producer_name="bench", sequence_id=number, publish_time=1)
        await topic.publish([encode_entry(metadata, bytes(100))])
        await topic.subscriptions.create(SUBSCRIPTION, BEFORE_ALL, replicated=True)

    await asyncio.gather(*(make(number) for number in range(TOPICS)))


# Real workers.


async def _measure_workers(directory: Path, say: Callable[[str], None]) -> list[Measurement]:
    names = [f"c{number}" for number in range(CLUSTERS)]
    file = directory / "topology.yaml"
    clusters = "".join(
        f"  {name}: {{address: '127.0.0.1:{port}', data: {name}}}\n"
        for name, port in zip(names, free_ports(CLUSTERS), strict=True)
    )
    links = "".join(f"  - between: [{one}, {other}]\n" for one, other in combinations(names, 2))
    file.write_text(f"clusters:\n{clusters}links:\n{links}pipeline: {{engine: embedded}}\n")
    topology = load_topology(file)
    engine = await Engine.open(topology.cluster("c0").data, cluster="c0")
    try:
        await _fill(engine)
    finally:
        await engine.close()
    async with AsyncExitStack() as stack:
        workers = [
            WorkerProcess(cluster.name, cluster.address, file, log_file=directory / f"{cluster.name}.log")
            for cluster in topology.clusters
        ]
        for worker, cluster in zip(workers, topology.clusters, strict=True):
            stack.callback(stop_left_postgres, worker, cluster.data)
            await worker.start()
            stack.push_async_callback(worker.stop)
        await asyncio.gather(*(worker.ready() for worker in workers))
        session = await stack.enter_async_context(aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)))
        urls = [f"http://{cluster.address}" for cluster in topology.clusters]
        await asyncio.gather(*(everything_is_copied(url, TOPICS) for url in urls))
        await at_rest(worker.pid for worker in workers)
        measured = []
        for name, (path, view) in PAGES.items():
            times = [await _page_ms(session, urls[0] + path) for _ in range(RUNS)]
            measured.append(Measurement(f"dashboard/1k-x-5/{name}/page", "ms", tuple(times)))
            shares = [await _open_percent(session, urls[0], view, workers[0].pid) for _ in range(RUNS)]
            measured.append(Measurement(f"dashboard/1k-x-5/{name}/open", "% of a core", tuple(shares)))
        why = browser_missing()
        if why is not None:
            say(f"the first paint is not measured: {why}")
            return measured
        places = {name: urls[0] + path for name, (path, _view) in PAGES.items()}
        for name, paints in (await asyncio.to_thread(first_paints_ms, places, RUNS, FORGOTTEN_SECONDS)).items():
            measured.append(Measurement(f"dashboard/1k-x-5/{name}/first-paint", "ms", paints))
        return measured


async def _page_ms(session: aiohttp.ClientSession, url: str) -> float:
    await asyncio.sleep(FORGOTTEN_SECONDS)
    began = time.perf_counter()
    async with session.get(url, headers={"Accept": "text/html"}) as response:
        response.raise_for_status()
        await response.read()
    return (time.perf_counter() - began) * 1000


async def _open_percent(session: aiohttp.ClientSession, url: str, view: str, served: int | None) -> float:
    """Return the CPU time of process ``served`` while a page's events are read, less its idle one, in % of a core."""
    idle = await cpu_percent(served, OPEN_SECONDS)
    async with session.get(f"{url}/dashboard/events", params={"view": view}) as response:
        response.raise_for_status()
        reading = asyncio.create_task(_read(response))
        await asyncio.sleep(1.0)  # the first look is the page's own
        opened = await cpu_percent(served, OPEN_SECONDS)
        assert not reading.done(), "the events have ended"
        reading.cancel()
    return opened - idle


async def _read(response: aiohttp.ClientResponse) -> None:
    async for _ in response.content.iter_any():
        pass
