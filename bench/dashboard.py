"""Group ``dashboard``: what an open page costs, with 1,000 topics in each of five clusters.

In process: one server answers for all five clusters, from an engine with a message and a replicated subscription in
each topic, and the dashboard asks it over HTTP as it asks other workers. What is measured is CPU time of all of that
together, five answers among it, of which a worker gives only its own: so it is above what a worker spends.

* ``refresh``: one look at a page that somebody has open. The list of topics is looked at every two seconds, so that
  20 ms are 1 % of a core; the others every second.
* ``answer``: one cluster's answer alone, without HTTP.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Final

from aiohttp import web

from bench.measurement import Measurement
from replicator.api.data_plane import ENGINE
from replicator.api.topic_figures import add_topic_figures, figures_page
from replicator.dashboard.asking import Asking
from replicator.dashboard.drilling import Drilling
from replicator.dashboard.switching import Switches
from replicator.dashboard.views import TOPICS_SHOWN, Views
from replicator.drills.ports import free_ports
from replicator.engine.engine import Engine
from replicator.engine.log.entry import encode_entry
from replicator.metadata.metadata_pb2 import MessageMetadata
from replicator.topology import load_topology
from snapshots.position import BEFORE_ALL

CLUSTERS: Final = 5
TOPICS: Final = 1_000
VIEWS: Final = {
    "topics": "topics",
    "search": "topics?search=77",
    "topic": "topic?topic=persistent://bench/many/topic-0077",
}
LOOKS: Final = 10
RUNS: Final = 3


async def measure_dashboard(directory: Path) -> list[Measurement]:
    """All figures of the group."""
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
        await asyncio.gather(*(_make(engine, number) for number in range(TOPICS)))
        await runner.setup()
        for port in ports:
            await web.TCPSite(runner, "127.0.0.1", port).start()
        asking = Asking(lambda: topology)
        views = Views(asking, Switches(asking), Drilling(asking, asking.clusters[0]))
        measured = []
        for name, view in VIEWS.items():
            parts = await views.compute(view)  # the templates are read once
            assert "does not answer" not in str(parts), parts
            runs = [await _cpu_ms(views, view) for _ in range(RUNS)]
            measured.append(Measurement(f"dashboard/1k-x-5/{name}/refresh", "CPU ms", tuple(runs)))
        answers = [_answer_ms(engine) for _ in range(RUNS)]
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


def _answer_ms(engine: Engine) -> float:
    began = time.process_time()
    for _ in range(LOOKS):
        figures_page(engine, "", "", "", TOPICS_SHOWN + 1)
    return (time.process_time() - began) * 1000 / LOOKS


async def _make(engine: Engine, number: int) -> None:
    topic = await engine.topic(f"persistent://bench/many/topic-{number:04d}")
    metadata = MessageMetadata(producer_name="bench", sequence_id=number, publish_time=1)
    await topic.publish([encode_entry(metadata, bytes(100))])
    await topic.subscriptions.create("bench", BEFORE_ALL, replicated=True)
