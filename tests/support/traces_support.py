"""A collector of traces in this process, and two linked workers that send it their spans."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from aiohttp import web
from failover_support import free_ports
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span as ProtoSpan

from replicator.topology import Topology, load_topology
from replicator.worker.starting import start_worker
from replicator.worker.worker import Worker

DEADLINE_SECONDS = 120.0
T = TypeVar("T")


@dataclass(frozen=True)
class Seen:
    """A span as the collector got it."""

    cluster: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    attributes: dict[str, Any]
    links: tuple[tuple[str, str], ...]
    start_ns: int
    end_ns: int
    error: str
    kind: int

    @property
    def operation(self) -> str:
        return self.name.partition(" ")[0]


class Collector:
    """Collector that takes OTLP over HTTP at ``/v1/traces``."""

    def __init__(self) -> None:
        self.spans: list[Seen] = []
        self.status = 200
        self.requests = 0
        self.headers: list[dict[str, str]] = []
        self._changed = threading.Condition()
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def start(self) -> None:
        app = web.Application(client_max_size=64 * 1024**2)
        app.router.add_post("/v1/traces", self._take)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _take(self, request: web.Request) -> web.Response:
        taken = ExportTraceServiceRequest.FromString(await request.read())
        with self._changed:
            self.requests += 1
            if self.status == 200:
                self.spans += [
                    _seen(_values(of_resource.resource)["service.instance.id"], span)
                    for of_resource in taken.resource_spans
                    for of_scope in of_resource.scope_spans
                    for span in of_scope.spans
                ]
            self._changed.notify_all()
        return web.Response(
            status=self.status,
            body=ExportTraceServiceResponse().SerializeToString(),
            content_type="application/x-protobuf",
        )

    def wait_for(self, found: Callable[[list[Seen]], T | None]) -> T:
        """Wait until ``found`` returns something for the spans, and return that."""
        with self._changed:
            until = time.monotonic() + DEADLINE_SECONDS
            while (result := found(self.spans)) is None:
                assert self._changed.wait(until - time.monotonic()), [(s.cluster, s.name) for s in self.spans]
            return result

    def trace(self, trace_id: str, *operations: str) -> dict[str, Seen]:
        """Return the spans of a trace by operation, once these are there."""

        def found(spans: list[Seen]) -> dict[str, Seen] | None:
            of_trace = {f"{each.operation} {each.cluster}": each for each in spans if each.trace_id == trace_id}
            return of_trace if set(operations) <= of_trace.keys() else None

        return self.wait_for(found)

    def seen_of(self, trace_id: str) -> list[Seen]:
        return [each for each in self.spans if each.trace_id == trace_id]


def _seen(cluster: str, span: ProtoSpan) -> Seen:
    return Seen(
        cluster,
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        _values(span),
        tuple((each.trace_id.hex(), each.span_id.hex()) for each in span.links),
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        span.status.message,
        span.kind,
    )


def _values(holder: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in holder.attributes}


@dataclass
class TracedPair:
    """Workers of ``us-east`` and ``eu-west`` with links both ways, on a thread; one collector for both."""

    collector: Collector
    topology: Topology
    workers: dict[str, Worker] = field(default_factory=dict)
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)

    def url(self, cluster: str) -> str:
        return self.topology.cluster(cluster).pulsar_url

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the event loop of the workers."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(DEADLINE_SECONDS * 2)

    def status(self, cluster: str) -> dict[str, Any]:
        async def asked() -> dict[str, Any]:
            traces = self.workers[cluster].parts.traces
            assert traces is not None
            return traces.status()

        return self.run(asked())


@contextlib.contextmanager
def traced_pair(more: str = "") -> Iterator[TracedPair]:
    """Yield a traced pair; ``more`` stands in the section ``traces`` beside the endpoint."""
    directory = Path(tempfile.mkdtemp(prefix="pg-"))
    ports = free_ports(2)
    collector = Collector()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="workers of a test", daemon=True)
    thread.start()

    def run(work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, loop).result(DEADLINE_SECONDS * 2)

    run(collector.start())
    file = directory / "topology.yaml"
    file.write_text(
        "clusters:\n"
        f"  us-east: {{address: '127.0.0.1:{ports[0]}', data: {directory / 'us'}}}\n"
        f"  eu-west: {{address: '127.0.0.1:{ports[1]}', data: {directory / 'eu'}}}\n"
        "links: [{between: [us-east, eu-west]}]\n"
        "pipeline: {engine: embedded}\n"
        f"traces: {{endpoint: '{collector.url}'{more}}}\n"
    )
    pair = TracedPair(collector, load_topology(file), loop=loop)

    async def start() -> None:
        started = await asyncio.gather(*(start_worker(pair.topology, name) for name in pair.topology.names))
        pair.workers = dict(zip(pair.topology.names, started, strict=True))

    async def stop() -> None:
        await asyncio.gather(*(worker.stop() for worker in pair.workers.values()))

    try:
        run(start())
        yield pair
    finally:
        run(stop())
        run(collector.stop())
        loop.call_soon_threadsafe(loop.stop)
        thread.join(DEADLINE_SECONDS)
        loop.close()
        shutil.rmtree(directory, ignore_errors=True)
